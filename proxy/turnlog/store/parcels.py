"""What a proxy and the process that writes its store say to each other, over a pair of sockets.

The proxy sends a `Delivery`: drafts, and errands to be run behind them. The process answers each
transaction with a `Receipt`. Nothing here outlives the two processes: both are of one version.
"""

import os
import struct
from collections.abc import Iterator
from enum import StrEnum
from itertools import takewhile
from typing import Final

import msgspec
from msgspec import Struct, structs

from turnlog.core.commit import Body, Commit, Facts, Link, decode_body
from turnlog.core.kinds import Rung

from .base import Blob, Conflict, Draft, SessionRef, StoreError, StoreFull, Ticket
from .index import Entry, is_linked
from .intake import without_content
from .tickets import Pending, Standing, pend

REMEMBERED: Final = 2048
"""Drafts behind which another may follow one by its number."""
_UNPLACED: Final = -1
_NONE: Final = 0
_LENGTH: Final = struct.Struct(">I")


class Naming(Struct, frozen=True, array_like=True, gc=False):
    """By what a session is found, or made, that its first caller has no id of yet."""

    rung: Rung
    aliases: tuple[str, ...]
    metadata: dict[str, str]


class Parcel(Struct, array_like=True, gc=False):
    """One draft, and what follows in its chain."""

    number: int
    """By which both sides know it; from 1 on."""
    session: bytes
    """The session's id; the candidate for one where there is a `naming`."""
    naming: Naming | None
    facts: bytes
    body: bytes
    looked_into: bool
    """Whether the body has to be read again: an index looks into it, or it gets handles of blobs."""
    lazy: bool
    size: int
    """bytes, with what follows in its chain"""
    intent: int = _NONE
    """`Draft.intent` as a number, where the process knows it; `_UNPLACED` where it stands nowhere."""
    follows: Link | None = None
    """`Draft.intent` where it is on disk."""
    again: "Parcel | None" = None
    """`Draft.intent` where it has failed: it goes along."""
    refused: tuple[str, int] | None = None
    """`Conflict` and its seq, where one that goes along was not placed for that."""
    claim: bytes = b""
    seen: int | None = None
    input_blob: Blob | None = None
    output_blob: Blob | None = None
    more: "Parcel | None" = None


class Errand(StrEnum):
    """What else the writer does, behind what was submitted before."""

    FLUSH = "flush"
    RECOVER = "recover"
    EXPIRE = "expire"


class Opening(Struct, frozen=True, kw_only=True):
    """What the process is started with."""

    data: str
    epoch: int
    limit: int
    """bytes"""
    span: int
    """ns"""
    flush_every: int
    """commits"""
    boot: str
    keep: int
    """bytes"""
    after: int | None = None
    """Position behind which a process before this one may have written what it told nobody."""


class Delivery(Struct, frozen=True, array_like=True, gc=False):
    """What the proxy sends at once."""

    at: int
    """Wall clock, ns UTC."""
    clock: int
    """Monotonic clock, ns."""
    oldest: int
    """Number of the first draft that no receipt has told of, or the next to come."""
    parcels: list[Parcel] = []
    errands: tuple[tuple[int, Errand, int], ...] = ()
    """Each with its number, and the time that it is about, ns UTC."""
    is_last: bool = False
    """Whether the store is to be closed behind this."""


class Place(Struct, array_like=True, gc=False):
    """What became of one draft whose transaction is on disk."""

    position: int = 0
    link: Link | None = None
    hash: bytes = b""
    facts: Facts | None = None
    """Where others are stored than were given."""
    marks: tuple[bytes, bytes, bytes] | None = None
    """Salt and handles of a body that got them in the process."""
    existed: Commit | None = None
    """The commit that said the same before."""
    refused: tuple[str, int] | None = None
    """`Conflict` and its seq, where it was not placed."""
    session: bytes | None = None
    """The session's id, where it was not placed."""


class Trouble(Struct, frozen=True, array_like=True, gc=False):
    """A `StoreError`."""

    message: str
    is_full: bool = False

    def error(self) -> StoreError:
        """Return the error that it was."""
        return StoreFull(self.message) if self.is_full else StoreError(self.message)


class Lost(Struct, frozen=True, array_like=True, gc=False):
    """Drafts that were not written; `kept` of them are tried again."""

    numbers: list[int]
    kept: list[int]
    trouble: Trouble


