"""Kill and stop proxies and tool server again and again under agents that ask until they know: `make torture`.

Each agent wants effects, one after another, and asks for each until it has its answer, or is told that
nobody knows. The server notes on disk what it really does. At the end the log has to explain it all.
"""

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct

from kit.beside import proxy_beside, session_rows
from kit.clients import BOUND, MCP_HEADERS, Client, ClosedEarlyError, call, message
from kit.proxy import Proxy, findings
from turnlog.core.kinds import Flag, Status
from turnlog.sessions.verify import ChainVerdict

AGENTS = 4
RULES = """
rules:
  - {match: {tool: write}, effect: write}
  - {match: {tool: pay}, effect: irreversible}
"""
TOOLS = ("write", "pay")
_HEADERS = (*MCP_HEADERS, ("MCP-Protocol-Version", "2025-11-25"))


class Report(Struct, frozen=True):
    """What came of a run."""

    kills: int
    effects: int
    calls: int
    executions: int
    repeated: int
    """Effects that happened more than once, each with the flag that says so."""
    replayed: int
    unknown: int
    """Effects of which nobody knows, and the agent was told so."""


class Manner(StrEnum):
    """How an agent gives up what takes too long."""

    WAITS = "waits"
    """Not at all."""
    CLOSES = "closes"
    """It closes its connection."""
    CANCELS = "cancels"
    """It sends a cancel, and leaves its connection open."""
    SILENT = "silent"
    """It says nothing: nobody can know."""


class Stalled(Struct, frozen=True):
    """What came of a run with agents of one manner, while processes were stopped."""

    manner: Manner
    effects: int
    executions: int
    given_up: int
    """Tries."""
    repeated: int
    """Effects that happened more than once."""
    flagged: int
    """Rows that say so."""


PATIENCE = 0.15
"""s after which an agent gives up that does not wait."""


class Agent(threading.Thread):
    """Wants effects, and asks for each of them until it knows."""

    def __init__(
        self,
        number: int,
        port: Callable[[], int],
        stop: threading.Event,
        manner: Manner = Manner.WAITS,
    ) -> None:
        super().__init__(daemon=True)
        self.session = f"agent-{number}"
        self.told: dict[str, str] = {}
        """Effect -> `done` or `unknown`."""
        self.manner = manner
        self.given_up = 0
        self._port = port
        self._stop_asking = stop
        self._asked = 0
        self._left_open: list[Client] = []

    def run(self) -> None:
        """Go on until told to stop; know of each effect that was begun."""
        number = 0
        while not self._stop_asking.is_set():
            tool = TOOLS[number % len(TOOLS)]
            effect = f"{tool}-{self.session}-{number}"
            self.told[effect] = self._want(tool, effect)
            number += 1

    def _want(self, tool: str, effect: str) -> str:
        while True:
            try:
                given = self._ask(call(tool, {"effect": effect}, request_id=self._next_id()))
            except TimeoutError:
                self.given_up += 1
                continue
            except (ClosedEarlyError, OSError):
                time.sleep(0.02)  # nobody is there for a moment
                continue
            result = given["result"]
            if not result.get("isError"):
                return "done"
            said = result["_meta"]["turnlog/outcome"]
            if said["executed"] == "yes":
                return "done"
            if said["executed"] == "maybe" and tool == "pay":
                return "unknown"

    def _next_id(self) -> int:
        self._asked += 1
        return self._asked

    def _ask(self, body: bytes) -> Any:
        """Ask once. Raises `TimeoutError` where that takes too long for its patience."""
        url, path = f"http://127.0.0.1:{self._port()}/mcp", f"/s/{self.session}/mcp"
        client = Client(url, bound=BOUND if self.manner is Manner.WAITS else PATIENCE)
        try:
            client.ask("POST", path, body, headers=_HEADERS)
            return client.find(_message_in)
        except TimeoutError:
            if self.manner is Manner.CLOSES:
                client.end()
            if self.manner is Manner.CANCELS:
                self._cancel(url, path)
            # From now on the proxy can know. What was handed over before was delivered.
            if (given := client.find_now(_message_in)) is not None:
                return given
            if self.manner is not Manner.CLOSES:
                self._left_open.append(client)
            raise
        finally:
            if client not in self._left_open:
                client.close()

    def _cancel(self, url: str, path: str) -> None:
        """Take the latest call back; wait for no answer to that."""
        said = message("notifications/cancelled", {"requestId": self._asked}, request_id=None)
        client = Client(url)
        client.ask("POST", path, said, headers=_HEADERS)
        self._left_open.append(client)

    def close(self) -> None:
        """Close what it left open."""
        for client in self._left_open:
            client.close()


