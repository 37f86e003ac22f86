"""References in an answer's fields: where they lead, and what is put in their place."""

from urllib.parse import urljoin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.wire.http.reference import led_back, origin_of, resolved

OWN = frozenset({"http://up.example"})
SEGMENTS = st.lists(st.sampled_from(("a", "b.c", ".", "..", "%2e", "x")), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("scheme", "authority", "origin"),
    [
        ("HTTP", "Up.Example:80", "http://up.example"),
        ("https", "up.example:443", "https://up.example"),
        ("https", "up.example:80", "https://up.example:80"),
        ("http", "up.example:", "http://up.example"),
        ("http", "[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_an_origin_has_one_spelling(scheme: str, authority: str, origin: str) -> None:
    assert origin_of(scheme, authority) == origin


@given(base=SEGMENTS, segments=SEGMENTS, rooted=st.booleans())
def test_relative_references_are_resolved_as_the_standard_library_does(
    base: list[str], segments: list[str], rooted: bool
) -> None:
    resource = "/" + "/".join(each for each in base if each.isalpha())
    reference = "/" * rooted + "/".join(segments)
    # It does not take %2e for a dot; browsers do.
    wanted = urljoin("http://up.example" + resource, reference.replace("%2e", "."))
    assert resolved(reference, resource, OWN) == wanted.removeprefix("http://up.example")


@pytest.mark.parametrize(
    ("reference", "resource"),
    [
        ("/a//b/;c?d=/../e#/..", "/a//b/;c?d=/../e#/.."),
        ("/a/%2E%2e/b", "/b"),
        ("http://UP.example:80?x", "/?x"),
        ("#part", "/base/x?y#part"),
        ("", "/base/x?y"),
        ("?z", "/base/x?z"),
        ("//up.example/a", "/a"),
        (" /a\t", "/a"),
        ("/caf\udce9 b", "/caf\udce9 b"),
    ],
)
def test_a_reference_is_unchanged_except_for_dots(reference: str, resource: str) -> None:
    assert resolved(reference, "/base/x?y", OWN) == resource


@pytest.mark.parametrize(
    "reference",
    ["http://other.example/a", "//other.example/a", "https://up.example/a", "mailto:a@up.example"],
)
def test_a_reference_to_another_origin_leads_nowhere(reference: str) -> None:
    assert resolved(reference, "/base", OWN) is None


@pytest.mark.parametrize("reference", ["/\\other.example/a", "/a\x00b", "/a\nb"])
def test_a_reference_that_clients_read_in_different_ways_leads_nowhere(reference: str) -> None:
    assert resolved(reference, "/base", OWN) is None


def shifted(reference: str) -> str | None:
    return "/new" + reference if reference.startswith("/") else None


@pytest.mark.parametrize(
    ("name", "value", "changed"),
    [
        (b"Location", b"/a", b"/new/a"),
        (b"location", b"http://other/a", b"http://other/a"),
        (b"Content-Location", b"/a", b"/new/a"),
        (b"Refresh", b"5; url=/a", b"5; url=/new/a"),
        (b"Refresh", b"0;URL='/a'", b"0;URL='/new/a'"),
        (b"Refresh", b'0, "/a" ', b'0, "/new/a" '),
        (b"Refresh", b"5", b"5"),
        (b"Refresh", b"5; url=", b"5; url="),
        (
            b"Link",
            b'</a>; rel="next", <http://x/b>; rel=prev, </c>',
            b'</new/a>; rel="next", <http://x/b>; rel=prev, </new/c>',
        ),
        (b"Link", b'</a>; title="see </b> \\" </c>"', b'</new/a>; title="see </b> \\" </c>"'),
        (b"X-Location", b"/a", b"/a"),
    ],
)
def test_each_reference_of_a_field_is_replaced_and_nothing_else(
    name: bytes, value: bytes, changed: bytes
) -> None:
    assert led_back([(b"X", b"/y"), (name, value)], shifted) == [(b"X", b"/y"), (name, changed)]


def test_bytes_of_no_text_survive() -> None:
    raw = [(b"Location", b"/caf\xe9"), (b"Link", b"</\xff>; rel=x")]
    assert led_back(raw, shifted) == [
        (b"Location", b"/new/caf\xe9"),
        (b"Link", b"</new/\xff>; rel=x"),
    ]
