"""The first answer in a session names it also where turnlog makes the answer, and so does the log."""

import json
import signal
from pathlib import Path

import pytest

from kit.beside import Rig, proxy_beside, ruled
from kit.clients import MCP_HEADERS, Client, call
from kit.faults import CloseAfterRequest
from kit.upstreams import Peer, RawUpstream

RULES = """
rules:
  - {match: {tool: denied}, access: deny}
  - {match: {tool: "reads*"}, effect: read}
  - {match: {tool: "writes*"}, effect: write}
"""
KEY = ("Idempotency-Key", "one")


def asked(rig: Rig, tool: str, *headers: tuple[str, str]) -> tuple[str, str | None]:
    """Make the first call of a new session; return the session that its answer and its head name."""
    rig.fresh()
    rig.upstream.script = CloseAfterRequest()
    with rig.client() as client:
        given = client.request("POST", rig.path, call(tool), headers=(*MCP_HEADERS, *headers))
    outcome = json.loads(given.body)["result"]["_meta"]["turnlog/outcome"]
    return outcome["session"], given.head.one("turnlog-session")


def never_answers(peer: Peer) -> None:
    peer.read()
    peer.wait_for_hang_up()


@pytest.mark.parametrize("tool", ["denied", "reads", "writes", "other"])
def test_the_first_answer_in_a_session_names_it(tmp_path: Path, tool: str) -> None:
    with ruled(tmp_path, RULES) as rig:
        assert asked(rig, tool) == (rig.row().session,) * 2
        (ended,) = rig.proxy.told("call.ended")
        assert ended["turnlog.session"] == rig.row().session


@pytest.mark.parametrize("tool", ["reads", "writes"])
def test_the_first_answer_in_a_session_names_it_if_it_is_given_again(
    tmp_path: Path, tool: str
) -> None:
    with ruled(tmp_path, RULES) as rig:
        rig.fresh()
        rig.post(call(tool), KEY)
        assert asked(rig, tool, KEY) == (rig.row().session,) * 2
        assert rig.proxy.told("call.ended", 2)[1]["turnlog.session"] == rig.row().session
        opened = [event["turnlog.session"] for event in rig.proxy.told("session.opened", 2)]
        assert opened[1] == rig.row().session


def test_the_first_repeat_after_a_crash_names_its_session(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    settings = {"rules": ["rules.yaml"]}
    with RawUpstream() as upstream:
        upstream.script = never_answers
        with (
            proxy_beside(tmp_path, upstream.url, settings=settings) as proxy,
            Client(proxy.url) as client,
        ):
            client.ask("POST", "/s/one/mcp", call("writes"), headers=MCP_HEADERS)
            proxy.told("session.opened")
            proxy.process.send_signal(signal.SIGKILL)
            proxy.process.wait()
        with (
            proxy_beside(tmp_path, upstream.url, settings=settings) as proxy,
            Client(proxy.url) as client,
        ):
            given = client.request("POST", "/s/one/mcp", call("writes"), headers=MCP_HEADERS)
            outcome = json.loads(given.body)["result"]["_meta"]["turnlog/outcome"]
            (ended,) = proxy.told("call.ended")
            session = {row.session for row in proxy.rows()}
    assert outcome["kind"] == "outcome_unknown"
    assert {outcome["session"], ended["turnlog.session"]} == session
