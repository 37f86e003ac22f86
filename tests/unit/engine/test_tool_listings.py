import pytest
from msgspec import Raw

from turnlog.core.kinds import Effect
from turnlog.engine.tools.tool_cache import Learned, ToolListings, effect_of
from turnlog.wire.tools_list import Definition, ToolPage, read_tools_list


def page(*names: str, text: str = "", annotations: str = "{}", cursor: str = "null") -> ToolPage:
    tools = ",".join(
        f'{{"name":"{name}","description":"{text}","annotations":{annotations}}}' for name in names
    )
    return read_tools_list(Raw(f'{{"tools":[{tools}],"nextCursor":{cursor}}}'.encode()))


def definition(annotations: str) -> Definition:
    return page("t", annotations=annotations).definitions["t"]


def test_a_tool_that_nobody_listed_is_not_known() -> None:
    assert ToolListings().find("files", "", "read") is None


def test_pages_add_up() -> None:
    catalog = ToolListings()
    start, end = page("a", "b", cursor='"2"'), page("c")
    assert catalog.learn("files", "me", start, first=True) == Learned(2, 0, None)
    assert catalog.learn("files", "me", end, first=False) == Learned(1, 0, frozenset("abc"))
    assert all(catalog.find("files", "me", name) for name in "abc")


def test_a_tool_missing_from_a_complete_listing_is_gone() -> None:
    catalog = ToolListings()
    catalog.learn("files", "me", page("a", "b"), first=True)
    catalog.learn("files", "me", page("b", cursor='"2"'), first=True)
    assert catalog.find("files", "me", "a") is not None
    catalog.learn("files", "me", page("c"), first=False)
    assert catalog.find("files", "me", "a") is None
    assert all(catalog.find("files", "me", name) for name in "bc")


def test_an_end_whose_beginning_nobody_saw_ends_no_whole_list() -> None:
    catalog = ToolListings()
    assert catalog.learn("files", "me", page("b"), first=False) == Learned(1, 0, None)
    assert catalog.learn("files", "me", page("a"), first=True).whole == frozenset("a")


def test_a_page_brings_each_definition_as_it_came() -> None:
    assert {name: bytes(raw) for name, raw in page("a", "b").texts.items()} == {
        name: f'{{"name":"{name}","description":"","annotations":{{}}}}'.encode() for name in "ab"
    }


def test_a_definition_that_differs_counts_as_changed_and_replaces_the_old() -> None:
    catalog = ToolListings()
    catalog.learn("files", "me", page("a", "b", text="old"), first=True)
    before = catalog.find("files", "me", "a")
    assert catalog.learn("files", "me", page("a", text="new"), first=True) == Learned(
        0, 1, frozenset("a")
    )
    after = catalog.find("files", "me", "a")
    assert before is not None
    assert after is not None
    assert before.digest != after.digest


def test_the_same_definition_written_otherwise_is_the_same() -> None:
    catalog = ToolListings()
    catalog.learn(
        "files",
        "me",
        read_tools_list(Raw(b'{"tools":[{"name":"a","x":{"b":1,"c":2}}]}')),
        first=True,
    )
    again = read_tools_list(Raw(b'{"tools":[{"x":{"c":2, "b":1},"name":"\\u0061"}]}'))
    assert catalog.learn("files", "me", again, first=True) == Learned(0, 0, frozenset("a"))


def test_listings_are_kept_apart_by_credential_and_server() -> None:
    catalog = ToolListings()
    catalog.learn("files", "me", page("a"), first=True)
    assert catalog.find("files", "you", "a") is None
    assert catalog.find("git", "me", "a") is None


def test_listings_do_not_grow_without_bound() -> None:
    catalog = ToolListings()
    for number in range(5000):
        catalog.learn("files", str(number), page("a"), first=True)
        catalog.learn("files", "in use", page("a"), first=True)
    assert catalog.find("files", "0", "a") is None
    assert catalog.find("files", "in use", "a") is not None
    assert catalog.find("files", "4999", "a") is not None


@pytest.mark.parametrize(
    ("annotations", "effect"),
    [
        ("{}", Effect.WRITE),
        ("null", Effect.WRITE),
        ('{"readOnlyHint":true}', Effect.READ),
        ('{"readOnlyHint":true,"idempotentHint":true}', Effect.READ),
        ('{"readOnlyHint":false,"idempotentHint":true}', Effect.IDEMPOTENT_WRITE),
        ('{"idempotentHint":true,"destructiveHint":true}', Effect.IDEMPOTENT_WRITE),
        ('{"destructiveHint":false}', Effect.WRITE),
        ('{"readOnlyHint":"true"}', Effect.WRITE),
    ],
)
def test_trusted_annotations_name_the_effect(annotations: str, effect: Effect) -> None:
    assert effect_of(definition(annotations), trusted=True) is effect
    assert effect_of(definition(annotations), trusted=False) is Effect.UNKNOWN


def test_without_a_definition_the_effect_is_unknown() -> None:
    assert effect_of(None, trusted=True) is Effect.UNKNOWN


def test_a_forgotten_tool_is_unknown_until_it_is_listed_again() -> None:
    catalog = ToolListings()
    assert catalog.forget("files", "me") is False
    catalog.learn("files", "me", page("a"), first=True)
    catalog.learn("files", "you", page("a"), first=True)
    assert catalog.forget("files", "me") is True
    assert (catalog.find("files", "me", "a"), catalog.lacks("files", "me", "b")) == (None, False)
    assert catalog.find("files", "you", "a") is not None
    catalog.learn("files", "me", page("a"), first=True)
    assert catalog.find("files", "me", "a") is not None


def test_of_more_tools_than_are_held_none_stays_as_it_was_before() -> None:
    catalog = ToolListings()
    catalog.learn("files", "me", page(*map(str, range(10_000))), first=True)
    catalog.learn("files", "me", page("x", cursor='"2"'), first=True)
    catalog.learn("files", "me", page("7", text="other", cursor='"3"'), first=False)
    assert catalog.find("files", "me", "7") is None
