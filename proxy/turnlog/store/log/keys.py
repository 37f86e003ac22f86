"""The key layout of the log environment: pure functions between values and bytes.

Durable, written in the transaction that a caller waits for:

    log        position -> headers          bodies   position -> bodies
               both by the last position of a block of commits, see `blocks`
    aliases    "n" + name -> session        meta     epoch, limit, watermark,
                                                     which key was used last, since when,
                                                     number of control commits
               "s" + session + digest -> alias text
               "h" + handle -> where a payload that came from another store lies here, or why it is gone
               "o" + session + call + leg, attempt, n -> header and body of an outcome that came after
               its session was packed for another store
    and beside the tables' names "newest seal" -> position and digest of the newest block, see `digests`

Derived from the log's stored bytes, flushed in a transaction of their own, up to the watermark:

    segments   first position of a flush -> last position, earliest and latest wall clock
    seqs       session + first seq -> positions of consecutive seqs
    calls      call + first position -> positions
    postings   term + first position -> positions
    links      link key -> position of the newest commit that carries it
    heads      session -> `Head`            activity  position of its newest commit -> session
    open       session + intent's seq -> epoch, position of an attempt without outcome
    unsettled  call -> `CallState`, also of answers that were not delivered
    parked     expiry + call -> nothing
"""

import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Raw

from turnlog.core.commit import Facts, decoder
from turnlog.core.kinds import CommitKind
from turnlog.core.lifecycle import CONTROL_KINDS
from turnlog.core.operation import Operation

LONGEST_NAME = 400
"""Bytes of a name that still fit in a key: LMDB's limit is 511."""

EPOCH = b"epoch"
LIMIT = b"limit"
WATERMARK = b"watermark"
KEY_MARK = b"key mark"
"""Identifies the store's secret, see `data_folder.key_mark`."""
MARKED_SINCE = b"marked since"
"""A number that release 0.2 wrote, 0 in all its stores."""
REKEYED = b"rekeyed"
"""When another secret was met than the one before, ns UTC."""
PROBE = b"probe"
"""When it was last tried whether writing works again, ns UTC."""
CONTROLS = b"controls"
"""How many control commits the log has; not there for none."""
TOLD = b"retention told"
"""When it was said that content will be deleted by its age, ns UTC; 1 in a store that began with that."""
PURGE = b"purge\0"
"""With a session's id behind it: what of its purge is still to be done."""
PURGE_BEGUN, PURGE_ERASED = b"begun", b"erased"
"""Content is there; or only the log's file must be rewritten."""
NOTES_CHECK = b"notes check"
"""Checksum of the notes on the secret, on trims and on retention."""
META: Final = frozenset(
    {
        EPOCH,
        LIMIT,
        WATERMARK,
        KEY_MARK,
        MARKED_SINCE,
        REKEYED,
        PROBE,
        CONTROLS,
        TOLD,
        NOTES_CHECK,
    }
)
"""All rows that the table `meta` has."""
NEWEST_DIGEST = b"newest seal"
DIGEST_BYTES = 16
"""Bytes of a block's digest."""

_decode_operation = decoder(Operation)
_u64 = struct.Struct(">Q")
_packs: Final = tuple(struct.Struct(f">{count}Q").pack for count in range(64))
number = _u64.pack
"""Return 8 bytes that sort as the number does."""


def unpack(data: bytes) -> int:
    """Return the number in `data`."""
    return int.from_bytes(data, "big")


def pack_many(numbers: Sequence[int]) -> bytes:
    """Return 8 bytes for each number."""
    count = len(numbers)
    # Mostly of a call: few, and no format to put together.
    return _packs[count](*numbers) if count < len(_packs) else struct.pack(f">{count}Q", *numbers)


def unpack_many(data: bytes) -> tuple[int, ...]:
    """Return the numbers that `pack_many` packed."""
    return struct.unpack(f">{len(data) // 8}Q", data)


def alias_key(alias: str) -> bytes:
    """Return the key under which an alias leads to its session."""
    raw = b"n" + alias.encode()
    if len(raw) <= LONGEST_NAME:
        return raw
    # The name comes first, so that a search by a short name still finds a long principal.
    return raw[: LONGEST_NAME - 32] + sha256(raw).digest()


def alias_prefix(name: str) -> bytes:
    """Return what the keys of all aliases called `name` start with."""
    return b"n" + name.encode()[: LONGEST_NAME - 33]