def _message_in(received: bytes) -> Any:
    """Return the message in an answer, alone or in an event; `None` until all of it is there."""
    head, _, body = received.partition(b"\r\n\r\n")
    if length := re.search(rb"(?i)content-length: (\d+)", head):
        found = body if len(body) == int(length[1]) else b""
    else:
        event = re.search(rb"data: (.*)\n\n", body)
        found = event[1] if event else b""
    return json.loads(found) if found else None


class Server:
    """The tool server's process."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self.port = _free_port()
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        module = [sys.executable, "-m", "kit.ledger_server", str(self.port), str(self._ledger)]
        process = subprocess.Popen(module, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    def again(self) -> None:
        """Kill it, and start another one in its place."""
        self.kill()
        self._process = self._started()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def kill(self) -> None:
        """End it the hard way."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def torture(folder: Path, kills: int, seed: int) -> Report:
    """Run, and return what came of it. Raises `AssertionError` where the log does not explain it."""
    dice = random.Random(seed)
    (folder / "rules.yaml").write_text(RULES)
    ledger = folder / "ledger"
    port = [0]
    stop = threading.Event()
    agents = [Agent(number, lambda: port[0], stop) for number in range(AGENTS)]
    server = Server(ledger)
    try:
        url = f"http://127.0.0.1:{server.port}/mcp"
        done = 0
        while done < kills:
            with proxy_beside(folder, url, settings={"rules": ["rules.yaml"]}) as proxy:
                port[0] = int(proxy.url.rpartition(":")[2].partition("/")[0])
                if done == 0:
                    for agent in agents:
                        agent.start()
                while True:
                    time.sleep(dice.random() * 0.3)  # calls are at every stage
                    done += 1
                    if dice.random() < 0.5:
                        break
                    server.again()
                # Without waiting for who writes its store, who may do so when the next one opens it.
                proxy.process.kill()
                proxy.process.wait()
        with proxy_beside(folder, url, settings={"rules": ["rules.yaml"]}) as proxy:
            port[0] = int(proxy.url.rpartition(":")[2].partition("/")[0])
            stop.set()
            for agent in agents:
                agent.join(60)
                assert not agent.is_alive(), "an agent never learnt what it asked for"
    finally:
        server.kill()
    return _checked(proxy, agents, Counter(ledger.read_text().split()), done)


def stall(folder: Path, stalls: int, seed: int) -> list[Stalled]:
    """Stop one of two proxies, or the server, again and again; return what came of it by manner.

    Raises `AssertionError` where an effect happened twice unflagged, and its agent had closed or cancelled.
    """
    dice = random.Random(seed)
    (folder / "rules.yaml").write_text(RULES)
    ledger = folder / "ledger"
    stop = threading.Event()
    server = Server(ledger)
    url = f"http://127.0.0.1:{server.port}/mcp"
    settings = {"rules": ["rules.yaml"]}
    try:
        with (
            proxy_beside(folder, url, settings=settings) as one,
            proxy_beside(folder, url, settings=settings) as other,
        ):
            ports = [int(p.url.rpartition(":")[2].partition("/")[0]) for p in (one, other)]
            agents = [
                Agent(number, lambda: random.choice(ports), stop, manner)
                for number, manner in enumerate([*Manner, *Manner])
            ]
            for agent in agents:
                agent.start()
            for _ in range(stalls):
                time.sleep(dice.random() * 0.2)
                _stop_for_a_while(
                    dice.choice([one.process.pid, other.process.pid, server.pid]), dice
                )
            stop.set()
            for agent in agents:
                agent.join(60)
                assert not agent.is_alive(), "an agent never learnt what it asked for"
                agent.close()
    finally:
        server.kill()
    return _explained(one, agents, Counter(ledger.read_text().split()))


