"""Whose requests turnlog takes."""

import pytest

from turnlog.wire.http.origin import (
    allowed_host,
    allowed_origin,
    is_of_another_site,
    is_this_machine,
    normal_origin,
)

ALLOWED = frozenset({"proxy.internal", "pinned.internal:7411", "192.0.2.7", "2001:db8::1"})


@pytest.mark.parametrize(
    "host",
    [
        b"localhost",
        b"LOCALHOST:7411",
        b"localhost.",
        b"localhost.:80",
        b"127.0.0.1",
        b"127.8.9.10:65535",
        b"[::1]",
        b"[::1]:7411",
        b"[0:0:0:0:0:0:0:1]",
        b"proxy.internal",
        b"Proxy.Internal.:99",
        b"proxy.internal:",
        b"pinned.internal:7411",
        b"192.0.2.7:80",
        b"[2001:DB8:0::1]:80",
    ],
)
def test_loopback_and_configured_names_are_allowed(host: bytes) -> None:
    assert allowed_host(host, ALLOWED)
    assert allowed_origin(b"http://" + host, ALLOWED)
    assert allowed_origin(b"HTTPS://" + host, ALLOWED)


@pytest.mark.promise("SEC-8")
@pytest.mark.parametrize(
    "host",
    [
        b"",
        b"evil.example",
        b"localhost.evil.example",
        b"evil.localhost",
        b"127.0.0.1.evil.example",
        b"127.0.0.1@evil.example",
        b"localhost:80@evil.example",
        b"user@localhost",
        b"localhost:80:80",
        b"localhost:99999",
        b"localhost:-1",
        b"localhost:x",
        b"localhost..",
        b".",
        b"localhost/",
        b"localhost#",
        b"local host",
        b"localhost,evil.example",
        b"localhost\0",
        b"127.1",
        b"127.0.0.01",
        b"2130706433",
        b"0x7f.0.0.1",
        b"0.0.0.0",
        b"::1",
        b"[::1",
        b"::1]",
        b"[::1%25lo]",
        b"[127.0.0.1]",
        b"[::2]",
        b"[]",
        b"pinned.internal",
        b"pinned.internal:80",
        b"sub.proxy.internal",
        "localhost\u3002".encode(),
    ],
)
def test_every_other_name_is_refused(host: bytes) -> None:
    assert not allowed_host(host, ALLOWED)
    if host:
        assert not allowed_origin(b"http://" + host, ALLOWED)


def test_names_are_compared_however_they_are_configured() -> None:
    assert allowed_host(b"[2001:db8::1]:7", frozenset({"[2001:db8:0:0::1]:7"}))
    assert allowed_host(b"[2001:db8::1]", frozenset({"[2001:db8::1]"}))
    assert not allowed_host(b"[2001:db8::1]:8", frozenset({"[2001:db8::1]:7"}))
    assert not allowed_host(b"x", frozenset({"not a host", "[1.2.3.4]"}))


def test_no_origin_is_no_browser() -> None:
    assert allowed_origin(b"", frozenset())


@pytest.mark.parametrize(
    "origin",
    [
        b"null",
        b"localhost",
        b"http://localhost/",
        b"http://localhost?x",
        b"http://localhost\\@evil.example",
        b"file://localhost",
        b"chrome-extension://localhost",
        b"http://",
        b"http://localhost http://evil.example",
        b" http://localhost",
    ],
)
def test_an_origin_that_is_no_web_page_of_an_allowed_host_is_refused(origin: bytes) -> None:
    assert not allowed_origin(origin, ALLOWED)


CONFIGURED = frozenset(
    map(
        normal_origin,
        (
            "chrome-extension://AbCd",
            "vscode-webview://*",
            "app://obsidian.md",
            "file://",
            "https://app.example:443",
            "http://tool.example:8080",
        ),
    )
)


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (b"chrome-extension://abcd", True),
        (b"Chrome-Extension://ABCD", True),
        (b"chrome-extension://abcde", False),
        (b"chrome-extension://", False),
        (b"vscode-webview://0b1c2d", True),
        (b"app://obsidian.md", True),
        (b"app://other", False),
        (b"file://", True),
        (b"file://host", False),
        (b"https://app.example", True),
        (b"https://app.example:443", True),
        (b"http://app.example", False),
        (b"https://app.example:8443", False),
        (b"https://sub.app.example", False),
        (b"http://tool.example:8080", True),
        (b"http://tool.example", False),
        (b"vscode-webview://a/b", False),
        (b"vscode-webview://a@b", False),
        (b"*://abcd", False),
        (b"null", False),
    ],
)
def test_configured_origins_are_allowed_as_they_are_written(origin: bytes, allowed: bool) -> None:
    assert allowed_origin(origin, frozenset(), CONFIGURED) is allowed


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (b"chrome-extension://proxy.internal", True),
        (b"app://192.0.2.7", True),
        (b"app://localhost", False),
        (b"app://127.0.0.1", False),
        (b"app://other", False),
    ],
)
def test_names_of_hosts_hold_for_every_scheme_but_loopback_only_for_the_web(
    origin: bytes, allowed: bool
) -> None:
    assert allowed_origin(origin, ALLOWED | {"127.0.0.1"}) is allowed


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "",
        "proxy.internal",
        "https://*",
        "http://",
        "https://app.example/",
        "https://a b",
        "chrome-extension://*x",
        "https://user@app.example",
        "https://\u00e4.example",
        "*",
    ],
)
def test_an_origin_that_no_browser_sends_or_that_is_ambiguous_cannot_be_configured(
    text: str,
) -> None:
    with pytest.raises(ValueError, match=r"origin|host|any"):
        normal_origin(text)


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (b"cross-site", True),
        (b"same-site", True),
        (b" Cross-Site ", True),
        (b"same-origin", False),
        (b"none", False),
        (b"", False),
    ],
)
def test_fetch_metadata_names_pages_of_other_sites(value: bytes, other: bool) -> None:
    assert is_of_another_site(value) is other


def test_this_machine_is_known_by_name_and_address() -> None:
    for host in ("localhost", "LocalHost.", "127.0.0.1", "127.8.9.10", "::1", "0.0.0.0", "::"):
        assert is_this_machine(host)
    for host in ("proxy.internal", "192.0.2.7", "2001:db8::1", "localhost.evil.example", ""):
        assert not is_this_machine(host)
