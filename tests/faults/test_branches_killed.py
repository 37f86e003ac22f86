"""Rewinds and forks that are killed, and many at once beside running calls: each is there whole or not at all."""

import json
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.stores import Call, fill, session_id, turnlog
from faults.killed_command import killed, points
from kit.beside import ruled, session_rows
from kit.clients import MCP_HEADERS, Client, call
from kit.proxy import findings
from turnlog.core.kinds import CommitKind
from turnlog.store.lmdb import LmdbReader

WORK = session_id("work")
CALLS = [Call(tool="write", minute=minute) for minute in range(4)]
RULES = "rules: [{match: {tool: 'write*'}, effect: write}]"


def sessions(data: Path) -> dict[bytes, list[CommitKind]]:
    """Return the kinds of the commits of each session."""
    with LmdbReader.open(data) as reader, reader.view() as view:
        rows = list(view.sessions())
        return {row.session: [c.facts.kind for c in view.commits(row.session)] for row in rows}


def kill(data: Path, folder: Path, share: float, *arguments: str) -> None:
    """Kill a command line at a share of the points that it has on a copy of the store."""
    copy = shutil.copytree(data, folder / arguments[0])
    last = points(*arguments, "--data", str(copy))
    done = killed(1 + int(share * (last - 1)), *arguments, "--data", str(data))
    assert done.returncode in (-signal.SIGKILL, 0)  # threads may pass a point more or less


@pytest.mark.promise("REWIND-1", "FORK-2")
@pytest.mark.parametrize("share", [0, 0.2, 0.4, 0.6, 0.8, 1])
def test_a_killed_rewind_or_fork_is_there_whole_or_not_at_all(tmp_path: Path, share: float) -> None:
    data = tmp_path / "data"
    fill(data, CALLS)
    before = sessions(data)[WORK]
    kill(data, tmp_path, share, "fork", "work:4", "--name", "other")
    found = sessions(data)
    forks = [kinds for session, kinds in found.items() if session != WORK]
    assert found[WORK] == before
    assert forks in ([], [[CommitKind.OPEN, CommitKind.COMPACT]])
    kill(data, tmp_path, share, "rewind", "work", "4", "--yes", "--expect", "8")
    assert sessions(data)[WORK] in (before, [*before, CommitKind.REWIND])
    assert all(one.verdict.intact for one in findings(data))
    assert turnlog("state", "work", "--data", str(data)).returncode == 0


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
