"""The session, turn and step in which a call is recorded."""

import json
from collections.abc import Mapping

import pytest

from e2e.stores import turnlog
from kit.beside import Rig
from kit.clients import MCP_HEADERS, Client, call, message, wait_until
from kit.upstreams import Peer, result, text_result
from turnlog.sessions.rows import Row
from turnlog.store.lmdb import LmdbReader

Fields = tuple[tuple[str, str], ...]
Asked = tuple[str, Fields, Mapping[str, object]]
"""Path, headers and `_meta` of a call."""


def server(peer: Peer) -> None:
    said = peer.read().json()
    if said["method"] == "initialize":
        reply = result(said["id"], {"protocolVersion": "2025-06-18", "capabilities": {}})
        peer.send_json(reply, headers="Mcp-Session-Id: minted-by-the-server\r\n")
    else:
        peer.send_json(text_result(said["id"], "done"))


@pytest.fixture
def rig(shared: Rig) -> Rig:
    shared.fresh()
    shared.upstream.script = server
    return shared


def made(rig: Rig, *calls: Asked) -> list[Row]:
    """Make calls on one connection; return their rows in order."""
    with rig.client() as client:
        return made_on(rig, client, *calls)


def made_on(rig: Rig, client: Client, *calls: Asked) -> list[Row]:
    tool = f"tool-{len(rig.upstream.requests)}-{rig.session}"
    for path, headers, meta in calls:
        body = call(tool, _meta=dict(meta)) if meta else call(tool)
        client.request("POST", path, body, headers=(*MCP_HEADERS, *headers))
    wait_until(lambda: len(of_tool(rig, tool)) == len(calls), "all rows are there")
    return of_tool(rig, tool)


def of_tool(rig: Rig, tool: str) -> list[Row]:
    return [row for row in rig.proxy.rows() if row.tool == tool and row.status != "pending"]


def rung(rig: Rig, row: Row) -> str:
    reader = LmdbReader.open(rig.proxy.data)
    try:
        with reader.view() as view:
            (session,) = view.find_sessions(row.session)
            (found,) = (each.rung for each in view.sessions() if each.session == session)
            return found.value
    finally:
        reader.close()


@pytest.mark.promise("SESS-4")
def test_path_header_and_meta_name_the_same_session(rig: Rig) -> None:
    name = rig.session
    rows = made(
        rig,
        (f"/s/{name}/mcp", (), {}),
        ("/mcp", (("Turnlog-Session", name),), {}),
        ("/mcp", (), {"turnlog/session": name}),
    )
    assert len({row.session for row in rows}) == 1
    assert rung(rig, rows[0]) == "explicit"


@pytest.mark.promise("SESS-4")
def test_the_path_wins_over_the_header_and_the_header_over_meta(rig: Rig) -> None:
    name = rig.session
    rows = made(
        rig,
        (f"/s/{name}/mcp", (("Turnlog-Session", "x"),), {"turnlog/session": "y"}),
        ("/mcp", (("Turnlog-Session", name),), {"turnlog/session": "y"}),
    )
    assert rows[0].session == rows[1].session


def test_the_name_that_was_given_finds_the_session(rig: Rig) -> None:
    (row,) = made(rig, (f"/s/{rig.session}/mcp", (), {}))
    shown = turnlog("log", rig.session, "--json", data=rig.proxy.data)
    assert (shown.returncode, shown.stderr) == (0, "")
    (line,) = [json.loads(each) for each in shown.stdout.splitlines()]
    assert (line["session"], line["call"]) == (row.session, row.call)


def test_the_name_finds_the_sessions_of_every_principal(rig: Rig) -> None:
    path = f"/s/{rig.session}/mcp"
    made(rig, (path, (("Authorization", "Bearer a"),), {}))
    shown = turnlog("log", rig.session, "--json", data=rig.proxy.data)
    assert shown.returncode == 0, shown.stderr


