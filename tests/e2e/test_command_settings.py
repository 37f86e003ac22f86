"""What a command upstream is started with, and what is said where its program is missing."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from e2e.stores import turnlog
from kit.beside import proxy_beside
from kit.clients import call, wait_until
from kit.commands import Agent

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
