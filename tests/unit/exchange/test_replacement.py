"""`exchange.replacement`: which protocol session goes on in another one."""

import pytest

from turnlog.exchange.replacement import REPLACE_WITHIN, Replacements, SessionStart

ME = ("credential", "target", "client")


@pytest.fixture
def known() -> Replacements:
    return Replacements()


@pytest.mark.promise("TWICE-25")
def test_a_session_begun_after_a_failure_replaces_the_failed_one(
    known: Replacements,
) -> None:
    known.on_broken(ME, "a", 0)
    assert known.on_initialized(ME, "b", REPLACE_WITHIN) is SessionStart.REPLACES
    assert known.predecessors("b") == ["a"]
    assert known.predecessors("a") == []


def test_a_session_begun_without_a_failure_is_new(known: Replacements) -> None:
    assert known.on_initialized(ME, "a", 0) is SessionStart.NEW
    known.on_broken(("other", *ME[1:]), "x", 0)
    assert known.on_initialized(ME, "b", 1) is SessionStart.NEW
    assert known.predecessors("b") == []


def test_a_replacement_must_begin_in_time(known: Replacements) -> None:
    known.on_broken(ME, "a", 0)
    assert known.on_initialized(ME, "b", REPLACE_WITHIN + 1) is SessionStart.NEW


def test_a_session_that_is_used_again_is_not_lost(known: Replacements) -> None:
    known.on_broken(ME, "a", 0)
    known.on_used("never lost")
    known.on_used("a")
    assert known.on_initialized(ME, "b", 1) is SessionStart.NEW
    known.on_broken(ME, "a", 2)
    known.on_initialized(ME, "c", 3)
    known.on_used("a")
    assert known.predecessors("c") == []


def test_none_of_several_lost_sessions_is_replaced(known: Replacements) -> None:
    known.on_broken(ME, "a", 0)
    known.on_broken(ME, "b", 1)
    assert known.on_initialized(ME, "c", 2) is SessionStart.AMBIGUOUS
    assert known.predecessors("c") == []


def test_none_of_several_new_sessions_is_a_replacement(known: Replacements) -> None:
    known.on_broken(ME, "a", 0)
    assert known.on_initialized(ME, "b", 1) is SessionStart.REPLACES
    assert known.on_initialized(ME, "c", 2) is SessionStart.AMBIGUOUS
    assert known.predecessors("b") == known.predecessors("c") == []


def test_a_replacement_that_fails_is_replaced_as_well(known: Replacements) -> None:
    for number, (old, new) in enumerate([("a", "b"), ("b", "c"), ("c", "d")]):
        known.on_broken(ME, old, number)
        assert known.on_initialized(ME, new, number + 0.5) is SessionStart.REPLACES
    assert known.predecessors("d") == ["c", "b", "a"]
    assert known.on_initialized(ME, "e", 3) is SessionStart.AMBIGUOUS
    assert (known.predecessors("d"), known.predecessors("c")) == ([], ["b", "a"])


def test_a_replacement_that_fails_much_later_is_replaced_alone(
    known: Replacements,
) -> None:
    known.on_broken(ME, "a", 0)
    known.on_initialized(ME, "b", 1)
    known.on_broken(ME, "b", 10 * REPLACE_WITHIN)
    assert known.on_initialized(ME, "c", 10 * REPLACE_WITHIN + 1) is SessionStart.REPLACES
    assert known.predecessors("c") == ["b", "a"]


def test_memory_of_callers_is_bounded(known: Replacements) -> None:
    for caller in range(1025):
        known.on_broken(caller, f"lost {caller}", 0)
    assert known.on_initialized(0, "new 0", 1) is SessionStart.NEW
    assert known.on_initialized(1024, "new 1024", 1) is SessionStart.REPLACES
    known.on_used("lost 0")
    assert known.predecessors("new 0") == []


def test_memory_of_sessions_is_bounded(known: Replacements) -> None:
    for number in range(4097):
        known.on_broken(ME, f"lost {number}", number * 2 * REPLACE_WITHIN)
        known.on_initialized(ME, f"new {number}", number * 2 * REPLACE_WITHIN + 1)
    assert known.predecessors("new 0") == []
    assert known.predecessors("new 4096") == ["lost 4096"]
