"""The settings that a command is started with, and the report if its program is missing."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import turnlog
from kit.beside import proxy_beside
from kit.clients import MCP_HEADERS, Client, call, message, wait_until
from kit.commands import Agent
from kit.proxy import Proxy
from kit.upstreams import Peer, RawUpstream, Script, answer, ok, text_result

SECRET = "s3cr3t-valu3-of-a-file"
WORD = "the-word-of-the-hook"
"""Nothing in it looks like a secret."""
KEYED = (("Idempotency-Key", "k-1"), ("Content-Type", "application/json"))
SERVER = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
    if asked["method"] == "tools/call":
        told = {"TOKEN": os.environ.get("TOKEN"), "PATH": os.environ.get("PATH"), "cwd": os.getcwd()}
        result = {"content": [{"type": "text", "text": json.dumps(told)}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def test_a_command_has_the_variables_and_the_folder_of_its_upstream(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n")
    (tmp_path / "work").mkdir()
    upstream: dict[str, Any] = {
        "command": [sys.executable, "-c", SERVER],
        "env": {"TOKEN": "${file:token}"},
        "cwd": "work",
    }
    with proxy_beside(tmp_path, settings={"upstreams": {"one": upstream}}) as proxy:
        agent = Agent(proxy)
        told = json.loads(agent.post(call("tell")).json()["result"]["content"][0]["text"])
        agent.client.close()
        assert told == {"TOKEN": SECRET, "PATH": os.environ["PATH"], "cwd": str(tmp_path / "work")}


def read_all(proxy: Proxy) -> str:
    """Return all that the commands tell of a proxy's calls, and its own log."""
    shown = [turnlog("log", *more, data=proxy.data).stdout for more in ([], ["--payloads"])]
    status = turnlog("status", data=proxy.data).stdout
    return "".join((*shown, status, proxy.stdout.read_text()))


def asked_at(
    tmp_path: Path, place: str, rules: str = "rules: []\n", served: Script | None = None
) -> tuple[str, str, list[str]]:
    """Call a plain tool whose URL ends with `place`; return what is told of it to operators and to
    the agent, and the paths that came."""
    (tmp_path / "token").write_text(f"{WORD}\n")
    (tmp_path / "mine.yaml").write_text(rules)
    with RawUpstream(served or answer(ok(b"{}"))) as upstream:
        settings: dict[str, Any] = {
            "upstreams": {"hooks": {"url": upstream.url.removesuffix("/mcp") + place}},
            "rules": ["mine.yaml"],
            "log_level": "debug",
        }
        with proxy_beside(tmp_path, settings=settings) as proxy:
            with Client(proxy.url) as client:
                said = client.request("GET", "/hooks", b"", headers=())
            proxy.told("call.ended")
            return (
                read_all(proxy),
                repr(said),
                [request.target.decode() for request in upstream.requests],
            )


@pytest.mark.promise("CMD-8")
@pytest.mark.parametrize(
    ("place", "came", "shown"),
    [
        ("/hook/${file:token}", f"/hook/{WORD}", "GET /hook/*"),
        ("/hook/${file:token}/x?k=${file:token}", f"/hook/{WORD}/x?k={WORD}", "GET /hook/*/x"),
        ("/hook?k=${file:token}&l=2", f"/hook?k={WORD}&l=2", "GET /hook"),
    ],
)
def test_no_record_of_a_plain_call_shows_a_value_inserted_into_the_url(
    tmp_path: Path, place: str, came: str, shown: str
) -> None:
    told, said, paths = asked_at(tmp_path, place)
    assert paths == [came]
    assert shown in told
    assert "[redacted]" in told
    assert WORD not in told
    assert WORD not in said


@pytest.mark.promise("CMD-8")
def test_an_answer_that_repeats_a_value_of_the_url_is_relayed_whole_and_recorded_without_it(
    tmp_path: Path,
) -> None:
    served = answer(ok(json.dumps({"no such hook": WORD}).encode()))
    told, said, _ = asked_at(tmp_path, "/hook/${file:token}", served=served)
    assert WORD in said
    assert "no such hook" in told
    assert WORD not in told