@pytest.mark.promise("SESS-5")
def test_two_credentials_with_one_name_are_two_sessions(rig: Rig) -> None:
    path = f"/s/{rig.session}/mcp"
    rows = made(
        rig,
        (path, (("Authorization", "Bearer a"),), {}),
        (path, (("Authorization", "Bearer b"),), {}),
        (path, (("Authorization", "Bearer a"),), {}),
    )
    assert rows[0].session == rows[2].session != rows[1].session


def test_the_same_fields_on_one_connection_go_where_each_path_says(rig: Rig) -> None:
    one, two = (f"/s/{rig.session}-{name}/mcp" for name in ("one", "two"))
    rows = made(rig, (one, (), {}), (two, (), {}), (one, (), {}), (two, (), {}))
    assert rows[0].session == rows[2].session != rows[1].session == rows[3].session


@pytest.mark.parametrize(
    "meta",
    [
        {"x-codex-turn-metadata": {"session_id": "S", "turn_id": "t1"}},
        {"x-codex-turn-metadata": '{"session_id": "S", "turn_id": "t1"}'},
        {"vscode.conversationId": "S", "vscode.requestId": "r1"},
        {"openai/session": "S"},
        {"ai.opencode/sessionID": "S"},
        {"antigravity.google/conversation_id": "S"},
    ],
)
def test_a_vendors_key_names_the_session(rig: Rig, meta: dict[str, object]) -> None:
    own = json.loads(
        json.dumps(meta)
        .replace('"S"', f'"{rig.session}"')
        .replace('\\"S\\"', f'\\"{rig.session}\\"')
    )
    other = json.loads(json.dumps(own).replace(rig.session, "other-" + rig.session))
    transport = (("Mcp-Session-Id", "whatever"),)
    first, second, third = made(
        rig, ("/mcp", (), own), ("/mcp", transport, own), ("/mcp", (), other)
    )
    assert first.session == second.session != third.session
    assert rung(rig, first) == "vendor"


def test_the_call_key_of_a_client_names_no_session(rig: Rig) -> None:
    (row,) = made(rig, ("/mcp", (), {"claudecode/toolUseId": "toolu_1", "progressToken": 1}))
    assert rung(rig, row) == "implicit"


def test_a_protocol_session_is_a_session_on_any_connection(rig: Rig) -> None:
    fields = (("Mcp-Session-Id", rig.session),)
    (first,) = made(rig, ("/mcp", fields, {}))
    second, third = made(rig, ("/mcp", fields, {}), ("/mcp", (("Mcp-Session-Id", "other"),), {}))
    assert first.session == second.session != third.session
    assert rung(rig, first) == "transport"


def test_without_any_name_a_connection_is_a_session(rig: Rig) -> None:
    first, second = made(rig, ("/mcp", (), {}), ("/mcp", (), {}))
    (third,) = made(rig, ("/mcp", (), {}))
    assert first.session == second.session != third.session
    assert rung(rig, first) == "implicit"


def test_without_any_name_a_credential_is_a_session_on_all_connections(rig: Rig) -> None:
    fields = (("Authorization", f"Bearer {rig.session}"),)
    (first,) = made(rig, ("/mcp", fields, {}))
    (second,) = made(rig, ("/mcp", fields, {}))
    (other,) = made(rig, ("/mcp", (("Authorization", "Bearer else"),), {}))
    assert first.session == second.session != other.session


@pytest.mark.promise("SESS-6")
def test_the_trace_is_no_session(rig: Rig) -> None:
    trace = (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),)
    (first,) = made(rig, ("/mcp", trace, {}))
    (second,) = made(rig, ("/mcp", trace, {}))
    assert first.session != second.session
    assert first.trace == second.trace == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.promise("SESS-8")
def test_explicit_turns_number_the_rounds(rig: Rig) -> None:
    path = f"/s/{rig.session}/mcp"
    asked: list[Asked] = [(path, (("Turnlog-Turn", turn),), {}) for turn in "aabbc"]
    rows = made(rig, *asked)
    assert [row.turn for row in rows] == [1, 1, 2, 2, 3]
    assert {row.turn_source for row in rows} == {"explicit"}


