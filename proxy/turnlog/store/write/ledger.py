"""The end of the log: drafts are appended there, inside a write transaction.

A `Ledger` keeps the heads of sessions and the log behind the watermark in memory; `begin` reads what
other processes have appended. Each session with commits behind the watermark has its head in memory,
so a head that is read from disk is complete.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from turnlog.core.commit import (
    GENESIS,
    Commit,
    CommitBody,
    Facts,
    Link,
    body_digest,
    decode_body,
    decode_header,
    digest,
    encode_facts,
    encode_header,
)
from turnlog.core.hints import Hint
from turnlog.core.kinds import (
    NOTES_OF_PROXIES,
    TAINT_NOTES,
    Actor,
    CommitKind,
    Flag,
    Phase,
    Status,
)
from turnlog.core.lifecycle import (
    CONTROL_KINDS,
    Action,
    SessionStage,
    action_of,
    after_control,
    ends_bundle,
    lease_refusal,
    suspension_of,
    transition_refusal,
)
from turnlog.core.turns import TurnPosition
from turnlog.store.base import (
    Conflict,
    Draft,
    ForkOrigin,
    LeaseRefused,
    Refusal,
    SessionRef,
    SessionSuspended,
    Ticket,
    TransitionRefused,
)
from turnlog.store.log import blocks, digests
from turnlog.store.log.environment import Txn
from turnlog.store.log.index import (
    NOWHERE,
    Entry,
    Head,
    Segment,
    commit_of,
    fold_head,
    is_linked,
    is_same,
    next_place,
    read_entry,
)
from turnlog.store.log.keys import (
    CONTROLS,
    DIGEST_BYTES,
    PURGE,
    PURGE_BEGUN,
    WATERMARK,
    alias_key,
    alias_text_key,
    late_key,
    late_prefix,
    link_key,
    number,
    unpack,
)
from turnlog.store.log.tables import (
    Tables,
    append,
    call_entries,
    keys_with,
    last_position,
    read_head,
    read_log,
    read_number,
    read_record,
    read_segment,
)

from .drafts import SALT, complete, forget, prepare, purge_content
from .erase import erase_names

_MAY_FOLLOW: Final = frozenset(
    {
        Action.RESUME,
        Action.CLOSE,
        Action.ARCHIVE,
        Action.PURGE,
        Action.COMPACT,
        Action.REDACT,
    }
)
"""Changes of a packed session by which it goes on or ends here, or its content goes."""
MOST_HEADS = 4096
"""Heads kept in memory, beside those of sessions with commits behind the watermark."""


class Ledger:
    """The end of the log as one writer sees it. Not thread-safe."""

    def __init__(self, tables: Tables, epoch: int, entropy: Callable[[int], bytes]) -> None:
        self.tail = Segment(0)
        """The log behind the watermark, as far as this writer has read it."""
        self._tables = tables
        self._epoch = epoch
        self._entropy = entropy
        self.heads: dict[bytes, Head] = {}
        """Of all sessions with commits in `tail`, and some more."""
        self._newest_call = b""
        self._refs: dict[SessionRef, bytes] = {}
        self._headers: list[bytes] = []
        self._bodies: list[bytes] = []
        """Of the commits that the present transaction has appended."""
        self.again: list[Draft] = []
        """Intents of earlier, failed transactions that are written along."""
        self._adopted = b""
        """The session of another store that the present transaction appends: it goes on here."""
        self._newest_digest = digests.NONE
        self._loaded = False

    @property
    def behind(self) -> int:
        """The number of commits behind the watermark."""
        return self.tail.last - self.tail.after

    def begin(self, txn: Txn) -> None:
        """Read what other processes appended since the last transaction."""
        self._adopted, last = b"", last_position(txn, self._tables)
        if self._loaded and last == self.tail.last:
            return
        watermark = read_number(txn, self._tables, WATERMARK)
        if not self._loaded or watermark > self.tail.last:
            # Indexed commits that were never seen here may have moved any head.
            self.heads.clear()
            self.tail = Segment(watermark)
        known = self.tail.last
        read_segment(txn, self._tables, self.tail, last)
        for entry in filter(None, self.tail.entries[known - self.tail.after :]):
            session = entry.link.session
            head = self.heads.get(session) or read_head(txn, self._tables, session)
            self.heads[session] = fold_head(head, (entry,))
        self._advance(txn, watermark)
        self._newest_digest = digests.read_newest(txn)
        self._loaded = True

    def append(self, txn: Txn, draft: Draft) -> None:
        """Place a draft, and the session's `open` commit before its first."""
        session = self._session(txn, draft)
        if draft.expected_head is not None:
            self._append_control(txn, session, draft)
            return
        if self.heads[session].control is not None and (
            self._keep_purged(txn, session, draft) or self._keep_out(txn, session, draft)
        ):
            return
        body, facts, intent = draft.body, draft.facts, draft.intent
        found = self._find(txn, session, facts)
        if found is not None or (body is not None and body.note_key):
            unwritten = self._unwritten(txn, session, draft, found)
            if unwritten is None:
                return
            facts = unwritten
        is_first = facts.kind is CommitKind.INTENT and facts.attempt == 1 and intent is None
        follows = None if is_first else self._predecessor(txn, session, draft)
        linked = body is not None and is_linked(body)
        # Else it claims nothing, is about no fact, and follows nothing that was refused.
        may_conflict = (
            linked
            or draft.claims
            or (follows is None and intent is not None)
            or draft.awaits_session
            or draft.fence is not None
        )
        draft.refused = self._conflict(txn, session, draft) if may_conflict else None
        if draft.refused is None:
            self._extend(session, draft, facts, follows, linked)
            if facts.kind is CommitKind.NOTE and facts.note in TAINT_NOTES:
                self._count_control(txn)  # running proxies look at the session again

    def _append_control(self, txn: Txn, session: bytes, draft: Draft) -> None:
        """Place a control commit, unless head, stage or lease of its session forbid it."""
        before, body = self.heads[session], draft.body
        draft.refused = control_refusal(before, draft)
        is_packed = draft.refused is None and self.is_packed(txn, session)
        if is_packed and not (
            action_of(draft.facts) in _MAY_FOLLOW or ends_bundle(draft.facts, draft.body)
        ):
            draft.refused = _packed_conflict(before)
        if draft.refused is not None:
            return
        if is_packed:
            self.append_late(txn, session)
        self._extend(session, draft, draft.facts, None, body is not None and is_linked(body))
        after = self.heads[session]
        control = after_control(before.control, draft.facts, after.seq)
        self.heads[session] = msgspec.structs.replace(after, control=control)
        if action_of(draft.facts) is Action.PURGE:
            txn.put(PURGE + session, PURGE_BEGUN, db=self._tables.meta)
            # From now on they open another session: nothing may be added to this one.
            erase_names(txn, self._tables, session)
        self._count_control(txn)
        for alias, named in draft.names.items():
            self._rename(txn, alias, named)

    def _count_control(self, txn: Txn) -> None:
        count = read_number(txn, self._tables, CONTROLS) + 1
        txn.put(CONTROLS, number(count), db=self._tables.meta)

    def _rename(self, txn: Txn, alias: str, session: bytes) -> None:
        """Make an alias lead to a session, whatever it led to."""
        key, table = alias_key(alias), self._tables.aliases
        if before := txn.get(key, db=table):
            txn.delete(alias_text_key(before, alias), db=table)
        txn.put(key, session, db=table)
        txn.put(alias_text_key(session, alias), alias.encode(), db=table)

    def adopt(self, txn: Txn, header: bytes, body: bytes) -> None:
        """Append a commit of another store as it is, behind the newest one of its session.

        Raises `Conflict`.
        """
        entry = read_entry(self.tail.last + 1, header)
        link, session = entry.link, entry.link.session
        head = self.heads.get(session) or read_head(txn, self._tables, session)
        if head and (link.seq, link.prev) != (head.seq + 1, head.hash):
            raise Conflict(
                f"the session went on meanwhile, its newest commit is {head.seq}", head.seq
            )
        self.heads[session] = fold_head(head, (entry,))
        self._adopted = session
        if entry.facts.kind in CONTROL_KINDS:
            self._count_control(txn)
        self._headers.append(header)
        self._bodies.append(body)
        self.tail.add(entry)
        if link.linked and body:
            self.tail.add_body(entry.position, session, decode_body(body))

    def name(self, txn: Txn, session: bytes, alias: str) -> bool:
        """Make an alias lead to a session; return whether it does, and not to another one as before."""
        key, table = alias_key(alias), self._tables.aliases
        if txn.put(key, session, overwrite=False, db=table):
            txn.put(alias_text_key(session, alias), alias.encode(), db=table)
            return True
        return txn.get(key, db=table) == session

    def _unwritten(
        self, txn: Txn, session: bytes, draft: Draft, found: Entry | None
    ) -> Facts | None:
        """Return the facts to store for a draft; `None` if its commit is stored already, whose place the
        draft then gets.

        An outcome that has to give way to one of the store's own gets another number.
        """
        facts, body = draft.facts, draft.body
        if found is None and body and body.note_key:
            found = self._linked(txn, session + body.note_key)
        if found is None:
            return facts
        if is_displaced(facts, found.facts):
            facts = late_outcome(facts, self._outcomes(txn, session, facts))
            found = self._find(txn, session, facts)
            if found is None:
                return facts
        draft.commit = self._read(txn, found)
        return None

    def _extend(
        self,
        session: bytes,
        draft: Draft,
        facts: Facts,
        follows: Link | None,
        linked: bool,
    ) -> None:
        """Place a draft behind its session's newest commit; `facts` are its facts as stored."""
        tail, head, body = self.tail, self.heads[session], draft.encoded_body
        now, position, seq = next_place(head.place, facts), tail.last + 1, head.seq + 1
        turn, step, source, ref = now.turn, now.step, now.source, draft.target
        if follows is not None:
            ref = follows.seq
            if facts.kind is not CommitKind.INTENT or facts.attempt != 1:
                turn, step, source = follows.turn, follows.step, follows.turn_source
        link = Link(
            session=session,
            seq=seq,
            epoch=self._epoch,
            turn=turn,
            step=step,
            turn_source=source,
            ref=ref,
            body_hash=body_digest(body),
            prev=head.hash,
            linked=linked,
        )
        raw = draft.encoded_facts if facts is draft.facts else encode_facts(facts)
        header = encode_header(link, raw)
        chained = digest(header)
        draft.commit = Commit(
            position=position, link=link, facts=facts, hash=chained, body=draft.body
        )
        self.heads[session] = Head(seq, chained, now, position, head.opened, head.control)
        self._headers.append(header)
        self._bodies.append(body)
        tail.add(Entry(position, header, link, facts))
        if linked and draft.body is not None:
            tail.add_body(position, session, draft.body)

    def put(self, txn: Txn) -> int:
        """Write what was appended; return the bytes of its records.

        Raises `StoreError` when the log's end is not where it was.
        """
        before = self._first_new - 1
        log = digests.with_digests(blocks.items(before, self._headers), self._newest_digest)
        bodies = blocks.items(before, self._bodies)
        size = sum(map(len, self._headers)) + sum(map(len, self._bodies))
        self._headers, self._bodies = [], []
        append(txn, self._tables, log, bodies)
        if log:
            self._newest_digest = log[-1][1][-DIGEST_BYTES:]
        return size

    def settle(self) -> list[Draft]:
        """Mark the transaction as committed: sessions have their ids from now on.

        Return the intents of earlier, failed transactions that were written along.
        """
        for ref, session in self._refs.items():
            ref.id = session
        self._refs.clear()
        again, self.again = self.again, []
        return again

    def forget(self) -> None:
        """Drop everything remembered, because a transaction failed."""
        self.heads.clear()
        self._refs.clear()
        for draft in self.again:
            forget(draft)
        self.again = []
        self._headers, self._bodies = [], []
        self.tail = Segment(0)
        self._loaded = False

    def trim(self, txn: Txn) -> None:
        """Drop the part of the tail that the derived tables hold by now."""
        self._advance(txn, read_number(txn, self._tables, WATERMARK))

    def _advance(self, txn: Txn, watermark: int) -> None:
        if self._loaded and watermark == self.tail.after:
            return
        if watermark > self.tail.after:
            self.tail = self.tail.after_position(watermark)
        with txn.cursor(self._tables.calls) as cursor:
            self._newest_call = cursor.key()[:16] if cursor.last() else b""
        if len(self.heads) > MOST_HEADS:
            self.heads = {s: h for s, h in self.heads.items() if h.position > watermark}

    def _find(self, txn: Txn, session: bytes, facts: Facts) -> Entry | None:
        """Return the commit on disk, or placed before, that says the same of the same attempt."""
        call, kind = facts.call, facts.kind
        if not call or not (kind is CommitKind.OUTCOME or kind is CommitKind.INTENT):
            return None
        entries, first = self.tail.entries, self.tail.after + 1
        for position in self.tail.calls.get(call, ()):
            entry = entries[position - first]
            if entry and entry.facts.kind is kind and is_same(entry, session, facts):
                return entry
        # Call ids rise with time: one above all indexed ids can only be behind the watermark.
        if call > self._newest_call:
            return None
        stored = call_entries(txn, self._tables, call)
        return next((entry for entry in stored if is_same(entry, session, facts)), None)

    def _conflict(
        self, txn: Txn, session: bytes, draft: Draft
    ) -> Refusal | SessionSuspended | None:
        body = draft.body
        if draft.fence is not None and (stale := fence_refusal(self.heads[session], draft)):
            return stale
        if draft.awaits_session and (refusal := self._suspended(txn, session)) is not None:
            return refusal
        if draft.claims:
            return claim_conflict(self._claimed(txn, draft), draft.seen)
        intent = draft.intent
        if isinstance(intent, Draft) and intent.refused is not None:
            return intent.refused
        if body is None or not body.fact_key:
            return None
        newest = self._linked(txn, session + body.fact_key)
        return version_conflict(newest, draft.seen, self.heads[session].seq)

    def _claimed(self, txn: Txn, draft: Draft) -> Iterator[Entry]:
        """Yield the commits of others that carry a link which an intent claims."""
        for link in draft.claims:
            # A process knows its own calls before they are written.
            yield from (e for e in self._carrying(txn, link) if e.link.epoch != self._epoch)
        if draft.sole_claim:
            found, call = self._carrying(txn, draft.sole_claim), draft.facts.call
            yield from (entry for entry in found if entry.facts.call != call)

    def _suspended(self, txn: Txn, session: bytes) -> SessionSuspended | None:
        """Return why a call is refused that is about to be sent in a session; `None` if it is not."""
        suspension = suspension_of(self.heads[session].control, "")
        if suspension is not None and self.is_packed(txn, session):
            suspension = suspension_of(self.heads[session].control, "", is_moved=True)
        return SessionSuspended(suspension) if suspension is not None else None

    def is_packed(self, txn: Txn, session: bytes) -> bool:
        """Return whether a session was packed for another store, and nothing was added since."""
        head = self.heads.get(session) or read_head(txn, self._tables, session)
        if session == self._adopted or head is None or head.control is None:
            return False
        if head.control.stage is not SessionStage.PAUSED:
            return False
        known = head.position - self.tail.after - 1
        is_recent = known >= 0
        entry = (
            self.tail.entries[known] if is_recent else read_log(txn, self._tables, head.position)
        )
        newest = self._read(txn, entry) if entry is not None else None
        return newest is not None and ends_bundle(newest.facts, newest.body)

    def _keep_purged(self, txn: Txn, session: bytes, draft: Draft) -> bool:
        """Keep content out of a purged session: refuse a note, remove that of a call which was under way; return
        whether the draft was refused."""
        head, facts = self.heads[session], draft.facts
        if head.control is None or head.control.stage is not SessionStage.PURGED:
            return False
        if facts.kind is CommitKind.NOTE and facts.note not in NOTES_OF_PROXIES:
            draft.refused = TransitionRefused(
                f"the session is purged, so nothing can be noted in it (its newest commit is {head.seq})",
                stage=SessionStage.PURGED,
                action=None,
                seq=head.seq,
            )
            return True
        if purge_content(draft):
            txn.put(PURGE + session, PURGE_BEGUN, db=self._tables.meta)
        return False

    def _keep_out(self, txn: Txn, session: bytes, draft: Draft) -> bool:
        """Keep what comes after a session was packed out of its log; return whether this draft was.

        The session could not come back behind it. The outcome of a call is stored beside the log until
        then, all else is refused. Only a new call goes into the log: then the session goes two ways.
        """
        facts = draft.facts
        if facts.kind is CommitKind.INTENT or not self.is_packed(txn, session):
            return False
        head = self.heads[session]
        link = self._predecessor(txn, session, draft) if facts.kind is CommitKind.OUTCOME else None
        if link is None or facts.actor is not Actor.AGENT:
            draft.refused = _packed_conflict(head)
            return True
        header = encode_header(link, draft.encoded_facts)
        late = msgspec.msgpack.encode((header, draft.encoded_body))
        txn.put(late_key(session, facts), late, db=self._tables.aliases)
        draft.commit = Commit(
            position=head.position, link=link, facts=facts, hash=head.hash, body=draft.body
        )
        return True

    def append_late(self, txn: Txn, session: bytes) -> None:
        """Append the outcomes that came after a session was packed, as it goes on here."""
        for key, late in [*keys_with(txn, self._tables.aliases, late_prefix(session))]:
            txn.delete(key, db=self._tables.aliases)
            header, body = msgspec.msgpack.decode(late, type=tuple[bytes, bytes])
            _, facts = decode_header(header)
            draft = Draft(
                session=SessionRef.existing(session),
                facts=facts,
                body=decode_body(body) if body else None,
                encoded_facts=encode_facts(facts),
                encoded_body=body,
            )
            unwritten = self._unwritten(txn, session, draft, self._find(txn, session, facts))
            if unwritten is not None:
                linked = draft.body is not None and is_linked(draft.body)
                follows = self._predecessor(txn, session, draft)
                self._extend(session, draft, unwritten, follows, linked)

    def _linked(self, txn: Txn, key: bytes) -> Entry | None:
        """Return the newest commit with a link, on disk or placed before."""
        return next(self._carrying(txn, key), None)

    def _carrying(self, txn: Txn, key: bytes) -> Iterator[Entry]:
        """Yield commits with a link, the newest first: those behind the watermark, and one before it."""
        yield from reversed(self.tail.pick(self.tail.links.get(key, ())))
        stored = txn.get(link_key(key), db=self._tables.links)
        with suppress(msgspec.DecodeError):
            entry = read_log(txn, self._tables, unpack(stored)) if stored else None
            if entry is not None:
                yield entry

    def _outcomes(self, txn: Txn, session: bytes, facts: Facts) -> list[Facts]:
        """Return the outcomes of the attempt of `facts`, in no order."""
        recent = self.tail.pick(self.tail.calls.get(facts.call, ()))
        return [
            entry.facts
            for entry in (*recent, *call_entries(txn, self._tables, facts.call))
            if is_same(entry, session, msgspec.structs.replace(facts, n=entry.facts.n))
        ]

    def _predecessor(self, txn: Txn, session: bytes, draft: Draft) -> Link | None:
        """Return the commit that a draft follows: an outcome its intent, another attempt's intent
        the outcome of the attempt before."""
        facts, kind = draft.facts, draft.facts.kind
        if kind is CommitKind.OUTCOME:
            if isinstance(draft.intent, Draft):
                return self._followed(txn, draft.intent)
            begun = msgspec.structs.replace(facts, kind=CommitKind.INTENT, n=0)
            found = self._find(txn, session, begun)
            return found.link if found else None
        if kind is CommitKind.INTENT and facts.attempt > 1:
            earlier = msgspec.structs.replace(
                facts, kind=CommitKind.OUTCOME, attempt=facts.attempt - 1, n=0
            )
            found = self._find(txn, session, earlier)
            return found.link if found else None
        if draft.intent is None or not (kind is CommitKind.INTENT or kind is CommitKind.NOTE):
            return None
        followed = self._followed(txn, draft.intent)
        # A key holds across sessions; a seq does not.
        return followed if followed and followed.session == session else None

    def _followed(self, txn: Txn, ticket: Ticket) -> Link | None:
        """Return the link of a ticket's commit; one that failed is written along."""
        if not isinstance(ticket, Draft):
            return ticket.placed.link if ticket.placed else None
        if ticket.commit is None:
            # Its transaction failed: an outcome is of no use without its intent.
            if ticket.body and not ticket.body.salt:
                # It was refused before any transaction, because there was no room.
                complete(ticket, self._entropy(SALT))
            self.append(txn, ticket)
            self.again.append(ticket)
        return ticket.commit.link if ticket.commit else None

    def _read(self, txn: Txn, entry: Entry) -> Commit:
        position = entry.position
        if position >= self._first_new:
            return commit_of(entry, self._bodies[position - self._first_new])
        return commit_of(entry, read_record(txn, self._tables.bodies, position))

    @property
    def _first_new(self) -> int:
        """Position of the first commit that this transaction has appended."""
        return self.tail.last + 1 - len(self._bodies)

    def _session(self, txn: Txn, draft: Draft) -> bytes:
        """Return the session of a draft with its head in memory; a new one is opened."""
        ref = draft.session
        session = ref.id or self._refs.get(ref)
        if session is None:
            session = self._refs[ref] = self._named(txn, ref)
        if session not in self.heads:
            head = read_head(txn, self._tables, session)
            if head:
                self.heads[session] = head
            else:
                self._open(session, ref, draft.facts)
        return session

    def _named(self, txn: Txn, ref: SessionRef) -> bytes:
        keys = [alias_key(alias) for alias in ref.aliases]
        known = (txn.get(key, db=self._tables.aliases) for key in keys)
        session = next((s for s in known if s), ref.candidate)
        for alias in ref.aliases:
            self.name(txn, session, alias)
        return session

    def _open(self, session: bytes, ref: SessionRef, cause: Facts) -> None:
        origin = ref.origin
        facts = opening_facts(cause, origin)
        draft = prepare(Draft(session=ref, facts=facts, body=opening_body(ref)), self._entropy)
        seq, prev, place = -1, GENESIS, NOWHERE
        if origin is not None:
            seq, prev = origin.seq, origin.hash
            place = TurnPosition(turn=origin.turn, step=origin.step)
        self.heads[session] = Head(seq, prev, place, self.tail.last, self.tail.last + 1)
        self._extend(session, draft, facts, None, False)


