import json

import pytest

from turnlog.core.commit import Lineage
from turnlog.core.kinds import MatchEvidence, ValueOrigin
from turnlog.provenance.values import CUT, FORGOTTEN, Inputs, SessionValues, ValueSource

READ, OTHER = ValueSource(b"read"), ValueSource(b"other", attempt=2)
PROSE = "The quick brown fox jumps over the lazy dog and runs away."


def result(text: str) -> bytes:
    return json.dumps({"content": [{"type": "text", "text": text}]}).encode()


def look_up(values: SessionValues, argument: object) -> tuple[Lineage, ...]:
    found = values.look_up(json.dumps({"a": argument}).encode())
    assert not found.partial
    return found.lineage


def sourced(
    evidence: MatchEvidence, source: ValueSource = READ, *, tainted: bool = False
) -> Lineage:
    return Lineage(
        pointer="/a",
        origin=ValueOrigin.SOURCED,
        call=source.call,
        attempt=source.attempt,
        place="/content/0/text",
        evidence=evidence,
        tainted=tainted,
    )


NEVER_SEEN = Lineage(pointer="/a", origin=ValueOrigin.UNVERIFIED)


@pytest.mark.parametrize(
    ("argument", "evidence"),
    [
        ("/var/log/app/err.log", MatchEvidence.EXACT),
        ("ORD-99812", MatchEvidence.EXACT),
        (1234.5, MatchEvidence.EXACT),
        (4711, MatchEvidence.WEAK),
        ("tail -n 5 '/var/log/app/err.log'", MatchEvidence.ENTITY),
        ("pay 1,234.50 now", MatchEvidence.ENTITY),
        ("say 'connection refused by peer' once", MatchEvidence.ENTITY),
        ("Note: the quick brown fox\n jumps over the lazy cat", MatchEvidence.SHINGLE),
    ],
)
def test_a_value_that_stood_in_an_output_is_sourced(
    argument: object, evidence: MatchEvidence
) -> None:
    values = SessionValues()
    values.add(
        READ,
        result(
            "ORD-99812 | 1,234.50 | 4711 | /var/log/app/err.log | connection refused by peer\n"
            + PROSE
        ),
    )
    assert sourced(evidence) in look_up(values, argument)
    assert NEVER_SEEN not in look_up(values, argument)


def test_an_identifier_that_was_never_seen_is_unverified_and_prose_is_not() -> None:
    values = SessionValues()
    values.add(READ, result(PROSE))
    assert look_up(values, "/srv/data/2.csv") == (NEVER_SEEN,)
    assert look_up(values, "please list all files of this folder") == ()
    assert look_up(values, "in_progress") == look_up(values, "running") == ()


def test_a_known_part_of_an_unknown_url_does_not_make_the_url_known() -> None:
    values = SessionValues()
    values.add(READ, result("item abc-12345"))
    found = look_up(values, "https://elsewhere.example/items/abc-12345")
    assert found == (sourced(MatchEvidence.WEAK), NEVER_SEEN)


def test_a_declared_value_says_who_declared_it() -> None:
    values = SessionValues()
    values.declare("delete /srv/data/2.csv", "user_input")
    (entry,) = look_up(values, "/srv/data/2.csv")
    assert (entry.origin, entry.place, entry.call) == (ValueOrigin.DECLARED, "user_input", b"")


def test_the_output_that_had_a_value_first_is_its_source() -> None:
    values = SessionValues()
    values.add(READ, result("ORD-99812"))
    values.add(OTHER, result("ORD-99812"))
    assert look_up(values, "ord-99812") == (sourced(MatchEvidence.EXACT),)


def test_a_value_is_tainted_only_while_no_other_output_has_it() -> None:
    values = SessionValues()
    values.add(READ, result("ORD-99812"), tainted=True)
    assert look_up(values, "ORD-99812") == (sourced(MatchEvidence.EXACT, tainted=True),)
    values.add(OTHER, result("ORD-99812"))
    assert look_up(values, "ORD-99812") == (sourced(MatchEvidence.EXACT, OTHER),)


def test_the_oldest_values_go_when_the_memory_is_full_and_that_is_said() -> None:
    values = SessionValues(most=4)
    for number in range(4):
        values.add(READ, result(f"ORD-9981{number} and ORD-9982{number} then ORD-9983{number}"))
        assert len(values) <= 8
    found = values.look_up(b'{"a":"ORD-99810"}')
    assert found == Inputs((NEVER_SEEN,), FORGOTTEN)
    assert values.look_up(b'{"a":"ORD-99833"}').lineage == (sourced(MatchEvidence.EXACT),)


def test_one_output_with_more_values_than_the_memory_holds_is_said_to_be_partial() -> None:
    values = SessionValues(most=4)
    values.add(READ, result(" ".join(f"ORD-{number}" for number in range(1000, 1009))))
    assert len(values) == 4
    assert values.look_up(b"{}") == Inputs((), FORGOTTEN)


def test_only_the_first_64_kib_of_an_output_are_looked_at_and_that_is_said() -> None:
    values = SessionValues()
    values.add(READ, b"ORD-99812 " + b"." * 65536 + b" ORD-99813")
    found = values.look_up(b'{"a":"ORD-99812","b":"ORD-99813"}')
    assert [entry.origin for entry in found.lineage] == [
        ValueOrigin.SOURCED,
        ValueOrigin.UNVERIFIED,
    ]
    assert found.partial == CUT
