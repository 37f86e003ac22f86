"""Laws of `core.state.fold` and `core.state.state_view`, for any commits in any order."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.commits import Log, applied, changed
from turnlog.core.call_status import CallState, next_call_state
from turnlog.core.ids import to_text
from turnlog.core.kinds import ErrorKind, Executed, Flag, Status
from turnlog.core.note import (
    Budget,
    Decision,
    Evict,
    EvictReason,
    Fact,
    FactAction,
    Metadata,
    Note,
    Recall,
    TurnStart,
)
from turnlog.core.operation import Operation, OperationType
from turnlog.core.state.fold import Causes, fold
from turnlog.core.state.session_state import State, decode_state, encode_state, state_hash
from turnlog.core.state.state_view import diff, state_table

LAW = settings(max_examples=100)
PATHS = st.sampled_from(["/a", "/b", "/d", "/d/a", "/d/b", "/e"])
NAMES = st.sampled_from(["a", "b", "c"])
OPERATIONS: st.SearchStrategy[Operation] = st.builds(
    changed,
    op=st.sampled_from([*OperationType, "painted"]),
    key=PATHS,
    to=st.one_of(st.just(""), PATHS),
    maybe=st.booleans(),
)
DONE = st.lists(OPERATIONS, max_size=3)
NOTES: st.SearchStrategy[Note] = st.one_of(
    st.builds(
        Decision, text=NAMES, why=NAMES, id=st.sampled_from(["", "a", "b"]), supersedes=NAMES
    ),
    st.builds(Fact, id=NAMES, action=st.sampled_from(FactAction), value=NAMES),
    st.builds(Evict, keys=st.tuples(NAMES), reason=st.sampled_from(EvictReason)),
    st.builds(Recall, key=NAMES),
    st.builds(TurnStart, name=NAMES),
    st.builds(Metadata, entries=st.dictionaries(NAMES, st.sampled_from(["", "x"]), min_size=1)),
    st.builds(Budget, calls=st.one_of(st.none(), st.integers(0, 9))),
)
PLACES: dict[str, Any] = {
    "name": NAMES,
    "leg": st.integers(0, 2),
    "attempt": st.integers(1, 2),
}
STEPS = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {
                "do": st.just("begin"),
                "done": DONE,
                "method": st.sampled_from(["tools/call", "tasks/get"]),
                **PLACES,
            }
        ),
        st.fixed_dictionaries(
            {
                "do": st.just("end"),
                "done": DONE,
                "status": st.sampled_from(Status),
                "executed": st.sampled_from(Executed),
                "error": st.sampled_from(["", "timeout", "tool_error"]),
                "kind": st.sampled_from([None, ErrorKind.TOOL_FAILED, ErrorKind.NULL_RESULT]),
                "flags": st.sampled_from([(), (Flag.LATE,)]),
                "n": st.integers(0, 2),
                "code": st.sampled_from([None, -32603]),
                **PLACES,
            }
        ),
        st.fixed_dictionaries({"do": st.just("note"), "note": NOTES}),
        st.fixed_dictionaries({"do": st.just("turn")}),
    ),
    max_size=25,
)


def log_of(steps: list[dict[str, Any]]) -> Log:
    log = Log(client="agent")
    for step in steps:
        told = {name: value for name, value in step.items() if name not in ("do", "done", "name")}
        match step["do"]:
            case "begin":
                log.begin(step["name"], "write", *step["done"], **told)
            case "end":
                log.end(step["name"], *step["done"], **told)
            case "note":
                log.note(step["note"])
            case _:
                log.turn += 1
    return log


@pytest.mark.promise("STATE-1")
@LAW
@given(steps=STEPS, cuts=st.lists(st.integers(0, 26), max_size=4))
def test_a_state_does_not_depend_on_the_batches_that_it_is_folded_in(
    steps: list[dict[str, Any]], cuts: list[int]
) -> None:
    commits = log_of(steps).commits
    whole = fold(State(), commits)
    state = State()
    for first, last in pairwise([0, *sorted(cuts), len(commits)]):
        # What comes after a saved state is folded as if it had never been saved.
        saved = decode_state(encode_state(state))
        assert saved is not None
        assert saved == state
        state = fold(saved, commits[first:last] if first < last else [])
    assert state == whole
    assert state_hash(state) == state_hash(whole)
    assert fold(State(), commits, {}) == whole


@pytest.mark.promise("DIFF-2")
@LAW
@given(steps=STEPS, at=st.integers(0, 26), to=st.integers(0, 26))
def test_a_difference_makes_one_table_into_the_other(
    steps: list[dict[str, Any]], at: int, to: int
) -> None:
    commits = log_of(steps).commits
    before, after = (state_table(fold(State(), commits[:n])) for n in (at, to))
    assert applied(before, diff(before, after)) == after
    assert not diff(after, after)


@pytest.mark.promise("DIFF-1")
@LAW
@given(steps=STEPS, at=st.integers(0, 26))
def test_every_difference_but_of_usage_has_a_commit_that_made_it(
    steps: list[dict[str, Any]], at: int
) -> None:
    commits = log_of(steps).commits
    before = fold(State(), commits[:at])
    causes: Causes = {}
    after = fold(before, commits[at:], causes)
    for change in diff(state_table(before), state_table(after)):
        if change.field not in ("usage", "metadata"):
            assert (change.field, change.key) in causes, change


@pytest.mark.promise("STATE-4")
@LAW
@given(steps=STEPS)
def test_tools_count_what_the_last_outcomes_say(steps: list[dict[str, Any]]) -> None:
    state = fold(State(), log_of(steps).commits)
    for used in state.tools.values():
        ended = used.ok + used.unknown + used.replayed + sum(used.errors.values())
        assert 0 <= ended <= used.attempts
        assert used.calls <= used.attempts
        assert min(used.ok, used.unknown, used.replayed, *used.errors.values(), 1) >= 0


def as_recorded(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the steps that may follow each other: attempts in order, none that ends for sure twice."""
    newest: dict[str, tuple[int, int]] = {}
    over: set[tuple[str, int, int]] = set()
    kept: list[dict[str, Any]] = []
    for step in steps:
        if step["do"] not in ("begin", "end"):
            continue
        place = (step["leg"], step["attempt"])
        attempt = (step["name"], *place)
        if step["do"] == "begin":
            if place <= newest.get(step["name"], (-1, 0)):
                continue
            newest[step["name"]] = place
        elif attempt in over:
            continue
        elif step["executed"] is not Executed.MAYBE and not step["status"].unsettled:
            over.add(attempt)
        kept.append(step)
    return kept


@pytest.mark.promise("STATE-6")
@LAW
@given(steps=STEPS.map(as_recorded))
def test_pending_are_the_calls_that_stand_open(steps: list[dict[str, Any]]) -> None:
    log = log_of(steps)
    standing: dict[str, CallState | None] = {}
    for commit in log.commits:
        if commit.facts.call:
            call = to_text(commit.facts.call)
            before = standing.get(call)
            standing[call] = next_call_state(before, commit.link, commit.facts, commit.link.seq)
    calls = fold(State(), log.commits).calls
    assert {call: state for call, state in calls.items() if state.status.unsettled} == {
        call: state for call, state in standing.items() if state and state.status.unsettled
    }