def _stop_for_a_while(process: int, dice: random.Random) -> None:
    """Stop a process for up to three times an agent's patience."""
    os.kill(process, signal.SIGSTOP)
    time.sleep(dice.random() * 3 * PATIENCE)
    os.kill(process, signal.SIGCONT)


def _explained(proxy: Proxy, agents: Sequence[Agent], did: Counter[str]) -> list[Stalled]:
    for finding in findings(proxy.data):
        assert finding.verdict is ChainVerdict.OK, finding
    table: list[Stalled] = []
    for manner in Manner:
        mine = [agent for agent in agents if agent.manner is manner]
        times = {effect: did[effect] for agent in mine for effect in agent.told}
        rows = [row for agent in mine for row in session_rows(proxy.data, agent.session)]
        found = Stalled(
            manner=manner,
            effects=len(times),
            executions=sum(times.values()),
            given_up=sum(agent.given_up for agent in mine),
            repeated=sum(each - 1 for each in times.values() if each > 1),
            flagged=sum(Flag.REPEAT_OF_UNKNOWN in row.flags for row in rows),
        )
        if manner is not Manner.SILENT:
            twice = {effect: each for effect, each in times.items() if each > 1}
            assert found.repeated <= found.flagged, f"{found}: {twice}"
            assert not any(effect.startswith("pay") for effect in twice), twice
        table.append(found)
    return table


def _checked(proxy: Proxy, agents: list[Agent], did: Counter[str], kills: int) -> Report:
    for finding in findings(proxy.data):
        assert finding.verdict is ChainVerdict.OK, finding
    calls = repeated = replayed = 0
    for agent in agents:
        rows = session_rows(proxy.data, agent.session)
        calls += len(rows)
        replayed += sum(row.status is Status.REPLAYED for row in rows)
        assert all(row.status is not Status.PENDING for row in rows)
        flagged = sum(Flag.REPEAT_OF_UNKNOWN in row.flags for row in rows)
        mine = {effect: times for effect, times in did.items() if agent.session in effect}
        twice = sum(times - 1 for times in mine.values() if times > 1)
        assert twice <= flagged, f"{flagged} of {twice} repeats are flagged: {mine}"
        repeated += twice
        for effect, told in agent.told.items():
            if told == "done":
                assert did[effect] >= 1, f"{effect} was said to be done and never was"
            if effect.startswith("pay"):
                assert did[effect] <= 1, f"{effect} happened {did[effect]} times"
    answers = [said for agent in agents for said in agent.told.values()]
    return Report(
        kills=kills,
        effects=len(answers),
        calls=calls,
        executions=did.total(),
        repeated=repeated,
        replayed=replayed,
        unknown=answers.count("unknown"),
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> None:
    """Torture a store in a temporary folder, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", nargs="?", type=int, default=200, help="as many stalls follow")
    parser.add_argument("seed", nargs="?", type=int, default=time.time_ns() % 1_000_000)
    wanted = parser.parse_args()
    kills, seed = wanted.kills, wanted.seed
    print(f"{kills} kills, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        print(torture(Path(folder), kills, seed), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for found in stall(Path(folder), kills, seed):
            print(found)


if __name__ == "__main__":
    main()
