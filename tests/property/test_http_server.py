"""The agents' connections beside h11: both read the same requests, however they are cut."""

import asyncio
from itertools import pairwise

import h11
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from turnlog.transport.http_server import AgentServer, Downstream

TOKENS = st.text("abcXYZ-019", min_size=1, max_size=12).filter(lambda name: name[0].isalpha())
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=20)
FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "upgrade", "host"})
BODIES = st.sampled_from([b"", b"ab", b"\r\n\r\n", b"0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
NOISE = st.sampled_from([b"\n", b"\r", b"\r\n", b"\0", b" ", b":", b"x", b"\r\n\r\n", b"\xff"])


class Seen(Struct, frozen=True):
    """What a reader made of a request."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A sound request, with a body or without."""
    fields = draw(st.lists(st.tuples(TOKENS, VALUES), max_size=4))
    method = draw(st.sampled_from(["GET", "POST", "PURGE", "M-SEARCH"]))
    lines = [f"{k}: {v}" for k, v in fields if k.lower() not in FRAMING]
    head = "\r\n".join([f"{method} /a HTTP/1.1", "Host: h", *lines]).encode() + b"\r\n"
    body = draw(BODIES | st.binary(max_size=100))
    if draw(st.booleans()):
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunks = b"".join(b"%x;note=1\r\n%b\r\n" % (len(each), each) for each in (body,) if each)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nA-Trailer: 1\r\n\r\n"


def by_h11(data: bytes) -> list[Seen]:
    """Read requests with h11, up to one that is cut or wrong."""
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(data)
    reader.receive_data(b"")
    seen: list[Seen] = []
    request: h11.Request | None = None
    body = b""
    try:
        while True:
            match event := reader.next_event():
                case h11.Request():
                    request, body = event, b""
                case h11.Data(data=piece):
                    body += bytes(piece)
                case h11.EndOfMessage():
                    assert request is not None
                    raw = request.headers.raw_items()
                    headers = [pair for pair in raw if pair[0].lower() != b"content-length"]
                    seen.append(Seen(request.method, request.target, headers, body))
                    reader.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
                    reader.send(h11.EndOfMessage())
                    reader.start_next_cycle()
                case _:
                    return seen
    except (h11.RemoteProtocolError, h11.LocalProtocolError):
        return seen


async def by_turnlog(data: bytes, cuts: list[int]) -> list[Seen]:
    """Read requests that arrive in pieces, up to one that is cut or wrong."""
    seen: list[Seen] = []

    async def answer(down: Downstream) -> bool:
        body, _ = await down.read(1 << 20)
        line = (down.asked.method.encode(), down.asked.target.encode("utf-8", "surrogateescape"))
        seen.append(Seen(*line, list(down.asked.head.raw), body))
        await down.answer(200, b"OK", b"", b"")
        return down.done()

    server = AgentServer(answer, lambda _, __: b"")
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    for start, end in pairwise(places):
        writer.write(data[start:end])
        await asyncio.sleep(0)
    writer.write_eof()
    async with asyncio.timeout(10):
        await reader.read()
    writer.close()
    listener.close()
    await server.stop(0.1)
    return seen


@settings(max_examples=100, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=4), st.lists(st.integers(0, 2000), max_size=6))
def test_sound_requests_are_read_as_h11_reads_them(sent: list[bytes], cuts: list[int]) -> None:
    data = b"".join(sent)
    expected = by_h11(data)
    assert len(expected) == len(sent)
    assert asyncio.run(by_turnlog(data, cuts)) == expected


@settings(max_examples=200, deadline=None)
@given(
    st.lists(requests(), min_size=1, max_size=3),
    st.integers(0, 5000),
    NOISE,
    st.lists(st.integers(0, 2000), max_size=3),
)
def test_what_both_read_of_a_disturbed_connection_is_the_same(
    sent: list[bytes], at: int, noise: bytes, cuts: list[int]
) -> None:
    data = b"".join(sent)
    place = at % (len(data) + 1)
    broken = data[:place] + noise + data[place:]
    ours, theirs = asyncio.run(by_turnlog(broken, cuts)), by_h11(broken)
    # Either may refuse what the other is lenient about; what both read is the same.
    for mine, other in zip(ours, theirs, strict=False):
        assert (mine.method, mine.target, mine.body) == (other.method, other.target, other.body)
