"""`core.turns`: the turn and step of a call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.core import turns
from turnlog.core.kinds import TurnSource
from turnlog.core.turns import STEP_GAP, TURN_GAP, TurnPosition, after_commit, next_call

AT = 1_790_000_000_000_000_000


def begin(place: TurnPosition, at: int, label: str = "") -> TurnPosition:
    """Start a call, whose turn is named by its caller where there is a label."""
    return next_call(place, at, label, TurnSource.EXPLICIT if label else TurnSource.GAP)


def test_the_first_call_is_step_one_of_turn_one() -> None:
    place = begin(TurnPosition(), AT)
    assert (place.turn, place.step, place.in_flight) == (1, 1, 1)
    assert place.source is TurnSource.GAP


def test_calls_that_overlap_are_one_step() -> None:
    place = begin(begin(TurnPosition(), AT), AT + 10 * STEP_GAP)
    assert (place.step, place.in_flight) == (1, 2)


@pytest.mark.promise("SESS-7")
def test_calls_that_start_close_together_are_one_step() -> None:
    place = after_commit(begin(TurnPosition(), AT), AT + 1, ended=1)
    assert begin(place, AT + STEP_GAP - 1).step == 1
    assert begin(place, AT + STEP_GAP).step == 2


def test_a_quiet_session_begins_a_new_turn() -> None:
    place = after_commit(begin(TurnPosition(), AT), AT, ended=1)
    still, later = begin(place, AT + TURN_GAP - 1), begin(place, AT + TURN_GAP)
    assert (still.turn, still.step) == (1, 2)
    assert (later.turn, later.step) == (2, 1)
    assert later.source is TurnSource.GAP


@pytest.mark.promise("SESS-8")
def test_a_call_in_flight_keeps_the_turn_open() -> None:
    place = begin(TurnPosition(), AT)
    assert begin(place, AT + 2 * TURN_GAP).turn == 1


def test_a_session_that_was_only_opened_is_in_its_first_turn() -> None:
    opened = after_commit(TurnPosition(), AT, ended=0)
    assert (opened.turn, opened.step) == (1, 0)
    assert begin(opened, AT + 2 * TURN_GAP).turn == 1


def test_a_named_turn_lasts_as_long_as_its_name() -> None:
    place = begin(TurnPosition(), AT, "a")
    assert place.source is TurnSource.EXPLICIT
    place = after_commit(place, AT, ended=1)
    assert begin(place, AT + 2 * TURN_GAP, "a").turn == 1
    assert begin(place, AT + 1, "b").turn == 2


def test_a_call_without_a_name_stays_in_the_named_turn() -> None:
    place = after_commit(begin(TurnPosition(), AT, "a"), AT, ended=1)
    place = begin(place, AT + 1)
    assert (place.turn, place.label, place.source) == (1, "a", TurnSource.EXPLICIT)
    place = after_commit(place, AT + 2, ended=1)
    quiet = begin(place, AT + 2 + TURN_GAP)
    assert (quiet.turn, quiet.label, quiet.source) == (2, "", TurnSource.GAP)


def test_an_outcome_ends_an_attempt_and_moves_no_turn() -> None:
    place = begin(TurnPosition(), AT)
    ended = after_commit(place, AT + TURN_GAP, ended=1)
    assert (ended.turn, ended.step, ended.in_flight) == (1, 1, 0)
    assert ended.active_at == AT + TURN_GAP
    assert ended.started_at == AT
    assert after_commit(ended, AT, ended=1).in_flight == 0
    assert after_commit(ended, AT, ended=0).active_at == AT + TURN_GAP


@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["begin", "end"]),
            st.integers(0, 2 * TURN_GAP),
            st.sampled_from(["", "a", "b"]),
        )
    )
)
def test_turns_only_rise_and_steps_begin_at_one(events: list[tuple[str, int, str]]) -> None:
    place, at = TurnPosition(), AT
    for kind, gap, label in events:
        before, at = place, at + gap
        if kind == "begin":
            place = begin(before, at, label)
            assert place.turn in (before.turn, before.turn + 1)
            assert place.step >= 1
            if place.turn > before.turn:
                assert place.step == 1
            else:
                assert place.step in (before.step, before.step + 1)
        else:
            place = after_commit(before, at, ended=1)
            assert (place.turn, place.step) == (before.turn, before.step)
        assert place.in_flight >= 0


def test_a_caller_can_begin_a_new_turn() -> None:
    place = after_commit(next_call(TurnPosition(), AT, "", TurnSource.GAP), AT, ended=1)
    marked = turns.new_turn(place, AT + 1, "b")
    assert (marked.turn, marked.step, marked.label) == (2, 0, "b")
    assert (marked.source, marked.active_at) == (TurnSource.EXPLICIT, AT + 1)
    called = next_call(marked, AT + 2 * TURN_GAP, "", TurnSource.GAP)
    assert (called.turn, called.step, called.source) == (2, 1, TurnSource.EXPLICIT)


def test_a_turn_that_is_named_before_its_first_call_is_one_turn() -> None:
    place = turns.new_turn(TurnPosition(), AT, "a")
    assert (place.turn, turns.new_turn(place, AT, "a").turn) == (1, 1)
    assert (turns.new_turn(place, AT, "b").turn, turns.new_turn(place, AT, "").turn) == (2, 2)
    called = next_call(place, AT, "", TurnSource.GAP)
    assert turns.new_turn(called, AT, "a").turn == 1
    assert turns.new_turn(after_commit(called, AT, ended=1), AT, "").turn == 2