def opening_facts(cause: Facts, origin: ForkOrigin | None = None) -> Facts:
    """Return the facts of the commit that opens a session, whose first commit is `cause`."""
    return Facts(
        kind=CommitKind.OPEN,
        at=cause.at,
        clock=cause.clock,
        actor=cause.actor,
        server=cause.server,
        phase=Phase.DONE,
        status=Status.OK,
        protocol=cause.protocol,
        note=origin.parent.hex() if origin is not None else "",
    )


def opening_body(ref: SessionRef) -> CommitBody:
    """Return the body of the commit that opens a session: how it was named."""
    aliases = msgspec.json.encode(ref.aliases).decode()
    return CommitBody(
        metadata={**ref.metadata, "rung": ref.rung.value, "aliases": aliases},
        note=ref.origin.content if ref.origin is not None else b"",
    )


def is_displaced(draft: Facts, stored: Facts) -> bool:
    """Return whether `stored`, of the same attempt and number as `draft`, is not the same outcome.

    It is not when turnlog closed the attempt (recovery, expiry) or an operator settled it, or when
    it is an answer that had to move behind that.
    """
    return (
        draft.kind is CommitKind.OUTCOME
        and draft.actor is Actor.AGENT
        and (stored.actor is not Actor.AGENT or _has_moved(draft, stored))
    )


