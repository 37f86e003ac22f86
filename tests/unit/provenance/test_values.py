import json
from collections import Counter

import pytest

from turnlog.core.commit import Lineage
from turnlog.core.kinds import MatchEvidence, ValueOrigin
from turnlog.provenance.values import (
    CUT,
    FORGOTTEN,
    FORGOTTEN_OUTPUT,
    LONG_OUTPUT,
    MANY,
    MANY_SOURCED,
    MOST_MISSED,
    Inputs,
    SessionValues,
    ValueSource,
    every_leaf,
    has_values,
    unsourced,
)

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
    values.add(READ, result("item abc-12345 of server api.example.com"))
    found = look_up(values, "https://elsewhere.example/items/abc-12345")
    assert found == (sourced(MatchEvidence.ENTITY), NEVER_SEEN)
    found = look_up(values, "https://api.example.com/items/abc-12346")
    assert found == (sourced(MatchEvidence.WEAK), NEVER_SEEN)


@pytest.mark.parametrize(
    "argument", ["https://abc-12345.example/", "abc-12345.tar.gz", "abc-12345@mail.example"]
)
def test_a_value_in_the_name_of_a_server_or_a_file_is_found(argument: str) -> None:
    values = SessionValues()
    values.add(READ, result("item abc-12345 of mail.example"))
    found = look_up(values, argument)
    assert sourced(MatchEvidence.ENTITY) in found
    assert NEVER_SEEN in found


def test_a_name_in_a_known_folder_is_known() -> None:
    values = SessionValues()
    values.declare("work in /srv/data, please", "user_input")
    values.add(READ, result("[FILE] notes.md"))
    assert look_up(values, "/srv/data/notes.md") == (sourced(MatchEvidence.WEAK),)
    assert look_up(values, "/srv/other/notes.md") == (sourced(MatchEvidence.WEAK), NEVER_SEEN)
    assert look_up(values, "/srv/data/other.md") == (NEVER_SEEN,)


def test_a_number_is_known_in_each_of_its_forms() -> None:
    values = SessionValues()
    values.add(READ, result("a total of 1,234,567.50 in 48213us"))
    for argument in (1234567.5, "1234567.50", "1,234,567.5", "1'234'567.50", "1_234_567.50", 48213):
        assert look_up(values, argument) == (sourced(MatchEvidence.EXACT),)
    assert look_up(values, "pay 1,234,567.50 now") == (sourced(MatchEvidence.ENTITY),)
    assert look_up(values, "pay 1234567.500 now") == (sourced(MatchEvidence.ENTITY),)
    assert look_up(values, "pay 1,234,568.50 now") == (NEVER_SEEN,)


def test_a_copy_of_eight_words_is_sure_and_of_five_weak() -> None:
    values = SessionValues()
    values.add(READ, result(PROSE))
    for before in ("", "one ", "one two ", "one two three "):
        weak = look_up(values, before + "quick brown fox jumps over and out of sight")
        assert weak in ((sourced(MatchEvidence.WEAK),), ())
        sure = look_up(values, before + "the quick brown fox jumps over the lazy cat and runs")
        assert sure == (sourced(MatchEvidence.SHINGLE),)
    assert look_up(values, "quick brown fox jumps over") == (sourced(MatchEvidence.SHINGLE),)


def test_runs_of_words_are_tainted_only_where_no_other_output_has_them() -> None:
    values = SessionValues()
    values.add(READ, result("The quick brown fox jumps over the lazy fence at night"))
    values.add(OTHER, result(f"{PROSE} It was never seen in this place again."), tainted=True)
    found = look_up(values, f"Here {PROSE} It was never seen in this place again, he wrote")
    assert found == (
        sourced(MatchEvidence.SHINGLE),
        sourced(MatchEvidence.SHINGLE, OTHER, tainted=True),
    )


def test_names_and_idioms_are_weak_in_a_long_text_but_not_in_a_line() -> None:
    values = SessionValues()
    values.add(READ, result("pip install evil-helper-lib\nraise not_implemented_error"))
    line = "python -m pip install evil-helper-lib"
    assert sourced(MatchEvidence.ENTITY) in look_up(values, line)
    assert look_up(values, f"{line} {'and so on ' * 9}") == (sourced(MatchEvidence.WEAK),)


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
    assert len(values) < 10
    assert values.look_up(b'{"a":"ORD-99810"}') == Inputs((NEVER_SEEN,), FORGOTTEN)
    assert values.look_up(b'{"a":"ORD-99833"}').lineage == (sourced(MatchEvidence.EXACT),)


