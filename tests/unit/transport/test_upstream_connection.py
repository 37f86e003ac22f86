"""Heads of answers as they come off a connection: large, in tiny pieces, mended, refused."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

import pytest

from kit.clients import BOUND
from turnlog.core.kinds import ErrorKind
from turnlog.record.deadlines import Progress
from turnlog.record.errors import Failure
from turnlog.transport.http1 import HEAD_LIMIT, READ_AHEAD
from turnlog.transport.http_client import Connection
from turnlog.transport.message_heads import Raw

FOLDED = b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n"
HINT = b"HTTP/1.1 103 Hints\r\nX: " + b"x" * 1000 + b"\r\n\r\n"
FOLDED_HINT = HINT.replace(b"\r\n\r\n", b"\r\n x\r\n\r\n")
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
CLOSING = b"HTTP/1.1 103 Hints\r\nConnection: close\r\n\r\n"
REFUSED = (b"SSH-2.0-OpenSSH_9.6\r\n", b"-ERR unknown command\r\n", b"\x15\x03\x01\x00\x02\x02\x46")


@asynccontextmanager
async def asked() -> AsyncGenerator[tuple[Connection, socket.socket]]:
    """Yield a connection on which a request was sent, and the server's side."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    _, connection = await asyncio.get_running_loop().create_connection(Connection, sock=ours)
    connection.begin("GET", Progress(), b"")
    try:
        with theirs:
            yield connection, theirs
    finally:
        connection.abort()


async def status(pieces: Iterable[bytes]) -> int:
    """Return the status of an answer whose pieces come in reads of their own."""
    async with asked() as (connection, _):
        for piece in pieces:
            connection.data_received(piece)
        async with asyncio.timeout(BOUND):
            await connection.answered()
            return connection.head.status


async def failure(raw: bytes, *, ends: bool) -> ErrorKind:
    """Return how an exchange fails whose server says this, and closes then or does not."""
    async with asked() as (connection, server):
        server.sendall(raw)
        if ends:
            server.shutdown(socket.SHUT_WR)
        with pytest.raises(Failure) as caught:
            async with asyncio.timeout(BOUND):
                await connection.answered()
        return caught.value.kind


@pytest.mark.parametrize("raw", REFUSED)
async def test_a_server_that_speaks_another_protocol_is_not_waited_for(raw: bytes) -> None:
    assert await failure(raw, ends=False) is ErrorKind.MALFORMED_RESULT


@pytest.mark.parametrize("raw", [*REFUSED, b"HTTP/1.1 OK\r\n", FOLDED + b"Content-Length: 4x\r\n"])
async def test_a_head_that_was_refused_before_it_broke_off_is_malformed(raw: bytes) -> None:
    assert await failure(raw, ends=True) is ErrorKind.MALFORMED_RESULT


@pytest.mark.parametrize(
    "raw", [b"", b"HTTP/1.1 200", FOLDED, FOLDED + b"Y: \0", FOLDED + b"Content-Length: 4, 4"]
)
async def test_a_head_that_could_have_been_one_is_lost(raw: bytes) -> None:
    assert await failure(raw, ends=True) is ErrorKind.CONNECTION_LOST


async def test_bytes_before_a_refused_head_are_not_part_of_it() -> None:
    assert await status([b"\r\n", b"\r\n" + FOLDED, b"Content-Length: 0\r\n\r\n"]) == 200
    assert await failure(HINT + REFUSED[0], ends=False) is ErrorKind.MALFORMED_RESULT


@pytest.mark.parametrize("hint", [HINT, FOLDED_HINT])
@pytest.mark.parametrize("before", [b"", b"\r\n"])
async def test_a_head_is_mended_wherever_it_stands(hint: bytes, before: bytes) -> None:
    whole = before + hint + before + hint + before + FOLDED + b"Content-Length: 0\r\n\r\n"
    for cut in range(0, len(whole), 97):
        assert await status([whole[:cut], whole[cut:]]) == 200


async def test_a_full_read_that_begins_with_a_head_to_mend_is_an_answer() -> None:
    whole = FOLDED + b"Content-Length: 1000000\r\n\r\n" + bytes(1_000_000)
    assert await status([whole[:READ_AHEAD]]) == 200


async def test_a_head_to_mend_may_be_as_long_as_any() -> None:
    rest = b"Y: " + b"y" * (HEAD_LIMIT - 1000) + b"\r\nContent-Length: 0\r\n\r\n"
    assert await status([FOLDED + rest]) == 200


async def test_a_head_to_mend_may_come_in_tiny_pieces() -> None:
    whole = FOLDED + b"Y: " + b"y" * (HEAD_LIMIT - 1000) + b"\r\nContent-Length: 0\r\n\r\n"
    assert await status(whole[at : at + 1] for at in range(len(whole))) == 200


