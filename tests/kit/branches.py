"""A session in a store, written call by call, with rewinds and forks."""

from itertools import count
from pathlib import Path
from typing import Any

from conformance.store.kit import START, begin, intent, known, new_id, outcome, put, session
from kit.commits import changed, delta
from turnlog.core.canon import input_hash
from turnlog.core.commit import CommitBody, Facts
from turnlog.core.kinds import Actor, CommitKind, Effect, NoteKind, Status
from turnlog.core.note import Decision, encode_note
from turnlog.observe.clock import Clock
from turnlog.sessions.control.fork import ForkMade, ForkOrder, fork, fork_draft
from turnlog.sessions.control.rewind import RewindOrder, rewind
from turnlog.sessions.control.rewind_plan import rewind_plan
from turnlog.sessions.state.state_at import read_state, saved_states
from turnlog.store.base import Blob, Draft, SessionRef, Ticket
from turnlog.store.lmdb import LmdbStore

ANSWER = Blob(b'{"content":[{"type":"text","text":"hello"}]}')


class Work:
    """A session in a store, written call by call."""

    def __init__(self, store: LmdbStore, data: Path, ref: SessionRef | None = None) -> None:
        self.store = store
        self.data = data
        self.ref: SessionRef = ref or session("work")
        self._seconds = count(1)

    @property
    def id(self) -> bytes:
        """The session's id."""
        return known(self.ref)

    async def begin(self, name: str, effect: Effect = Effect.WRITE) -> tuple[bytes, Ticket]:
        """Append an intent of a call that changes a file of this name."""
        call, at = new_id(), START + next(self._seconds) * 10**9
        body = CommitBody(
            input_hash=input_hash(("sha256", name.encode())),
            delta=delta(changed("modified", name)),
            preview=name,
        )
        draft = intent(self.ref, call, tool="write", effect=effect, at=at, body=body)
        return call, await begin(self.store, draft)

    async def end(self, begun: tuple[bytes, Ticket], status: Status = Status.OK) -> int:
        """Append its outcome; return the seq."""
        call, ticket = begun
        draft = outcome(self.ref, call, ticket, status=status, blob=ANSWER)
        return (await put(self.store, draft)).link.seq

    async def call(self, name: str, effect: Effect = Effect.WRITE) -> int:
        """Append a whole call; return the seq of its outcome."""
        return await self.end(await self.begin(name, effect))

    async def decide(self, text: str) -> int:
        """Append a decision."""
        facts = Facts(
            kind=CommitKind.NOTE, at=START, clock=0, actor=Actor.AGENT, note=NoteKind.DECISION
        )
        body = CommitBody(note=encode_note(Decision(text=text, id=text)))
        draft = Draft(session=self.ref, facts=facts, body=body)
        return (await put(self.store, draft)).link.seq

    async def rewind(self, target: int, *keep: int, why: str = "") -> int:
        """Make a rewind."""
        with self.store.view() as view:
            plan = rewind_plan(view, self.id, target, keep=keep)
        order = RewindOrder(
            expect=plan.head, clock=Clock(wall=lambda: START, monotonic=lambda: 1), why=why
        )
        return (await rewind(self.store, plan, order)).rewound or 0

    def files(self, at: int | None = None, *, with_discarded: bool = False) -> set[str]:
        """Return the files that the state names."""
        with self.store.view() as view:
            row = view.session(self.id)
            assert row is not None
            seq = row.head_seq if at is None else at
            saved = saved_states(self.data)
            found = read_state(view, saved, self.id, seq, with_discarded=with_discarded)
        return set(found.state["files_modified"])

    async def fork(self, seq: int | None = None, **more: Any) -> tuple["Work", ForkMade]:
        """Make a fork; return it."""
        order = ForkOrder(session=self.id.hex(), seq=seq, **more)
        with self.store.view() as view:
            draft = fork_draft(view, saved_states(self.data), order, Clock(wall=lambda: START))
        made = await fork(self.store, draft, order)
        ref = SessionRef(candidate=draft.session.candidate, rung=draft.session.rung)
        ref.id = ref.candidate
        return Work(self.store, self.data, ref), made