class Closed(Struct, frozen=True, array_like=True, gc=False):
    """What an errand came to."""

    commits: list[Commit] = []
    epochs: int = 0
    """Whose writers had died."""


class Receipt(Struct, array_like=True, gc=False):
    """What the process has done since it said so last."""

    landed: list[tuple[int, list[Place]]] = []
    """By the number of a chain's first draft, a place for each of the chain."""
    lost: list[Lost] = []
    done: list[tuple[int, Closed, Trouble | None]] = []
    """Errands by their numbers."""
    reports: list[str] = []
    trimmed: int = 0
    """Bytes of content that were given up to make room."""
    spare: int = 0
    """`Room.spare`."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_facts: Final = msgspec.msgpack.Decoder(Facts).decode
read_delivery: Final = msgspec.msgpack.Decoder(Delivery).decode
"""Return what the bytes of a frame say to the process."""
read_receipt: Final = msgspec.msgpack.Decoder(Receipt).decode
"""Return what the bytes of a frame say to the proxy."""


def framed(message: Struct) -> bytes:
    """Return a message as it is sent: its length, 4 bytes, before it."""
    data = _encode(message)
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Cuts a stream into the messages in it."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that are whole with `data`."""
        rest = self._rest
        rest += data
        start = 0
        while len(rest) >= start + _LENGTH.size:
            (size,) = _LENGTH.unpack_from(rest, start)
            end = start + _LENGTH.size + size
            if len(rest) < end:
                break
            yield bytes(rest[start + _LENGTH.size : end])
            start = end
        del rest[:start]


class Outbox:
    """Makes parcels of drafts, for one process."""

    def __init__(self, known_after: int) -> None:
        """The process knows no draft with a number up to `known_after`, but for those sent to it."""
        self._known_after = known_after
        self._along: list[Pending] = []

    def pack(self, pending: Pending, behind: int = 0) -> Parcel:
        """Return a draft, and its chain, as it is sent. Each has its number.

        `behind` is the number of the draft that is sent, where this one goes along with it.
        """
        draft, ref, body = pending.draft, pending.draft.session, pending.draft.body
        blobs = draft.input_blob is not None or draft.output_blob is not None
        parcel = Parcel(
            pending.number,
            ref.id or ref.candidate,
            Naming(ref.rung, ref.aliases, ref.metadata) if ref.id is None else None,
            pending.facts,
            pending.body,
            blobs or (body is not None and is_linked(body)),
            pending.lazy,
            pending.size,
        )
        if draft.intent is not None:
            self._follow(parcel, draft.intent, behind or pending.number)
        if blobs:
            parcel.input_blob, parcel.output_blob = draft.input_blob, draft.output_blob
        if draft.claim or draft.seen is not None:
            parcel.claim, parcel.seen = draft.claim, draft.seen
        if pending.more is not None and not behind:
            parcel.more = self.pack(pending.more)
        return parcel

    def take_along(self) -> list[Pending]:
        """Return the intents that have failed and were packed again with what follows them, once."""
        along, self._along = self._along, []
        return along

    def _follow(self, parcel: Parcel, intent: Ticket, behind: int) -> None:
        if not isinstance(intent, Pending):
            placed = intent.placed
            parcel.intent, parcel.follows = _UNPLACED, placed.link if placed else None
        elif intent.number > max(self._known_after, behind - REMEMBERED):
            parcel.intent = intent.number
        elif intent.entry is not None:
            parcel.follows = intent.entry.link
        elif intent.has_failed:
            self._along.append(intent)
            parcel.again = self.pack(stripped(intent), behind)
            if intent.refused is not None:
                parcel.again.refused = (str(intent.refused), intent.refused.seq)
        else:
            # Sent to a process before, and to this one as well.
            parcel.intent = intent.number


def stripped(pending: Pending) -> Pending:
    """Return a draft that has failed without its content.

    It is still found where it was put; else it reads as lost, should the draft be written yet.
    """
    draft, sealed = pending.draft, pending.sealed
    if draft.input_blob is None and draft.output_blob is None:
        return pending
    if sealed is not None and sealed.salt:
        bare = structs.replace(draft, input_blob=None, output_blob=None)
        left = Pending(bare, pending.facts, sealed, pending.body, None, pending.size, pending.lazy)
    else:
        left = pend(without_content(draft), os.urandom, None, pending.lazy)
    left.number, left.refused = pending.number, pending.refused
    return left


