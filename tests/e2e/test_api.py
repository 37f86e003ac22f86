"""The API of a running proxy. Details of its answers: unit/api/test_pages.py."""

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import process
from kit.beside import Rig, proxy_beside, ruled
from kit.clients import MCP_HEADERS, Response, call, wait_until
from kit.faults import ResetAfterRequest
from kit.upstreams import RawUpstream

V1 = "/turnlog/api/v1"


def token(rig: Rig) -> str:
    return (rig.proxy.data / "token").read_text().strip()


def ask(
    rig: Rig,
    target: str,
    method: str = "GET",
    body: bytes = b"",
    headers: tuple[tuple[str, str], ...] | None = None,
) -> Response:
    given = (("Authorization", f"Bearer {token(rig)}"),) if headers is None else headers
    with rig.client() as client:
        return client.request(method, target, body, headers=given)


def found(rig: Rig, path: str) -> Any:
    given = ask(rig, V1 + path)
    assert given.status == 200, given.body
    assert given.head.one("content-type") == "application/json"
    return given.json()


def problem(given: Response, status: int) -> dict[str, Any]:
    """Check that an answer is a problem of this status, and return it."""
    assert given.status == status, given.body
    assert given.head.one("content-type") == "application/problem+json"
    said: dict[str, Any] = given.json()
    assert (said["status"], said["title"]) == (status, given.head.reason)
    return said


def unknown(rig: Rig) -> str:
    """Make a call of which nobody knows, and return its id."""
    rig.upstream.script = ResetAfterRequest()
    rig.post(call("send", {"to": "you"}))
    row = rig.row()
    assert row.status == "unknown"
    return row.call


@pytest.mark.promise("API-1")
def test_a_page_of_another_origin_is_refused_before_its_token_is_looked_at(rig: Rig) -> None:
    bearer = ("Authorization", f"Bearer {token(rig)}")
    assert ask(rig, f"{V1}/log", headers=(bearer, ("Origin", "http://evil.example"))).status == 403
    assert ask(rig, f"{V1}/log", headers=(bearer, ("Host", "evil.example"))).status == 421


async def test_a_refused_request_is_logged_without_the_token(rig: Rig) -> None:
    ask(rig, f"{V1}/log", headers=(("Authorization", "Bearer guess"),))
    await rig.proxy.event("request.refused", **{"turnlog.reason": "token"})
    assert b"guess" not in rig.proxy.stdout.read_bytes()
    assert token(rig).encode() not in rig.proxy.stdout.read_bytes()


@pytest.mark.promise("API-2")
def test_the_log_is_what_the_command_prints(rig: Rig) -> None:
    for number in range(3):
        rig.post(call("write", {"n": number}))
    rows = rig.ended_rows(3)
    page = found(rig, f"/sessions/{rig.session}/log")
    assert [row["call"] for row in page["items"]] == [row.call for row in rows]


@pytest.mark.promise("OPEN-1", "OPEN-2")
async def test_an_unknown_call_is_listed_settled_and_gone(rig: Rig) -> None:
    name = unknown(rig)
    (one,) = found(rig, f"/sessions/{rig.session}/dangling")["items"]
    assert (one["standing"], one["row"]["call"]) == ("unknown", name)
    assert (one["row"]["executed"], one["row"]["retry"]) == ("maybe", "unsafe")
    assert json.loads(one["preview"]) == {"to": "you"}
    said = b'{"verdict": "happened", "why": "it is in the outbox, token ghp_' + b"a" * 36 + b'"}'
    answer = ask(rig, f"{V1}/calls/{name[:23]}/resolve", "POST", said)
    assert answer.status == 200, answer.body
    row = answer.json()
    assert (row["call"], row["status"], row["executed"]) == (name, "ok", "yes")
    assert row["flags"] == ["resolved"]
    assert found(rig, f"/sessions/{rig.session}/dangling")["items"] == []
    (attempt,) = found(rig, f"/calls/{name}")["attempts"]
    assert attempt["detail"].startswith("it is in the outbox")
    assert "ghp_a" not in attempt["detail"]
    assert attempt["commits"][-1]["actor"] == "operator"
    event = await rig.proxy.event("call.resolved", **{"turnlog.call": name})
    assert (event["turnlog.executed"], event["turnlog.seq"]) == ("yes", row["seq"])


def test_a_token_is_kept_over_a_restart_and_a_new_one_counts(tmp_path: Path) -> None:
    with RawUpstream() as upstream:
        seen: list[str] = []
        for _ in range(2):
            with proxy_beside(tmp_path, upstream.url) as proxy:
                seen.append(token(Rig(upstream, proxy)))
        (tmp_path / "data" / "token").write_text("an operator may choose one that is long enough\n")
        with proxy_beside(tmp_path, upstream.url) as proxy:
            rig = Rig(upstream, proxy)
            assert ask(rig, f"{V1}/log").status == 200
            old = (("Authorization", f"Bearer {seen[0]}"),)
            assert ask(rig, f"{V1}/log", headers=old).status == 401
    assert seen[0] == seen[1]


def test_calls_go_on_where_no_token_can_be_had(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "token").write_text("short")
    with RawUpstream() as upstream, proxy_beside(tmp_path, upstream.url) as proxy:
        rig = Rig(upstream, proxy)
        with rig.client() as client:
            answer = client.request("POST", rig.proxy.url, call("write"), headers=MCP_HEADERS)
        assert answer.status == 200
        problem(ask(rig, f"{V1}/log"), 503)
        (tmp_path / "data" / "token").unlink()
        problem(ask(rig, f"{V1}/log", headers=()), 401)
        assert ask(rig, f"{V1}/log").status == 200
        failed = proxy.told("store.failed")
        assert "too short" in failed[0]["error.message"]


def test_a_note_is_shown_with_its_content_and_actor(rig: Rig) -> None:
    rig.post(call("write"))
    rig.row()
    target = f"{V1}/sessions/{rig.session}/notes"
    note = b'{"kind": "decision", "text": "ask\\u001b first", "why": "it is dear"}'
    evicted = b'{"kind": "evict", "keys": ["1", "2"], "reason": "budget"}'
    seqs = [ask(rig, target, "POST", body).json()["seq"] for body in (note, evicted)]
    shown = [_shown(rig, seq).splitlines() for seq in seqs]
    assert {"actor       operator", "note        decision"} < set(shown[0])
    assert {"text        ask\\u001b first", "why         it is dear"} < set(shown[0])
    assert {'keys        ["1","2"]', "reason      budget"} < set(shown[1])
    assert json.loads(_shown(rig, seqs[1], "--json"))["content"]["keys"] == ["1", "2"]


def test_a_note_of_turnlogs_own_is_shown_with_its_kind(tmp_path: Path) -> None:
    with ruled(tmp_path, "rules: [{match: {}, effect: write}]") as one:
        one.session = "noted"
        one.post(call("write"))
        wait_until(lambda: one.notes() == ["delivered"], "it is noted that the answer arrived")
        shown = _shown(one, 3).splitlines()
        assert {"actor       turnlog", "note        delivered", "follows     2"} < set(shown)
        assert _shown(one, 0).count("note  ") == 0


def _shown(rig: Rig, seq: int, *flags: str) -> str:
    done = process("show", f"{rig.session}:{seq}", *flags, "--data", str(rig.proxy.data))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
