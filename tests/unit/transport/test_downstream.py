import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from kit.clients import BOUND, Client, ClosedEarlyError, Head
from turnlog.engine.http.handler import Handler
from turnlog.transport.http_server import (
    AgentGone,
    AgentServer,
    Answer,
    Downstream,
)

Handle = Callable[[Downstream], Awaitable[None]]
GET = b"GET /a//b?x= HTTP/1.1\r\nHost: h\r\n\r\n"
OLD = b"GET / HTTP/1.0\r\nHost: h\r\n\r\n"
SORRY = b"HTTP/1.1 %d Sorry\r\nConnection: close\r\n\r\n"
LINES = b"\r\nX-A: 1\r\nx-a: \xe9"


@asynccontextmanager
async def served(handle: Handle) -> AsyncGenerator[str]:
    """Serve requests as `Downstream`s; yield the URL."""

    async def answer(down: Downstream) -> bool:
        try:
            await handle(down)
        except AgentGone:
            down.abort()
        return down.done()

    async with serving(answer) as url:
        yield url


@asynccontextmanager
async def serving(
    answer: Answer,
) -> AsyncGenerator[str]:
    """Serve requests; yield the URL."""
    server = AgentServer(answer, lambda status, _: SORRY % status)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        await server.stop(0.1)


async def given(handle: Handle, raw: bytes) -> bytes:
    """Return all that comes back for `raw` until the server closes."""

    def ask(url: str) -> bytes:
        with Client(url) as client:
            client.send(raw)
            return client.rest()

    async with served(handle) as url:
        return await asyncio.to_thread(ask, url)


CLOSING = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


async def test_head_never_gets_a_body() -> None:
    async def answer(down: Downstream) -> None:
        await down.answer(200, b"OK", b"", b"body")

    async def fail(down: Downstream) -> None:
        down.fail(b"HTTP/1.1 500 Sorry\r\nContent-Length: 4\r\n\r\nbody")

    asked = CLOSING.replace(b"GET", b"HEAD")
    assert (await given(answer, asked)).endswith(
        b"\r\nContent-Length: 4\r\nConnection: close\r\n\r\n"
    )
    assert await given(fail, asked) == b"HTTP/1.1 500 Sorry\r\nContent-Length: 4\r\n\r\n"


async def test_a_whole_answer_is_written_as_it_is() -> None:
    async def handle(down: Downstream) -> None:
        await down.answer(299, b"Odd \xe9", LINES, b"body")

    assert await given(handle, CLOSING) == (
        b"HTTP/1.1 299 Odd \xe9\r\nX-A: 1\r\nx-a: \xe9\r\nContent-Length: 4\r\n"
        b"Connection: close\r\n\r\nbody"
    )


async def test_an_answer_without_body_says_nothing_of_its_length() -> None:
    async def handle(down: Downstream) -> None:
        await down.bodiless(304, b"Same", b"\r\nContent-Length: 9")

    assert await given(handle, CLOSING) == (
        b"HTTP/1.1 304 Same\r\nContent-Length: 9\r\nConnection: close\r\n\r\n"
    )


async def test_a_body_of_unknown_length_is_chunked() -> None:
    async def handle(down: Downstream) -> None:
        await down.start(200, b"OK", b"", None)
        await down.write(b"")
        await down.write(b"one")
        await down.end(b"last")

    assert await given(handle, CLOSING) == (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b"3\r\none\r\n4\r\nlast\r\n0\r\n\r\n"
    )


@pytest.mark.parametrize("raw", [CLOSING, OLD])
@pytest.mark.parametrize("length", [None, 8])
async def test_the_received_part_of_a_body_is_sent_with_the_head(
    raw: bytes, length: int | None
) -> None:
    async def apart(down: Downstream) -> None:
        await down.start(200, b"OK", b"", length)
        await down.write(b"one ")
        await down.end(b"more")

    async def together(down: Downstream) -> None:
        await down.start(200, b"OK", b"", length, b"one ")
        await down.end(b"more")

    assert await given(together, raw) == await given(apart, raw)