def test_the_memory_is_bounded_whatever_one_output_contains() -> None:
    values = SessionValues(most=500)
    values.add(READ, " ".join(f"ORD-{number}" for number in range(1000, 7000)).encode())
    assert len(values) < 2000
    assert values.look_up(b"{}") == Inputs((), FORGOTTEN)


def test_an_output_is_remembered_in_steps() -> None:
    values = SessionValues()
    content = json.dumps([f"ORD-{number}" for number in range(1000, 2000)]).encode()
    held = [len(values) for _ in values.adding(READ, content)]
    assert len(held) > 10
    assert held == sorted(set(held))


def test_of_many_values_those_that_matter_to_rules_are_kept_and_the_rest_is_partial() -> None:
    values = SessionValues()
    values.add(READ, b" ".join(b"ORD-%d" % n for n in range(1000, 1100)))
    values.add(OTHER, b" ".join(b"TCK-%d" % n for n in range(1000, 1100)), tainted=True)
    names = [f"{kind}-{n}" for kind in ("ORD", "TCK", "NEW") for n in range(1000, 1100)]
    found = values.look_up(json.dumps(names).encode())
    kinds = Counter((entry.origin, entry.tainted) for entry in found.lineage)
    assert kinds == {
        (ValueOrigin.SOURCED, False): 64,
        (ValueOrigin.SOURCED, True): 100,
        (ValueOrigin.UNVERIFIED, False): 92,
    }
    assert found.partial == MANY


def test_what_is_left_out_of_sourced_values_does_not_matter_to_rules() -> None:
    values = SessionValues()
    names = [f"ORD-{number}" for number in range(1000, 1100)]
    values.add(READ, " ".join(names).encode())
    found = values.look_up(json.dumps(names).encode())
    assert (len(found.lineage), found.partial) == (64, MANY_SOURCED)


def test_arguments_of_very_many_values_are_looked_at_in_part() -> None:
    found = SessionValues().look_up(json.dumps([0.5] * 3000).encode())
    assert found == Inputs((), MANY)


def test_only_the_first_64_kib_of_an_output_are_looked_at_and_that_is_said() -> None:
    values = SessionValues()
    values.add(READ, b"ORD-99812 " + b"." * 65536 + b" ORD-99813")
    found = values.look_up(b'{"a":"ORD-99812","b":"ORD-99813"}')
    assert [entry.origin for entry in found.lineage] == [
        ValueOrigin.SOURCED,
        ValueOrigin.UNVERIFIED,
    ]
    assert found.partial == CUT


def test_of_a_tainted_output_the_first_mib_is_looked_at() -> None:
    values = SessionValues()
    values.add(READ, b"lorem " * 150_000 + b" ORD-99812", tainted=True)
    assert look_up(values, "ORD-99812")[0].tainted
    assert values.missed == {}


def test_tainted_outputs_that_are_longer_are_missed_and_clean_ones_are_not() -> None:
    values = SessionValues()
    values.add(READ, b"lorem " * 200_000)
    assert values.missed == {}
    values.add(OTHER, b"lorem " * 200_000, tainted=True)
    assert values.missed == {OTHER: LONG_OUTPUT}
    assert values.has_tainted


def test_tainted_outputs_whose_values_are_forgotten_are_missed_and_clean_ones_are_not() -> None:
    values = SessionValues(most=4)
    for tainted in (False, True):
        assert values.missed == {}
        for number in range(4):
            text = f"ORD-9981{number} and ORD-9982{number} then ORD-9983{number}"
            values.add(ValueSource(b"%d" % number), result(text), tainted=tainted)
    assert values.missed == {ValueSource(b"0"): FORGOTTEN_OUTPUT}


def test_only_so_many_missed_outputs_are_remembered() -> None:
    values = SessionValues()
    for number in range(MOST_MISSED + 9):
        values.miss(ValueSource(b"%d" % number), "gone")
    assert len(values.missed) == MOST_MISSED


