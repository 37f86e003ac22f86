"""The cases over stdio, played direct and through `turnlog wrap`, and over HTTP to a `command:`.

A wrap differs from what a case asks of a proxy in two ways. It is the command itself, so a command
that has ended is started again by the client (C29), and a handshake that fails is answered with
nothing (C59).
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from msgspec import Struct

from conformance.cases import player
from conformance.cases.reports import INPUTS, Report
from kit import proxy
from kit.clients import BOUND, wait_until
from kit.proxy import data_of, environment, events_in, rows
from kit.wraps import outcome, wrapped

C29_RULES = "rules: [{match: {tool: pay}, effect: write}, {match: {tool: lookup}, effect: read}]"
PLAY = (sys.executable, "-I", "-S", player.__file__.replace("player.py", "play.py"))


class Played(Struct, frozen=True):
    """What a client got, line by line with the time, how the process ended, what the server did."""

    lines: list[tuple[float, Any]]
    exit: int | str
    log: list[dict[str, Any]]

    def answer(self, request_id: int) -> Any:
        """Return the answer to a request, if there was one."""
        return next((one for _, one in self.lines if one.get("id") == request_id), None)


def started(name: str, folder: Path, *before: str) -> "subprocess.Popen[bytes]":
    """Start a client that starts the scripted server of a case, `before` its command."""
    folder.mkdir()
    # The command's stderr alone: the client's own may hold what its end left behind.
    apart = ("/bin/sh", "-c", 'exec "$@" 2>"$0"', str(folder / "stderr"))
    command = [*apart, *before, *server(name, folder)]
    return subprocess.Popen(
        [*PLAY, "--client", f"stdio:{shlex.join(command)}", str(patient(name, folder))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
    )


def patient(name: str, folder: Path) -> Path:
    """Write a case whose client waits longer than any machine is busy, for what comes for sure."""
    case = json.loads((INPUTS / "stdio" / f"{name}.json").read_text())
    case["end_wait"] = BOUND
    for request in case["client"]:
        request["max_wait"] = BOUND
    file = folder / "case.json"
    file.write_text(json.dumps(case))
    return file


def server(name: str, folder: Path) -> list[str]:
    """Return the command of the scripted server of a case, whose log lies in `folder`."""
    case = str(INPUTS / "stdio" / f"{name}.json")
    return [*PLAY, "--stdio-server", "--log", str(folder / "server.log"), case]


def played(process: "subprocess.Popen[bytes]", folder: Path) -> Played:
    """Wait for the end of a client; return what it and the server saw."""
    output, _ = process.communicate(timeout=BOUND)
    report = json.loads(output)
    lines = (folder / "server.log").read_text().splitlines()
    return Played(
        [(at, json.loads(line)) for at, line in report["lines"]],
        report["exit"],
        [json.loads(line) for line in lines],
    )


def both(name: str, folder: Path, rules: str) -> tuple[Played, Played]:
    """Play a case direct and wrapped, at the same time."""
    (folder / "rules.yaml").write_text(rules)
    wrap = (sys.executable, "-m", "turnlog", "wrap", "--rules", str(folder / "rules.yaml"))
    near, far = folder / "direct", folder / "through"
    one = started(name, near)
    other = started(name, far, *wrap, "--data", str(data_of(folder)), "--")
    direct, through = played(one, near), played(other, far)
    assert (far / "stderr").read_bytes() == (near / "stderr").read_bytes()
    return direct, through


def test_c29_a_process_that_dies_in_the_middle_of_a_call(tmp_path: Path) -> None:
    direct, through = both("C29", tmp_path, C29_RULES)

    assert (direct.answer(2), direct.exit) == (None, 3)
    assert (through.answer(1), through.exit) == (direct.answer(1), 3)
    failed = outcome(through.answer(2))
    assert through.answer(2)["result"]["isError"] is True
    assert (failed["kind"], failed["executed"], failed["retry"]) == (
        "connection_lost",
        "maybe",
        "unsafe",
    )
    assert [entry["label"] for entry in through.log if entry["ev"] == "effect"] == ["pay"]
    pay = rows(data_of(tmp_path))[0]
    assert (pay.tool, pay.status, pay.kind) == ("pay", "unknown", "connection_lost")
    assert pay.flags == ["process_exit"]
    # The call after it came to nobody: it was not sent, or not even recorded.
    assert [row.executed for row in rows(data_of(tmp_path))[1:]] in ([], ["no"])


async def test_c29_the_same_process_behind_http(tmp_path: Path) -> None:
    """All that the case asks of a proxy, which starts a new process for the next call."""
    report, _ = await over_http("C29", tmp_path, C29_RULES)

    pay, lookup = report.requests[2:]
    failed = outcome(json.loads(pay.body))
    assert (failed["kind"], failed["executed"], failed["retry"]) == (
        "connection_lost",
        "maybe",
        "unsafe",
    )
    assert json.loads(lookup.body)["result"]["content"][0]["text"] == "alive again"
    lines = (tmp_path / "server.log").read_text().splitlines()
    effects = [entry["label"] for entry in map(json.loads, lines) if entry["ev"] == "effect"]
    assert effects == ["pay", "work"]
    assert [(row.tool, row.status, row.kind, row.flags) for row in rows(data_of(tmp_path))] == [
        ("pay", "unknown", "connection_lost", ["process_exit"]),
        ("lookup", "ok", None, []),
    ]


async def test_c59_the_same_process_behind_http(tmp_path: Path) -> None:
    """A limit of its own; the kind, and that nothing ran, stand in the event."""
    report, log = await over_http("C59", tmp_path, "rules: [{timeout: {startup: 1}}]")

    (init,) = report.requests
    assert (init.status, init.complete) == (504, True)
    assert "was not sent" in json.loads(init.body)["detail"]
    (failed,) = events_in(log, "upstream.failed")
    assert (failed["turnlog.kind"], failed["turnlog.phase"]) == ("connect_timeout", "connecting")
    assert [event["level"] for event in events_in(log, "process.failed")] == ["error"]
    assert [event["process.exit.code"] for event in events_in(log, "process.ended")] == [-15]
    assert rows(data_of(tmp_path)) == []


async def over_http(name: str, folder: Path, rules: str) -> tuple[Report, Path]:
    """Play a case through a turnlog that starts its server; what the client saw, and the log."""
    (folder / "rules.yaml").write_text(rules)
    settings = {
        "rules": [str(folder / "rules.yaml")],
        "upstreams": {"mcp": {"command": server(name, folder)}},
    }
    async with proxy.here(folder, settings=settings) as turnlog:
        report = await player.client(patient(name, folder), turnlog.url.removesuffix("/mcp"))
    return report, turnlog.stdout


def test_c59_a_process_that_never_answers_initialize(tmp_path: Path) -> None:
    """The client of this case leaves once the server has read its request, not after some seconds."""
    asked = json.loads((INPUTS / "stdio" / "C59.json").read_text())["client"][0]["body"].encode()
    with wrapped(tmp_path, server("C59", tmp_path)) as wrap:
        wrap.send(asked)
        wait_until(lambda: (tmp_path / "server.log").exists(), "the server")
        wait_until(lambda: entries(tmp_path) == ["request"], "the request at the server")
        wrap.stdin.close()
        # Like a client without turnlog it gets no answer, and the exit code once the server has ended.
        assert wrap.stdout.rest() == b""
        assert wrap.exited() == 0
        assert wrap.stderr.read_text() == "cannot open database\n"
        assert rows(wrap.data) == []
        (failed,) = wrap.events("process.failed")
        assert failed["level"] == "error"
    assert entries(tmp_path) == ["request"]


def entries(folder: Path) -> list[str]:
    """Return what the scripted server has done so far."""
    lines = (folder / "server.log").read_text().splitlines()
    return [json.loads(line)["ev"] for line in lines]