def moved_key(handle: bytes) -> bytes:
    """Return the key under which the place of a payload from another store is found."""
    return b"h" + handle


def late_key(session: bytes, facts: Facts) -> bytes:
    """Return the key of an outcome that came after its session was packed."""
    return late_prefix(session) + facts.call + pack_many((facts.leg, facts.attempt, facts.n))


def late_prefix(session: bytes) -> bytes:
    """Return what the keys of a session's late outcomes start with."""
    return b"o" + session


def alias_text_prefix(session: bytes) -> bytes:
    """Return what the keys of a session's alias texts start with."""
    return b"s" + session


def alias_text_key(session: bytes, alias: str) -> bytes:
    """Return the key under which a session's alias is written out."""
    return alias_text_prefix(session) + sha256(alias.encode()).digest()[:8]


@lru_cache(maxsize=1024)
def tool_term(server: str, tool: str) -> bytes:
    """Return the posting list that an intent for this tool belongs to."""
    raw = f"{server}\0{tool}".encode()
    if len(raw) > LONGEST_NAME or raw.count(0) != 1:
        raw = b"\0" + sha256(raw).digest()
    return b"t" + raw + b"\0"


def read_tool_term(term: bytes) -> tuple[str, str] | None:
    """Return server and tool of a `tool_term`; `None` when only its hash is kept."""
    if term[1:2] == b"\0" and len(term) == 35:
        return None
    server, _, tool = term[1:-1].partition(b"\0")
    return server.decode(), tool.decode()


def text_term(mark: bytes, text: str) -> bytes:
    """Return the posting list of outcomes with `text` as an error, kind or flag, or of such notes."""
    raw = text.encode()
    return mark + (raw if len(raw) <= LONGEST_NAME else sha256(raw).digest()) + b"\0"


def path_term(name: str) -> bytes:
    """Return the posting list of commits that say that a file of this name was changed."""
    raw = name.encode()
    if len(raw) > LONGEST_NAME or 0 in raw:
        raw = b"\0" + sha256(raw).digest()
    return PATH + raw + b"\0"


def read_path_term(term: bytes) -> str | None:
    """Return the name of a `path_term`; `None` when only its hash is kept."""
    return None if term[1:2] == b"\0" else term[1:-1].decode()


def link_key(key: bytes) -> bytes:
    """Return the key under which the newest commit with a link is found."""
    return key if len(key) <= LONGEST_NAME else sha256(key).digest()


ERROR, KIND, FLAG, TOOL, NOTE = b"e", b"k", b"f", b"t", b"n"
CHANGE, PATH, CONTROL, FORK = b"c", b"p", b"s", b"b"
REWINDS: Final = b"r"
"""The posting list of all rewinds."""


def control_term(session: bytes) -> bytes:
    """Return the posting list of a session's control commits."""
    return CONTROL + session


def fork_term(parent: str) -> bytes:
    """Return the posting list of the commits that open the forks of a session, by its id in hex."""
    return FORK + parent.encode()


def terms_of(facts: Facts, session: bytes) -> list[bytes]:
    """Return the posting lists that a commit of a session belongs to."""
    kind = facts.kind
    if kind is CommitKind.INTENT:
        return [tool_term(facts.server, facts.tool)]
    if kind is CommitKind.OUTCOME:
        terms = [text_term(FLAG, flag) for flag in facts.flags] if facts.flags else []
        if facts.error:
            terms.append(text_term(ERROR, facts.error))
        if facts.error_kind:
            terms.append(text_term(KIND, facts.error_kind))
        return terms
    if kind in CONTROL_KINDS:
        terms = [control_term(session)]
        return [*terms, REWINDS] if kind is CommitKind.REWIND else terms
    if kind is CommitKind.OPEN and facts.note:
        return [fork_term(facts.note)]
    return [text_term(NOTE, facts.note)] if kind is CommitKind.NOTE and facts.note else []


def change_terms(delta: Iterable[Raw]) -> list[bytes]:
    """Return the posting lists that a commit belongs to by the changes that its body names.

    An unreadable change belongs to none.
    """
    terms: dict[bytes, None] = {}
    for raw in delta:
        with suppress(msgspec.DecodeError):
            found = _decode_operation(raw)
            terms[text_term(CHANGE, found.field)] = None
            for name in filter(None, (found.key, found.to)):
                terms[path_term(name)] = None
    return list(terms)
