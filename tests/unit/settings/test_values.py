from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.settings.values import (
    Address,
    address,
    allowed_host,
    folder,
    header_name,
    is_loop,
    secret_pattern,
    upstream_name,
    upstream_url,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7411", "127.0.0.1", 7411),
        ("localhost:0", "localhost", 0),
        ("[::1]:80", "::1", 80),
        ("0.0.0.0:65535", "0.0.0.0", 65_535),
        (" proxy.internal:7411 ", "proxy.internal", 7411),
    ],
)
def test_an_address_is_host_and_port(text: str, host: str, port: int) -> None:
    read = address(text)

    assert read == Address(host, port)
    assert address(str(read)) == read


@pytest.mark.parametrize(
    "value",
    ["7411", ":7411", "localhost", "localhost:", "a:65536", "a:-1", "::1:7411", "[::1]", "[a]:1",
     "http://a:1", "a b:1", "a:\uff11", 7411, None, "a:" + "9" * 5000],
)  # fmt: skip
def test_an_invalid_address_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(ValueError, match="write HOST:PORT like"):
        address(value)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9000/mcp", "https://tools.example/a?b=c", "HTTP://a", "http://[::1]:1/"],
)
def test_a_url_is_unchanged(url: str) -> None:
    assert upstream_url(url) == url


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "not an http or https URL"),
        ("127.0.0.1:9000/mcp", "not an http or https URL"),
        ("ws://a/", "not an http or https URL"),
        ("file:///etc/passwd", "not an http or https URL"),
        ("http://", "has no host"),
        ("http:///mcp", "has no host"),
        ("http://a:99999/", "is not a URL"),
        ("http://a:0/", "no usable port"),
        ("http://a:/", "no usable port"),
        ("http://[::1/", "is not a URL"),
        ("http://a/#top", "fragment"),
        ("http://a/#", "fragment"),
        ("http://a b/", "percent-encode"),
        ("http://a/\r\nHost: b", "percent-encode"),
        ("http://bücher.example/", "percent-encode"),
        (9000, "is not a URL"),
    ],
)
def test_a_url_that_cannot_be_called_is_refused(value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        upstream_url(value)


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="credentials") as caught:
        upstream_url("http://user:hunter2@a/")

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["files", "Git-2", "a.b_c~d", "0", "mcp", "x" * 64])
def test_an_upstream_name_is_one_path_segment(name: str) -> None:
    assert upstream_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "a/b", "..", ".well-known", "-x", "a b", "ü", "x" * 65, "a%", 1]
)
def test_a_name_that_is_unsafe_in_a_url_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match="cannot name an upstream"):
        upstream_name(name)


@pytest.mark.parametrize("name", ["s", "turnlog"])
def test_the_names_of_turnlogs_own_paths_are_reserved(name: str) -> None:
    with pytest.raises(ValueError, match="reserved"):
        upstream_name(name)


@pytest.mark.parametrize(
    ("listen", "url", "loop"),
    [
        ("127.0.0.1:7411", "http://127.0.0.1:7411/mcp", True),
        ("127.0.0.1:7411", "http://localhost:7411/", True),
        ("localhost:7411", "http://[::1]:7411/", True),
        ("0.0.0.0:7411", "http://127.0.0.1:7411/", True),
        ("[::]:7411", "http://localhost:7411/", True),
        ("127.0.0.1:7411", "http://0.0.0.0:7411/", True),
        ("0.0.0.0:443", "https://127.0.0.1/", True),
        ("proxy.internal:80", "http://PROXY.internal/", True),
        ("127.0.0.1:7411", "http://127.0.0.1:7412/", False),
        ("127.0.0.1:7411", "http://127.0.0.2:7411/", False),
        ("127.0.0.1:7411", "http://[::1]:7411/", False),
        ("0.0.0.0:7411", "http://10.0.0.9:7411/", False),
        ("127.0.0.1:7411", "http://tools.example:7411/", False),
        ("127.0.0.1:0", "http://127.0.0.1:7411/", False),
    ],
)
def test_a_url_of_the_listen_address_is_a_loop(listen: str, url: str, loop: bool) -> None:
    assert is_loop(address(listen), upstream_url(url)) is loop


def test_a_pattern_must_compile_and_not_match_empty_text() -> None:
    assert secret_pattern("sk-[a-z]+") == "sk-[a-z]+"
    for wrong, reason in (
        ("(", "no RE2 pattern"),
        ("a*", "empty text"),
        ("", "empty text"),
        (3, "quote"),
    ):
        with pytest.raises(ValueError, match=reason):
            secret_pattern(wrong)


def test_case_insensitive_names_are_lower_case() -> None:
    assert header_name("X-Api-Key") == "x-api-key"
    assert allowed_host("Proxy.Internal:7411") == "proxy.internal:7411"
    assert allowed_host("[::1]") == "[::1]"


@pytest.mark.parametrize("reader", [header_name, allowed_host, folder, secret_pattern])
def test_a_value_that_is_not_text_is_refused(reader: object) -> None:
    assert callable(reader)
    for value in (3, None, ["a"]):
        with pytest.raises(ValueError, match=", "):
            reader(value)


def test_the_error_for_a_blank_folder_says_so() -> None:
    with pytest.raises(ValueError, match=r"^no value is given, write a path like"):
        folder(None)


def test_a_folder_can_begin_with_a_tilde() -> None:
    assert folder("~/x") == Path.home() / "x"
    assert folder("x/../y") == Path("x/../y")
    with pytest.raises(ValueError, match="no home folder"):
        folder("~nobody-of-this-name/x")
    with pytest.raises(ValueError, match="not a folder"):
        folder("a\0b")


@given(st.text(max_size=40))
def test_any_text_is_a_url_or_a_value_error(text: str) -> None:
    try:
        url = upstream_url("http://" + text)
    except ValueError:
        return
    assert url.isascii()
    assert url.isprintable()
    assert "@" not in url.split("/")[2]
