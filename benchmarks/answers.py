"""What the fast upstream says: pure functions from a request's bytes to an answer's bytes.

Every answer carries the name of the item that was asked for, so that no two are the same blob and
the load generator can tell a right answer from any other, even where a proxy changed the id.
"""

from random import Random

from msgspec import DecodeError, Raw, Struct, ValidationError
from msgspec.json import Decoder

RESULT_BYTES = 500
"""Length of a small answer's JSON, as of most tool results."""

REVISION = b"2025-06-18"


class Arguments(Struct, frozen=True):
    """What a tool is asked for: `item` is its name in the answer, `interval_ms` parts events."""

    item: str = ""
    bytes: int = 0
    events: int = 0
    interval_ms: float = 0.0
    pause_ms: float = 0.0


class Params(Struct, frozen=True):
    """The parameters of a `tools/call`; other methods' ones fit as well."""

    name: str = ""
    arguments: Arguments = Arguments()


class Request(Struct, frozen=True):
    """A JSON-RPC message, as far as the upstream looks. Without an id it is a notification."""

    method: str = ""
    id: Raw = Raw(b"")
    params: Params = Params()


_DECODER = Decoder(Request)
_LIST = b",".join(
    b'{"name":"'
    + name
    + b'","description":"A benchmark tool.","inputSchema":{"type":"object"}'
    + hint
    + b"}"
    for name, hint in (
        (b"read_item", b',"annotations":{"readOnlyHint":true}'),
        (b"read_big", b',"annotations":{"readOnlyHint":true}'),
        (b"write_item", b""),
        (b"append_item", b""),
        (b"write_events", b""),
    )
)
_INITIALIZE = (
    b'{"protocolVersion":"' + REVISION + b'","capabilities":{"tools":{}},'
    b'"serverInfo":{"name":"bench","version":"1"}}'
)
_RESULTS = {
    "initialize": _INITIALIZE,
    "tools/list": b'{"tools":[' + _LIST + b"]}",
    "ping": b"{}",
}


def parse(body: bytes) -> Request:
    """Decode one message; what is not one becomes an empty request, answered with an error."""
    try:
        return _DECODER.decode(body)
    except (DecodeError, ValidationError):
        return Request()


def answer(request: Request) -> bytes:
    """Return the JSON of the answer to `request`; empty for a notification."""
    identity = bytes(request.id)
    if not identity:
        return b""
    if request.method == "tools/call":
        return result(identity, request.params.arguments)
    known = _RESULTS.get(request.method)
    head = b'{"jsonrpc":"2.0","id":' + identity
    if known is None:
        return head + b',"error":{"code":-32601,"message":"no such method"}}'
    return head + b',"result":' + known + b"}"


def result(identity: bytes, wanted: Arguments) -> bytes:
    """Return a tool's result of about the wanted size (small if 0) that names the item."""
    parts = (
        b'{"jsonrpc":"2.0","id":' + identity,
        b',"result":{"content":[{"type":"text","text":"item ' + wanted.item.encode() + b" ",
        filler(wanted.bytes or RESULT_BYTES - 90),
        b'"}],"isError":false}}',
    )
    return b"".join(parts)


def item(path: bytes) -> bytes:
    """Return the JSON that a plain GET of `path` is answered with."""
    last = path.rpartition(b"/")[2]
    return b'{"text":"item ' + last + b" " + filler(RESULT_BYTES - 40) + b'"}'


def event(data: bytes) -> bytes:
    """Return `data` as one event of an event stream."""
    return b"event: message\ndata: " + data + b"\n\n"


def progress(sent_at: int) -> bytes:
    """Return an event that carries when it was sent (monotonic ns, one clock per host)."""
    return event(
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":'
        b'{"progressToken":1,"progress":%d}}' % sent_at
    )


_CACHE: dict[int, bytes] = {}


def filler(size: int) -> bytes:
    """Return `size` letters that compress about as badly as base64 does."""
    known = _CACHE.get(size)
    if known is None:
        known = Random(size).randbytes(size // 2 + 1).hex().encode()[:size]
        _CACHE[size] = known
    return known
