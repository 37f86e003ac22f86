"""Rewinds and forks that are killed, and many at once beside running calls: each is there whole or not at all."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.stores import Call, fill, session_id, turnlog
from kit.beside import ruled, session_rows
from kit.clients import MCP_HEADERS, Client, call
from kit.proxy import findings
from turnlog.core.kinds import CommitKind
from turnlog.store.lmdb import LmdbReader

WORK = session_id("work")
CALLS = [Call(tool="write", minute=minute) for minute in range(4)]
RULES = "rules: [{match: {tool: 'write*'}, effect: write}]"
KILLED = """
import os, signal, sys, threading
from turnlog.cli.main import main
threading.Timer(float(sys.argv[1]), os.kill, (os.getpid(), signal.SIGKILL)).start()
main(sys.argv[2:])
"""


def sessions(data: Path) -> dict[bytes, list[CommitKind]]:
    """Return the kinds of the commits of each session."""
    with LmdbReader.open(data) as reader, reader.view() as view:
        rows = list(view.sessions())
        return {row.session: [c.facts.kind for c in view.commits(row.session)] for row in rows}


def run_and_kill(data: Path, after: float, *arguments: str) -> None:
    """Run a command line, and kill it so many seconds after its start."""
    command = (sys.executable, "-c", KILLED, str(after), *arguments, "--data", str(data))
    subprocess.run(command, check=False, capture_output=True, timeout=60)


@pytest.mark.promise("REWIND-1", "FORK-2")
@pytest.mark.parametrize("after", [0.02, 0.1, 0.2, 0.3, 0.4, 0.6])
def test_a_killed_rewind_or_fork_is_there_whole_or_not_at_all(tmp_path: Path, after: float) -> None:
    fill(tmp_path, CALLS)
    before = sessions(tmp_path)[WORK]
    run_and_kill(tmp_path, after, "fork", "work:4", "--name", "other")
    found = sessions(tmp_path)
    forks = [kinds for session, kinds in found.items() if session != WORK]
    assert found[WORK] == before
    assert forks in ([], [[CommitKind.OPEN, CommitKind.COMPACT]])
    run_and_kill(tmp_path, after, "rewind", "work", "4", "--yes", "--expect", "8")
    assert sessions(tmp_path)[WORK] in (before, [*before, CommitKind.REWIND])
    assert all(one.verdict.intact for one in findings(tmp_path))
    assert turnlog("state", "work", "--data", str(tmp_path)).returncode == 0


@pytest.mark.promise("REWIND-3")
def test_rewinds_and_forks_beside_running_calls_lose_no_commit(tmp_path: Path) -> None:
    calls, agents = 25, 4
    with ruled(tmp_path, RULES) as rig:
        data = rig.proxy.data

        def agent(number: int) -> None:
            with Client(rig.proxy.url) as client:
                for count in range(calls):
                    body = call("write", {"agent": number, "count": count})
                    client.request("POST", "/s/shared/mcp", body, headers=MCP_HEADERS)

        def operator(number: int) -> int:
            """Try to rewind, and fork, again and again; return how many rewinds were made."""
            made = 0
            for count in range(8):
                plan = turnlog("rewind", "shared", "0", "--json", "--data", str(data))
                if plan.returncode == 0:
                    expect = str(json.loads(plan.stdout)["head"])
                    done = turnlog(
                        "rewind", "shared", "0", "--yes", "--expect", expect, "--data", str(data)
                    )
                    made += done.returncode == 0
                name = f"fork-{number}-{count}"
                turnlog("fork", "shared", "--name", name, "--data", str(data))
            return made

        with ThreadPoolExecutor(agents) as pool:
            running = [pool.submit(agent, number) for number in range(agents)]
            made = operator(0)
            for one in running:
                one.result()
        rows = session_rows(data, "shared")
        found = sessions(data)
        rewinds = sum(kinds.count(CommitKind.REWIND) for kinds in found.values())
    assert rewinds == made
    every = turnlog("log", "shared", "--all", "--after", "0", "--json", "--data", str(data))
    assert len(every.stdout.splitlines()) == calls * agents
    assert len(rows) <= calls * agents
    assert all(one.verdict.intact for one in findings(data))
