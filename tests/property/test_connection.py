"""The upstream connection beside h11: both read the same answers, however they are cut."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import pairwise

import h11
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from turnlog.record.deadlines import Progress
from turnlog.record.errors import Failure
from turnlog.transport.http_client import Connection

METHODS = st.sampled_from(["GET", "POST", "HEAD"])
TOKENS = st.text("abcXYZ-019", min_size=1, max_size=12).filter(lambda name: name[0].isalpha())
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=20)
LAST_CHUNK = b"0\r\n"
TRAILERS = b"X-Trailer: 1\r\n\r\n"
IN_TRAILERS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX-Trai"
FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "upgrade"})


class Seen(Struct, frozen=True):
    """What a reader made of an answer."""

    status: int
    headers: list[tuple[bytes, bytes]]
    """Without Content-Length."""
    body: bytes


@st.composite
def heads(draw: st.DrawFn, statuses: st.SearchStrategy[int]) -> bytes:
    """A status line with fields that say nothing of framing."""
    fields = draw(st.lists(st.tuples(TOKENS, VALUES), max_size=5))
    lines = [f"{k}: {v}" for k, v in fields if k.lower() not in FRAMING]
    return "\r\n".join([f"HTTP/1.1 {draw(statuses)} Some Reason", *lines]).encode() + b"\r\n"


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """An answer in any sound framing, maybe behind interim ones."""
    interim = draw(st.lists(heads(st.sampled_from([100, 102, 103])), max_size=2))
    head = draw(heads(st.sampled_from([200, 201, 204, 304, 404, 503])))
    body = draw(st.binary(max_size=200))
    framed: Callable[[bytes, bytes], bytes] = draw(
        st.sampled_from([with_length, in_chunks, until_close])
    )
    return b"".join(each + b"\r\n" for each in interim) + framed(head, body)


def with_length(head: bytes, body: bytes) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def in_chunks(head: bytes, body: bytes) -> bytes:
    pieces = [body[at : at + 7] for at in range(0, len(body), 7)]
    chunks = b"".join(b"%x;note=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + LAST_CHUNK + TRAILERS


def until_close(head: bytes, body: bytes) -> bytes:
    return head + b"\r\n" + body


def by_h11(method: str, data: bytes) -> Seen | None:
    """Read an answer with h11; `None` where it is cut or wrong."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(data)
    reader.receive_data(b"")
    status, headers, body = 0, list[tuple[bytes, bytes]](), b""
    try:
        while True:
            event = reader.next_event()
            match event:
                case h11.Response():
                    status, fields = event.status_code, event.headers.raw_items()
                    headers = [pair for pair in fields if pair[0].lower() != b"content-length"]
                case h11.Data():
                    body += bytes(event.data)
                case h11.EndOfMessage():
                    return Seen(status, headers, body)
                case h11.InformationalResponse():
                    pass
                case _:
                    return None
    except h11.RemoteProtocolError:
        return None


async def by_turnlog(method: str, data: bytes, cuts: list[int]) -> Seen | None:
    """Read an answer that arrives in pieces; `None` where it is cut or wrong."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    _, connection = await asyncio.get_running_loop().create_connection(Connection, sock=ours)
    with theirs:
        connection.begin(method, Progress(), b"")
        places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
        # Bytes behind the end of an answer make the connection close.
        with suppress(OSError):
            for start, end in pairwise(places):
                theirs.sendall(data[start:end])
                await asyncio.sleep(0)
            theirs.shutdown(socket.SHUT_WR)
        try:
            return await read(connection)
        except Failure:
            return None
        finally:
            connection.abort()


async def behind(before: bytes, data: bytes) -> Seen | None:
    """Read an answer that comes behind another one on the same connection, if one may."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    _, connection = await asyncio.get_running_loop().create_connection(Connection, sock=ours)
    with theirs:
        try:
            for each in (before, data):
                connection.begin("GET", Progress(), b"")
                connection.data_received(each)
                if each is data:
                    connection.eof_received()
                    connection.connection_lost(None)
                seen = await read(connection)
                if each is before and not connection.finish():
                    return None
        except Failure:
            return None
        finally:
            connection.abort()
    return seen


async def read(connection: Connection) -> Seen:
    async with asyncio.timeout(10):
        await connection.answered()
        head = connection.head
        body = b""
        while piece := await connection.read():
            body += piece
    return Seen(head.status, list(head.raw), body)


