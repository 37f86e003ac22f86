"""The fast way to canonical JSON gives the bytes of the slow one."""

import json
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from turnlog.core.canon import canonical, canonical_of_decoded
from turnlog.wire.jsonrpc import Message, parse

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**54), 2**54)
    | st.floats()
    | st.text()
    | st.text(st.characters(codec="utf-8", min_codepoint=0xE000))
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
layouts = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"sort_keys": True}])


def asked(arguments: bytes) -> Message:
    """Return what a request with these arguments says."""
    said = parse(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"a":%b}}' % arguments)
    assert isinstance(said, Message)
    return said


@pytest.mark.promise("REC-16")
@given(documents, st.booleans(), layouts)
@example({"\uffff": 1, "\U00010000": 2}, False, {})
@example({"\uffff": 1, "\U00010000": 2}, True, {})
@example([1e21, 1e-7, -0.0, 1.0, 5e-324], True, {})
def test_the_form_is_that_of_rfc_8785(
    document: Any, ascii_only: bool, layout: dict[str, Any]
) -> None:
    data = json.dumps(document, ensure_ascii=ascii_only, **layout).encode("utf-8", "surrogatepass")
    try:
        expected = ("sha256", rfc8785.dumps(document))
    except ValueError:
        expected = ("raw-sha256", data)
    assert canonical(data) == expected
    plain: Any = asked(data).plain
    assert plain is None or canonical_of_decoded(plain["params"]["a"], data) == expected


def test_what_needs_no_care_is_decoded_with_its_request() -> None:
    plain: Any = asked(b'{"b":[1,null],"a":"\xc3\xa4"}').plain
    assert plain["params"] == {"a": {"b": [1, None], "a": "\xe4"}}
    assert asked(b"1.0").plain is None


@given(st.dictionaries(st.text(), scalars, min_size=1, max_size=5), st.data())
def test_a_key_that_comes_twice_is_never_dropped(
    document: dict[str, Any], data: st.DataObject
) -> None:
    key = data.draw(st.sampled_from(sorted(document)))
    members = [*document.items(), (key, 1)]
    body = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in members)
    doubled = f"{{{body}}}".encode()
    assert canonical(doubled) == ("raw-sha256", doubled)
    assert asked(doubled).plain is None


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_have_a_form(data: bytes) -> None:
    scheme, form = canonical(data)
    assert canonical(form) == (scheme, form)