def late_outcome(draft: Facts, outcomes: Sequence[Facts]) -> Facts:
    """Return the facts to store for an outcome that `is_displaced`: the next number, flag `late`.

    One that was stored so before keeps its number; `outcomes` are all of its attempt.
    """
    free = max(outcome.n for outcome in outcomes) + 1
    stored = (o.n for o in outcomes if _has_moved(draft, o) and _moved_to(draft, o.n) == o)
    return _moved_to(draft, next(stored, free))


def _has_moved(draft: Facts, stored: Facts) -> bool:
    return Flag.LATE in stored.flags and Flag.LATE not in draft.flags


def _moved_to(draft: Facts, n: int) -> Facts:
    flags = tuple(dict.fromkeys((*draft.flags, Flag.LATE)))
    return msgspec.structs.replace(draft, n=n, flags=flags)


def control_refusal(head: Head, draft: Draft) -> Refusal | None:
    """Return why a control commit is refused in a session whose head is this one."""
    facts, control = draft.facts, head.control
    if not _is_expected(head, draft):
        return Conflict(
            f"the session's newest commit is {head.seq}, not {draft.expected_head}; see what happened "
            "since, and try again",
            head.seq,
        )
    if why := transition_refusal(control, head.stage, facts):
        message = f"{why} (its newest commit is {head.seq})"
        action = action_of(facts)
        return TransitionRefused(message, stage=head.stage, action=action, seq=head.seq)
    return fence_refusal(head, draft)