class Inbox:
    """Makes drafts of parcels, and remembers those that others may follow."""

    def __init__(self) -> None:
        self._known: dict[int, Pending | Standing] = {}
        """By number, in the order in which they came."""
        self._refs: dict[bytes, SessionRef] = {}

    def unpack(self, parcel: Parcel) -> Pending:
        """Return the draft that a parcel is. Raises `msgspec.DecodeError`."""
        facts, body = parcel.facts, parcel.body
        sealed = decode_body(body) if parcel.looked_into and body else None
        draft = Draft(
            session=self._session(parcel),
            facts=_decode_facts(facts),
            body=sealed,
            intent=self._intent(parcel),
        )
        if parcel.looked_into:
            draft.input_blob, draft.output_blob = parcel.input_blob, parcel.output_blob
        if parcel.claim or parcel.seen is not None:
            draft.claim, draft.seen = parcel.claim, parcel.seen
        pending = Pending(draft, facts, sealed, body, None, parcel.size, parcel.lazy)
        pending.number = parcel.number
        if parcel.refused is not None:
            pending.refused = Conflict(*parcel.refused)
        self._known[parcel.number] = pending
        if parcel.more is not None:
            pending.more = self.unpack(parcel.more)
        return pending

    def landed(self, pending: Pending) -> Place:
        """Return what became of a draft whose transaction is on disk, and let go of what it says."""
        entry, draft, sealed = pending.entry, pending.draft, pending.sealed
        if pending.refused is not None:
            self.failed(pending)
            why = (str(pending.refused), pending.refused.seq)
            return Place(refused=why, session=draft.session.id)
        if entry is None:
            return Place()
        if pending.number in self._known:
            self._known[pending.number] = Standing(entry.link)
        if pending.commit is not None:
            return Place(existed=pending.commit)
        facts = None if entry.facts is draft.facts else entry.facts
        place = Place(entry.position, entry.link, pending.hash, facts)
        if sealed is not None and (sealed.input_blob or sealed.output_blob):
            place.marks = (sealed.salt, sealed.input_blob, sealed.output_blob)
        return place

    def failed(self, pending: Pending) -> None:
        """Let go of the content of a draft that was not written, and that others may still follow."""
        if pending.number in self._known:
            self._known[pending.number] = stripped(pending)

    def forget(self, oldest: int) -> None:
        """Let go of what nobody follows by its number any more: see `Delivery.oldest`."""
        known = self._known
        for number in list(takewhile(lambda number: number <= oldest - REMEMBERED, known)):
            del known[number]
        if len(self._refs) > REMEMBERED:
            self._refs.clear()

    def _session(self, parcel: Parcel) -> SessionRef:
        session, naming = parcel.session, parcel.naming
        if naming is not None:
            return SessionRef(
                candidate=session,
                rung=naming.rung,
                aliases=naming.aliases,
                metadata=naming.metadata,
            )
        ref = self._refs.get(session)
        if ref is None:
            ref = self._refs[session] = SessionRef(candidate=session, rung=Rung.IMPLICIT)
            ref.id = session
        return ref

    def _intent(self, parcel: Parcel) -> Ticket | None:
        number = parcel.intent
        if number > 0:
            return self._known.get(number, _NOWHERE)
        if parcel.follows is not None:
            return Standing(parcel.follows)
        if parcel.again is not None:
            return self.unpack(parcel.again)
        return None if number == _NONE else _NOWHERE


_NOWHERE: Final = Standing(None)


def put(pending: Pending, place: Place) -> None:
    """Take a draft for what `place` says of it."""
    draft, commit, link, session = pending.draft, place.existed, place.link, place.session
    if place.refused is not None:
        pending.refused = Conflict(*place.refused)
    elif commit is not None:
        pending.entry = Entry(commit.position, b"", commit.link, commit.facts)
        pending.commit, link = commit, commit.link
    elif link is not None:
        pending.entry = Entry(place.position, b"", link, place.facts or draft.facts)
        pending.hash = place.hash
        if place.marks is not None:
            salt, given, answered = place.marks
            body = draft.body or Body()
            pending.sealed = structs.replace(
                body, salt=salt, input_blob=given, output_blob=answered
            )
    if draft.session.id is None:
        draft.session.id = session if link is None else link.session