@pytest.mark.parametrize("raw", [CLOSING, OLD, GET])
@pytest.mark.parametrize(("length", "body"), [(None, b"all"), (3, b"all"), (None, b""), (0, b"")])
async def test_an_answer_may_be_started_and_ended_at_once(
    raw: bytes, length: int | None, body: bytes
) -> None:
    stays: list[bool] = []

    async def apart(down: Downstream) -> None:
        await down.start(200, b"OK", b"", length)
        await down.end(body)
        stays.append(down.done())
        down.agent.close()

    async def together(down: Downstream) -> None:
        await down.start(200, b"OK", b"", length, body, ends=True)
        stays.append(down.done())
        down.agent.close()

    assert await given(together, raw) == await given(apart, raw)
    assert stays == [raw is GET] * 2


async def test_a_body_of_known_length_is_not() -> None:
    async def handle(down: Downstream) -> None:
        await down.start(200, b"OK", b"", 7)
        await down.write(b"one")
        await down.end(b"last")

    assert await given(handle, CLOSING) == (
        b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nonelast"
    )


async def test_for_an_agent_of_1_0_the_end_of_the_connection_is_the_end_of_the_body() -> None:
    async def handle(down: Downstream) -> None:
        assert down.asked.version == (1, 0)
        await down.start(200, b"OK", b"", None)
        await down.write(b"one")
        await down.end()

    assert await given(handle, OLD) == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\none"


async def test_an_agent_of_1_0_that_wants_to_stay_is_told_that_it_may() -> None:
    async def handle(down: Downstream) -> None:
        await down.answer(200, b"OK", b"", b"")

    staying = OLD.replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n")

    def ask(url: str) -> list[Head]:
        with Client(url) as client:
            client.send(staying)
            first = client.head()
            client.send(staying)
            return [first, client.head()]

    async with served(handle) as url:
        heads = await asyncio.to_thread(ask, url)
    assert [head.one("connection") for head in heads] == ["keep-alive", "keep-alive"]


@pytest.mark.parametrize("length", [10, None])
@pytest.mark.parametrize("raw", [GET, OLD])
async def test_an_aborted_answer_looks_cut(raw: bytes, length: int | None) -> None:
    async def handle(down: Downstream) -> None:
        await down.start(200, b"OK", b"", length)
        await down.write(b"one")
        down.abort()

    def ask(url: str) -> bytes:
        with Client(url) as client:
            client.send(raw)
            head = client.head()
            if head.one("connection") == "close" and length is None:
                return client.rest()
            with pytest.raises(ClosedEarlyError):
                client.body(head)
            return b""

    async with served(handle) as url:
        # Where the end of the connection ends the body, only a reset tells; it may drop the rest.
        assert await asyncio.to_thread(ask, url) in {b"", b"one"}


async def test_a_request_is_seen_as_it_came() -> None:
    seen: list[object] = []

    async def handle(down: Downstream) -> None:
        seen.extend(
            [down.asked.method, down.asked.target, list(down.asked.head.raw), down.asked.version]
        )
        await down.answer(200, b"OK", b"", b"")

    raw = b"PURGE /a//b?x= HTTP/1.1\r\nHost: h\r\nx-B: \xe9\r\nX-b: 2\r\nConnection: close\r\n\r\n"
    await given(handle, raw)
    assert seen == [
        "PURGE",
        "/a//b?x=",
        [(b"Host", b"h"), (b"x-B", b"\xe9"), (b"X-b", b"2"), (b"Connection", b"close")],
        (1, 1),
    ]


@pytest.mark.parametrize(
    ("size", "limit", "whole"), [(0, 10, True), (9, 10, True), (10, 10, True), (500_000, 10, False)]
)
async def test_a_body_is_read_up_to_a_limit_and_then_in_pieces(
    size: int, limit: int, whole: bool
) -> None:
    sizes: list[int] = []

    async def handle(down: Downstream) -> None:
        body, complete = await down.read(limit)
        assert complete is whole or len(body) == size
        rest = [piece async for piece in down.rest(body)] if not complete else [body]
        sizes.append(sum(map(len, rest)))
        await down.answer(200, b"OK", b"", b"")

    head = b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size
    await given(handle, head + bytes(size))
    assert sizes == [size]


