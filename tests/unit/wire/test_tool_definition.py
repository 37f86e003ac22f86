import json
from typing import Any

import pytest

from turnlog.core.canon import canonical
from turnlog.redaction.redact import Redactor
from turnlog.wire.tool_definition import LARGEST, kept

REDACTOR = Redactor(keys=["pin"], patterns=["corp-[0-9]+"])
TOKEN = "ghp_" + "a1B2" * 9


def keep(value: object) -> tuple[Any, bool]:
    made = kept(json.dumps(value).encode(), REDACTOR)
    return made.value, made.partial


def test_a_definition_without_secrets_is_kept_as_it_is_in_canonical_form() -> None:
    raw = b'{ "name":"a", "inputSchema":{"type":"object"}, "description":"\\u00e9" }'
    made = kept(raw, REDACTOR)
    assert made.text == canonical(raw)[1]
    assert not made.partial


def test_the_schema_of_a_secret_parameter_stays_and_its_values_go() -> None:
    schema = {
        "properties": {
            "password": {"type": "string", "description": "Yours.", "default": "hunter2"},
            "pin": {"anyOf": [{"const": 4711}, {"enum": ["0815"]}], "examples": ["1234"]},
            "count": {"type": "integer", "default": 3},
        },
        "required": ["password", "pin", "count"],
    }
    value, partial = keep({"name": "login", "inputSchema": schema})
    assert partial
    assert value["inputSchema"] == {
        "properties": {
            "password": {"type": "string", "description": "Yours.", "default": "[redacted]"},
            "pin": {
                "anyOf": [{"const": "[redacted]"}, {"enum": "[redacted]"}],
                "examples": "[redacted]",
            },
            "count": {"type": "integer", "default": 3},
        },
        "required": ["password", "pin", "count"],
    }


@pytest.mark.parametrize(
    "value",
    [
        {"description": f"Use {TOKEN}."},
        {"description": "call corp-12345"},
        {"_meta": {"token": TOKEN}},
        {"_meta": {"password": "hunter2 corp-1"}},
        {"_meta": {"env": [{"name": "PASSWORD", "value": TOKEN}]}},
        {"_meta": [1, TOKEN, {"a": TOKEN}]},
        {"required": [TOKEN]},
        {"required": TOKEN},
        {"required": [{"password": TOKEN}]},
        {"dependentRequired": {"a": [TOKEN]}},
    ],
    ids=str,
)
def test_secrets_go_wherever_they_stand(value: dict[str, object]) -> None:
    made = kept(json.dumps({"name": "t", **value}).encode(), REDACTOR)
    assert made.partial
    assert made.value["name"] == "t"
    for secret in (TOKEN, "hunter2", "corp-1"):
        assert secret.encode() not in made.text


def test_a_value_nested_too_deeply_is_redacted_as_a_whole() -> None:
    value: object = {"password": {"default": "hunter2"}}
    for _ in range(70):
        value = {"a": value}
    made = kept(json.dumps({"name": "t", "x": value}).encode(), REDACTOR)
    assert made.partial
    assert b"hunter2" not in made.text


def test_the_largest_members_of_a_large_definition_are_left_out() -> None:
    text = "d" * LARGEST
    value, partial = keep({"name": "a", "description": text, "title": "A"})
    assert partial
    assert value == {
        "name": "a",
        "title": "A",
        "description": f"[left out: {LARGEST + 2} bytes]",
    }


def test_a_definition_of_too_many_members_is_left_out_as_a_whole() -> None:
    value, partial = keep({"name": "a", **{f"{n}" * 20: 0 for n in range(10_000)}})
    assert partial
    assert value.startswith("[left out: ")


@pytest.mark.parametrize("raw", [b'{"name":"a","name":"b"}', b'{"name":"a","x":NaN}'])
def test_improper_json_is_kept_as_text(raw: bytes) -> None:
    made = kept(raw, REDACTOR)
    assert (made.value, made.partial) == (raw.decode(), False)


def test_text_that_is_no_json_is_bounded_and_redacted_too() -> None:
    raw = b'{"a":1,"a":2,"password":"hunter2","x":"' + b"y " * LARGEST + b'"}'
    made = kept(raw, REDACTOR)
    assert made.partial
    assert len(made.value) <= LARGEST
    assert "hunter2" not in made.value


def test_bytes_that_are_no_text_are_not_all_kept() -> None:
    assert kept(b'{"name":"\xff"}', REDACTOR).partial


def test_a_large_value_that_is_no_object_is_left_out() -> None:
    assert kept(json.dumps("x" * 2 * LARGEST).encode(), REDACTOR).value.startswith("[left out")


def test_as_many_large_members_as_needed_are_left_out() -> None:
    note = f"[left out: {LARGEST + 2} bytes]"
    value, _ = keep({"a": "d" * LARGEST, "b": "e" * LARGEST, "title": "A"})
    assert value == {"a": note, "b": note, "title": "A"}


def test_a_definition_whose_notes_alone_are_too_large_is_left_out_as_a_whole() -> None:
    value, _ = keep({f"{n:>30}": "d" * 50 for n in range(2000)})
    assert value.startswith("[left out: ")


def test_a_number_that_an_operators_pattern_matches_is_redacted() -> None:
    made = kept(b'{"name":"a","required":4711}', Redactor(patterns=["47"]))
    assert made.value == {"name": "a", "required": "[redacted]"}
