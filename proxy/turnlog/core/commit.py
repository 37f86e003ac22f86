"""Commits, the records of a session's log, and their encoding on disk.

A commit is a permanent *header* in a hash chain, a *body* that can be dropped, and blobs that the
body names. The header has two parts: `Facts` (what happened) come from the recorder, `Link` (where
the commit is in its session) from the store, inside the write transaction.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from .kinds import (
    Actor,
    CommitKind,
    Effect,
    Executed,
    Flag,
    Gone,
    MatchEvidence,
    Phase,
    Status,
    TurnSource,
    ValueOrigin,
)

VERSION = 1
GENESIS = bytes(32)
"""`prev` of a session's first commit."""
HEAD: Final = 1 << 62
"""A seq behind all others, for what means the newest commit of a session, whichever that is."""


class Facts(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The facts that a commit records, without content and hashes of content.

    New fields go to the end; readers ignore those that they do not know.
    """

    kind: CommitKind
    at: int
    """Wall clock, ns since 1970 UTC, for display; not for ordering."""
    clock: int
    """Monotonic clock of the writing process, ns, for durations."""
    actor: Actor = Actor.AGENT
    turn_label: str = ""
    """Name of the turn as given by the caller or its vendor; empty for none."""
    turn_source: TurnSource = TurnSource.GAP
    """Source of `turn_label`. The resulting turn is in `Link`."""
    call: bytes = b""
    """UUIDv7 of the call; empty on commits of no call."""
    leg: int = 0
    attempt: int = 1
    n: int = 0
    """Number of an outcome of its attempt, from 0."""
    server: str = ""
    tool: str = ""
    method: str = ""
    """JSON-RPC method, or HTTP method of a plain tool."""
    definition: bytes = b""
    """sha256 of the tool's definition in the last `tools/list`; empty if not seen."""
    effect: Effect = Effect.UNKNOWN
    phase: Phase = Phase.QUEUED
    executed: Executed = Executed.NO
    status: Status = Status.PENDING
    error: str = ""
    """Error family; empty for none."""
    error_kind: str = ""
    retry: str = ""
    duration: int = 0
    """ns from the start of the attempt to its end; 0 on an intent."""
    bytes_in: int = 0
    """Size of the request body as received."""
    bytes_out: int = 0
    """Size of the response body as received; 0 on an intent."""
    flags: tuple[Flag, ...] = ()
    trace: str = ""
    """W3C trace id, 32 hex digits; empty for none."""
    protocol: str = ""
    """MCP revision, or `http/1.1` for a plain tool; empty when unknown."""
    http_status: int = 0
    """Status code of the upstream's response; 0 for none."""
    code: int | None = None
    """JSON-RPC error code of the upstream's response."""
    expires: int = 0
    """When a parked leg becomes `outcome_unknown`, ns UTC; 0 for never."""
    retry_after_ms: int | None = None
    """Delay before the next attempt as asked for by the server or a rule."""
    provenance: str = ""
    """Provenance of the tool's definition; empty in commits of an older turnlog."""
    note: str = ""
    """On a note: its `NoteKind`; on a control commit: the action; on the first commit of a fork: the
    parent's id in hex."""
    guarded: bool = False
    """Whether a note records the delivery of the answer: a duplicate may ask for it."""


class Link(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The place of a commit in its session; made by the store."""

    session: bytes
    seq: int
    epoch: int
    turn: int
    step: int
    turn_source: TurnSource
    ref: int | None
    """seq of a related commit: of an outcome its intent, of the intent of a further attempt the outcome
    before it, of a note its subject, of a replayed call the outcome that answered it."""
    body_hash: bytes
    """sha256 of the body's bytes; empty for no body."""
    prev: bytes
    """`digest` of the previous commit of the session."""
    linked: bool = False
    """Whether the body has index entries: `links`, the key of a note or a fact, a `delta`."""


EFFECT_BEFORE: Final = b"effect before\0"
"""What the link of a call begins with that holds the id of an earlier call with its effect, on the same branch: that
one counts for other branches if this one was not executed."""
ANSWERED_BY: Final = b"answered by\0"
"""What the link of an intent begins with that holds the id of the call whose answer was given again."""


class Lineage(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The origin of a value in the arguments of a call. The value itself is not recorded."""

    pointer: str
    """JSON Pointer of the value, in the arguments."""
    origin: ValueOrigin
    call: bytes = b""
    """The call whose output had the value first; empty unless the value is sourced."""
    # A call and not a seq: the seq of a commit is known only once it is written (decision 82).
    attempt: int = 1
    place: str = ""
    """JSON Pointer of the value in that output; of a declared value, the seq of the note that declared it."""
    evidence: MatchEvidence = MatchEvidence.EXACT
    tainted: bool = False
    """Whether the value stood in outputs that are tainted, and in no other."""


class CommitBody(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The part of a commit that can be dropped: content and hashes of content."""

    version: int = VERSION
    salt: bytes = b""
    """16 random bytes, so that the content cannot be guessed from `body_hash`."""
    input_hash: str | None = None
    output_hash: str | None = None
    summary: str = ""
    delta: tuple[Raw, ...] = ()
    preview: str = ""
    detail: str = ""
    lineage: tuple[Lineage, ...] = ()
    """On an outcome: where the values in its arguments came from."""
    input_blob: bytes = b""
    """sha256 of the stored input, then its location in the store; empty for none."""
    output_blob: bytes = b""
    links: tuple[bytes, ...] = ()
    """Keyed digests of task ids and `requestState`s, by which a later leg finds its call."""
    metadata: dict[str, str] = {}
    """On `open`: how the session was named (rung, aliases, client name and version)."""
    pinned: bytes = b""
    """sha256 of the tool's definition in turnlog.lock if it is another one."""
    said: str = ""
    """Text of turnlog's own answer to the caller, if the server gave none."""
    note: bytes = b""
    """On a note: its encoded content, see `core.note`; empty if it has none."""
    note_key: bytes = b""
    """Keyed digest of the id that the writer of a note gave it; empty for none."""
    why: str = ""
    """On an intent: the caller's own reason for the call."""
    client: str = ""
    """On an intent: the name of the client; several agents may share a session."""
    fact_key: bytes = b""
    """On a note about a fact: keyed digest of the fact's id."""
    failures: tuple[str, ...] = ()
    """On an outcome: what differs in its server, and which checks of its result failed."""
    partial: str = ""
    """On an outcome: why `lineage` may not be all there is; empty where it is."""


class _Record(Struct, frozen=True, array_like=True, gc=False):
    version: int
    link: Link
    facts: Facts


class _Start(Struct, frozen=True, array_like=True, gc=False):
    version: int
    link: Link


class Commit(Struct, frozen=True, kw_only=True, gc=False):
    """A commit as read from the store. `body` is `None` if there is none or it was dropped."""

    position: int
    """Counter of all commits in the store."""
    link: Link
    facts: Facts
    hash: bytes
    body: CommitBody | None = None
    gone: Gone | None = None
    """Why there is no body although there was one."""


_encode = msgspec.msgpack.Encoder().encode
_HEADER_START = _encode((VERSION, None, None))[:-2]
_T = TypeVar("_T")


def decoder(kind: type[_T]) -> Callable[[bytes], _T]:
    """Return a decoder whose only error is `msgspec.DecodeError`, whatever the bytes are."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def decode_or_refuse(data: bytes) -> _T:
        try:
            return decode(data)
        except (UnicodeDecodeError, RecursionError) as error:
            raise msgspec.DecodeError(str(error)) from error

    return decode_or_refuse


_decode_record = decoder(_Record)
_decode_start = decoder(_Start)


encode_facts: Final[Callable[[Facts], bytes]] = _encode
"""Return the bytes of one header's facts."""


def encode_header(link: Link, facts: bytes) -> bytes:
    """Return a header's bytes, from the bytes of its facts."""
    # The same bytes as encoding version, link and facts as one array, at less cost.
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


decode_body: Final = decoder(CommitBody)
"""Return a body. Raises `msgspec.DecodeError` for bytes that are none."""


def digest(header: bytes) -> bytes:
    """Return the chain hash of a header's stored bytes."""
    return sha256(b"\x00" + header).digest()


def body_digest(body: bytes) -> bytes:
    """Return `Link.body_hash` for a body's stored bytes; empty for no body."""
    return sha256(body).digest() if body else b""
