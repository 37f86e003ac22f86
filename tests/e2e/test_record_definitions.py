"""The hash of a tool's definition, as `tools/list` gave it, on the calls that follow."""

import pytest

from kit.beside import Rig
from kit.clients import call, message
from kit.upstreams import Peer, result, text_result


def test_later_calls_are_recorded_with_the_listed_definition(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        said = peer.read().json()
        if said["method"] != "tools/list":
            peer.send_json(text_result(1, "x"))
            return
        cursor = said["params"].get("cursor")
        name = "second" if cursor else "first"
        page: dict[str, object] = {
            "tools": [{"name": name, "description": cursor or "", "inputSchema": {}}]
        }
        peer.send_json(result(1, page if cursor else {**page, "nextCursor": "next"}))

    rig.upstream.script = script
    key = ("Authorization", f"Bearer {rig.session}")
    rig.post(call("first"), key)
    rig.post(message("tools/list", {}), key)
    rig.post(call("first"), key)
    rig.post(call("second"), key)
    rig.post(message("tools/list", {"cursor": "next"}), key)
    rig.post(call("second"), key)
    rig.post(call("second"), ("Authorization", "Bearer other"))
    rows = {bool(row.definition) for row in rig.ended_rows(4)}
    assert rows == {True, False}
    mine = [row for row in rig.rows() if row.definition]
    assert [row.tool for row in mine] == ["first", "second"]
    assert all(str(row.definition).startswith("sha256:") for row in mine)


def test_a_definition_that_changes_has_another_hash(rig: Rig) -> None:
    texts = ["old", "old", "new"]

    def script(peer: Peer) -> None:
        if peer.read().json()["method"] == "tools/list":
            tool: dict[str, object] = {"name": "t", "description": texts.pop(0), "inputSchema": {}}
            peer.send_json(result(1, {"tools": [tool]}))
        else:
            peer.send_json(text_result(1, "x"))

    rig.upstream.script = script
    for _ in range(3):
        rig.post(message("tools/list", {}))
        rig.post(call("t"))
    first, second, third = (row.definition for row in rig.ended_rows(3))
    assert first == second != third


def test_a_definition_listed_in_a_stream_counts_too(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        if peer.read().json()["method"] == "tools/list":
            peer.start_events()
            tool: dict[str, object] = {"name": "streamed", "inputSchema": {}}
            peer.send_event(result(1, {"tools": [tool]}))
            peer.end()
        else:
            peer.send_json(text_result(1, "x"))

    rig.upstream.script = script
    rig.post(message("tools/list", {}))
    rig.post(call("streamed"))
    assert rig.row().definition


@pytest.mark.parametrize(
    ("tools", "more", "tool", "kind"),
    [
        (["add"], {}, "gone", "tool_not_found"),
        (["add"], {}, "add", "invalid_request"),
        ([], {"nextCursor": "more"}, "gone", "invalid_request"),
    ],
    ids=["not listed", "listed", "on a later page perhaps"],
)
def test_wrong_params_for_a_tool_that_is_not_listed_mean_that_it_is_not_there(
    rig: Rig, tools: list[str], more: dict[str, str], tool: str, kind: str
) -> None:
    def script(peer: Peer) -> None:
        if peer.read().json()["method"] == "tools/list":
            listed = [{"name": name, "inputSchema": {"type": "object"}} for name in tools]
            peer.send_json(result(1, {"tools": listed, **more}))
        else:
            failure = {"code": -32602, "message": "no"}
            peer.send_json({"jsonrpc": "2.0", "id": 1, "error": failure})

    rig.upstream.script = script
    credential = ("Authorization", f"Bearer {rig.session}")
    rig.post(message("tools/list", {}), credential)
    rig.post(call(tool), credential)
    row = rig.row()
    assert (row.error, row.kind, row.retry) == ("invalid", kind, "never")
