"""Laws of compaction: after bodies are deleted by age, what is still told is what was told before."""

import asyncio
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from conformance.store.kit import begin, intent, known, new_id, outcome, put, session
from kit.commits import changed
from turnlog.core.commit import CommitBody, Facts
from turnlog.core.kinds import CommitKind, Gone, NoteKind
from turnlog.core.note import Decision, encode_note
from turnlog.core.state.session_state import state_hash
from turnlog.observe.clock import Clock
from turnlog.sessions.control.rewind import RewindOrder, rewind
from turnlog.sessions.control.rewind_plan import rewind_plan
from turnlog.sessions.errors import CompactedError
from turnlog.sessions.live import SessionBranches
from turnlog.sessions.retention.ages import Retention
from turnlog.sessions.retention.collect import Collector
from turnlog.sessions.retention.gc import GcFate, expired
from turnlog.sessions.state.compacted import compacted_until, newest_compact
from turnlog.sessions.state.state_at import head_of, saved_states, state_at
from turnlog.sessions.verify import Anchor, ChainVerdict, verify
from turnlog.store.base import Draft, SessionRef
from turnlog.store.lmdb import DAY, LmdbStore
from turnlog.store.read.held_content import HeldContent
from turnlog.store.read.view import View

TODAY = 1_795_737_600 * 10**9
KEPT = Retention(bodies=90 * 86_400.0)

EVENT = st.tuples(
    st.integers(0, 1),  # session
    st.sampled_from(["call", "begin", "decide", "rewind"]),
    st.sampled_from(["/a", "/b", "/c"]),
    st.integers(0, 40),  # days until the next
)


class Story:
    """Sessions of long ago, and what their states were."""

    def __init__(self, data: Path, flush_every: int) -> None:
        self.now = TODAY - 200 * DAY
        self.store = LmdbStore.open(data, now=lambda: self.now, flush_every=flush_every)
        self.clock = Clock(wall=lambda: self.now, monotonic=lambda: self.now)
        self.saved = saved_states(data)
        self.refs = [session("a"), session("b")]
        self.hashes: dict[tuple[SessionRef, int], str] = {}

    async def live(self, events: list[tuple[int, str, str, int]]) -> None:
        for which, kind, path, days in events:
            ref = self.refs[which]
            if kind == "rewind":
                await self._rewind(ref, back=ord(path[1]) - ord("a") + 2)
            elif kind == "decide":
                await put(self.store, self._decision(ref, path))
            else:
                await self._call(ref, path, ends=kind == "call")
            self.now += days * DAY
        with self.store.view() as view:
            for ref in self.refs:
                if ref.id is not None:
                    for commit in view.commits(ref.id):
                        seq = commit.link.seq
                        self.hashes[ref, seq] = self.hash_at(view, ref, seq)

    async def _rewind(self, ref: SessionRef, back: int) -> None:
        """Return a session to so many commits before its head, if it has as many."""
        if ref.id is None:
            return
        with self.store.view() as view:
            head = head_of(view, ref.id)
            if back > head:
                return
            plan = rewind_plan(view, ref.id, head - back)
        await rewind(self.store, plan, RewindOrder(expect=head, clock=self.clock))

    async def _call(self, ref: SessionRef, path: str, *, ends: bool) -> None:
        call = new_id(self.now)
        delta = (Raw(msgspec.msgpack.encode(changed("modified", path))),)
        body = CommitBody(preview=f"path={path}", delta=delta)
        ticket = await begin(self.store, intent(ref, call, at=self.now, body=body))
        if ends:
            body = CommitBody(summary="done", delta=delta)
            await put(self.store, outcome(ref, call, ticket, at=self.now, body=body))

    def _decision(self, ref: SessionRef, text: str) -> Draft:
        facts = Facts(kind=CommitKind.NOTE, at=self.now, clock=0, note=NoteKind.DECISION)
        return Draft(
            session=ref, facts=facts, body=CommitBody(note=encode_note(Decision(text=text)))
        )

    def hash_at(self, view: View, ref: SessionRef, seq: int) -> str:
        return state_hash(state_at(view, self.saved, known(ref), seq))

    async def collect(self) -> None:
        due = expired(self.store.view(), KEPT, self.now, HeldContent())
        collector = Collector(self.store, self.saved, self.clock)
        assert all([line.fate is GcFate.DELETED async for line in collector.collect(due)])

    def check(self) -> None:
        with self.store.view() as view:
            for (ref, seq), told in self.hashes.items():
                first = compacted_until(view, known(ref))
                if seq >= first and self._agrees(view, known(ref), seq, first):
                    assert self.hash_at(view, ref, seq) == told
                    continue
                with pytest.raises(CompactedError, match=f"from commit {first} on"):
                    self.hash_at(view, ref, seq)
            assert list(view.index_flaws()) == []
            for ref in self.refs:
                if ref.id is not None:
                    self._check_chain(view, ref.id)

    def _agrees(self, view: View, name: bytes, seq: int, first: int) -> bool:
        """Return whether what counted up to `first` at the compaction counts at a commit, too."""
        compact, branches = newest_compact(view, name), SessionBranches(view, name)
        if compact is None:
            return True
        return branches.live(seq).agrees(branches.live(compact.link.seq), first)

    def _check_chain(self, view: View, name: bytes) -> None:
        row = view.session(name)
        assert row is not None
        found = verify(name, view.headers(name), [Anchor(row.head_seq, row.head_hash)])
        gone = [commit.gone for commit in view.commits(name) if commit.gone]
        assert found.verdict is (ChainVerdict.REDACTED_OK if gone else ChainVerdict.OK)
        assert found.bodies_dropped == len(gone)
        assert set(gone) <= {Gone.EXPIRED}
        young = [c for c in view.commits(name) if c.facts.at >= self.now - 90 * DAY]
        assert not any(commit.gone for commit in young)
        old = (c for c in view.commits(name) if c.facts.at < self.now - 91 * DAY)
        assert all(
            c.body is None for c in old if c.facts.kind in (CommitKind.INTENT, CommitKind.NOTE)
        )


@pytest.mark.promise("STORE-15")
@settings(max_examples=40, deadline=None)
@given(
    events=st.lists(EVENT, min_size=1, max_size=12),
    later=st.lists(st.integers(1, 100), min_size=1, max_size=3),
    flush_every=st.sampled_from([1, 5, 2000]),
)
def test_any_commit_after_the_last_compaction_has_the_state_that_it_had(
    events: list[tuple[int, str, str, int]], later: list[int], flush_every: int
) -> None:
    async def tell(data: Path) -> None:
        story = Story(data, flush_every)
        try:
            await story.live(events)
            for days in later:
                story.now += days * DAY
                for _ in range(2):
                    await story.collect()
                    story.check()
        finally:
            await story.store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(tell(Path(folder) / "data"))
