"""`exchange.replacement`: which protocol session goes on in another one."""

import pytest

from turnlog.exchange.replacement import REPLACE_WITHIN, Replacements, SessionStart

ME = ("credential", "target", "client")


@pytest.fixture
def known() -> Replacements:
    return Replacements()


def test_a_session_that_was_begun_after_a_break_replaces_the_one_that_broke(
    known: Replacements,
) -> None:
    known.on_broken(ME, "a", 0)
    assert known.on_initialized(ME, "b", REPLACE_WITHIN) is SessionStart.REPLACES
    assert known.predecessors("b") == ["a"]
    assert known.predecessors("a") == []


def test_a_session_that_was_begun_without_a_break_is_new(known: Replacements) -> None:
    assert known.on_initialized(ME, "a", 0) is SessionStart.NEW
    known.on_broken(("other", *ME[1:]), "x", 0)
    assert known.on_initialized(ME, "b", 1) is SessionStart.NEW
    assert known.predecessors("b") == []


def test_it_has_to_come_in_time(known: Replacements) -> None:
    known.on_broken(ME, "a", 0)
    assert known.on_initialized(ME, "b", REPLACE_WITHIN + 1) is SessionStart.NEW


def test_a_session_that_is_used_again_was_not_lost(known: Replacements) -> None:
    known.on_broken(ME, "a", 0)
    known.on_used("a")
    assert known.on_initialized(ME, "b", 1) is SessionStart.NEW
    known.on_broken(ME, "a", 2)
    known.on_initialized(ME, "c", 3)
    known.on_used("a")
    assert known.predecessors("c") == []


def test_of_several_that_were_lost_none_is_replaced(known: Replacements) -> None:
    known.on_broken(ME, "a", 0)
    known.on_broken(ME, "b", 1)
    assert known.on_initialized(ME, "c", 2) is SessionStart.AMBIGUOUS
    assert known.predecessors("c") == []


def test_of_several_newcomers_none_replaces(known: Replacements) -> None:
    known.on_broken(ME, "a", 0)
    assert known.on_initialized(ME, "b", 1) is SessionStart.REPLACES
    assert known.on_initialized(ME, "c", 2) is SessionStart.AMBIGUOUS
    assert known.predecessors("b") == known.predecessors("c") == []


def test_a_newcomer_that_breaks_as_well_is_replaced_in_its_turn(known: Replacements) -> None:
    for number, (old, new) in enumerate([("a", "b"), ("b", "c"), ("c", "d")]):
        known.on_broken(ME, old, number)
        assert known.on_initialized(ME, new, number + 0.5) is SessionStart.REPLACES
    assert known.predecessors("d") == ["c", "b", "a"]
    assert known.on_initialized(ME, "e", 3) is SessionStart.AMBIGUOUS
    assert (known.predecessors("d"), known.predecessors("c")) == ([], ["b", "a"])


def test_a_caller_that_comes_back_much_later_is_followed_by_its_own_newcomer(
    known: Replacements,
) -> None:
    known.on_broken(ME, "a", 0)
    known.on_initialized(ME, "b", 1)
    known.on_broken(ME, "b", 10 * REPLACE_WITHIN)
    assert known.on_initialized(ME, "c", 10 * REPLACE_WITHIN + 1) is SessionStart.REPLACES
    assert known.predecessors("c") == ["b", "a"]
