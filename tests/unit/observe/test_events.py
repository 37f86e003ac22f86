"""Events: the catalogue is closed, documented both ways, and holds nothing that could leak."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from msgspec import structs

from turnlog.observe import events
from turnlog.observe.events import RPC_ID_CHARS, LogEvent, RefusalReason, rpc_id

PACKAGE = Path(events.__file__).parents[1]
CATALOGUE: list[type[LogEvent]] = [
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, LogEvent) and not kind.__subclasses__()
]
"""All events, in the order of the module; base classes left out."""
PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "events.md").read_text("utf-8")


def name_of(event: type[LogEvent]) -> str:
    """Return the event's name on the line, as `call.ended`."""
    return str(event.__struct_config__.tag)


def documented() -> dict[str, list[str]]:
    """The fields that each section of the page lists, in order."""
    sections = re.split(r"\n## ", PAGE)[1:]
    return {
        section.splitlines()[0]: re.findall(r"^\| `([a-z_.]+)` \|", section, re.MULTILINE)
        for section in sections
    }


def field_names(event: type[LogEvent]) -> list[str]:
    return [field.encode_name for field in structs.fields(event)]


@pytest.mark.promise("CLI-9")
def test_every_event_and_field_is_documented_and_nothing_else() -> None:
    assert documented() == {name_of(event): field_names(event) for event in CATALOGUE}


def test_the_overview_lists_every_event_with_its_level() -> None:
    rows = re.findall(r"^\| \[`([a-z.]+)`\]\(#[a-z]+\) \| ([a-z]+) \|", PAGE, re.MULTILINE)
    assert rows == [(name_of(event), event.level.name.lower()) for event in CATALOGUE]


@cache
def filled() -> dict[str, set[str]]:
    """The keywords that each event is made with, anywhere in the package."""
    found: dict[str, set[str]] = {event.__name__: set() for event in CATALOGUE}
    for path in PACKAGE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for name, words in (*made(function, set(found)), *completed(function, set(found))):
                    found[name] |= words
    return found


def completed(
    function: ast.FunctionDef | ast.AsyncFunctionDef, names: set[str]
) -> Iterator[tuple[str, set[str]]]:
    """Events that a function returns with more in them than they were made with."""
    if isinstance(function.returns, ast.Name) and function.returns.id in names:
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "structs.replace":
                yield function.returns.id, {word.arg for word in node.keywords if word.arg}


def made(function: ast.AST, names: set[str]) -> Iterator[tuple[str, set[str]]]:
    """Events made in a function: by name, or as `kind(...)` for those that it only names."""
    nodes = list(ast.walk(function))
    named = {node.id for node in nodes if isinstance(node, ast.Name)} & names
    calls = [
        (node.func.id, {word.arg for word in node.keywords if word.arg is not None})
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    for called, words in calls:
        for name in {called} & names or (named - {name for name, _ in calls}):
            if called in (name, "kind"):
                yield name, words


@pytest.mark.parametrize("event", CATALOGUE, ids=name_of)
def test_every_field_is_filled_somewhere(event: type[LogEvent]) -> None:
    fields = {field.name for field in structs.fields(event)}
    assert fields == filled()[event.__name__]


def test_names_are_noun_and_verb_and_used_once() -> None:
    names = [name_of(event) for event in CATALOGUE]
    assert all(re.fullmatch(r"[a-z]+\.[a-z]+", name) for name in names)
    assert len(names) == len(set(names))


@pytest.mark.promise("CLI-9")
@pytest.mark.parametrize("event", CATALOGUE, ids=name_of)
def test_an_event_has_no_field_for_content(event: type[LogEvent]) -> None:
    forbidden = {"mcp.session.id", "url.query", "url.full", "http.request.header", "timestamp"}
    assert forbidden.isdisjoint(field_names(event))


def test_every_reason_for_a_refusal_is_documented() -> None:
    assert all(f"`{reason}`" in PAGE for reason in RefusalReason)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (7, "7"),
        ("turn-1", "turn-1"),
        (None, ""),
        ("\x1b[2J", ""),
        ("x" * 500, "x" * RPC_ID_CHARS),
        (0, "0"),
    ],
)
def test_a_request_id_is_bounded_and_printable(value: int | str | None, shown: str) -> None:
    assert rpc_id(value) == shown
