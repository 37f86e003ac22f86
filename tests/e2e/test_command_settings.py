"""What a command upstream is started with, and what is said where its program is missing."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import turnlog
from kit.beside import proxy_beside
from kit.clients import Client, call, wait_until
from kit.commands import Agent
from kit.proxy import Proxy
from kit.upstreams import RawUpstream, answer, ok

SECRET = "s3cr3t-valu3-of-a-file"
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
    logged = [str(event) for event in proxy.events("call.ended")]
    return "".join((*shown, *logged))


def asked_at(tmp_path: Path, rules: str) -> tuple[str, list[str]]:
    """Call a plain tool whose path is a secret; return what is told of it, and the paths that came."""
    (tmp_path / "token").write_text("the-word-of-the-hook\n")
    (tmp_path / "mine.yaml").write_text(rules)
    with RawUpstream(answer(ok(b"{}"))) as upstream:
        place = f"{upstream.url.removesuffix('/mcp')}/hook/${{file:token}}"
        settings: dict[str, Any] = {"upstreams": {"hooks": {"url": place}}, "rules": ["mine.yaml"]}
        with proxy_beside(tmp_path, settings=settings) as proxy:
            with Client(proxy.url) as client:
                said = client.request("GET", "/hooks", b"", headers=())
            told = read_all(proxy) + repr(said)
        return told, [request.target.decode() for request in upstream.requests]


@pytest.mark.xfail(
    strict=True, reason="issue 16, item 6: a row holds the path of a plain HTTP tool as it is sent"
)
def test_nothing_told_of_a_plain_call_shows_what_a_place_in_the_url_stands_for(
    tmp_path: Path,
) -> None:
    told, came = asked_at(tmp_path, "rules: []\n")
    assert came == ["/hook/the-word-of-the-hook"]
    assert "the-word-of-the-hook" not in told


def test_a_rule_with_a_path_cuts_what_a_place_in_the_url_stands_for(tmp_path: Path) -> None:
    told, came = asked_at(
        tmp_path,
        'rules:\n  - {match: {server: hooks, path: "/hook/*"}, redact: [$.args.path, $.args.query]}\n',
    )
    assert came == ["/hook/the-word-of-the-hook"]
    assert "GET /hook/*" in told
    assert "the-word-of-the-hook" not in told


def test_a_program_that_is_missing_is_told_at_start_and_in_status_until_it_is_there(
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
