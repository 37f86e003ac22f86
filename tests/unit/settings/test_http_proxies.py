"""The HTTP proxy for an upstream, by its setting and the environment."""

import pytest

from turnlog.settings.http_proxies import parse_proxy, proxy_for, proxy_warnings

HTTP, HTTPS = "http://tools.corp.example:9000/mcp", "https://tools.corp.example/mcp"
P, Q = "http://p:1", "http://q:2"


def chosen(setting: str, url: str, **environ: str) -> str:
    """Return the proxy's URL, empty for none."""
    found = proxy_for(setting, url, environ)
    return "" if found is None else found.url


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        (HTTP, {}, ""),
        (HTTP, {"HTTP_PROXY": P}, P),
        (HTTP, {"http_proxy": P}, P),
        (HTTP, {"http_proxy": P, "HTTP_PROXY": Q}, P),
        (HTTP, {"http_proxy": "", "HTTP_PROXY": Q}, ""),
        (HTTP, {"HTTP_PROXY": "p:1"}, P),
        (HTTP, {"HTTP_PROXY": "http://p"}, "http://p:80"),
        (HTTP, {"HTTP_PROXY": "http://[2001:db8::1]:8080/"}, "http://[2001:db8::1]:8080"),
        (HTTP, {"HTTPS_PROXY": P}, ""),
        (HTTPS, {"HTTPS_PROXY": P, "HTTP_PROXY": Q}, P),
        (HTTPS, {"HTTP_PROXY": Q}, ""),
        (HTTPS, {"ALL_PROXY": P}, P),
        (HTTP, {"all_proxy": P, "HTTP_PROXY": Q}, Q),
        # In a CGI script it is a header of the client's.
        (HTTP, {"HTTP_PROXY": P, "REQUEST_METHOD": "GET"}, ""),
        (HTTP, {"http_proxy": P, "REQUEST_METHOD": "GET"}, P),
    ],
)
def test_the_environment_names_a_proxy_by_scheme(
    url: str, environ: dict[str, str], proxy: str
) -> None:
    assert chosen("env", url, **environ) == proxy


@pytest.mark.parametrize(
    ("host", "exceptions", "direct"),
    [
        ("tools.corp.example", "corp.example", True),
        ("tools.corp.example", ".corp.example", True),
        ("tools.corp.example", "*.corp.example", True),
        ("tools.corp.example", "other, tools.corp.example", True),
        ("Tools.Corp.Example", "TOOLS.corp.EXAMPLE", True),
        ("tools.corp.example.", "corp.example", True),
        ("tools.corp.example", "*", True),
        ("tools.corp.example:9000", "tools.corp.example:9000", True),
        ("tools.corp.example:9001", "tools.corp.example:9000", False),
        ("tools.corp.example", "orp.example", False),
        ("tools.corp.example", "tools.corp", False),
        ("tools.corp.example", "", False),
        ("tools.corp.example", " , .", False),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("[2001:db8::1]:80", "2001:db8::/32", True),
        ("[2001:db8::1]:80", "[2001:db8::1]", True),
        ("[2001:db9::1]:80", "2001:db8::/32", False),
    ],
)
def test_no_proxy_lists_names_domains_and_networks(
    host: str, exceptions: str, direct: bool
) -> None:
    found = chosen("env", f"http://{host}/", HTTP_PROXY=P, NO_PROXY=exceptions)
    assert found == ("" if direct else P)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9", "[::1]", "0.0.0.0"]
)
def test_loopback_is_called_directly_unless_a_proxy_is_configured(host: str) -> None:
    url = f"http://{host}:9000/mcp"
    assert chosen("env", url, HTTP_PROXY=P, ALL_PROXY=P) == ""
    assert chosen(Q, url, HTTP_PROXY=P) == Q


def test_a_setting_wins_over_the_environment() -> None:
    assert chosen("none", HTTP, HTTP_PROXY=P) == ""
    assert chosen(Q, HTTP, HTTP_PROXY=P, NO_PROXY="*") == Q


def test_proxy_credentials_become_a_header_and_are_not_shown() -> None:
    found = parse_proxy("http://me:p%40ss%3A@p:1", "HTTP_PROXY")
    assert found.authorization == b"Basic bWU6cEBzczo="  # me:p@ss:
    assert found.url == P
    assert parse_proxy("me@p:1", "HTTP_PROXY").authorization == b"Basic bWU6"


@pytest.mark.parametrize(
    "text", ["socks5://me:secret@p:1", "https://me:secret@p", "http://", "http://me:secret@p:x"]
)
def test_the_error_about_an_unusable_proxy_has_no_credentials(text: str) -> None:
    with pytest.raises(ValueError, match="write env, none, or a URL") as caught:
        parse_proxy(text, "proxy")
    assert "secret" not in str(caught.value)
    (warning,) = proxy_warnings({"far": ("env", HTTP)}, {"HTTP_PROXY": text})
    assert warning.startswith("upstream 'far' is called without a proxy; HTTP_PROXY: ")
    assert "secret" not in warning
