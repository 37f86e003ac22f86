"""A purge beside a running proxy: it is pending, the proxy goes on, and the next start ends it."""

from pathlib import Path

import msgspec
import pytest

from e2e.stores import process
from e2e.test_cli_purge import holders
from kit.beside import Rig, proxy_beside
from kit.clients import call
from kit.upstreams import RawUpstream

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