@pytest.mark.parametrize("hint", [HINT, FOLDED_HINT, b"HTTP/1.1 100 \r\n\r\n"])
async def test_each_interim_head_has_the_limit_for_itself(hint: bytes) -> None:
    hints = [hint] * (2 * HEAD_LIMIT // len(hint))
    assert await status([*hints, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]) == 200
    whole = b"".join([*hints, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
    reads = [whole[at : at + READ_AHEAD] for at in range(0, len(whole), READ_AHEAD)]
    assert await status(reads) == 200


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\n", FOLDED, HINT + FOLDED])
async def test_a_head_has_an_end(start: bytes) -> None:
    piece = b"Y: " + b"y" * 1000 + b"\r\n"
    with pytest.raises(Failure) as caught:
        await status([start, *[piece] * (HEAD_LIMIT // 1000)])
    assert caught.value.kind is ErrorKind.MALFORMED_RESULT


@pytest.mark.parametrize(
    "raw", [CLOSING + GOOD, CLOSING * 2 + GOOD, b"HTTP/1.0 100 Continue\r\n\r\n" + GOOD]
)
async def test_an_answer_behind_a_closing_interim_one_is_read_wherever_it_is_cut(
    raw: bytes,
) -> None:
    for cut in range(1, len(raw)):
        assert await status((raw[:cut], raw[cut:])) == 200


async def answered(connection: Connection, raw: bytes, method: str = "GET") -> tuple[int, bytes]:
    """Return status and body of an answer to another request, which comes in one piece."""
    assert connection.finish()
    connection.begin(method, Progress(), b"")
    connection.data_received(raw)
    async with asyncio.timeout(BOUND):
        await connection.answered()
        return connection.head.status, await connection.read()


BARE = b"HTTP/1.1 200 OK\nContent-Length: 4\n\nbare"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n"


@pytest.mark.parametrize("before", [GOOD, CHUNKED])
async def test_a_lone_line_feed_ends_a_line_of_any_answers_head(before: bytes) -> None:
    async with asked() as (connection, _):
        connection.data_received(before)
        assert await connection.read() == b"good"
        assert await answered(connection, BARE) == (200, b"bare")


async def test_a_head_that_came_before_tells_of_each_answer_anew() -> None:
    async with asked() as (connection, _):
        connection.data_received(GOOD)
        assert await connection.read() == b"good"
        assert await answered(connection, GOOD.replace(b"4\r\n\r\ngood", b"6\r\n\r\nbetter")) == (
            200,
            b"better",
        )
        assert connection.length == 6
        assert await answered(connection, GOOD.replace(b"200", b"500")) == (500, b"good")
        assert await answered(connection, GOOD[: -len(b"good")], "HEAD") == (200, b"")


async def test_bytes_behind_an_answer_whose_head_came_earlier_end_the_connection() -> None:
    async with asked() as (connection, _):
        connection.data_received(GOOD)
        assert await connection.read() == b"good"
        assert await answered(connection, GOOD + b"HTTP/1.1 200 OK\r\n") == (200, b"good")
        assert not connection.finish()


async def test_an_interim_answer_is_handed_on_each_time_that_it_comes() -> None:
    seen: list[int] = []

    def interim(status: int, reason: bytes, raw: Raw) -> None:
        seen.append(status)

    async with asked() as (connection, _):
        connection.data_received(HINT + GOOD)
        assert await connection.read() == b"good"
        for _ in range(2):
            assert connection.finish()
            connection.begin("GET", Progress(), b"", interim)
            connection.data_received(HINT + GOOD)
            assert await connection.read() == b"good"
    assert seen == [103, 103]


@pytest.mark.parametrize("more", [b"", b"HTTP/1.1 408 Request Timeout\r\n\r\n"])
async def test_a_server_that_closes_or_speaks_behind_its_answer_is_noticed_at_once(
    more: bytes,
) -> None:
    async with asked() as (connection, server):
        server.sendall(GOOD)
        async with asyncio.timeout(BOUND):
            await connection.answered()
            assert await connection.read() == b"good"
        assert connection.finish()
        assert connection.is_quiet()
        if more:
            server.sendall(more)
        else:
            server.shutdown(socket.SHUT_WR)
        # The loop has not looked since.
        assert not connection.is_quiet()


async def test_a_request_on_a_connection_that_was_just_lost_fails_at_once() -> None:
    async with asked() as (connection, server):
        server.sendall(GOOD)
        async with asyncio.timeout(BOUND):
            await connection.answered()
            assert await connection.read() == b"good"
        assert connection.finish()
        connection.connection_lost(None)
        with pytest.raises(Failure) as caught:
            connection.begin("GET", Progress(), b"")
        assert caught.value.kind is ErrorKind.CONNECTION_LOST
