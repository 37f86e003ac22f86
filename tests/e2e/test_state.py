"""The state of sessions that a real proxy recorded: calls, their reasons, and how they ended."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import turnlog
from kit.beside import Rig, ruled
from kit.clients import MCP_HEADERS, call, wait_until
from kit.faults import ResetAfterRequest, SlowHead
from kit.proxy import written
from kit.upstreams import answer, ok, result, text_result

RULES = """
rules:
  - match: {tool: write}
    effect: write
    delta: [{field: files_modified, op: modified, key: $.args.path}]
  - match: {tool: move}
    effect: write
    delta: [{field: files_modified, op: renamed, key: $.args.from, to: $.args.to}]
  - match: {tool: quiet}
    store: nothing
"""


@pytest.fixture(scope="module")
def writing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("state"), RULES) as rig:
        yield rig


@pytest.fixture
def rig(writing: Rig) -> Rig:
    writing.fresh()
    return writing


def state(rig: Rig, *arguments: str) -> dict[str, Any]:
    done = turnlog("state", rig.session, "--json", *arguments, data=rig.proxy.data)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)["state"]
    return found


def files(rig: Rig) -> dict[str, tuple[str, bool]]:
    found = state(rig, "--field", "files_modified")["files_modified"]
    return {path: (change["op"], change.get("maybe", False)) for path, change in found.items()}


def reasons(rig: Rig) -> list[str]:
    rig.ended_rows()
    done = turnlog("diff", rig.session, "0..", "--json", data=rig.proxy.data)
    changes = [json.loads(line) for line in done.stdout.splitlines()]
    (used,) = (change for change in changes if change["field"] == "tools_used")
    return list(dict.fromkeys(by["why"] for by in used["commits"]))


def failed(text: str) -> bytes:
    told = {"isError": True, "content": [{"type": "text", "text": text}]}
    return json.dumps(result(1, told)).encode()


@pytest.mark.promise("STATE-2")
def test_files_follow_what_calls_did_and_may_have_done(rig: Rig) -> None:
    rig.post(call("write", {"path": "/a"}))
    rig.upstream.script = answer(ok(failed("no space")))
    rig.post(call("write", {"path": "/failed"}))
    rig.upstream.script = ResetAfterRequest()
    rig.post(call("write", {"path": "/lost"}))
    rig.upstream.script = answer(ok(json.dumps(text_result(1, "moved")).encode()))
    rig.post(call("move", {"from": "/a", "to": "/b"}))
    rig.ended_rows(4)
    assert files(rig) == {"/b": ("renamed", False), "/lost": ("modified", True)}
    used = state(rig, "--field", "tools_used")["tools_used"]["default.write"]
    assert (used["calls"], used["ok"], used["unknown"]) == (3, 1, 1)
    assert used["errors"] == {"tool_error": 1}


@pytest.mark.promise("STATE-2")
@pytest.mark.parametrize(
    ("word", "left"), [("--happened", {"/a": ("modified", False)}), ("--did-not", {})]
)
def test_an_operators_resolution_settles_an_unknown_call(
    rig: Rig, word: str, left: dict[str, tuple[str, bool]]
) -> None:
    rig.upstream.script = ResetAfterRequest()
    rig.post(call("write", {"path": "/a"}))
    row = rig.row()
    assert files(rig) == {"/a": ("modified", True)}
    assert list(state(rig)["pending_actions"]) == [row.call]
    assert turnlog("resolve", row.call, word, data=rig.proxy.data).returncode == 0
    assert (files(rig), state(rig)["pending_actions"]) == (left, {})
    assert [op.maybe for op in rig.row().delta[1:]] == [False] * len(left)


@pytest.mark.promise("STATE-2")
def test_a_call_in_flight_is_pending_and_its_file_uncertain(rig: Rig) -> None:
    slow = SlowHead(ok(json.dumps(text_result(1, "done")).encode()))
    rig.upstream.script = slow
    with rig.client() as client:
        client.ask("POST", rig.path, call("write", {"path": "/a"}))
        wait_until(slow.asked.is_set, "the call is upstream")
        pending = state(rig)
        assert [p["status"] for p in pending["pending_actions"].values()] == ["pending"]
        assert files(rig) == {"/a": ("modified", True)}
        slow.go.set()
        assert client.response().status == 200
    rig.ended_rows()
    assert (files(rig), state(rig)["pending_actions"]) == ({"/a": ("modified", False)}, {})


@pytest.mark.promise("REC-5")
def test_the_reason_of_a_call_is_recorded_from_a_header_or_its_meta(rig: Rig) -> None:
    rig.post(call("read"), ("Turnlog-Why", "to see it"))
    assert reasons(rig) == ["to see it"]
    assert not rig.upstream.requests[-1].all(b"turnlog-why")
    rig.fresh()
    rig.post(call("read", _meta={"turnlog/why": "to see \u00fc"}), ("Turnlog-Why", "no"))
    assert reasons(rig) == ["to see \u00fc"]
    rig.fresh()
    with rig.client() as client:
        headers = (("Turnlog-Why", "plainly"),)
        client.request("GET", f"/s/{rig.session}/things/7", headers=headers)
    assert reasons(rig) == ["plainly"]


@pytest.mark.promise("REC-5", "SEC-1")
def test_secrets_and_unrecorded_content_appear_in_no_reason(rig: Rig) -> None:
    rig.post(call("read"), ("Turnlog-Why", "password: hunter2-and-more"))
    assert reasons(rig) == ["password: [redacted]"]
    rig.fresh()
    rig.post(call("quiet"), ("Turnlog-Why", "a-quiet-reason"))
    assert reasons(rig) == [""]
    for secret in (b"hunter2-and-more", b"a-quiet-reason"):
        assert not any(secret in content for content in written(rig.proxy.data.parent).values())


def test_the_log_of_a_field_is_read_beside_a_running_proxy(rig: Rig) -> None:
    rig.post(call("write", {"path": "/a"}))
    rig.ended_rows()
    folder = Path(rig.proxy.data)
    wanted = ("log", rig.session, "--turns", "-5..", "--field", "files_modified", "--json")
    (row,) = map(json.loads, turnlog(*wanted, data=folder).stdout.splitlines())
    assert row["delta"][1] == {
        "field": "files_modified", "op": "modified", "key": "/a", "evidence": "declared",
    }  # fmt: skip


def pages(rig: Rig, path: str) -> Iterator[dict[str, Any]]:
    """Ask the API for a list, two rows a page, until there are no more."""
    cursor = ""
    with rig.client() as client:
        token = (rig.proxy.data / "token").read_text().strip()
        while cursor is not None:
            given = client.request(
                "GET",
                f"/turnlog/api/v1{path}&limit=2{cursor and f'&cursor={cursor}'}",
                headers=(("Authorization", f"Bearer {token}"),),
            )
            assert given.status == 200, given.body
            page = given.json()
            yield from reversed(page["items"])
            cursor = page["next"]


@pytest.mark.promise("STATE-2")
def test_the_files_of_the_last_turns_are_one_question_to_the_command_and_to_the_api(
    rig: Rig,
) -> None:
    for turn in range(8):
        rig.post(call("write", {"path": f"/f{turn}"}), ("Turnlog-Turn", f"t{turn}"))
        rig.post(call("read"), ("Turnlog-Turn", f"t{turn}"))
    rig.ended_rows(16)
    expected = [f"/f{turn}" for turn in range(3, 8)]
    wanted = ("--turns", "-5..", "--field", "files_modified", "--json")
    told = turnlog("log", rig.session, *wanted, data=rig.proxy.data).stdout.splitlines()
    assert [json.loads(line)["delta"][1]["key"] for line in told] == expected
    asked = f"/sessions/{rig.session}/log?turns=-5..&field=files_modified"
    found = list(pages(rig, asked))
    assert [row["delta"][1]["key"] for row in found] == expected[::-1]
    # Payload-free: what was written and what the tool said stands in no row.
    assert not any({"input", "output"} & set(row) for row in found)


def test_changes_and_timeouts_are_found_across_sessions(rig: Rig) -> None:
    own = f"/srv/{rig.session}"
    sessions = [f"{rig.session}-{name}" for name in "ab"]
    with rig.client() as client:
        for session in sessions * 2:
            body = call("write", {"path": f"{own}/{session}.py"})
            client.request("POST", f"/s/{session}/mcp", body, headers=MCP_HEADERS)
    rig.upstream.script = answer(b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\n\r\n")
    with rig.client() as client:
        for session in sessions:
            body = call(f"slow-{rig.session}")
            client.request("POST", f"/s/{session}/mcp", body, headers=MCP_HEADERS)
    names = [f"{own}/{session}.py" for session in sessions]
    wanted = ("log", "--json", "--path", f"{own}/*.py")
    told = list(map(json.loads, turnlog(*wanted, data=rig.proxy.data).stdout.splitlines()))
    assert [row["delta"][1]["key"] for row in told] == names * 2
    assert len({row["session"] for row in told}) == 2
    found = list(pages(rig, f"/log?path={own}/*.py"))
    assert found == told[::-1]
    late = ("log", "--json", "--tool", f"slow-{rig.session}", "--error", "timeout", "--since", "1d")
    told = list(map(json.loads, turnlog(*late, data=rig.proxy.data).stdout.splitlines()))
    assert len({row["session"] for row in told}) == len(told) == 2
    asked = f"/log?tool=slow-{rig.session}&error=timeout&since=1d"
    assert list(pages(rig, asked)) == told[::-1]
