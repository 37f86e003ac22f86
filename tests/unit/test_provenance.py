from turnlog.core.provenance import UNVERIFIED, Provenance, Standing, standing

ONE, OTHER = b"1" * 32, b"2" * 32


def test_a_definition_that_equals_the_pin_is_pinned() -> None:
    assert standing(ONE, ONE) == Standing(Provenance.PINNED)


def test_another_definition_is_a_mismatch_and_names_the_pin() -> None:
    assert standing(ONE, OTHER) == Standing(Provenance.MISMATCH, ONE)


def test_without_a_pin_or_a_definition_nothing_is_verified() -> None:
    assert standing(None, ONE) is standing(ONE, b"") is UNVERIFIED
    assert UNVERIFIED.provenance == "unverified"