async def test_a_client_that_expects_100_gets_it_when_the_body_is_wanted() -> None:
    async def handle(down: Downstream) -> None:
        body, _ = await down.read(100)
        await down.answer(200, b"OK", b"", body)

    def ask(url: str) -> tuple[int, int, bytes]:
        with Client(url) as client:
            client.ask("POST", "/", headers=(("Expect", "100-Continue"), ("Content-Length", "2")))
            invited = client.head().status
            client.send(b"hi")
            given_ = client.response("POST")
            return invited, given_.status, given_.body

    async with served(handle) as url:
        assert await asyncio.to_thread(ask, url) == (100, 200, b"hi")


async def test_writing_to_an_agent_that_left_raises_gone() -> None:
    outcome: asyncio.Queue[str] = asyncio.Queue()

    async def handle(down: Downstream) -> None:
        await down.start(200, b"OK", b"", None)
        try:
            while True:
                await down.write(bytes(100_000))
        except AgentGone:
            outcome.put_nowait("gone")
            raise
        except asyncio.CancelledError:
            outcome.put_nowait("cancelled")
            raise

    def leave(url: str) -> None:
        with Client(url) as client:
            client.send(GET)
            client.head()

    async with served(handle) as url:
        await asyncio.to_thread(leave, url)
        async with asyncio.timeout(BOUND):
            assert await outcome.get() in {"gone", "cancelled"}


async def test_a_sender_that_expects_100_and_was_invited_early_sends_the_whole_body() -> None:
    async def handle(down: Downstream) -> None:
        assert down.ask()
        body, _ = await down.read(100)
        await down.answer(200, b"OK", b"", body)

    def ask(url: str) -> tuple[bytes, bytes]:
        with Client(url) as client:
            close = ("Connection", "close")
            headers = (("Expect", "100-continue"), ("Content-Length", "2"), close)
            client.ask("POST", "/", headers=headers)
            invited = client.until(b"\r\n\r\n")
            client.send(b"hi")
            return invited, client.rest()

    async with served(handle) as url:
        invited, given_ = await asyncio.to_thread(ask, url)
    assert invited == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert given_.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_each_chunk_may_be_asked_for() -> None:
    async def handle(down: Downstream) -> None:
        await down.start(200, b"OK", b"", None)
        for piece in (b"a", b"b"):
            for _ in range(9):
                assert down.ask()
            await down.write(piece)
        await down.end()

    body = (await given(handle, CLOSING)).partition(b"\r\n\r\n")[2]
    assert body == b"00000001\r\na\r\n00000001\r\nb\r\n0\r\n\r\n"


@pytest.mark.parametrize("error", [RuntimeError, TimeoutError])
async def test_a_fault_behind_a_question_is_told_in_one_piece(error: type[Exception]) -> None:
    async def handle(down: Downstream) -> None:
        for _ in range(4):
            assert down.ask()
        raise error

    assert await given(handle, GET) == SORRY % 500


@pytest.mark.parametrize("ends", ["aborts", "fails"])
async def test_an_answer_that_only_the_close_ends_and_that_was_cut_is_reset(ends: str) -> None:
    async def handle(down: Downstream) -> None:
        await down.start(200, b"OK", b"", None)
        await down.write(b"one")
        raise AgentGone if ends == "aborts" else RuntimeError

    async with served(handle) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(OLD)
        async with asyncio.timeout(BOUND):
            with pytest.raises(ConnectionResetError):
                await reader.read()
        writer.close()


async def test_an_agent_that_ends_its_side_once_it_is_answered_is_hung_up_on() -> None:
    async def answer(down: Downstream) -> bool:
        await down.answer(200, b"OK", b"", b"")
        sent = down.done()
        async with asyncio.timeout(BOUND):
            while not down.agent.half_closed:  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0)
        return sent

    def ask(url: str) -> bytes:
        with Client(url) as client:
            client.send(GET)
            assert client.head().status == 200
            client.end()
            return client.rest()

    async with serving(answer) as url:
        assert await asyncio.to_thread(ask, url) == b""


def test_a_fault_is_told_under_its_own_name() -> None:
    handler = Handler.__new__(Handler)  # of a fault nothing is known
    head, _, body = handler.unread(500, "").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert json.loads(body)["title"] == "Internal Server Error"
    assert json.loads(body)["status"] == 500
