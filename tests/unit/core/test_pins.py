import pytest

from turnlog.core.pins import (
    UNCHANGED,
    UNVERIFIED,
    PinStatus,
    Provenance,
    ServerIdentity,
    ServerStatus,
    pin_status,
    server_status,
)

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


BANK = ServerIdentity(target="https://bank.example:443", name="bank", version="1.0")


def test_a_server_is_compared_in_the_parts_that_are_pinned_and_were_seen() -> None:
    newer = ServerIdentity(target=BANK.target, name="bank", version="1.1", tls_key="sha256:0")
    assert server_status(BANK, BANK, ()) == ServerStatus(is_pinned=True)
    assert server_status(BANK, ServerIdentity(target=BANK.target), ()) == ServerStatus(True)
    assert server_status(BANK, newer, ()) == ServerStatus(True, ("version",))
    assert server_status(newer, BANK, ()) == ServerStatus(True, ("version",))


def test_a_server_is_as_pinned_another_or_not_pinned() -> None:
    assert UNCHANGED.provenance == "unverified"
    assert ServerStatus(is_pinned=True).provenance == "pinned"
    assert ServerStatus(True, ("version",)).provenance == "mismatch"
    assert ServerStatus(changes=("target",)).provenance == "mismatch"


def test_a_server_that_is_pinned_at_another_target_alone_has_changed() -> None:
    moved = ServerIdentity(target="https://other.example:443", name="bank")
    assert server_status(None, BANK, ()) is UNCHANGED
    assert server_status(None, moved, (BANK,)) == ServerStatus(changes=("target",))
    assert server_status(None, BANK, (BANK, moved)) is UNCHANGED


def test_an_identity_takes_the_parts_that_are_seen_later() -> None:
    keyed = BANK.with_parts(ServerIdentity(version="2.0", tls_key="sha256:0"))
    assert keyed.parts == {
        "target": "https://bank.example:443",
        "name": "bank",
        "version": "2.0",
        "TLS key": "sha256:0",
    }
    assert BANK.with_parts(ServerIdentity()) == BANK
