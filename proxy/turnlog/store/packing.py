"""Drafts made parcels, and parcels drafts: what may follow what, where two processes know of it."""

import os
from itertools import takewhile
from typing import Final

import msgspec
from msgspec import structs

from turnlog.core.commit import Body, Facts, decode_body
from turnlog.core.kinds import Rung

from .base import Conflict, Draft, SessionRef, Ticket
from .index import Entry, is_linked
from .parcels import NONE, UNPLACED, Naming, Parcel, Place
from .tickets import Pending, Standing, stripped

REMEMBERED: Final = 2048
"""Drafts behind which another may follow one by its number."""
_decode_facts: Final = msgspec.msgpack.Decoder(Facts).decode


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
        if draft.claims or draft.seen is not None:
            parcel.claims, parcel.seen = draft.claims, draft.seen
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
            parcel.intent, parcel.follows = UNPLACED, placed.link if placed else None
        elif intent.number > max(self._known_after, behind - REMEMBERED):
            parcel.intent = intent.number
        elif intent.entry is not None:
            parcel.follows = intent.entry.link
        elif intent.has_failed:
            self._along.append(intent)
            parcel.again = self.pack(stripped(intent, os.urandom), behind)
            if intent.refused is not None:
                parcel.again.refused = (str(intent.refused), intent.refused.seq)
        else:
            # Sent to a process before, and to this one as well.
            parcel.intent = intent.number


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
        if parcel.claims or parcel.seen is not None:
            draft.claims, draft.seen = parcel.claims, parcel.seen
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
            self._known[pending.number] = stripped(pending, os.urandom)

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
        return None if number == NONE else _NOWHERE


_NOWHERE: Final = Standing(None)


def put(pending: Pending, place: Place) -> None:
    """Take a draft for what `place` says of it."""
    draft, commit, link, session = pending.draft, place.existed, place.link, place.session
    pending.refused = None if place.refused is None else Conflict(*place.refused)
    if commit is not None:
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
