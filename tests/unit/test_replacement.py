"""`exchange.replacement`: which protocol session goes on in another one."""

import pytest

from turnlog.exchange.replacement import WITHIN, Begun, Replacements

ME = ("credential", "target", "client")


@pytest.fixture
def known() -> Replacements:
    return Replacements()


def test_a_session_that_was_begun_after_a_break_replaces_the_one_that_broke(
    known: Replacements,
) -> None:
    known.broke(ME, "a", 0)
    assert known.begun(ME, "b", WITHIN) is Begun.REPLACES
    assert known.before("b") == ["a"]
    assert known.before("a") == []


def test_a_session_that_was_begun_without_a_break_is_new(known: Replacements) -> None:
    assert known.begun(ME, "a", 0) is Begun.NEW
    known.broke(("other", *ME[1:]), "x", 0)
    assert known.begun(ME, "b", 1) is Begun.NEW
    assert known.before("b") == []


def test_it_has_to_come_in_time(known: Replacements) -> None:
    known.broke(ME, "a", 0)
    assert known.begun(ME, "b", WITHIN + 1) is Begun.NEW


def test_a_session_that_is_used_again_was_not_lost(known: Replacements) -> None:
    known.broke(ME, "a", 0)
    known.used("a")
    assert known.begun(ME, "b", 1) is Begun.NEW
    known.broke(ME, "a", 2)
    known.begun(ME, "c", 3)
    known.used("a")
    assert known.before("c") == []


def test_of_several_that_were_lost_none_is_replaced(known: Replacements) -> None:
    known.broke(ME, "a", 0)
    known.broke(ME, "b", 1)
    assert known.begun(ME, "c", 2) is Begun.AMBIGUOUS
    assert known.before("c") == []


def test_of_several_newcomers_none_replaces(known: Replacements) -> None:
    known.broke(ME, "a", 0)
    assert known.begun(ME, "b", 1) is Begun.REPLACES
    assert known.begun(ME, "c", 2) is Begun.AMBIGUOUS
    assert known.before("b") == known.before("c") == []


def test_a_newcomer_that_breaks_as_well_is_replaced_in_its_turn(known: Replacements) -> None:
    for number, (old, new) in enumerate([("a", "b"), ("b", "c"), ("c", "d")]):
        known.broke(ME, old, number)
        assert known.begun(ME, new, number + 0.5) is Begun.REPLACES
    assert known.before("d") == ["c", "b", "a"]
    assert known.begun(ME, "e", 3) is Begun.AMBIGUOUS
    assert (known.before("d"), known.before("c")) == ([], ["b", "a"])


def test_a_caller_that_comes_back_much_later_is_followed_by_its_own_newcomer(
    known: Replacements,
) -> None:
    known.broke(ME, "a", 0)
    known.begun(ME, "b", 1)
    known.broke(ME, "b", 10 * WITHIN)
    assert known.begun(ME, "c", 10 * WITHIN + 1) is Begun.REPLACES
    assert known.before("c") == ["b", "a"]