def fence_refusal(head: Head, draft: Draft) -> LeaseRefused | None:
    """Return why a commit is refused because of the lease on its session; `None` if it is not."""
    control = head.control
    if why := lease_refusal(control, draft.facts, draft.fence):
        return LeaseRefused(why, fence=control.fence if control else 0, seq=head.seq)
    return None


def _packed_conflict(head: Head) -> Conflict:
    return Conflict(
        f"commit {head.seq} has packed the session for another store", head.seq, Hint.UNPACK
    )


def _is_expected(head: Head, draft: Draft) -> bool:
    """Return whether a session's head is the one that the writer of a control commit expects."""
    expected = draft.expected_head
    if expected is None or not draft.allows_calls:
        return head.seq == expected
    newest = head.control.newest if head.control is not None else 0
    return newest <= expected <= head.seq


def version_conflict(newest: Entry | None, seen: int | None, head: int) -> Conflict | None:
    """Return why a note is refused, whose writer has seen the session up to `seen`.

    `newest` is the newest note about the same fact, `head` the seq of the session's newest commit.
    """
    if seen is not None and seen > head:
        return Conflict(f"commit {seen} is to come, the session's newest is {head}", head)
    if newest is None or (seen is not None and newest.link.seq <= seen):
        return None
    seq = newest.link.seq
    return Conflict(
        f"commit {seq} says something of the same fact; read it, and give {seq} or a later commit "
        "as the head that you have seen",
        seq,
    )


def claim_conflict(carrying: Iterable[Entry], seen: int | None) -> Conflict | None:
    """Return why an intent is refused, whose writer has seen the log up to position `seen`.

    `carrying` are commits with links that it claims.
    """
    for entry in carrying:
        if entry.position > (seen or 0):
            seq = entry.link.seq
            return Conflict(f"commit {seq} claims the same; read it before you claim it again", seq)
    return None
