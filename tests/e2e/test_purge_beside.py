"""A purge beside a running proxy: it is pending, the proxy goes on, and the next start ends it."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from e2e.stores import process
from e2e.test_cli_purge import holders
from kit.beside import Rig, proxy_beside
from kit.clients import BOUND, call
from kit.stalls import StopPoint
from kit.upstreams import RawUpstream, answer, ok, text_result

PLANTED = "planted-0815"


@pytest.mark.promise("STORE-17")
def test_a_purge_is_pending_beside_a_proxy_and_the_next_start_ends_it(tmp_path: Path) -> None:
    with RawUpstream() as upstream:
        with proxy_beside(tmp_path, upstream.url) as proxy:
            data, rig = proxy.data, Rig(upstream, proxy)
            rig.session = f"work-{PLANTED}"
            rig.post(call("send", {"to": PLANTED}))
            session = rig.row().session
            assert holders(data, PLANTED.encode())

            told = process("purge", session, "--yes", "--json", "--data", str(data)).stdout

            done = msgspec.json.decode(told)
            assert (done["done"], done["pending"]) == (True, True)
            assert set(holders(data, PLANTED.encode())) <= {"log/data.mdb"}
            rig.session = "another"
            rig.post(call("send", {"to": "somebody else"}))
            assert rig.row().status == "ok"

        with proxy_beside(tmp_path, upstream.url) as proxy:
            assert proxy.data == data
            assert holders(data, PLANTED.encode()) == []
            rig = Rig(upstream, proxy)
            rig.session = "another"
            rig.post(call("send", {"to": "them again"}))
            assert [row.gone for row in rig.ended_rows(2)] == [None, None]
    lines = process("verify", "--json", "--data", str(data)).stdout.splitlines()
    verdicts = {one["session"]: one["verdict"] for one in map(msgspec.json.decode, lines)}
    assert verdicts[session] == "redacted_ok"
    assert set(verdicts.values()) == {"ok", "redacted_ok"}


def test_a_purged_session_gets_no_more_content_from_a_running_proxy(tmp_path: Path) -> None:
    with RawUpstream() as upstream, proxy_beside(tmp_path, upstream.url) as proxy:
        data, rig = proxy.data, Rig(upstream, proxy)
        rig.session = "work"
        rig.post(call("send", {"to": PLANTED}))
        purged = rig.row().session
        assert process("purge", purged, "--yes", "--data", str(data)).returncode == 0

        rig.post(call("send", {"to": "somebody else"}))

        row = rig.row()
        assert (row.status, row.session != purged) == ("ok", True)
        # As a proxy that is started now would have it: the name is free.
        found = process("show", f"{row.session}:0", "--json", "--data", str(data)).stdout
        assert msgspec.json.decode(found)["metadata"]["follows"] == purged
    assert process("gc", "--yes", "--data", str(data)).returncode == 0
    assert holders(data, PLANTED.encode()) == []


@pytest.mark.promise("STORE-17")
@pytest.mark.parametrize(
    "place",
    [
        "turnlog.record.recorder:Recorder.begin",
        # Between its payload and its commit.
        "turnlog.store.write.engine:LmdbEngine._with_contents",
    ],
)
def test_a_call_that_a_purge_overtakes_brings_no_content(tmp_path: Path, place: str) -> None:
    (tmp_path / "rules.yaml").write_text("rules: [{match: {tool: read}, effect: read}]")
    point, rules = StopPoint(place, tmp_path / "armed"), {"rules": ["rules.yaml"]}
    with RawUpstream() as upstream:
        upstream.script = answer(ok(json.dumps(text_result(1, PLANTED)).encode()))
        with (
            proxy_beside(tmp_path, upstream.url, settings=rules, environ=point.environ) as proxy,
            ThreadPoolExecutor() as pool,
        ):
            data, rig = proxy.data, Rig(upstream, proxy)
            rig.session = "work"
            rig.post(call("read", {"to": "them"}))
            session = rig.row().session
            point.arm()
            given = pool.submit(rig.post, call("read", {"to": PLANTED}))
            with point.stopped(proxy.process.pid):
                done = process("purge", session, "--yes", "--data", str(data))
                assert done.returncode == 0, done.stderr
            assert PLANTED.encode() in given.result(BOUND)
        done = process("gc", "--yes", "--data", str(data))
        assert done.returncode == 0, done.stderr
        assert holders(data, PLANTED.encode()) == []
    (line,) = process("verify", session, "--json", "--data", str(data)).stdout.splitlines()
    assert msgspec.json.decode(line)["verdict"] == "redacted_ok"
    rows = process("log", session, "--all", "--json", "--data", str(data)).stdout.splitlines()
    told = [msgspec.json.decode(row) for row in rows]
    assert [row["status"] for row in told] == ["ok", "ok"]