def test_a_long_text_that_is_no_json_is_looked_at_to_its_end() -> None:
    values = SessionValues()
    values.add(READ, b"ORD-99812", tainted=True)
    assert carried_by(values, b"lorem ipsum " * 9000 + b"ORD-99812") == [""]


def carried_by(values: SessionValues, content: bytes) -> list[str]:
    found = next(filter(None, values.carrying(every_leaf(content))), ())
    return [entry.pointer for entry in found]


def test_a_tainted_value_is_found_among_many_others() -> None:
    values = SessionValues()
    assert carried_by(values, b'"ORD-99812"') == []
    values.add(READ, b"ORD-99812", tainted=True)
    many = {f"n{number}": f"id-{number}-x" for number in range(3000)}
    assert carried_by(values, json.dumps(many).encode()) == []
    assert carried_by(values, json.dumps({**many, "last": "ORD-99812"}).encode()) == ["/last"]


@pytest.mark.parametrize("value", ["C:\\temp\\notes-4711x", "überweisung-47", "日本-4711"])
def test_a_tainted_value_is_found_behind_64_kib_however_it_is_escaped(value: str) -> None:
    long = result("lorem ipsum " * 9000 + value)
    values = SessionValues()
    values.add(READ, result(value), tainted=True)
    assert carried_by(values, long) == ["/content/0/text"]
    values = SessionValues()
    values.add(READ, long, tainted=True)
    assert carried_by(values, json.dumps({"a": value}).encode()) == ["/a"]


@pytest.mark.parametrize(
    ("content", "said"), [(b"{}", False), (b'{"a":"main","b":12}', False), (b'"ORD-99812"', True)]
)
def test_a_content_has_values_or_none(content: bytes, said: bool) -> None:
    assert has_values(content) is said


def hostile() -> dict[str, bytes]:
    size = 65536
    contents = {f"{character!r} alone": character * size for character in (b"a", b"1", b".", b"/")}
    contents |= {
        f"{character!r} alone": character * size for character in (b"%", b'"', b"\\", b" ")
    }
    contents |= {
        f"{character!r} alone": character * size for character in (b"[", b"{", b"\n", b",")
    }
    contents |= {
        f"{unit!r} repeated": unit * (size // 6) for unit in (b"%41", b"a/", b"1,111", b"a:")
    }
    contents |= {
        "a long fraction": b"1." + b"0" * size + b"1",
        "a large number": b"[" + b"1" * 5000 + b"]",
        "an infinite number": b"[1e999, -1e400]",
        "deep JSON": b'{"a":' * 900 + b"1" + b"}" * 900,
        "too deep JSON": b'{"a":' * 9000,
        "a lone surrogate": b'["\\ud800 and \\udc00"]',
        "no UTF-8": bytes(range(256)) * 256,
        "characters that become many": '"\ufdfa\u3300"'.encode() * 9000,
        "combining characters": ("a" + "\u0301" * 30000).encode(),
    }
    return contents


@pytest.mark.parametrize("name", hostile())
def test_nothing_raises_whatever_the_bytes_are(name: str) -> None:
    values, content = SessionValues(), hostile()[name]
    values.add(READ, content)
    values.declare(content.decode("latin-1"), "user_input")
    values.look_up(content)
    assert values.look_up(b'{"a": "never-seen-1"}').lineage == (NEVER_SEEN,)


def test_values_that_were_never_seen_are_named_once() -> None:
    values = SessionValues()
    values.add(READ, result("ORD-99812"))
    found = values.look_up(json.dumps({"a": "ORD-99812", "b": "acc-1 acc-2"}).encode())
    assert unsourced(found) == ("/b",)


def test_what_an_output_repeats_of_the_input_is_not_from_there() -> None:
    values = SessionValues()
    values.add(READ, result("ORD-99812 and ORD-99813"), own_input=b'{"id":"ORD-99812"}')
    assert look_up(values, "ORD-99812") == (NEVER_SEEN,)
    assert look_up(values, "ORD-99813") == (sourced(MatchEvidence.EXACT),)


def test_marks_and_names_of_formats_are_not_looked_up() -> None:
    values = SessionValues()
    values.add(READ, result("----- application/json utf-8 ... ====="))
    for argument in ("-----", "application/json", "... ===", "utf-8", "== //"):
        assert look_up(values, argument) == ()
