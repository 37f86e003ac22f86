"""`transport.request_heads`: a request whose head is known is read as a parser would have read it, or not at all."""

from typing import Final

import pytest
from aiohttp.streams import StreamReader

from turnlog.engine.http.agent_connection import AgentConnection, AgentServer
from turnlog.transport.message_heads import HEADS
from turnlog.transport.request_heads import AgentRequest
from turnlog.transport.request_parser import RequestReader

POST: Final = b"POST /mcp HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nX-A: \xe9\r\n\r\nab"
GET: Final = b"GET /a?b HTTP/1.1\r\nHost: h\r\n\r\n"
OLD: Final = b"PUT / HTTP/1.0\r\nConnection: keep-alive\r\ncontent-length: 2\r\n\r\nab"
NOTHING: Final = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"


class Agents:
    """Connections of agents that send requests, and what is remembered of those."""

    def __init__(self) -> None:
        self._server = AgentServer(
            _never, lambda status, _: b"%d" % status, max_line_size=20_000, max_field_size=10_000
        )

    def find(self, data: bytes) -> AgentRequest | None:
        """Read a request by what is remembered."""
        known = self._server.starts.find(data)
        return known.read(data) if known is not None else None

    def send_twice(self, data: bytes) -> AgentRequest:
        """Read a request that is remembered from then on, if it can be."""
        self.send(data)
        return self.send(data)

    def send(self, data: bytes) -> AgentRequest:
        """Read a request on a connection of its own, with the parser."""
        reader = self._server()._parser  # pyright: ignore[reportPrivateUsage] - it has no other name
        assert isinstance(reader, RequestReader)
        ((request, _),) = reader.feed_data(data)[0]
        return request


async def _never(_: AgentConnection, __: AgentRequest) -> bool:
    raise AssertionError


async def body(request: AgentRequest) -> bytes:
    """Return the body, wherever it is."""
    return await request.body.read() if isinstance(request.body, StreamReader) else request.body


@pytest.mark.parametrize(
    ("before", "data"),
    [
        (POST, POST),
        (POST, POST.replace(b"2", b"12").replace(b"ab", b"\r\n\r\nGET / HT")),
        (OLD, OLD.replace(b"2", b"3") + b"c"),
        (GET, GET),
        (b"\r\n" + GET, b"\r\n" + GET),
        (NOTHING, NOTHING),
    ],
)
async def test_a_head_that_came_before_is_read_as_the_parser_reads_it(
    before: bytes, data: bytes
) -> None:
    agents = Agents()
    first = agents.send(before)
    assert agents.find(data) is None
    agents.send(before)
    found = agents.find(data)
    assert found is not None
    assert found.start is first.start
    parsed = Agents().send(data)
    assert tuple(found.headers) == tuple(parsed.headers)
    assert found.body == await body(parsed)
    assert found.start.version == parsed.start.version
    assert (found.start.method, found.start.target) == (parsed.start.method, parsed.start.target)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        POST[:-1],
        POST + b"c",
        POST + POST,
        b"\r\n" + POST,
        POST.replace(b" 2", b" 02"),
        POST.replace(b" 2", b" +2"),
        POST.replace(b"h", b"i", 1),
        POST.replace(b"Content-Length: 2\r\nX-A: \xe9", b"X-A: \xe9\r\nContent-Length: 2"),
        POST.replace(b"X-A: \xe9", b"Content-Length: 2"),
        POST.replace(b"Content-Length: 2\r\n", b""),
        POST.replace(b": 2", b": ").removesuffix(b"ab"),
    ],
)
async def test_what_is_not_byte_for_byte_like_before_is_left_to_the_parser(data: bytes) -> None:
    agents = Agents()
    agents.send_twice(POST)
    assert agents.find(data) is None


@pytest.mark.parametrize(
    "data",
    [
        POST.replace(b"X-A: \xe9", b"Connection: close"),
        POST.replace(b"X-A: \xe9", b"Expect: 100-continue"),
        POST.replace(b"X-A: \xe9", b"Connection: upgrade\r\nuPgRaDe: h2c"),
        POST.replace(b"Content-Length: 2", b"Content-Length:2"),
        POST.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked").replace(
            b"ab", b"2\r\nab\r\n0\r\n\r\n"
        ),
        OLD.replace(b"Connection: keep-alive\r\n", b""),
        POST.replace(b"\xe9", b"\xe9" * 9000),
        POST.replace(b"/mcp", b"/mcp" * 3000),
    ],
)
async def test_what_a_head_alone_does_not_settle_is_not_remembered(data: bytes) -> None:
    agents = Agents()
    agents.send_twice(data)
    assert agents.find(data) is None


async def test_a_request_that_came_in_pieces_is_not_remembered() -> None:
    server = AgentServer(_never, lambda status, _: b"%d" % status)
    reader = server()._parser  # pyright: ignore[reportPrivateUsage] - it has no other name
    assert isinstance(reader, RequestReader)
    for _ in range(2):
        assert not reader.feed_data(POST[:9])[0]
        reader.feed_data(POST[9:])
    assert server.starts.find(POST) is None


async def test_each_request_of_a_connection_says_what_its_own_head_says() -> None:
    server = AgentServer(_never, lambda status, _: b"%d" % status)
    reader = server()._parser  # pyright: ignore[reportPrivateUsage] - it has no other name
    assert isinstance(reader, RequestReader)
    other = POST.replace(b"X-A: \xe9", b"X-A: b")
    for data in (POST, other, GET) * 2:
        reader.feed_data(data)
    for data in (POST, POST, other, GET, POST):
        found = reader.at_once(data)
        assert found is not None
        assert [tuple(found.headers), found.body] == await read(Agents().send(data))


async def read(request: AgentRequest) -> list[object]:
    """Return fields and body."""
    return [tuple(request.headers), await body(request)]


async def test_only_so_many_heads_are_remembered() -> None:
    agents = Agents()
    for number in range(HEADS + 1):
        agents.send_twice(GET.replace(b"?b", b"?%d" % number))
    assert agents.find(GET.replace(b"?b", b"?0")) is None
    assert agents.find(GET.replace(b"?b", b"?%d" % HEADS)) is not None