def test_a_turn_in_meta_counts_like_the_header(rig: Rig) -> None:
    path = f"/s/{rig.session}/mcp"
    rows = made(rig, (path, (("Turnlog-Turn", "a"),), {}), (path, (), {"turnlog/turn": "b"}))
    assert [row.turn for row in rows] == [1, 2]


def test_a_vendors_turn_is_marked_as_such(rig: Rig) -> None:
    metas = [{"vscode.conversationId": rig.session, "vscode.requestId": each} for each in "aab"]
    rows = made(rig, *(("/mcp", (), dict(meta)) for meta in metas))
    assert [row.turn for row in rows] == [1, 1, 2]
    assert {row.turn_source for row in rows} == {"vendor"}


@pytest.mark.promise("SESS-8")
def test_without_a_named_turn_only_gaps_part_turns(rig: Rig) -> None:
    path = f"/s/{rig.session}/mcp"
    rows = made(rig, (path, (), {}), (path, (), {}))
    assert [(row.turn, row.turn_source) for row in rows] == [(1, "gap")] * 2


@pytest.mark.promise("SESS-7")
def test_calls_that_overlap_are_one_step(rig: Rig) -> None:
    clients = [rig.client() for _ in range(4)]
    for number, client in enumerate(clients):
        client.ask("POST", rig.path, call("x", request_id=number), headers=MCP_HEADERS)
    for client in clients:
        client.response()
        client.close()
    assert {row.step for row in rig.ended_rows(4)} == {1}


@pytest.mark.promise("SESS-9")
def test_turnlogs_own_headers_are_removed_and_its_meta_is_forwarded(rig: Rig) -> None:
    with rig.client() as client:
        body = call("x", _meta={"turnlog/session": rig.session, "turnlog/turn": "1"})
        fields = (("Turnlog-Turn", "2"), ("Turnlog-Why", "because"), ("Turnlog-Session", "y"))
        client.request("POST", "/mcp", body, headers=(*MCP_HEADERS, *fields))
    (request,) = rig.upstream.requests
    assert request.body == body
    assert not [name for name, _ in request.headers if name.lower().startswith(b"turnlog")]


def test_client_information_is_kept_with_the_session(rig: Rig) -> None:
    with rig.client() as client:
        info = {
            "clientInfo": {"name": "the-agent", "version": "9"},
            "protocolVersion": "2025-06-18",
        }
        given = client.request("POST", "/mcp", message("initialize", info), headers=MCP_HEADERS)
        session = given.head.one("mcp-session-id")
        assert session == "minted-by-the-server"
        (row,) = made_on(rig, client, ("/mcp", (("Mcp-Session-Id", session),), {}))
    shown = turnlog("sessions", "--json", data=rig.proxy.data)
    (line,) = [json.loads(each) for each in shown.stdout.splitlines() if row.session in each]
    assert "the-agent" in json.dumps(line)
    assert row.upstream.protocol == "2025-06-18"


@pytest.mark.parametrize("name", ["a b", "caf\u00e9", "x" * 300, "..", "a:b#c", "%", "'\"<>"])
def test_odd_names_name_sessions_too(rig: Rig, name: str) -> None:
    meta = {"turnlog/session": name + rig.session}
    first, second = made(rig, ("/mcp", (), meta), ("/mcp", (), meta))
    assert first.session == second.session
    assert rung(rig, first) == "explicit"


@pytest.mark.parametrize("name", ["", " ", "\n", "a\nb", "\u0000", "y" * 5000, 7.5, None, ["x"]])
def test_a_value_that_cannot_be_a_session_name_is_skipped(rig: Rig, name: object) -> None:
    (row,) = made(rig, ("/mcp", (), {"turnlog/session": name}))
    assert rung(rig, row) == "implicit"
