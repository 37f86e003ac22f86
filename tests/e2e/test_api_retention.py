"""The API of a running proxy for holds, purges and what has outlived its retention."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance.store.kit import begin, intent, new_id, outcome, put, session
from e2e.stores import process
from e2e.test_api import V1, ask, found, problem
from e2e.test_cli_purge import holders
from kit.beside import Rig, proxy_beside
from kit.clients import BOUND, call
from kit.faults import SlowHead
from kit.upstreams import RawUpstream, ok, text_result
from turnlog.core.commit import CommitBody
from turnlog.store.base import Blob
from turnlog.store.lmdb import DAY, LmdbStore

PLANTED = "planted-0815"


def change(rig: Rig, path: str, body: dict[str, object]) -> Any:
    given = ask(rig, V1 + path, "POST", msgspec.json.encode(body))
    assert given.status == 200, given.body
    return given.json()


def refused(rig: Rig, path: str, body: dict[str, object], status: int) -> dict[str, Any]:
    return problem(ask(rig, V1 + path, "POST", msgspec.json.encode(body)), status)


@pytest.fixture
async def old(tmp_path: Path) -> Path:
    """A store with one call in each of two sessions, of more than a year ago."""
    data, at = tmp_path / "data", time.time_ns() - 400 * DAY
    store = LmdbStore.open(data, now=lambda: at)
    for name in ("mine", "kept"):
        ref, one = session(name), new_id(at)
        given = CommitBody(preview=f"path={PLANTED}")
        blob = Blob(f"{name} {PLANTED}".encode())
        ticket = await begin(store, intent(ref, one, at=at, body=given, blob=blob))
        returned = CommitBody(summary=f"{PLANTED} is done")
        await put(store, outcome(ref, one, ticket, at=at, body=returned, blob=blob))
    await store.close()
    return data


@pytest.fixture
def beside(old: Path) -> Iterator[Rig]:
    with RawUpstream() as upstream, proxy_beside(old.parent, upstream.url) as proxy:
        rig = Rig(upstream, proxy)
        rig.session = "now"
        yield rig


def fates(report: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((line["what"], line["fate"]) for line in report["items"])


async def test_what_is_due_is_listed_and_deleted_as_the_command_does(beside: Rig) -> None:
    rig, data = beside, beside.proxy.data

    listed = change(rig, "/gc", {})
    assert listed["retention"] == "payloads 7d, bodies 90d"
    printed = process("gc", "--json", "--data", str(data)).stdout.splitlines()
    assert listed["items"] == [msgspec.json.decode(line) for line in printed]
    assert fates(listed) == [("bodies", "due"), ("bodies", "due"), ("payloads", "due")]

    gone = change(rig, "/gc", {"yes": True})

    assert fates(gone) == [("bodies", "deleted"), ("bodies", "deleted"), ("payloads", "deleted")]
    event = await rig.proxy.event("retention.enforced")
    assert (event["turnlog.buckets"], event["turnlog.commits"]) == (1, 6)
    assert change(rig, "/gc", {"yes": True})["items"] == []
    assert process("gc", "--json", "--data", str(data)).stdout == ""
    rig.post(call("send", {"to": "you"}))
    assert rig.row().status == "ok"
    lines = process("verify", "--json", "--data", str(data)).stdout.splitlines()
    assert {msgspec.json.decode(line)["verdict"] for line in lines} == {"ok", "redacted_ok"}


def test_a_hold_keeps_content_from_gc_and_purge_until_its_release(beside: Rig) -> None:
    rig = beside
    note = change(rig, "/sessions/kept/hold", {"why": "a lawsuit, ghp_" + "a" * 36})
    assert (note["kind"], note["seq"], note["known"]) == ("hold", 3, False)
    assert found(rig, "/sessions/kept")["held"] is True

    gone = change(rig, "/gc", {"yes": True})
    assert fates(gone) == [("bodies", "deleted"), ("bodies", "held"), ("payloads", "held")]
    said = refused(rig, "/sessions/kept/purge", {"yes": True}, 400)
    assert "is held; `POST /sessions/{session}/release` ends the hold" in said["detail"]
    shown = process("show", "kept:3", "--data", str(rig.proxy.data)).stdout
    assert "a lawsuit" in shown
    assert "ghp_a" not in shown

    assert change(rig, "/sessions/kept/release", {})["kind"] == "release"
    assert refused(rig, "/sessions/kept/release", {}, 409)["reason"] == "not_held"
    refused(rig, "/sessions/nobody/hold", {}, 404)
    assert fates(change(rig, "/gc", {"yes": True})) == [
        ("bodies", "deleted"),
        ("payloads", "deleted"),
    ]


@pytest.mark.promise("STORE-17")
async def test_a_purge_by_the_api_is_done_but_for_the_file_that_the_proxy_has_open(
    beside: Rig,
) -> None:
    rig, data = beside, beside.proxy.data
    rig.session = f"mine-{PLANTED}"
    rig.post(call("send", {"to": f"{PLANTED} alone"}))
    name = rig.row().session
    plan = change(rig, f"/sessions/{name}/purge", {})
    assert (plan["done"], plan["payloads"], plan["stage"]) == (False, 2, "active")
    assert holders(data, f"{PLANTED} alone".encode())

    conflict = refused(rig, f"/sessions/{name}/purge", {"yes": True, "expect": 1}, 409)
    assert conflict["head"] == plan["head"]
    order: dict[str, object] = {"yes": True, "expect": plan["head"], "why": "asked to"}
    done = change(rig, f"/sessions/{name}/purge", order)

    assert (done["done"], done["pending"], done["stage"]) == (True, True, "purged")
    event = await rig.proxy.event("session.changed", **{"turnlog.session": name})
    assert (event["turnlog.action"], event["turnlog.stage"]) == ("purge", "purged")
    assert set(holders(data, f"{PLANTED} alone".encode())) <= {"log/data.mdb"}
    assert ("purge", "pending") in fates(change(rig, "/gc", {"yes": True}))
    assert change(rig, f"/sessions/{name}/purge", {"yes": True})["done"] is True

    notes: dict[str, dict[str, object]] = {
        "hold": {"why": "evidence"},
        "notes": {"kind": "decision", "text": "go"},
    }
    for path, body in notes.items():
        said = refused(rig, f"/sessions/{name}/{path}", body, 409)
        assert (said["stage"], said["head"] > plan["head"]) == ("purged", True)
        assert "the session is purged, so nothing can be noted in it" in said["detail"]


def test_a_purge_is_refused_while_a_call_is_in_flight(beside: Rig) -> None:
    rig = beside
    slow = rig.upstream.script = SlowHead(ok(json.dumps(text_result(1, "sent")).encode()))
    caller = threading.Thread(target=rig.post, args=(call("send", {"to": "you"}),))
    caller.start()
    try:
        assert slow.asked.wait(BOUND)
        said = refused(rig, f"/sessions/{rig.session}/purge", {"yes": True}, 400)
        assert "are in flight; purge it once they have ended" in said["detail"]
    finally:
        slow.go.set()
        caller.join()
    assert change(rig, f"/sessions/{rig.session}/purge", {"yes": True})["done"] is True


@pytest.mark.parametrize("path", ["/gc", "/sessions/mine/purge", "/sessions/mine/hold"])
@pytest.mark.promise("API-1")
def test_nothing_is_deleted_or_held_without_the_token(beside: Rig, path: str) -> None:
    assert ask(beside, V1 + path, "POST", b'{"yes": true}', headers=()).status == 401
    assert fates(change(beside, "/gc", {}))[0] == ("bodies", "due")
    assert found(beside, "/sessions/mine")["stage"] != "purged"


def test_a_fence_that_is_no_longer_held_purges_nothing(beside: Rig) -> None:
    rig = beside
    fence = change(rig, "/sessions/mine/lifecycle", {"action": "claim"})["lease"]["fence"]
    change(rig, "/sessions/mine/lifecycle", {"action": "unclaim", "fence": fence})
    said = refused(rig, "/sessions/mine/purge", {"yes": True, "fence": fence}, 409)
    assert said["head"] == 4
    assert found(rig, "/sessions/mine")["stage"] == "active"
