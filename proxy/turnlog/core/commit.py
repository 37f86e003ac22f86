"""One record of a session's log, and the bytes that it is on disk.

A commit is a chained, permanent *header*, a detachable *body*, and blobs that the body names.
The header has two halves. `Facts` say what happened: the recorder makes them. `Link` says where
the record stands in its session: the store makes it, inside the write transaction.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from .kinds import Actor, CommitKind, Effect, Executed, Flag, Phase, Status, TurnSource

VERSION = 1
GENESIS = bytes(32)
"""`prev` of a session's first commit."""


class Facts(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What one commit says. No content and no hash of content stands here.

    Fields are appended at the end only; readers ignore what they do not know.
    """

    kind: CommitKind
    at: int
    """Wall clock, ns since 1970 UTC, for display; never a version."""
    clock: int
    """Monotonic clock of the writing process, ns, for durations."""
    actor: Actor = Actor.AGENT
    turn_label: str = ""
    """The turn as a caller or vendor names it; empty where only gaps tell."""
    turn_source: TurnSource = TurnSource.GAP
    """Who gave `turn_label`. What came of it stands in `Link`."""
    call: bytes = b""
    """UUIDv7 of the call; empty on commits that belong to none."""
    leg: int = 0
    attempt: int = 1
    n: int = 0
    """0 for the first outcome of an attempt, rising for each later one."""
    server: str = ""
    tool: str = ""
    method: str = ""
    """JSON-RPC method, or HTTP method of a plain tool."""
    definition: bytes = b""
    """sha256 of the tool's definition as the last `tools/list` gave it; empty when not seen."""
    effect: Effect = Effect.UNKNOWN
    phase: Phase = Phase.QUEUED
    executed: Executed = Executed.NO
    status: Status = Status.PENDING
    error: str = ""
    """Error family; empty for none."""
    error_kind: str = ""
    retry: str = ""
    duration: int = 0
    """ns from the attempt's first step to its end; 0 on an intent."""
    bytes_in: int = 0
    """Size of the request body as it came."""
    bytes_out: int = 0
    """Size of the answer body as it came; 0 on an intent."""
    flags: tuple[Flag, ...] = ()
    trace: str = ""
    """W3C trace id, 32 hex digits; empty for none."""
    protocol: str = ""
    """MCP revision, or `http/1.1` for a plain tool; empty when unknown."""
    http_status: int = 0
    """Status code of the upstream's answer; 0 when there was none."""
    code: int | None = None
    """JSON-RPC error code of the upstream's answer."""
    expires: int = 0
    """When a parked leg becomes `outcome_unknown`, ns UTC; 0 for never."""
    retry_after_ms: int | None = None
    """How long the server, or a rule, asks to wait before the next attempt."""
    provenance: str = ""
    """How the tool's definition stands against turnlog.lock; empty where an older turnlog wrote."""
    note: str = ""
    """On a note: its `NoteKind`."""
    guarded: bool = False
    """Whether a note follows once the caller has had the answer: a call that others can ask for."""


class Link(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Where a commit stands. Only the store makes one."""

    session: bytes
    seq: int
    epoch: int
    turn: int
    step: int
    turn_source: TurnSource
    ref: int | None
    """seq of the commit this one follows: an outcome's intent, a later outcome's intent, the outcome
    before another attempt's intent, what a note speaks of, the outcome that a call was answered from."""
    body_hash: bytes
    """sha256 of the body's bytes; empty where a commit has no body."""
    prev: bytes
    """`digest` of the session's commit before this one."""
    linked: bool = False
    """Whether an index looks into the body: it has `links`, a key of a note or a fact, a `delta`."""


class CommitBody(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The detachable part of a commit: everything that is content, or a hash of content."""

    version: int = VERSION
    salt: bytes = b""
    """16 random bytes, so that `body_hash` tells nothing once the body is gone."""
    input_hash: str | None = None
    output_hash: str | None = None
    summary: str = ""
    delta: tuple[Raw, ...] = ()
    preview: str = ""
    detail: str = ""
    lineage: tuple[str, ...] = ()
    input_blob: bytes = b""
    """sha256 of the stored input, then where the store put it; empty where none is kept."""
    output_blob: bytes = b""
    links: tuple[bytes, ...] = ()
    """Keyed digests by which a later leg finds its call: a task id, a `requestState`."""
    metadata: dict[str, str] = {}
    """On `open`: what the session was named by (rung, aliases, client name and version)."""
    pinned: bytes = b""
    """sha256 of the definition that turnlog.lock had for the tool, where that was another."""
    said: str = ""
    """What turnlog told the caller itself, where the tool server gave no answer to hand on."""
    note: bytes = b""
    """On a note: what it says, see `core.note`; empty where its kind says all."""
    note_key: bytes = b""
    """Keyed digest of the id that a note's writer gave it; empty for none."""
    why: str = ""
    """On an intent: why the caller makes the call, as it says itself."""
    client: str = ""
    """On an intent: what the caller calls itself: several agents may share a session."""
    fact_key: bytes = b""
    """On a note about a fact: keyed digest of the fact's id."""


class _Record(Struct, frozen=True, array_like=True, gc=False):
    version: int
    link: Link
    facts: Facts


class _Start(Struct, frozen=True, array_like=True, gc=False):
    version: int
    link: Link


class Commit(Struct, frozen=True, kw_only=True, gc=False):
    """A commit as readers see it. `body` is `None` where there is none or it was dropped."""

    position: int
    """The store's global counter."""
    link: Link
    facts: Facts
    hash: bytes
    body: CommitBody | None = None


_encode = msgspec.msgpack.Encoder().encode
_HEADER_START = _encode((VERSION, None, None))[:-2]
_T = TypeVar("_T")


def _decoder(kind: type[_T]) -> Callable[[bytes], _T]:
    """Return a decoder whose only error is `msgspec.DecodeError`, whatever the bytes are."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def decode_or_refuse(data: bytes) -> _T:
        try:
            return decode(data)
        except (UnicodeDecodeError, RecursionError) as error:
            raise msgspec.DecodeError(str(error)) from error

    return decode_or_refuse


_decode_record = _decoder(_Record)
_decode_start = _decoder(_Start)
_decode_body = _decoder(CommitBody)


encode_facts: Final[Callable[[Facts], bytes]] = _encode
"""Return the bytes of one header's facts."""


def encode_header(link: Link, facts: bytes) -> bytes:
    """Return a header's bytes, from the bytes of its facts."""
    # The parts side by side are what encoding the three of them together gives, and cost less.
    return _HEADER_START + _encode(link) + facts


def decode_link(header: bytes) -> Link:
    """Return the link alone. Raises `msgspec.DecodeError` for bytes that are no header."""
    return _decode_start(header).link


def decode_header(header: bytes) -> tuple[Link, Facts]:
    """Return both halves. Raises `msgspec.DecodeError` for bytes that are no header."""
    record = _decode_record(header)
    return record.link, record.facts


encode_body: Final[Callable[[CommitBody], bytes]] = _encode
"""Return a body's bytes."""


def decode_body(body: bytes) -> CommitBody:
    """Return a body. Raises `msgspec.DecodeError` for bytes that are none."""
    return _decode_body(body)


def digest(header: bytes) -> bytes:
    """Return the chain hash of a header's stored bytes."""
    return sha256(b"\x00" + header).digest()


def body_digest(body: bytes) -> bytes:
    """Return what `Link.body_hash` says of a body's stored bytes; empty for no body."""
    return sha256(body).digest() if body else b""
