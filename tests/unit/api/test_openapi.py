"""`api.openapi`: the OpenAPI document matches the table of endpoints."""

import json
import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from turnlog.api.endpoints import ENDPOINTS, Endpoint
from turnlog.api.openapi import description

DOCUMENT: dict[str, Any] = json.loads(json.dumps(description(ENDPOINTS, "/base")))


def operation(endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"]["/base" + endpoint.path][endpoint.method.lower()]
    return found


def test_every_reference_has_a_target() -> None:
    found = set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(DOCUMENT)))
    assert len(found) > 10
    for ref in found:
        place = DOCUMENT
        for part in ref.split("/"):
            place = place[part]


@pytest.mark.promise("API-4")
def test_it_has_each_endpoint_once_and_nothing_else() -> None:
    listed = [(path, verb) for path, verbs in DOCUMENT["paths"].items() for verb in verbs]
    assert sorted(listed) == sorted(("/base" + e.path, e.method.lower()) for e in ENDPOINTS)
    assert DOCUMENT["openapi"] == "3.1.0"


def test_its_schemas_are_json_schema() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: f"{e.method} {e.path}")
def test_parameters_are_those_of_path_and_query(endpoint: Endpoint) -> None:
    listed = [(one["in"], one["name"]) for one in operation(endpoint)["parameters"]]
    named = [("path", name) for name in re.findall(r"{(\w+)}", endpoint.path)]
    asked = [("query", name) for name in endpoint.query.__struct_fields__]
    assert listed == named + asked


def test_parameters_say_what_they_take() -> None:
    log = next(e for e in ENDPOINTS if e.path == "/log")
    found = {one["name"]: one for one in operation(log)["parameters"]}
    assert found["limit"]["schema"] == {
        "type": "integer", "minimum": 1, "maximum": 1000, "default": 50,
    }  # fmt: skip
    assert found["order"]["schema"] == {"enum": ["newest", "oldest"], "default": "newest"}
    assert found["order"]["description"] == "Which end comes on the first page."
    assert found["flag"]["description"] == "Attempts that carry the flag."
    assert "late" in found["flag"]["schema"]["enum"]
    assert found["tool"]["schema"]["type"] == "string"
    assert all("default" not in one["schema"] for name, one in found.items() if name == "tool")
