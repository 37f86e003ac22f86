"""Redirects of a server lead back through turnlog, and following one is the same call."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

import pytest
from mcp import Client as McpClient

from kit.beside import Rig, proxy_beside, ruled, session_rows
from kit.clients import MCP_HEADERS, Client, call, wait_until
from kit.proxy import Proxy, running, until
from kit.slow_server import slow_server
from kit.upstreams import Peer, RawUpstream, text_result
from turnlog.core import ids
from turnlog.sessions.rows import Row
from turnlog.store.lmdb import LmdbReader

MOVED: Final = "307 Temporary Redirect"
Servers = dict[str, tuple[RawUpstream, Proxy, str]]
"""A server, the proxy before it, and the path of its URL there, by what the URL is."""


def moving(
    location: Callable[[bytes], str], *, status: str = MOVED, fields: str = ""
) -> Callable[[Peer], None]:
    """Return a script that redirects what is asked at a path without a final slash."""

    def script(peer: Peer) -> None:
        request = peer.read()
        path = request.target.partition(b"?")[0]
        if path.endswith(b"/"):
            peer.send_json(text_result(request.json().get("id", 1), "done"))
            return
        host = request.all(b"host")[0]
        head = (
            f"HTTP/1.1 {status}\r\nLocation: {location(host)}\r\n{fields}Content-Length: 0\r\n\r\n"
        )
        peer.send(head.encode())

    return script


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp
    with (
        RawUpstream() as alone,
        RawUpstream() as named,
        RawUpstream() as other,
        proxy_beside(folder("alone"), alone.url) as one,
        proxy_beside(folder("two"), f"files={named.url}", f"git={other.url}") as two,
    ):
        yield {
            "plain path": (alone, one, "/mcp"),
            "only upstream by name": (alone, one, "/default"),
            "session": (alone, one, "/s/mine/mcp"),
            "session and name": (alone, one, "/s/mine/default"),
            "name": (named, two, "/files"),
            "name and path": (named, two, "/files/mcp"),
            "name in a session": (named, two, "/s/mine/files"),
        }


PLACES = (
    "plain path",
    "only upstream by name",
    "session",
    "session and name",
    "name",
    "name and path",
    "name in a session",
)
FORMS: Final[dict[str, Callable[[bytes], str]]] = {
    "absolute": lambda host: f"http://{host.decode()}/mcp/",
    "without a scheme": lambda host: f"//{host.decode()}/mcp/",
    "from the root": lambda _: "/mcp/",
    "from the path": lambda _: "mcp/",
}


@pytest.mark.promise("REDIR-3")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", PLACES)
def test_a_call_that_follows_a_redirect_of_its_server_is_one_call(
    servers: Servers, place: str, form: str
) -> None:
    upstream, proxy, path = servers[place]
    upstream.script = moving(FORMS[form])
    upstream.requests.clear()
    tool = f"{place}, {form}"
    headers = (*MCP_HEADERS, ("Mcp-Session-Id", tool.replace(" ", "-")))
    with Client(proxy.urls[0]) as client:
        moved = client.request("POST", path, call(tool, {"a": 1}), headers=headers)
        assert moved.status == 307
        location = moved.head.one("location")
        assert location is not None
        url = urljoin(f"http://{client.authority}{path}", location)
        assert url.startswith(f"http://{client.authority}/")
        target = url.removeprefix(f"http://{client.authority}")
        answer = client.request("POST", target, call(tool, {"a": 1}), headers=headers)
    assert answer.json()["result"]["content"][0]["text"] == "done"
    assert [request.target for request in upstream.requests] == [b"/mcp", b"/mcp/"]
    first, second = ended(proxy, tool, 2)
    assert (first.status, first.kind, first.executed, first.flags) == (
        "error",
        "invalid_request",
        "no",
        ["redirected"],
    )
    assert (second.status, second.executed, second.flags) == ("ok", "yes", [])
    assert (first.session, first.call, first.attempt) == (
        second.session,
        second.call,
        second.attempt - 1,
    )
    assert second.intent_seq > first.seq


def ended(proxy: Proxy, tool: str, count: int) -> list[Row]:
    """Wait until a tool has so many rows, all of which have ended; return them."""

    def rows() -> list[Row]:
        return [row for row in proxy.rows() if row.tool == tool]

    wait_until(
        lambda: len(rows()) >= count and all(row.status != "pending" for row in rows()),
        f"{count} rows of {tool!r}",
    )
    return rows()


@pytest.mark.promise("REDIR-1")
@pytest.mark.parametrize("place", ["name", "session"])
def test_all_fields_that_lead_somewhere_lead_back(servers: Servers, place: str) -> None:
    upstream, proxy, path = servers[place]
    here = path.removesuffix("/mcp")

    def script(peer: Peer) -> None:
        host = peer.read().all(b"host")[0].decode()
        fields = (
            f"Content-Location: http://{host}/items/1\r\n"
            f"Refresh: 3; url=/items\r\n"
            f"Link: <?page=2>; rel=next, <https://docs.example/x>; rel=help\r\n"
            "X-Location: /items\r\n"
        )
        peer.send_json({"a": 1}, headers=fields)

    upstream.script = script
    with Client(proxy.urls[0]) as client:
        head = client.request("GET", f"{here}/items?page=1").head
    assert head.one("content-location") == f"{here}/items/1"
    assert head.one("refresh") == f"3; url={here}/items"
    assert (
        head.one("link") == f"<{here}/items?page=2>; rel=next, <https://docs.example/x>; rel=help"
    )
    assert head.one("x-location") == "/items"


def test_on_a_plain_path_a_redirect_that_leads_back_to_turnlog_anyway_is_unchanged(
    servers: Servers,
) -> None:
    upstream, proxy, path = servers["plain path"]
    upstream.script = moving(lambda _: "./../mcp/ ", fields='Link: </a/../b> ; rel="x"\r\n')
    with Client(proxy.urls[0]) as client:
        head = client.request("POST", path, call("kept"), headers=MCP_HEADERS).head
    assert (head.one("location"), head.one("link")) == ("./../mcp/", '</a/../b> ; rel="x"')


@pytest.mark.promise("REDIR-4")
@pytest.mark.parametrize(
    "location",
    ["http://elsewhere.example/mcp/", "https://127.0.0.1:1/mcp/", "//elsewhere.example/mcp/"],
)
def test_a_redirect_to_another_origin_passes_unchanged_and_may_have_been_executed(
    rig: Rig, location: str
) -> None:
    rig.upstream.script = moving(lambda _: location)
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert given.head.one("location") == location
    row = rig.row()
    assert (row.status, row.kind, row.executed, row.flags) == (
        "error",
        "malformed_result",
        "maybe",
        ["redirected"],
    )


@pytest.mark.promise("REDIR-4")
def test_a_redirect_to_another_configured_upstream_passes_unchanged(
    servers: Servers,
) -> None:
    upstream, proxy, path = servers["name"]
    there = servers["plain path"][0].url
    upstream.script = moving(lambda _: there)
    with Client(proxy.urls[0]) as client:
        given = client.request("POST", path, call("across"), headers=MCP_HEADERS)
    assert given.head.one("location") == there
    (row,) = ended(proxy, "across", 1)
    assert row.executed == "maybe"


@pytest.mark.promise("OUT-25")
@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other"])
def test_other_redirects_may_follow_finished_work(rig: Rig, status: str) -> None:
    rig.upstream.script = moving(lambda _: "/mcp/", status=status)
    with rig.client() as client:
        client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
        client.request("POST", f"{rig.path}/", call("add"), headers=MCP_HEADERS)
    first, second = rig.ended_rows(2)
    assert (first.kind, first.executed) == ("malformed_result", "maybe")
    assert first.call != second.call


OTHERS: Final = {
    "id": call("add", {"a": 1}, request_id=2),
    "tool": call("sub", {"a": 1}),
    "input": call("add", {"a": 2}),
    "session": call("add", {"a": 1}),
}


@pytest.mark.parametrize("change", OTHERS)
def test_a_call_with_another_input_is_another_call(rig: Rig, change: str) -> None:
    rig.upstream.script = moving(lambda _: "/mcp/")
    path = f"/s/{rig.session}-2/mcp/" if change == "session" else f"{rig.path}/"
    with rig.client() as client:
        client.request("POST", rig.path, call("add", {"a": 1}), headers=MCP_HEADERS)
        client.request("POST", path, OTHERS[change], headers=MCP_HEADERS)
    rows = rig.ended_rows(1 if change == "session" else 2)
    rows += session_rows(rig.proxy.data, f"{rig.session}-2")
    assert len({row.call for row in rows}) == 2
    assert [row.attempt for row in rows] == [1, 1]


def test_two_clients_without_names_each_continue_their_own_call(
    servers: Servers,
) -> None:
    upstream, proxy, _ = servers["plain path"]
    upstream.script = moving(lambda _: "/mcp/")
    with Client(proxy.urls[0]) as one, Client(proxy.urls[0]) as other:
        for path in ("/mcp", "/mcp/"):
            for client in (one, other):
                client.request("POST", path, call("nameless"), headers=MCP_HEADERS)
    rows = ended(proxy, "nameless", 4)
    calls = [row.call for row in rows]
    assert calls[0] != calls[1]
    assert calls[2:] == calls[:2]
    assert [row.attempt for row in rows] == [1, 1, 2, 2]


@pytest.mark.parametrize("named", ["name", "protocol session", "nothing"])
def test_redirects_that_follow_each_other_are_one_call(rig: Rig, named: str) -> None:
    def script(peer: Peer) -> None:
        request = peer.read()
        place = request.target.rpartition(b"/")[2].decode()
        if place == "c":
            peer.send_json(text_result(1, "done"))
            return
        then = {"mcp": "a", "a": "b", "b": "c"}[place]
        peer.send(f"HTTP/1.1 308 X\r\nLocation: /{then}\r\nContent-Length: 0\r\n\r\n".encode())

    rig.upstream.script = script
    headers = rig.session_headers if named == "protocol session" else MCP_HEADERS
    with rig.client() as client:
        path: str | None = rig.path if named == "name" else "/mcp"
        for _ in range(4):
            assert path is not None
            answer = client.request("POST", path, call(f"add by {named}"), headers=headers)
            path = answer.head.one("location")
    rows = ended(rig.proxy, f"add by {named}", 4)
    assert len({row.call for row in rows}) == 1
    for before, after in pairwise(rows):
        assert following(rig, after) == before.seq
    assert [(row.attempt, row.executed) for row in rows] == [
        (1, "no"),
        (2, "no"),
        (3, "no"),
        (4, "yes"),
    ]


def following(rig: Rig, row: Row) -> int | None:
    """Return the commit that the intent of a row refers to."""
    reader = LmdbReader.open(rig.proxy.data)
    try:
        with reader.view() as view:
            commits = view.call(ids.from_text(row.call))
            return next(c.link.ref for c in commits if c.link.seq == row.intent_seq)
    finally:
        reader.close()


def test_a_batch_that_follows_a_redirect_is_the_same_calls(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        request = peer.read()
        if request.target == b"/mcp/":
            peer.send_json([text_result(number, "done") for number in (1, 2)])
            return
        peer.send(b"HTTP/1.1 307 X\r\nLocation: /mcp/\r\nContent-Length: 0\r\n\r\n")

    rig.upstream.script = script
    batch = b"[" + b",".join(call("add", {"n": n}, request_id=n) for n in (1, 2)) + b"]"
    with rig.client() as client:
        for path in (rig.path, f"{rig.path}/"):
            client.request("POST", path, batch, headers=MCP_HEADERS)
    rows = rig.ended_rows(4)
    assert sorted(row.attempt for row in rows) == [1, 1, 2, 2]
    assert len({row.call for row in rows}) == 2


def test_a_plain_tool_that_follows_a_redirect_is_one_call(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        request = peer.read()
        if request.target.endswith(b"/?x=1"):
            peer.send_json({"ok": True})
            return
        host = request.all(b"host")[0]
        peer.send(
            b"HTTP/1.1 307 X\r\nLocation: http://%b/items/?x=1\r\nContent-Length: 0\r\n\r\n" % host
        )

    rig.upstream.script = script
    path = f"/s/{rig.session}/items"
    with rig.client() as client:
        moved = client.request("PUT", f"{path}?x=1", b'{"a": 1}')
        assert moved.head.one("location") == f"{path}/?x=1"
        client.request("PUT", f"{path}/?x=1", b'{"a": 1}')
        client.request("PUT", f"{path}/?x=1", b'{"a": 1}')
    rows = rig.ended_rows(3)
    assert [(row.attempt, row.status, row.executed) for row in rows] == [
        (1, "error", "no"),
        (2, "ok", "yes"),
        (1, "ok", "yes"),
    ]
    assert rows[0].call == rows[1].call != rows[2].call


def test_a_named_write_with_a_key_runs_once_behind_a_redirect(tmp_path: Path) -> None:
    rules = "rules:\n  - {name: orders, match: {tool: order}, effect: irreversible}\n"
    with ruled(tmp_path, rules) as rig:
        rig.fresh()
        rig.upstream.script = moving(lambda _: "/mcp/")
        headers = (*MCP_HEADERS, ("Idempotency-Key", "k1"))
        with rig.client() as client:
            for path in (rig.path, f"{rig.path}/"):
                given = client.request("POST", path, call("order"), headers=headers)
            again = client.request(
                "POST", f"{rig.path}/", call("order", request_id=2), headers=headers
            )
        assert given.json()["result"]["content"] == again.json()["result"]["content"]
        assert [request.target for request in rig.upstream.requests] == [b"/mcp", b"/mcp/"]
        first, second, third = rig.ended_rows(3)
        assert (first.call, first.executed, second.executed) == (second.call, "no", "yes")
        assert third.status == "replayed"


def test_calls_that_are_redirected_again_and_again_are_no_loop(rig: Rig) -> None:
    rig.upstream.script = moving(lambda _: "/mcp/")
    with rig.client() as client:
        for number in range(4):
            for path in (rig.path, f"{rig.path}/"):
                client.request("POST", path, call("add", request_id=number), headers=MCP_HEADERS)
    assert not [row for row in rig.ended_rows(8) if "loop" in row.flags]


def settled(proxy: Proxy) -> list[Row] | None:
    """Return the rows once a redirect and an answer have ended; `None` before."""
    rows = proxy.rows()
    return rows if [row.status for row in rows] == ["error", "ok"] else None


@pytest.mark.promise("REDIR-5")
@pytest.mark.parametrize(
    ("mode", "place"),
    [("legacy", ""), ("legacy", "/shop"), ("auto", "/s/run/mcp"), ("auto", "/s/run/shop")],
)
async def test_a_mounted_server_works_with_the_official_client(
    tmp_path: Path, mode: str, place: str
) -> None:
    with slow_server(tmp_path, "mounted") as server:
        async with running(tmp_path, f"shop={server.url}") as proxy:
            url = proxy.url.removesuffix("/mcp") + place if place else proxy.url
            async with McpClient(url, mode=mode) as agent:
                result = await agent.call_tool("order", {"item": "tea"})
                assert result.is_error is False
            rows = await until(lambda: settled(proxy), "both attempts have ended")
    assert server.runs == ["tea"]
    assert len({row.call for row in rows}) == 1
    assert [(row.attempt, row.executed, row.flags) for row in rows] == [
        (1, "no", ["redirected"]),
        (2, "yes", []),
    ]
