"""`exchange.coverage`: where never-twice cannot hold, and that it is told once."""

import pytest

from turnlog.core.kinds import Rung
from turnlog.exchange.coverage import Coverage, CoverageGap


def told(
    *sessions: str, rung: Rung = Rung.TRANSPORT, caller: str = "me"
) -> list[CoverageGap | None]:
    coverage = Coverage()
    return [coverage.on_call(caller, session, rung) for session in sessions]


@pytest.mark.promise("TWICE-27")
def test_sessions_without_a_name_are_reported_once() -> None:
    assert told("a", "a", "b", rung=Rung.IMPLICIT) == [CoverageGap.UNNAMED, None, None]


@pytest.mark.parametrize("rung", [Rung.EXPLICIT, Rung.VENDOR, Rung.ENVIRONMENT])
def test_a_named_session_has_no_gap(rung: Rung) -> None:
    assert told(*"abcab", rung=rung) == [None] * 5


def test_a_client_with_one_session_per_call_is_reported_once() -> None:
    assert told(*"abcdef") == [None, None, CoverageGap.PER_CALL, None, None, None]


def test_a_client_that_changes_its_session_now_and_then_has_no_gap() -> None:
    assert told(*"aabbccdd") == [None] * 8
    assert told(*"abbcdde") == [None] * 7


def test_a_client_that_returns_to_an_earlier_session_is_pooled() -> None:
    assert told(*"aabab") == [None, None, None, CoverageGap.POOLED, None]


def test_callers_are_counted_separately() -> None:
    coverage = Coverage()
    for caller in "xyz":
        assert coverage.on_call(caller, caller, Rung.TRANSPORT) is None


def test_memory_of_callers_and_sessions_is_bounded() -> None:
    coverage = Coverage()
    for number in range(1025):
        coverage.on_call(number, "a", Rung.TRANSPORT)
        coverage.on_call(number, "a", Rung.IMPLICIT)
    assert coverage.on_call(0, "a", Rung.IMPLICIT) is CoverageGap.UNNAMED
    assert coverage.on_call(1024, "a", Rung.IMPLICIT) is None
    for session in range(65):
        coverage.on_call("me", session, Rung.TRANSPORT)
        coverage.on_call("me", session, Rung.TRANSPORT)
    assert coverage.on_call("me", 0, Rung.TRANSPORT) is None
    assert coverage.on_call("me", 64, Rung.TRANSPORT) is CoverageGap.POOLED
