"""A server that keeps failing: circuit breaker, retry quota, and their display to the operator."""

import json
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import turnlog
from kit.beside import Rig, proxy_beside
from kit.clients import call, message, wait_until
from kit.upstreams import Peer, RawUpstream, echo, ok, result
from kit.wraps import outcome

RULES = """
rules:
  - {match: {tool: "*_once"}, retry: {on: auth}}
  - {match: {tool: "*_later"}, retry: {on: circuit_open, base_interval: 1ms}}
  - {match: {tool: "read*"}, effect: read, retry: {on: connection, max_attempts: 3, base_interval: 1ms}}
"""
UNAVAILABLE = ok(b"later", media="text/plain", status="503 Service Unavailable")


class Server:
    """Answers, or is unavailable, and counts the calls that reach it."""

    def __init__(self) -> None:
        self.fails = True
        self.calls = 0
        self.go = threading.Event()
        self.go.set()

    def __call__(self, peer: Peer) -> None:
        """Answer a request."""
        asked = peer.read()
        if b"tools/call" not in asked.body:
            echo(peer)
            return
        self.calls += 1
        self.go.wait(20)
        if self.fails:
            peer.send(UNAVAILABLE)
        else:
            echo(peer)


@contextmanager
def serving(folder: Path, **more: Any) -> Generator[tuple[Rig, Server]]:
    """Run a proxy before a server of which the configuration says more."""
    (folder / "rules.yaml").write_text(RULES)
    server = Server()
    with RawUpstream(server) as upstream:
        upstreams = {"shop": {"url": upstream.url, **more}}
        settings = {"rules": ["rules.yaml"], "upstreams": upstreams}
        with proxy_beside(folder, settings=settings) as proxy:
            rig = Rig(upstream, proxy)
            rig.session = "test"
            yield rig, server


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[tuple[Rig, Server]]:
    """Yield a server whose circuit opens for long after two failures, and has."""
    with serving(tmp_path, breaker={"failures": 2, "cool_down": "1h"}) as (rig, server):
        for number in (1, 2):
            rig.post(call("pay_once", {"n": number}))
        yield rig, server


def status(rig: Rig) -> Any:
    return json.loads(turnlog("status", "--json", data=rig.proxy.data).stdout)["servers"]


@pytest.mark.promise("RULE-21")
def test_a_server_that_fails_in_a_row_is_left_alone(cut: tuple[Rig, Server]) -> None:
    rig, server = cut
    said = outcome(json.loads(rig.post(call("pay_once", {"n": 3}))))
    assert (said["kind"], said["error"], said["retry"]) == ("circuit_open", "connection", "safe")
    assert said["executed"] == "no"
    assert 3_500_000 < said["retry_after_ms"] <= 3_600_000
    assert server.calls == 2
    row = rig.ended_rows(3)[2]
    assert (row.kind, row.phase, row.executed) == ("circuit_open", "queued", "no")
    (event,) = rig.proxy.told("circuit.opened")
    assert event["turnlog.server"] == "shop"
    assert len(rig.proxy.events("upstream.failed")) == 0


def test_a_request_that_is_not_a_call_passes_an_open_circuit(cut: tuple[Rig, Server]) -> None:
    rig, _ = cut
    assert b"done" in rig.post(message("tools/list"))


def test_the_operator_sees_it_while_the_proxy_runs(cut: tuple[Rig, Server]) -> None:
    rig, _ = cut
    (shop,) = status(rig)
    assert (shop["server"], shop["state"]) == ("shop", "open")
    assert 0 < shop["since"] < shop["until"]
    text = turnlog("status", data=rig.proxy.data).stdout
    assert "server      shop: circuit open since 20" in text
    rig.proxy.kill()
    assert status(rig) == []


def test_a_proxy_that_ends_leaves_no_health_file(cut: tuple[Rig, Server]) -> None:
    rig, _ = cut
    rig.proxy.process.terminate()
    rig.proxy.process.wait(20)
    assert list((rig.proxy.data / "health").iterdir()) == []


@pytest.mark.promise("RULE-21")
def test_after_the_cool_down_one_call_is_sent_and_decides(tmp_path: Path) -> None:
    with serving(tmp_path, breaker={"failures": 1, "cool_down": "1ms"}) as (rig, server):
        rig.post(call("pay_once", {"n": 1}))
        server.go.clear()
        server.fails = False
        with rig.client() as client:
            client.ask(
                "POST", rig.path, call("pay_once", {"n": 2}), headers=rig.session_headers[:2]
            )
            wait_until(lambda: server.calls == 2, "the probe is at the server")
            said = outcome(json.loads(rig.post(call("pay_once", {"n": 3}))))
            assert said["kind"] == "circuit_open"
            server.go.set()
            assert client.response("POST").status == 200
        assert b"done" in rig.post(call("pay_once", {"n": 4}))
        assert server.calls == 3
        assert rig.proxy.told("circuit.closed")
        names = [e["event"] for e in rig.proxy.events() if e["event"].startswith("circuit")]
        assert names == ["circuit.opened", "circuit.probed", "circuit.closed"]
        assert status(rig)[0]["state"] == "closed"


def test_a_rule_may_wait_for_it(tmp_path: Path) -> None:
    with serving(tmp_path, breaker={"failures": 1, "cool_down": "2s"}) as (rig, server):
        rig.post(call("pay_once", {"n": 1}))
        server.fails = False
        assert b"done" in rig.post(call("pay_later", {"n": 2}))
        assert server.calls == 2
        assert [row.kind for row in rig.ended_rows(3)] == [
            "upstream_unavailable",
            "circuit_open",
            None,
        ]


@pytest.mark.promise("RULE-22")
def test_tools_that_fail_do_not_open_it(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        content = [{"type": "text", "text": "no"}]
        asked = peer.read().json()
        peer.send_json(result(asked["id"], {"isError": True, "content": content}))

    with serving(tmp_path, breaker={"failures": 1}) as (rig, _):
        rig.upstream.script = script
        for _ in range(3):
            assert b"isError" in rig.post(call("pay_once"))
        assert status(rig) == []


@pytest.mark.promise("RULE-20")
def test_retries_stay_within_the_quota(tmp_path: Path) -> None:
    quota = {"ratio": 0, "min_per_second": 0, "burst": 3}
    with serving(tmp_path, retry_quota=quota) as (rig, server):
        for number in range(3):
            rig.post(call("read", {"n": number}))
        assert server.calls == 3 + 3
        wait_until(lambda: status(rig), "the proxy tells")
        (shop,) = status(rig)
        assert (shop["retries_refused"], shop["state"]) == (2, "closed")
        reasons = [e.get("turnlog.reason") for e in rig.proxy.told("call.ended", 6)]
        assert reasons == [None, None, "attempts", None, "quota", "quota"]
        assert "retries refused: 2" in turnlog("status", data=rig.proxy.data).stdout
