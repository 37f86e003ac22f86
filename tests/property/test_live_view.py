"""Laws of `core.live_view`, for any calls, notes and rewinds in any order."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.commits import Log, changed
from turnlog.core.commit import Commit
from turnlog.core.kinds import Executed, Status
from turnlog.core.live_view import (
    CallStarts,
    LiveView,
    Rewind,
    counts,
    is_detached,
    live_commits,
    live_view,
)
from turnlog.core.note import Decision
from turnlog.core.state.fold import fold
from turnlog.core.state.session_state import State
from turnlog.core.state.state_view import Table, state_table

LAW = settings(max_examples=200)
NAMES = st.sampled_from(["a", "b", "c", "d"])
STEPS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"do": st.just("begin"), "name": NAMES, "leg": st.integers(0, 1)}),
        st.fixed_dictionaries(
            {
                "do": st.just("end"),
                "name": NAMES,
                "leg": st.integers(0, 1),
                "status": st.sampled_from([Status.OK, Status.ERROR, Status.UNKNOWN]),
                "executed": st.sampled_from(Executed),
            }
        ),
        st.fixed_dictionaries({"do": st.just("note"), "name": NAMES}),
        st.fixed_dictionaries(
            {
                "do": st.just("rewind"),
                "to": st.integers(0, 30),
                "keep": st.lists(st.integers(0, 30), max_size=2),
            }
        ),
    ),
    max_size=25,
)


class History:
    """A log with rewinds, and what the laws are held against: sets of commits, made one by one."""

    def __init__(self, steps: list[dict[str, Any]]) -> None:
        self.log = Log()
        self.rewinds: list[Rewind] = []
        self.begun: set[tuple[str, int]] = set()
        for step in steps:
            self.add(step)

    @property
    def commits(self) -> list[Commit]:
        return self.log.commits

    def add(self, step: dict[str, Any]) -> None:
        told = {name: value for name, value in step.items() if name not in ("do", "name")}
        match step["do"]:
            case "begin":
                # The store holds an attempt once, and its outcomes behind it.
                attempt = step["name"], step["leg"]
                follows = step["leg"] == 0 or (step["name"], 0) in self.begun
                if follows and attempt not in self.begun:
                    self.begun.add(attempt)
                    done = changed("modified", f"/{step['name']}")
                    self.log.begin(step["name"], "write", done, **told)
            case "end" if (step["name"], step["leg"]) in self.begun:
                self.log.end(step["name"], **told)
            case "end":
                pass
            case "note":
                self.log.note(Decision(text=step["name"], id=step["name"]))
            case _:
                self.rewind(step["to"], step["keep"])

    def rewind(self, to: int, keep: list[int] | None = None) -> int:
        """Append a rewind to a commit that exists; it keeps what it would have discarded."""
        target = min(to, self.log.seq)
        discarded = self.path(self.log.seq) - self.path(target)
        started = set(map(self.started, self.commits))
        kept = frozenset(keep or ()) & discarded & started
        seq = self.log.rewind(target)
        self.rewinds.append(Rewind(seq=seq, target=target, keep=kept))
        return seq

    def path(self, at: int) -> set[int]:
        by_seq = {rewind.seq: rewind for rewind in self.rewinds}
        found: set[int] = set()
        while at >= 0:
            found.add(at)
            at = by_seq[at].target if at in by_seq else at - 1
        return found

    def started(self, commit: Commit) -> int:
        call = commit.facts.call
        same = [one.link.seq for one in self.commits if call and one.facts.call == call]
        return min(same, default=commit.link.seq)

    def live(self, at: int) -> list[Commit]:
        """Return the commits that count at `at`, by the definition alone."""
        path = self.path(at)
        kept = {seq for rewind in self.rewinds if rewind.seq in path for seq in rewind.keep}
        return [
            commit
            for commit in self.commits[: at + 1]
            if self.started(commit) in path or (commit.facts.call and self.started(commit) in kept)
        ]

    def view(self, at: int) -> LiveView:
        return live_view(at, [rewind for rewind in self.rewinds if rewind.seq <= at])

    def starts(self) -> CallStarts:
        def look_up(call: bytes) -> int | None:
            return next((c.link.seq for c in self.commits if c.facts.call == call), None)

        return CallStarts(look_up)

    def state(self, at: int) -> State:
        return fold(State(), live_commits(self.view(at), self.commits[: at + 1], self.starts()))

    def table(self, at: int) -> Table:
        return state_table(self.state(at))


@pytest.mark.promise("REWIND-1")
@LAW
@given(steps=STEPS)
def test_the_view_at_each_commit_is_the_fold_of_the_commits_that_count(
    steps: list[dict[str, Any]],
) -> None:
    history = History(steps)
    for at in range(len(history.commits)):
        assert history.state(at) == fold(State(), history.live(at))
        assert {seq for seq in range(at + 1) if history.view(at).has(seq)} == history.path(at)
        assert history.view(at).is_whole == (history.path(at) == set(range(at + 1)))
        below = [history.view(at).before(seq) for seq in range(at + 1)]
        expected = [max(one for one in history.path(at) if one <= seq) for seq in range(at + 1)]
        assert below == expected


@pytest.mark.promise("REWIND-1")
@LAW
@given(steps=STEPS)
def test_a_rewind_of_a_rewind_gives_the_view_before(steps: list[dict[str, Any]]) -> None:
    history = History(steps)
    head = history.log.seq
    before = history.table(head)
    first = history.rewind(head // 2)
    history.rewind(head)
    assert history.table(history.log.seq) == before
    history.rewind(first)
    assert history.table(history.log.seq) == history.table(first)


@pytest.mark.promise("REWIND-1")
@LAW
@given(steps=STEPS)
def test_a_fold_may_go_on_from_a_saved_state_if_the_view_continues(
    steps: list[dict[str, Any]],
) -> None:
    history = History(steps)
    for at in range(len(history.commits)):
        view, starts = history.view(at), history.starts()
        for start in range(at + 1):
            if view.continues(start):
                later = live_commits(view, history.commits[start + 1 : at + 1], starts)
                assert state_table(fold(history.state(start), later)) == history.table(at)


@pytest.mark.promise("REWIND-1")
@LAW
@given(steps=STEPS)
def test_each_outcome_goes_to_its_call_or_is_detached_or_lies_on_another_branch(
    steps: list[dict[str, Any]],
) -> None:
    history = History(steps)
    at = history.log.seq
    view, starts, path = history.view(at), history.starts(), history.path(at)
    for commit in history.commits:
        is_live = commit in history.live(at)
        assert counts(view, commit, starts) == is_live
        came_after_the_cut = commit.facts.kind == "outcome" and commit.link.seq in path
        assert is_detached(view, commit, starts) == (came_after_the_cut and not is_live)


@pytest.mark.promise("REWIND-1")
@LAW
@given(steps=STEPS)
def test_a_call_that_a_rewind_keeps_stays_in_the_view_and_nothing_else_does(
    steps: list[dict[str, Any]],
) -> None:
    history = History(steps)
    head = history.log.seq
    begun = [seq for seq in range(head + 1) if history.commits[seq].facts.kind == "intent"]
    history.rewind(0, begun)
    kept = history.rewinds[-1].keep
    calls = [c for c in history.live(history.log.seq) if c.facts.call]
    assert {history.started(commit) for commit in calls} == set(kept)
