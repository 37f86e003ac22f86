"""Laws of HTTP heads: whatever comes, order and duplicates stay, and nothing raises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.wire.http.head import (
    Framing,
    allowed_host,
    allowed_origin,
    fields,
    framing,
    media_of,
    request_headers,
    response_headers,
)

names = st.sampled_from(
    [
        b"Accept",
        b"accept",
        b"Authorization",
        b"Connection",
        b"Content-Length",
        b"Keep-Alive",
        b"Mcp-Session-Id",
        b"Set-Cookie",
        b"TE",
        b"Transfer-Encoding",
        b"Turnlog-Turn",
        b"Via",
        b"X-Custom",
        b"Host",
        b"Expect",
    ]
)
field_values = st.one_of(
    st.sampled_from(
        [b"X-Custom, close", b"mcp-session-id", b"a=b; Path=/; Domain=x", b"chunked", b"7"]
    ),
    st.binary(max_size=8),
)
heads = st.lists(st.tuples(names, field_values), max_size=8)
gone = {b"connection", b"keep-alive", b"te", b"transfer-encoding"}


@given(heads)
def test_what_goes_on_keeps_its_order_and_its_bytes(head: list[tuple[bytes, bytes]]) -> None:
    kept = response_headers(head, cookie_path=None)
    rest = iter(head)
    assert all(pair in rest for pair in kept)
    left_out = {name.lower() for name, _ in head} - {name.lower() for name, _ in kept}
    assert left_out <= gone | {b"x-custom", b"turnlog-turn", b"expect"}
    assert not any(name.lower().startswith(b"turnlog-") for name, _ in kept)


@given(heads)
def test_a_request_goes_on_with_one_host_and_nothing_of_this_hop(
    head: list[tuple[bytes, bytes]],
) -> None:
    kept = request_headers(head, authority=b"up:1", forwarded_host=b"down")
    lowered = [name.lower() for name, _ in kept]
    assert [value for name, value in kept if name.lower() == b"host"] == [b"up:1"]
    assert not gone & set(lowered)
    assert not any(name.startswith(b"turnlog-") for name in lowered)
    for name in (b"authorization", b"mcp-session-id", b"accept"):
        assert lowered.count(name) == sum(each.lower() == name for each, _ in head)
    assert kept[-2:] == [(b"Via", b"1.1 turnlog"), (b"X-Forwarded-Host", b"down")]


@pytest.mark.promise("WIRE-27")
@given(heads, st.sampled_from([b"/files", b"/s/x/git"]))
def test_no_cookie_leaves_the_path_of_its_upstream(
    head: list[tuple[bytes, bytes]], path: bytes
) -> None:
    for name, value in response_headers(head, cookie_path=path, upstream_path=b"/mcp"):
        if name == b"Set-Cookie":
            paths = [
                part.strip() for part in value.split(b";") if part.strip().startswith(b"Path=")
            ]
            assert paths[-1].startswith(b"Path=" + path)
            assert b"domain" not in [
                part.partition(b"=")[0].strip().lower() for part in value.split(b";")[1:]
            ]


@given(heads, st.integers(100, 599), st.sampled_from(["GET", "HEAD", "POST"]))
def test_framing_of_any_head_is_a_value(
    head: list[tuple[bytes, bytes]], status: int, method: str
) -> None:
    lengths, codings = fields(head, b"content-length"), fields(head, b"transfer-encoding")
    found = framing(status, method, lengths, codings)
    if isinstance(found, Framing):
        assert found.length >= 0


@given(st.binary(max_size=30))
def test_any_host_origin_and_media_type_is_judged_without_raising(value: bytes) -> None:
    known = frozenset({"proxy.internal"})
    if allowed_host(value, known):
        assert allowed_origin(b"http://" + value, known)
    allowed_origin(value, known)
    media_of([value])