@settings(max_examples=150)
@given(METHODS, answers(), st.lists(st.integers(0, 5000), max_size=6))
def test_sound_answers_are_read_as_h11_reads_them(
    method: str, data: bytes, cuts: list[int]
) -> None:
    assert asyncio.run(by_turnlog(method, data, cuts)) == by_h11(method, data)


@settings(max_examples=150)
@given(METHODS, answers(), st.integers(0, 5000), st.lists(st.integers(0, 5000), max_size=4))
@example("GET", IN_TRAILERS + b"ler: 1\r\n\r\n", len(IN_TRAILERS), [])
@example("GET", IN_TRAILERS + b"ler: 1\r\n\r\n", len(IN_TRAILERS) + 7, [])
def test_an_answer_that_is_cut_never_passes_for_a_whole_one(
    method: str, data: bytes, end: int, cuts: list[int]
) -> None:
    cut = data[: end % (len(data) + 1)]
    # RFC 9112, 8: the last chunk ends a body, whether or not the trailers came.
    last = len(data) - len(TRAILERS) if data.endswith(LAST_CHUNK + TRAILERS) else len(data)
    whole = data if len(cut) >= last else cut
    assert asyncio.run(by_turnlog(method, cut, cuts)) == by_h11(method, whole)


@settings(max_examples=200)
@given(answers(), st.integers(0, 5000), st.binary(min_size=1, max_size=3))
def test_garbage_is_never_read_as_more_than_h11_reads(data: bytes, at: int, noise: bytes) -> None:
    place = at % (len(data) + 1)
    broken = data[:place] + noise + data[place:]
    ours, theirs = asyncio.run(by_turnlog("GET", broken, [])), by_h11("GET", broken)
    # Either may refuse what the other is lenient about; what both accept is the same body.
    if ours is not None and theirs is not None:
        assert (ours.status, ours.body) == (theirs.status, theirs.body)


@settings(max_examples=200)
@given(heads(st.sampled_from([200, 404])), st.binary(max_size=50), st.binary(max_size=50))
def test_an_answer_with_a_head_that_came_before_is_read_as_h11_reads_it(
    head: bytes, first: bytes, second: bytes
) -> None:
    whole = with_length(head, second)
    assert asyncio.run(behind(with_length(head, first), whole)) == by_h11("GET", whole)


@settings(max_examples=200)
@given(
    heads(st.sampled_from([200, 404])), st.binary(max_size=50), st.integers(0, 5000), st.binary()
)
def test_what_came_before_makes_no_other_answer_of_one(
    head: bytes, body: bytes, at: int, noise: bytes
) -> None:
    whole = with_length(head, body)
    place = at % (len(whole) + 1)
    other = whole[:place] + noise + whole[place:]
    ours = asyncio.run(behind(whole, other))
    assert ours is None or ours == asyncio.run(by_turnlog("GET", other, []))


STRAY = st.sampled_from([b"", b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n"])


async def on_one_connection(answers: list[tuple[bytes, list[int]]]) -> list[Seen]:
    """Read answers one after the other; on a new connection only where the last one cannot go on."""
    seen: list[Seen] = []
    with ExitStack() as opened:
        connection = await connected(opened)
        for data, cuts in answers:
            connection.begin("POST", Progress(), b"")
            places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
            for start, end in pairwise(places):
                connection.data_received(data[start:end])
            seen.append(await read(connection))
            if not connection.finish():
                connection = await connected(opened)
    return seen


async def connected(opened: ExitStack) -> Connection:
    """Return a connection to a server that says nothing by itself, until `opened` is closed."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    opened.enter_context(theirs)
    _, connection = await asyncio.get_running_loop().create_connection(Connection, sock=ours)
    opened.callback(connection.abort)
    return connection


@settings(max_examples=200)
@given(
    heads(st.sampled_from([200, 404])),
    st.sampled_from([with_length, in_chunks]),
    st.lists(
        st.tuples(
            STRAY,
            st.sampled_from([b"", b"\n", b"same size", b"same\r\n\r\n"]),
            STRAY,
            st.lists(st.integers(0, 500), max_size=2),
        ),
        min_size=2,
        max_size=4,
    ),
)
def test_line_ends_around_an_answer_change_neither_it_nor_a_later_one(
    head: bytes,
    framed: Callable[[bytes, bytes], bytes],
    answers: list[tuple[bytes, bytes, bytes, list[int]]],
) -> None:
    sent = [(before + framed(head, body) + behind, cuts) for before, body, behind, cuts in answers]
    expected = [by_h11("POST", framed(head, body)) for _, body, _, _ in answers]
    assert asyncio.run(on_one_connection(sent)) == expected