def test_a_tool_of_mcp_that_repeats_a_value_of_the_url_is_recorded_without_it(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"log_level": "debug"}

    def served(peer: Peer) -> None:
        request = peer.read()
        peer.send_json(text_result(request.json()["id"], request.target.decode()))

    with RawUpstream(served) as upstream:
        settings["upstreams"] = {"one": {"url": f"{upstream.url}?k=${{WORD}}"}}
        with proxy_beside(tmp_path, settings=settings, environ={"WORD": WORD}) as proxy:
            with Client(proxy.url) as client:
                said = client.request("POST", "/one", call("tell"), headers=MCP_HEADERS)
            proxy.told("call.ended")
            assert f"k={WORD}".encode() in said.body
            assert "k=[redacted]" in (told := read_all(proxy))
            assert WORD not in told


def test_a_denied_call_names_its_tool_without_a_value_of_the_url(tmp_path: Path) -> None:
    rules = "rules:\n  - {match: {server: hooks}, access: deny, why: closed}\n"
    told, said, paths = asked_at(tmp_path, "/hook/${file:token}", rules)
    assert paths == []
    assert "GET /hook/*" in said
    assert WORD not in told + said


def test_a_rule_with_a_path_matches_what_is_sent(tmp_path: Path) -> None:
    rules = f'rules:\n  - {{match: {{server: hooks, path: "/hook/{WORD}"}}, access: deny, why: closed}}\n'
    _, said, paths = asked_at(tmp_path, "/hook/${file:token}", rules)
    assert paths == []
    assert "closed" in said


def test_calls_whose_urls_hold_other_values_are_never_the_same(tmp_path: Path) -> None:
    rules = "rules:\n  - {match: {server: hooks}, effect: write}\n"
    (tmp_path / "mine.yaml").write_text(rules)
    with RawUpstream(answer(ok(b"{}"))) as upstream:
        place = upstream.url.removesuffix("/mcp") + "/hook/${T}"
        for value in ("the-word-of-one", "the-word-of-two", "the-word-of-one"):
            settings: dict[str, Any] = {
                "upstreams": {"hooks": {"url": place}},
                "rules": ["mine.yaml"],
            }
            with (
                proxy_beside(tmp_path, settings=settings, environ={"T": value}) as proxy,
                Client(proxy.url) as client,
            ):
                client.request("POST", "/hooks", b"{}", headers=KEYED)
        assert [request.target.decode() for request in upstream.requests] == [
            "/hook/the-word-of-one",
            "/hook/the-word-of-two",
        ]


def test_a_request_to_a_missing_program_is_answered_with_its_name(tmp_path: Path) -> None:
    upstream = {"command": ["./server"], "cwd": "."}
    with (
        proxy_beside(tmp_path, settings={"upstreams": {"one": upstream}}) as proxy,
        Client(proxy.url) as client,
    ):
        params: dict[str, object] = {"protocolVersion": "2025-11-25", "capabilities": {}}
        asked = message("initialize", params)
        said = client.request("POST", "/mcp", asked, headers=MCP_HEADERS)
        assert said.status == 502
        assert said.json()["detail"] == (
            "the tool server 'one' could not be reached: cannot run './server': no such file or "
            "directory; the request was not sent"
        )


def test_a_missing_program_is_reported_at_start_and_in_status_until_it_exists(
    tmp_path: Path,
) -> None:
    upstream = {"command": ["./server"], "cwd": "."}
    with proxy_beside(tmp_path, settings={"upstreams": {"one": upstream}}) as proxy:
        (said,) = proxy.events("process.failed")
        assert said["turnlog.reason"] == "there is no program './server'"
        status = turnlog("status", data=proxy.data).stdout
        assert "one: there is no program './server'" in status
        program = tmp_path / "server"
        program.write_text(f"#!{sys.executable}\n{SERVER}")
        program.chmod(0o700)
        agent = Agent(proxy)
        agent.post(call("tell"))
        agent.client.close()
        wait_until(
            lambda: "no program" not in turnlog("status", data=proxy.data).stdout,
            "status says nothing of it any more",
        )
