"""Law of requests whose head came before: what is read without a parser is what the parser reads."""

import asyncio
from contextlib import suppress

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from turnlog.engine.http.agent_connection import AgentConnection, AgentServer
from turnlog.transport.request_heads import AgentRequest
from turnlog.transport.request_parser import RequestReader

BODIES = [b"", b"ab", b"abc", b"\r\n\r\n", b"0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"]
LINES = [
    b"Content-Length: %d",
    b"content-length: %d",
    b"CONTENT-LENGTH: %d",
    b"Content-Length:  %d ",
    b"X-Length: %d",
    b"Content-Length: 2",
    b"Content-Length: ",
    b"content-length: ",
    b"Transfer-Encoding: chunked",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Expect: 100-continue",
    b"X-A: \xe9",
    b" folded",
]
STARTS = [b"POST /a HTTP/1.1", b"GET /a HTTP/1.1", b"POST /a HTTP/1.0", b"\r\nPOST /a HTTP/1.1"]


class Seen(Struct, frozen=True):
    """What a reader made of a request."""

    line: tuple[str, str, tuple[int, int], bool]
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Something like a request, whose length may be told in several ways, or wrongly."""
    body = draw(st.sampled_from(BODIES))
    told = draw(st.lists(st.sampled_from(LINES), max_size=3))
    lines = [line % len(body) if b"%d" in line else line for line in told]
    head = [draw(st.sampled_from(STARTS)), b"Host: h", *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


async def never(_: AgentConnection, __: AgentRequest) -> bool:
    raise AssertionError


async def seen(request: AgentRequest) -> Seen:
    start, body = request.start, request.body
    whole = await body.read() if isinstance(body, StreamReader) else body
    line = (start.method, start.target, start.version, start.keeps)
    return Seen(line, tuple(request.headers), whole)


def sent_to(server: AgentServer, data: bytes) -> list[AgentRequest]:
    """Return what a parser reads on a new connection; nothing where it is wrong."""
    reader = server()._parser  # pyright: ignore[reportPrivateUsage] - it has no other name
    assert isinstance(reader, RequestReader)
    with suppress(HttpProcessingError):
        return [request for request, _ in reader.feed_data(data)[0]]
    return []


@given(st.lists(requests(), max_size=4), requests())
def test_what_is_read_at_once_is_what_the_parser_reads(before: list[bytes], data: bytes) -> None:
    async def read() -> tuple[Seen | None, list[Seen]]:
        known = AgentServer(never, lambda _, __: b"")
        for one in (*before, data.replace(b": 3", b": 2").replace(b"abc", b"ab")):
            sent_to(known, one)
            sent_to(known, one)
        start = known.starts.find(data)
        found = start.read(data) if start is not None else None
        fresh = sent_to(AgentServer(never, lambda _, __: b""), data) if found is not None else []
        return await seen(found) if found is not None else None, [await seen(r) for r in fresh]

    at_once, parsed = asyncio.run(read())
    assert at_once is None or [at_once] == parsed


STRAY = st.sampled_from([*[b""] * 12, b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"x", b" "])
SOUND = [
    b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab",
    b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
]


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """What an agent sends on one connection, as it is read: with bytes too many, and cut anywhere."""
    often = draw(st.sampled_from(SOUND))
    # What comes for the third time may be known.
    reads = [often] * draw(st.integers(0, 2))
    for request in draw(st.lists(st.just(often) | st.sampled_from(SOUND), min_size=1, max_size=5)):
        place = draw(st.integers(0, len(request)))
        inside = draw(st.sampled_from([b""] * 12 + [b"\n"]))
        sent = draw(STRAY) + request[:place] + inside + request[place:] + draw(STRAY)
        cut = draw(st.sampled_from([0] * 5 + [1, 9, len(request) - 1, len(request)]))
        reads += filter(None, (sent[:cut], sent[cut:]))
    return reads


async def conversed(reads: list[bytes], *, fast: bool) -> list[Seen | str]:
    """Return what becomes of a conversation, each request answered before more is read."""
    connection = AgentServer(never, lambda _, __: b"")()
    reader = connection._parser  # pyright: ignore[reportPrivateUsage] - it has no other name
    assert isinstance(reader, RequestReader)
    begun: list[AgentRequest] = []
    for data in reads:
        request = reader.at_once(data) if fast else None
        if request is not None:
            begun.append(request)
            continue
        try:
            for request, _ in reader.feed_data(data)[0]:
                begun.append(request)
                reader.message_consumed()
        except HttpProcessingError as error:
            return [*[await seen(one) for one in begun if is_whole(one)], type(error).__name__]
    return [await seen(one) for one in begun if is_whole(one)]


def is_whole(request: AgentRequest) -> bool:
    return isinstance(request.body, bytes) or (
        request.body.is_eof() and request.body.exception() is None
    )


@settings(max_examples=400)
@given(conversations())
def test_a_connection_reads_the_same_with_what_it_remembers_and_without(reads: list[bytes]) -> None:
    remembered = asyncio.run(conversed(reads, fast=True))
    assert remembered == asyncio.run(conversed(reads, fast=False))
