import pytest

from turnlog.packs.expand import expand
from turnlog.settings.upstream_url import SHORTEST, UpstreamUrl, UrlMask, mask_of

VALUES = {"T": "the-word/of%20it", "S": "1", "U": "http://a/x/the-word?k=the-other", "P": "8080"}


def mask(text: str) -> UrlMask | None:
    found = expand(text, VALUES, lambda _: b"")
    return mask_of(UpstreamUrl(found.text, found.values))


def masked(text: str) -> UrlMask:
    found = mask(text)
    assert found is not None
    return found


@pytest.mark.parametrize("text", ["http://a/b?c", "http://a:${P}/b", "http://a:${P}", "http://a"])
def test_a_url_whose_path_and_query_hold_no_value_is_shown_as_it_is(text: str) -> None:
    assert mask(text) is None


@pytest.mark.parametrize(
    ("text", "path", "query"),
    [
        ("http://a/b/${S}/c${S}?k=${S}&l=1", "/b/[redacted]/c[redacted]", "k=[redacted]&l=1"),
        ("http://a/b/${T}", "/b/[redacted]/[redacted]", ""),
        ("http://a?k=${S}", "/", "k=[redacted]"),
        ("${U}", "/[redacted]/[redacted]", "[redacted]"),
        ("http://a/${S}${S}/", "/[redacted]/", ""),
    ],
)
def test_values_are_cut_where_they_stand_in_the_url_however_short(
    text: str, path: str, query: str
) -> None:
    found = masked(text)
    assert (found.shown_path, found.shown_query) == (path, query)
    assert found.shown(found.path, found.query) == (path, query)


def test_paths_below_and_further_parameters_are_shown_after_the_mask() -> None:
    found = masked("http://a/b/${S}?k=${S}")
    assert found.shown("/b/1/1", "x=1") == ("/b/[redacted]/1", "x=1")
    assert found.shown("/b/1", "k=1&x=1") == ("/b/[redacted]", "k=[redacted]&x=1")
    assert found.shown("/b/1", "x=1") == ("/b/[redacted]", "x=1")
    assert found.shown("/b/12", "k=1") == ("/b/12", "k=1")


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ("the-word/of%20it", "[redacted]"),
        ("the-word/of it", "[redacted]"),
        ("the-word%2Fof%20it", "[redacted]"),
        ("a the-word.", "a [redacted]."),
        ("the-wor", "the-wor"),
        ("of%20it", "of%20it"),
    ],
)
def test_a_long_value_is_masked_in_any_place_and_spelling(written: str, left: str) -> None:
    found = masked("http://a/b/${T}")
    assert found.cut(written) == left
    assert found.cut_content(written.encode()) == left.encode()
    assert found.shown(f"/other/{written}", written)[1] == left


def test_a_short_value_is_cut_in_its_own_place_alone() -> None:
    found = masked("http://a/b/${S}")
    assert len(VALUES["S"]) < SHORTEST
    assert found.texts == ()
    assert found.cut("1 of 10") == "1 of 10"


def test_a_tool_is_named_by_a_star_in_place_of_a_value() -> None:
    found = masked("http://a/hook${S}/${T}/send")
    assert found.pattern("/hook1/the-word/of%20it/send") == "/*/*/*/send"
    assert found.pattern("/hook/more") == "/hook/more"


@pytest.mark.parametrize(
    "written", ["fiLe%2FhhY%20wQ44", "fiLe/hhY wQ44", "fiLe%252FhhY%2520wQ44", "fiLe%2fhhY%20wQ44"]
)
def test_a_value_is_cut_however_it_is_encoded(written: str) -> None:
    url = "http://127.0.0.1/fiLe%2FhhY%20wQ44/mcp"
    mask = mask_of(UpstreamUrl(url, ((17, 34),)))
    assert mask is not None
    assert mask.cut(f"at {written}!") == "at [redacted]!"
