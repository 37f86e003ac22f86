"""Requests as they are read from a connection, however they are cut and in whatever order they come."""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable, Coroutine
from itertools import pairwise

import pytest

from kit.clients import BOUND
from turnlog.transport.http_server import (
    UNFINISHED,
    AgentGone,
    AgentServer,
    Answer,
    Downstream,
)

REQUESTS = [
    b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nGET / HTT",
    b"POST /3 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n\r\n\r\n\r\n0\r\nA: 1\r\n\r\n",
    b"\r\nPOST /4 HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n\r\n\r\n",
    b"FOO /5 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
    b"get /6 HTTP/1.1\r\nHost: h\r\n\r\n",
]
READ = [
    b"GET /1 ",
    b"POST /2 GET / HTT",
    b"POST /3 \r\n\r\n",
    b"POST /4 \r\n\r\n",
    b"FOO /5 abc",
    b"get /6 ",
]


@contextlib.asynccontextmanager
async def reading() -> AsyncGenerator[int]:
    """Serve requests that are told what was read of them; yield the port."""

    async def answer(down: Downstream) -> bool:
        body, _ = await down.read(1000)
        said = f"{down.asked.method} {down.asked.target} ".encode() + body
        await down.answer(200, b"OK", b"", said)
        return down.done()

    async with serving(answer) as port:
        yield port


@contextlib.asynccontextmanager
async def serving(answer: Answer) -> AsyncGenerator[int]:
    """Serve requests; yield the port."""
    server = AgentServer(answer, lambda status, _: b"%d" % status)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        await server.stop(0.1)


async def said(reader: asyncio.StreamReader) -> bytes:
    """Return the body of the next answer; what came where there is none."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return await reader.readexactly(length)


async def one_after_another(port: int, pieces: list[list[bytes]]) -> list[bytes]:
    """Send requests, each in pieces that arrive apart; return what is answered to each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers: list[bytes] = []
    async with asyncio.timeout(BOUND):
        for request in pieces:
            for piece in request:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            answers.append(await said(reader))
    writer.close()
    return answers


@pytest.mark.parametrize("seed", range(20))
async def test_requests_in_any_order_and_any_pieces_are_read_as_they_are(seed: int) -> None:
    dice = random.Random(seed)
    order = [dice.randrange(len(REQUESTS)) for _ in range(8)]
    pieces = [cut(REQUESTS[number], dice) for number in order]
    async with reading() as port:
        assert await one_after_another(port, pieces) == [READ[number] for number in order]


def cut(raw: bytes, dice: random.Random) -> list[bytes]:
    """Cut a request at some places."""
    places = sorted({0, len(raw), *(dice.randrange(len(raw)) for _ in range(dice.randrange(4)))})
    return [raw[start:end] for start, end in pairwise(places)]


async def test_pipelined_requests_of_any_method_are_answered_in_order() -> None:
    async with reading() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(REQUESTS))
        async with asyncio.timeout(BOUND):
            assert [await said(reader) for _ in REQUESTS] == READ
        writer.close()


async def test_a_body_that_reads_like_a_request_before_is_a_body() -> None:
    async with reading() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(BOUND):
            for _ in range(2):
                writer.write(REQUESTS[0])
                assert await said(reader) == READ[0]
            fields = b"Host: h\r\nExpect: 100-continue\r\nContent-Length: %d" % len(REQUESTS[0])
            writer.write(b"POST /7 HTTP/1.1\r\n%b\r\n\r\n" % fields)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            writer.write(REQUESTS[0])
            assert await said(reader) == b"POST /7 " + REQUESTS[0]
        writer.close()


async def test_a_rare_method_whose_beginning_was_pipelined_is_read_whole() -> None:
    async with reading() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # GE came behind a request: what then comes is the rest of GETX, and no method TX.
        writer.write(REQUESTS[0] + b"GE")
        async with asyncio.timeout(BOUND):
            assert await said(reader) == READ[0]
            writer.write(b"TX /rare HTTP/1.1\r\nHost: h\r\n\r\n")
            assert await said(reader) == b"GETX /rare "
        writer.close()


async def test_trailers_are_no_fields_of_the_next_request() -> None:
    headers: list[list[tuple[bytes, bytes]]] = []

    async def answer(down: Downstream) -> bool:
        headers.append(list(down.asked.head.raw))
        await down.answer(200, b"OK", b"", b"")
        return down.done()

    async with serving(answer) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUESTS[2] + REQUESTS[0])
        async with asyncio.timeout(BOUND):
            assert [await said(reader) for _ in range(2)] == [b"", b""]
        writer.close()
    assert headers[1] == [(b"Host", b"h")]


async def test_a_rare_method_behind_more_requests_than_are_read_ahead_is_not_misread() -> None:
    async with reading() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUESTS[0] * 100)
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(REQUESTS[4])
        async with asyncio.timeout(BOUND):
            answers = [await said(reader)]
            while answers[-1] == READ[0]:
                answers.append(await said(reader))
        assert answers[-1] in (b"400", READ[4])
        writer.close()


async def test_line_ends_without_a_request_are_not_kept_without_end() -> None:
    async with reading() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(100):
            writer.write(b"\r\n" * 5001)
            await writer.drain()
        writer.write(REQUESTS[0])
        async with asyncio.timeout(BOUND):
            # More than any head may have: what was kept of them would be refused.
            assert await said(reader) == READ[0]
        writer.close()


