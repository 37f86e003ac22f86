"""The OpenAPI 3.1 document of the API, generated from the types of its endpoints."""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any, Final

import msgspec

from .endpoints import Endpoint, WriteEndpoint

_REF: Final = "#/components/schemas/{name}"
_NAME: Final = re.compile(r"\{(\w+)\}")
_NAMED: Final = {
    "session": "Id of a session, the beginning of one, or a name.",
    "call": "Id of a call, or the beginning of one.",
}
_PROBLEM: Final = {
    "description": "What is wrong (RFC 9457)",
    "content": {
        "application/problem+json": {
            "schema": {
                "type": "object",
                "required": ["type", "title", "status", "detail"],
                "properties": {
                    "type": {"type": "string"},
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "detail": {"type": "string"},
                    "parameter": {"type": "string"},
                    "reason": {"type": "string"},
                    "head": {"type": "integer"},
                    "stage": {"type": "string"},
                    "action": {"type": ["string", "null"]},
                    "fence": {"type": "integer"},
                },
            }
        }
    },
}


def description(endpoints: Iterable[Endpoint], base: str) -> dict[str, Any]:
    """Return the OpenAPI document of `endpoints`, whose paths begin with `base`."""
    endpoints = tuple(endpoints)
    bodies = [endpoint.body for endpoint in endpoints if isinstance(endpoint, WriteEndpoint)]
    types = [*bodies, *(endpoint.answer for endpoint in endpoints)]
    refs, components = msgspec.json.schema_components(
        types, schema_hook=anything, ref_template=_REF
    )
    schemas = dict(zip(types, refs, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, schemas)
        paths.setdefault(base + endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "turnlog", "version": version("turnlog")},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {"Problem": _PROBLEM},
        },
    }


def parameters(kind: type[msgspec.Struct]) -> Iterator[dict[str, Any]]:
    """Yield the OpenAPI description of each query parameter."""
    (schema,), components = msgspec.json.schema_components([kind], ref_template=_REF)
    fields = components[schema["$ref"].rpartition("/")[2]]["properties"]
    for name, field in fields.items():
        known = _resolved(field, components)
        text = known.pop("description", None)
        described = {"description": text} if text else {}
        yield {"name": name, "in": "query", "schema": known, **described}


def anything(kind: type) -> dict[str, Any]:
    """Return the schema of a value that may be anything."""
    if kind is object:
        return {"description": "What it is depends on the field."}
    raise NotImplementedError(f"the API's description knows no {kind!r}")


def _operation(endpoint: Endpoint, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    named = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string"},
            "description": _NAMED[name],
        }
        for name in _NAME.findall(endpoint.path)
    ]
    operation: dict[str, Any] = {
        "summary": endpoint.title,
        "parameters": [*named, *parameters(endpoint.query)],
    }
    if isinstance(endpoint, WriteEndpoint):
        operation["requestBody"] = {"required": True, "content": _json(schemas[endpoint.body])}
    answered = {"description": "OK", "content": _json(schemas[endpoint.answer])}
    problem = {"$ref": "#/components/responses/Problem"}
    return {**operation, "responses": {"200": answered, "default": problem}}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _resolved(field: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """Return a field's schema without the `null` of an omitted parameter."""
    own = {key: value for key, value in field.items() if key != "anyOf"}
    if own.get("default", "") is None:
        del own["default"]
    (option,) = [one for one in field.get("anyOf", [{}]) if one != {"type": "null"}]
    merged = option | own
    known: dict[str, Any] = (
        components[merged.pop("$ref").rpartition("/")[2]] if "$ref" in merged else {}
    )
    return {key: value for key, value in (known | merged).items() if key != "title"}
