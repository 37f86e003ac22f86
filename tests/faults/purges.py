"""Purge sessions beside a proxy that records calls, kill purge and proxy at random, and look for what is left: `make torture`.

Each round plants a text in everything that a session's calls bring. Once its purge is done, no file of the
data folder may hold it, pages that LMDB has freed included.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from e2e.stores import process
from faults.torture import AGENTS, RULES, Agent, Server
from kit.beside import proxy_beside, session_rows
from kit.clients import MCP_HEADERS, Client, call
from kit.proxy import Proxy, findings
from turnlog.sessions.verify import ChainVerdict

CALLS = 60
"""With planted text in each round."""
_LONGEST = 20_000
"""Characters of such a text; large values have pages of their own in LMDB's file."""
_SLOWEST = 1.5
"""s after which a purge is killed at the latest."""


class Purged(Struct, frozen=True):
    """The result of a run."""

    rounds: int
    killed: int
    """Purges that were killed before they had ended."""
    calls: int
    """Recorded for others meanwhile."""


def purges(folder: Path, rounds: int, seed: int) -> Purged:
    """Run, and return the result. Raises `AssertionError` where something is left, or something else went."""
    dice = random.Random(seed)
    (folder / "rules.yaml").write_text(RULES)
    stop, ports = threading.Event(), [0]
    agents = [Agent(number, lambda: ports[0], stop) for number in range(AGENTS)]
    server, killed = Server(folder / "ledger"), 0
    url = f"http://127.0.0.1:{server.port}/mcp"
    try:
        for number in range(rounds):
            planted = f"planted-{seed}-{number}-"
            with proxy_beside(folder, url, settings={"rules": ["rules.yaml"]}) as proxy:
                ports[0] = int(proxy.url.rpartition(":")[2].partition("/")[0])
                if number == 0:
                    for agent in agents:
                        agent.start()
                session = _plant(proxy, f"victim-{number}-{planted}", planted, dice)
                killed += _is_killed(proxy.data, session, dice)
                done = process("purge", session, "--yes", "--data", str(proxy.data))
                assert done.returncode == 0, done.stderr
                assert set(_holders(proxy.data, planted)) <= {"log/data.mdb"}
                if dice.random() < 0.5:
                    proxy.process.kill()
                    proxy.process.wait()
            _finish(proxy.data, dice)
            assert not _holders(proxy.data, planted), f"{planted} is left"
        with proxy_beside(folder, url, settings={"rules": ["rules.yaml"]}) as proxy:
            ports[0] = int(proxy.url.rpartition(":")[2].partition("/")[0])
            stop.set()
            for agent in agents:
                agent.join(60)
                assert not agent.is_alive(), "an agent never learnt what it asked for"
    finally:
        server.kill()
    return Purged(rounds=rounds, killed=killed, calls=_recorded(proxy.data, agents, rounds))


def _plant(proxy: Proxy, name: str, planted: str, dice: random.Random) -> str:
    """Make calls with planted text of all sizes in a session of its own; return its id."""
    with Client(proxy.url) as client:
        for number in range(CALLS):
            text = f"write-{number}-" + planted * (1 + dice.randrange(_LONGEST) // len(planted))
            body = call("write", {"effect": text}, request_id=number + 1)
            client.request("POST", f"/s/{name}/mcp", body, headers=MCP_HEADERS)
    rows = session_rows(proxy.data, name)
    assert len(rows) == CALLS
    return rows[0].session


def _is_killed(data: Path, session: str, dice: random.Random) -> bool:
    """Begin a purge, and kill it after a random time; return whether it had not ended by then."""
    command = (sys.executable, "-m", "turnlog", "purge", session, "--yes", "--data", str(data))
    purge = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return purge.wait(dice.random() * _SLOWEST) != 0
    except subprocess.TimeoutExpired:
        purge.kill()
        purge.wait()
        return True


def _finish(data: Path, dice: random.Random) -> None:
    """Rewrite the log's file: killed at a random time first, then to the end."""
    command = (sys.executable, "-m", "turnlog", "gc", "--yes", "--data", str(data))
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        first.wait(dice.random() * _SLOWEST)
    except subprocess.TimeoutExpired:
        first.kill()
        first.wait()
    done = process("gc", "--yes", "--data", str(data))
    assert done.returncode == 0, done.stderr


def _holders(data: Path, planted: str) -> list[str]:
    """Return the files that hold a text."""
    files = (path for path in sorted(data.rglob("*")) if path.is_file())
    text = planted.encode()
    return [path.relative_to(data).as_posix() for path in files if text in path.read_bytes()]


def _recorded(data: Path, agents: Sequence[Agent], rounds: int) -> int:
    """Check that all chains are whole and that nothing of the agents' sessions is gone; return their calls."""
    verdicts = [finding.verdict for finding in findings(data)]
    assert verdicts.count(ChainVerdict.REDACTED_OK) == rounds
    assert set(verdicts) == {ChainVerdict.OK, ChainVerdict.REDACTED_OK}
    rows = [row for agent in agents for row in session_rows(data, agent.session)]
    assert all(row.gone is None for row in rows)
    return len(rows)


def main() -> None:
    """Purge sessions of a store in a temporary folder, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=40)
    parser.add_argument("seed", nargs="?", type=int, default=time.time_ns() % 1_000_000)
    wanted = parser.parse_args()
    print(f"{wanted.rounds} purges, seed {wanted.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        print(purges(Path(folder), wanted.rounds, wanted.seed), flush=True)


if __name__ == "__main__":
    main()