async def test_a_refused_agent_reads_why_while_it_is_still_sending() -> None:
    async with reading() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /" + b"a" * 300_000)
        async with asyncio.timeout(BOUND):
            assert await reader.readexactly(3) == b"400"
            # To close with these unread would reset the connection.
            for _ in range(20):
                writer.write(b"a" * 100_000)
                await writer.drain()
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("apart", [False, True])
async def test_a_body_whose_chunks_are_not_sound_is_refused_however_it_is_cut(apart: bool) -> None:
    head, bad = REQUESTS[2].split(b"4\r\n")[0], b"zz\r\n"
    async with reading() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(BOUND):
            if apart:
                writer.write(REQUESTS[0] + head)
                assert await said(reader) == READ[0]
                writer.write(bad)
            else:
                writer.write(head + bad)
            assert await reader.read() == b"400"
        writer.close()


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock a test can put forward."""

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped


def skip(seconds: float) -> None:
    """Let time go by."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop)
    loop.skipped += seconds


def with_time(test: Callable[[], Coroutine[None, None, None]]) -> None:
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(test())


@contextlib.asynccontextmanager
async def noting() -> AsyncGenerator[tuple[int, asyncio.Queue[bytes]]]:
    """Serve requests, and note the pieces of their bodies as they are read."""
    seen = asyncio.Queue[bytes]()

    async def answer(down: Downstream) -> bool:
        if isinstance(down.content, bytes):
            seen.put_nowait(down.content)
        else:
            try:
                async for piece in down.rest(b""):
                    seen.put_nowait(piece)
            except AgentGone:
                return down.done()
        await down.answer(200, b"OK", b"", b"done")
        return down.done()

    async with serving(answer) as port:
        yield port, seen


BODY_BEGUN = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 50\r\n\r\n"
LARGE_BODY_BEGUN = BODY_BEGUN.replace(b"50", b"100000")


@pytest.mark.promise("WAIT-13")
@pytest.mark.parametrize(
    "begun",
    [
        b"G",
        b"\r\nPOST / HTTP/1.1\r\nHost: h\r\n",
        b"FOO / HTTP/1.1\r\nHost: h\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
        BODY_BEGUN,
        LARGE_BODY_BEGUN,
    ],
)
@pytest.mark.parametrize("before", [b"", REQUESTS[0], REQUESTS[4]])
def test_a_request_that_does_not_go_on_is_answered_and_closed(begun: bytes, before: bytes) -> None:
    async def test() -> None:
        async with noting() as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            if before:
                writer.write(before)
                assert await said(reader) == b"done"
            writer.write(begun)
            async with asyncio.TaskGroup() as group:
                ended = group.create_task(reader.read())
                while not ended.done():
                    # Until the server has read the start there is no time that could be over.
                    skip(UNFINISHED)
                    await asyncio.sleep(0.001)
            assert ended.result() == b"408"
            writer.close()

    with_time(test)


@pytest.mark.promise("WAIT-13")
def test_a_body_that_goes_on_is_waited_for() -> None:
    async def test() -> None:
        async with noting() as (port, seen):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(LARGE_BODY_BEGUN)
            assert await seen.get() == b""
            for _ in range(50):
                skip(0.9 * UNFINISHED)
                writer.write(bytes(2000))
                assert await seen.get() == bytes(2000)
            assert await said(reader) == b"done"
            writer.close()

    with_time(test)


def test_a_small_body_that_goes_on_is_waited_for() -> None:
    async def test() -> None:
        async with noting() as (port, seen):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            other, answered = await asyncio.open_connection("127.0.0.1", port)
            writer.write(BODY_BEGUN)
            for _ in range(50):
                writer.write(b"x")
                # What another connection is answered comes behind what was read of this one.
                answered.write(REQUESTS[0])
                assert await said(other) == b"done"
                skip(0.9 * UNFINISHED)
            assert await said(reader) == b"done"
            answered.close()
            writer.close()
            assert seen.qsize() == 51

    with_time(test)


def test_a_request_that_begins_after_a_long_idle_time_is_waited_for() -> None:
    async def test() -> None:
        async with noting() as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            other, answered = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUESTS[0])
            assert await said(reader) == b"done"
            skip(3600)
            writer.write(BODY_BEGUN)
            for _ in range(2):
                # What another connection is answered comes behind what was read of this one.
                answered.write(REQUESTS[0])
                assert await said(other) == b"done"
                skip(60)
            writer.write(bytes(50))
            assert await said(reader) == b"done"
            answered.close()
            writer.close()

    with_time(test)


@pytest.mark.parametrize("stray", [b"", b"\r\n", b"\r\n\r\n"])
@pytest.mark.parametrize("before", [REQUESTS[0], REQUESTS[2], REQUESTS[4]])
def test_an_idle_connection_is_not_closed(before: bytes, stray: bytes) -> None:
    async def test() -> None:
        async with noting() as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            other, closing = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3):
                writer.write(before)
                assert await said(reader) == b"done"
                writer.write(stray)
                # What another connection is answered comes behind what was stray on this one.
                closing.write(REQUESTS[0])
                assert await said(other) == b"done"
                skip(2 * UNFINISHED)
                closing.write(REQUESTS[0])
                assert await said(other) == b"done"
            closing.close()
            writer.close()

    with_time(test)
