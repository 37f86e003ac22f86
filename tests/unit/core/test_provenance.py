import pytest

from turnlog.core.pins import NO_CHECKS, UNVERIFIED, PinStatus, Provenance, ResultChecks, pin_status

ONE, OTHER = b"1" * 32, b"2" * 32


@pytest.mark.promise("PROV-2")
def test_a_definition_that_equals_the_pin_is_pinned() -> None:
    assert pin_status(ONE, ONE) == PinStatus(Provenance.PINNED)


@pytest.mark.promise("PROV-2")
def test_another_definition_is_a_mismatch_and_names_the_pin() -> None:
    assert pin_status(ONE, OTHER) == PinStatus(Provenance.MISMATCH, ONE)


def test_without_a_pin_or_a_definition_a_tool_is_unverified() -> None:
    assert pin_status(None, ONE) is pin_status(ONE, b"") is UNVERIFIED
    assert UNVERIFIED.provenance == "unverified"


def test_checks_of_one_answer_add_up() -> None:
    held = ResultChecks(is_checked=True)
    failed = ResultChecks(("content-digest mismatch",))
    signed = ResultChecks(is_checked=True, is_verified=True)
    assert held.with_others(NO_CHECKS) == held
    assert NO_CHECKS.with_others(signed) == signed
    assert failed.with_others(signed) == ResultChecks(("content-digest mismatch",), True, True)
