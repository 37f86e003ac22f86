"""Requests of browser pages: what is allowed, and what a refusal says; probes by address."""

from collections.abc import Iterator
from typing import Final

import pytest

from kit.beside import Rig, proxy_beside
from kit.clients import MCP_HEADERS, Client, call, wait_until
from kit.proxy import Proxy
from kit.upstreams import Peer, RawUpstream

SECRET: Final = "sk-ant-api03-" + "x1Y2" * 20
CORS: Final = "Access-Control-Allow-Origin: chrome-extension://abcdef\r\n"


@pytest.fixture(scope="module")
def open_to(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    settings = {"allow_origins": ["chrome-extension://abcdef", "vscode-webview://*"]}
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path_factory.mktemp("proxy"), upstream.url, settings=settings) as proxy,
    ):
        yield Rig(upstream, proxy)


def wait_for_refusal(proxy: Proxy, reason: str, value: str) -> None:
    """Wait until the log names what was refused."""
    wanted = (reason, value)

    def is_told() -> bool:
        told = proxy.events("request.refused")
        return wanted in [(each["turnlog.reason"], each["turnlog.refused"]) for each in told]

    wait_until(is_told, f"the log names {value!r}")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("chrome-extension://abcdef", 200),
        ("chrome-extension://other", 403),
        ("vscode-webview://0b1c", 200),
        ("app://obsidian.md", 403),
        ("app://localhost", 403),
        ("http://localhost:6274", 200),
    ],
)
def test_a_page_of_a_configured_origin_may_call(open_to: Rig, origin: str, status: int) -> None:
    open_to.fresh()
    headers = (*MCP_HEADERS, ("Origin", origin), ("Sec-Fetch-Site", "cross-site"))
    with open_to.client() as client:
        given = client.request("POST", open_to.path, call("add"), headers=headers)
    assert given.status == status
    assert len(open_to.upstream.requests) == (1 if status == 200 else 0)


def test_the_answer_and_the_event_name_a_refused_origin_and_the_setting(rig: Rig) -> None:
    with rig.client() as client:
        given = client.request("GET", rig.path, headers=(("Origin", "app://obsidian.md"),))
    detail = given.json()["detail"]
    assert all(word in detail for word in ("Origin", "'app://obsidian.md'", "allow_origins"))
    wait_for_refusal(rig.proxy, "origin", "app://obsidian.md")


def test_the_answer_and_the_event_name_a_refused_host_and_the_setting(rig: Rig) -> None:
    with rig.client() as client:
        given = client.request("GET", rig.path, headers=(("Host", "tools.example:80"),))
    assert given.status == 421
    detail = given.json()["detail"]
    assert all(word in detail for word in ("Host", "'tools.example:80'", "allow_hosts"))
    wait_for_refusal(rig.proxy, "host", "tools.example:80")


def test_the_event_names_a_path_that_no_upstream_has(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with (
        RawUpstream() as one,
        proxy_beside(tmp_path_factory.mktemp("proxy"), f"a={one.url}", f"b={one.url}") as proxy,
    ):
        with Client(proxy.urls[0]) as client:
            assert client.request("GET", f"/c/{SECRET}?token=x").status == 404
        shown = proxy.told("request.refused")[0]["turnlog.refused"]
    assert shown.startswith("/c/")
    assert SECRET not in shown
    assert "token" not in shown


@pytest.mark.promise("API-8")
@pytest.mark.parametrize("path", ["/turnlog/health", "/turnlog/ready"])
def test_probes_are_answered_under_any_host(rig: Rig, path: str) -> None:
    with rig.client() as client:
        for host in ("10.1.2.3:7411", "tools.example", ""):
            assert client.request("GET", path, headers=(("Host", host),)).status == 200
        assert client.request("HEAD", path, headers=(("Host", "10.1.2.3"),)).status == 200
        assert client.request("POST", path, b"", headers=(("Host", "10.1.2.3"),)).status == 421
        hostile = (("Host", "10.1.2.3"), ("Origin", "http://evil.example"))
        assert client.request("GET", path, headers=hostile).status == 403
        assert client.request("GET", f"http://10.1.2.3{path}").status == 200
        other = client.request("GET", path + "/x", headers=(("Host", "10.1.2.3"),))
        assert other.status == 421


@pytest.mark.promise("SEC-9")
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_makes_no_call_by_an_image_or_a_link(rig: Rig, site: str) -> None:
    image = (("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", "no-cors"), ("Sec-Fetch-Dest", "image"))
    link = (
        ("Sec-Fetch-Site", site),
        ("Sec-Fetch-Mode", "navigate"),
        ("Sec-Fetch-Dest", "document"),
    )
    with rig.client() as client:
        for headers in (image, link):
            given = client.request("GET", f"/s/{rig.session}/tool?delete=all", headers=headers)
            assert given.status == 403
            detail = given.json()["detail"]
            assert all(word in detail for word in ("Sec-Fetch-Site", site, "allow_origins"))
    assert rig.upstream.requests == []


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_requests_of_a_user_or_of_turnlogs_own_page_are_forwarded(rig: Rig, site: str) -> None:
    with rig.client() as client:
        given = client.request("GET", "/tool", headers=(("Sec-Fetch-Site", site),))
    assert given.status == 200
    assert len(rig.upstream.requests) == 1


def test_a_link_of_another_site_may_open_a_page_of_turnlog_but_not_use_its_api(rig: Rig) -> None:
    link = (
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Mode", "navigate"),
        ("Sec-Fetch-Dest", "document"),
    )
    frame = (*link[:2], ("Sec-Fetch-Dest", "iframe"))
    seen = {}
    with rig.client() as client:
        for path in ("/turnlog/health", "/turnlog/", "/turnlog/api/v1/log", "/turnlog/mcp"):
            seen[path] = client.request("GET", path, headers=link).status
        within = f"/s/{rig.session}/turnlog/mcp"
        seen[within] = client.request("GET", within, headers=link).status
        seen["frame"] = client.request("GET", "/turnlog/", headers=frame).status
        seen["post"] = client.request("POST", "/turnlog/", b"", headers=link).status
    assert seen == {
        "/turnlog/health": 200,
        "/turnlog/": 404,
        "/turnlog/api/v1/log": 403,
        "/turnlog/mcp": 403,
        within: 403,
        "frame": 403,
        "post": 403,
    }


@pytest.mark.promise("REC-19")
def test_a_preflight_passes_and_is_no_call(open_to: Rig) -> None:
    open_to.fresh()

    def script(peer: Peer) -> None:
        peer.read()
        peer.send(b"HTTP/1.1 204 No Content\r\n" + CORS.encode() + b"\r\n")

    open_to.upstream.script = script
    asks = (
        ("Origin", "chrome-extension://abcdef"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "content-type"),
    )
    with open_to.client() as client:
        for path in (open_to.path, f"/s/{open_to.session}/any/tool"):
            given = client.request("OPTIONS", path, headers=asks)
            assert given.status == 204
            assert given.head.one("access-control-allow-origin") == "chrome-extension://abcdef"
        client.request("OPTIONS", f"/s/{open_to.session}/any/tool")
    assert [row.tool for row in open_to.ended_rows()] == ["OPTIONS /any/tool"]
