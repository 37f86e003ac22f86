"""Law of requests whose head came before: what is read without a parser is what the parser reads."""

import asyncio
from contextlib import suppress

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from turnlog.serve.agent import AgentConnection, AgentServer
from turnlog.serve.requests import RequestReader
from turnlog.serve.starts import AgentRequest

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
