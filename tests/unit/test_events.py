"""Events: the catalogue is closed, documented both ways, and holds nothing that could leak."""

import re
from pathlib import Path

import pytest
from msgspec import structs

from turnlog.observe import events
from turnlog.observe.events import CATALOGUE, RPC_ID_CHARS, Event, Refusal, name_of, rpc_id

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "events.md").read_text("utf-8")


def documented() -> dict[str, list[str]]:
    """The fields that each section of the page lists, in order."""
    sections = re.split(r"\n## ", PAGE)[1:]
    return {
        section.splitlines()[0]: re.findall(r"^\| `([a-z_.]+)` \|", section, re.MULTILINE)
        for section in sections
    }


def field_names(event: type[Event]) -> list[str]:
    return [field.encode_name for field in structs.fields(event)]


def test_every_event_and_field_is_documented_and_nothing_else() -> None:
    assert documented() == {name_of(event): field_names(event) for event in CATALOGUE}


def test_the_overview_lists_every_event_with_its_level() -> None:
    rows = re.findall(r"^\| \[`([a-z.]+)`\]\(#[a-z]+\) \| ([a-z]+) \|", PAGE, re.MULTILINE)
    assert rows == [(name_of(event), event.level.name.lower()) for event in CATALOGUE]


def test_every_event_of_the_module_is_in_the_catalogue() -> None:
    made = {thing for thing in vars(events).values() if is_event(thing)}
    assert made == set(CATALOGUE)


def is_event(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, Event) and thing is not Event


def test_names_are_noun_and_verb_and_used_once() -> None:
    names = [name_of(event) for event in CATALOGUE]
    assert all(re.fullmatch(r"[a-z]+\.[a-z]+", name) for name in names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("event", CATALOGUE, ids=name_of)
def test_an_event_has_no_field_for_content(event: type[Event]) -> None:
    forbidden = {"mcp.session.id", "url.query", "url.full", "http.request.header", "timestamp"}
    assert forbidden.isdisjoint(field_names(event))


def test_every_reason_for_a_refusal_is_documented() -> None:
    assert all(f"`{reason}`" in PAGE for reason in Refusal)


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
