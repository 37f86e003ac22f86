"""`turnlog tail` as a process of its own beside real proxies."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from e2e.stores import Call, fill, turnlog
from kit.beside import Rig, proxy_beside
from kit.clients import MCP_HEADERS, Client, call
from kit.proxy import Proxy, environment
from kit.terminals import columns_of, on_a_terminal
from kit.upstreams import Peer, RawUpstream, echo

BOUND = 20.0
"""s in which a process that was asked to end must have ended."""
CALLS = [
    Call(tool="read_file", minute=0, summary="3 items"),
    Call(tool="write_everything_there_is_into_one_file", minute=1, summary="x" * 300),
    Call(tool="evil\x1b[2J\u202e", minute=2, summary="漢字" * 60),
]


class Tail:
    """A `turnlog tail` that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdout = process.stdout
        self.stderr = process.stderr

    def row(self) -> dict[str, Any]:
        """Wait for a line of JSON."""
        row: dict[str, Any] = json.loads(self.stdout.readline())
        return row

    def tools(self, count: int) -> list[str]:
        """Wait for so many lines of JSON; return their tools."""
        return [self.row()["tool"] for _ in range(count)]

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Ask it to end; return its exit code, and what it printed that nobody has read."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=BOUND)
        return self.process.returncode, out, err


@contextmanager
def tail(data: Path, *arguments: str) -> Generator[Tail]:
    """Run `turnlog tail` until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-m", "turnlog", "tail", "--data", str(data), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=environment(),
    ) as process:
        try:
            yield Tail(process)
        finally:
            process.kill()


def call_tools(proxy: Proxy, *tools: str, session: str = "work") -> None:
    """Call tools one after the other."""
    with Client(proxy.url) as client:
        for tool in tools:
            answer = client.request("POST", f"/s/{session}/mcp", call(tool), headers=MCP_HEADERS)
            assert answer.status == 200


def test_a_row_is_the_very_same_that_the_log_gives(rig: Rig) -> None:
    call_tools(rig.proxy, "first", session=rig.session)
    with tail(rig.proxy.data, "--session", rig.session, "--last", "1", "--json") as following:
        assert following.tools(1) == ["first"]
        call_tools(rig.proxy, "second", "third", session=rig.session)
        rows = [following.row(), following.row()]
        ended = following.end()

    log = turnlog("log", rig.session, "--last", "2", "--json", data=rig.proxy.data)

    assert rows == [json.loads(line) for line in log.stdout.splitlines()]
    assert ended == (0, "", "")


def test_a_row_comes_when_its_outcome_is_there(rig: Rig) -> None:
    may_end = Event()

    def slow_waits(peer: Peer) -> None:
        if b"slow" in peer.read().body:
            assert may_end.wait(BOUND)
        echo(peer)

    rig.upstream.script = slow_waits
    call_tools(rig.proxy, "quick", session=rig.session)
    with (
        tail(rig.proxy.data, "--session", rig.session, "--last", "1", "--json") as following,
        rig.client() as one,
    ):
        assert following.tools(1) == ["quick"]
        one.ask("POST", rig.path, call("slow"), headers=MCP_HEADERS)
        rig.upstream.wait_for_requests(2)
        call_tools(rig.proxy, "quick", session=rig.session)
        assert following.tools(1) == ["quick"]
        may_end.set()
        assert one.response("POST").status == 200
        assert following.tools(1) == ["slow"]


@pytest.mark.promise("CLI-7")
def test_it_waits_for_the_first_proxy_and_goes_on_with_the_next(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with RawUpstream() as upstream, tail(data, "--json") as following:
        assert "waiting: no data folder at" in following.stderr.readline()
        with proxy_beside(tmp_path, upstream.url) as proxy:
            call_tools(proxy, "one", "two")
            assert following.tools(2) == ["one", "two"]
        with proxy_beside(tmp_path, upstream.url) as proxy:
            call_tools(proxy, "three")
            assert following.tools(1) == ["three"]
        assert following.end() == (0, "", "")


@pytest.mark.promise("CLI-7")
def test_two_proxies_on_one_store_are_followed_together(tmp_path: Path) -> None:
    with RawUpstream() as upstream, proxy_beside(tmp_path, upstream.url) as one:
        call_tools(one, "past")
        with (
            proxy_beside(tmp_path, upstream.url) as two,
            tail(one.data, "--json", "--last", "1") as following,
        ):
            assert following.tools(1) == ["past"]
            for number in range(20):
                call_tools(one, f"one-{number}", session="one")
                call_tools(two, f"two-{number}", session="two")
            tools = following.tools(40)

    assert sorted(tools) == sorted(f"{name}-{n}" for name in ("one", "two") for n in range(20))


def test_calls_left_open_by_a_killed_proxy_become_unknown(tmp_path: Path) -> None:
    may_end = Event()
    with RawUpstream(lambda peer: _hold(peer, may_end)) as upstream:
        with proxy_beside(tmp_path, upstream.url) as proxy, Client(proxy.url) as client:
            client.ask("POST", "/s/shop/mcp", call("order"), headers=MCP_HEADERS)
            upstream.wait_for_requests(1)
            proxy.kill()
        may_end.set()
        with tail(tmp_path / "data", "--json", "--last", "1") as following:
            assert following.row()["status"] == "pending"
            with proxy_beside(tmp_path, upstream.url):
                row = following.row()

    assert (row["tool"], row["status"], row["kind"]) == ("order", "unknown", "outcome_unknown")


def _hold(peer: Peer, may_end: Event) -> None:
    peer.read()
    assert may_end.wait(BOUND)


def test_only_what_is_wanted_is_printed(rig: Rig) -> None:
    call_tools(rig.proxy, "read_a", session=rig.session)
    wanted = ("--tool", "default/read_*", "--session", rig.session, "--last", "1", "--json")
    with tail(rig.proxy.data, *wanted) as following:
        assert following.tools(1) == ["read_a"]
        call_tools(rig.proxy, "write_a", "read_b", session=rig.session)
        call_tools(rig.proxy, "read_c", session="another")
        call_tools(rig.proxy, "read_d", session=rig.session)
        assert following.tools(2) == ["read_b", "read_d"]
        assert following.end() == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_the_normal_end_of_tail(tmp_path: Path, number: signal.Signals) -> None:
    fill(tmp_path / "data", CALLS)
    with tail(tmp_path / "data") as following:
        assert following.stdout.readline().split()[:3] == ["SESSION", "TIME", "SEQ"]
        assert following.end(number) == (0, "", "")


def test_tail_ends_at_sigint_even_if_started_in_the_background(tmp_path: Path) -> None:
    fill(tmp_path / "data", CALLS)
    program = [sys.executable, "-m", "turnlog", "tail", "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *program], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"SESSION")
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND) == 0


def test_a_reader_that_takes_nothing_does_not_hold_it(tmp_path: Path) -> None:
    fill(tmp_path / "data", [Call(tool="t" * 900, minute=n) for n in range(120)])
    with tail(tmp_path / "data", "--last", "120", "--json") as following:
        assert following.stdout.read(1) == "{"
        following.process.send_signal(signal.SIGTERM)
        assert following.process.wait(BOUND) == 0


def test_a_reader_that_closes_the_output_ends_tail_without_further_calls(tmp_path: Path) -> None:
    fill(tmp_path / "data", CALLS)
    with tail(tmp_path / "data", "--last", "3") as following:
        following.stdout.readline()
        following.stdout.close()
        assert following.process.wait(BOUND) == 141
        assert following.stderr.read() == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--flag", "lat"], "no flag is called 'lat', did you mean 'late'?"),
        (["--last", "-1"], "invalid value for '--last'"),
        (["work"], "unexpected extra argument 'work', write --session work"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = turnlog("tail", *arguments, data=tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_of_something_else_is_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear all")

    done = turnlog("tail", data=tmp_path)

    assert (done.returncode, done.stdout) == (3, "")
    assert "is not a turnlog store" in done.stderr


def test_a_line_is_that_of_the_log_and_names_its_commit(tmp_path: Path) -> None:
    fill(tmp_path / "data", CALLS)
    log = turnlog("log", data=tmp_path / "data").stdout.splitlines()
    with tail(tmp_path / "data", "--last", "3") as following:
        lines = [following.stdout.readline() for _ in log]
        following.end()

    assert [line.split() for line in lines] == [line.split() for line in log]
    session, _, _, seq, *_ = lines[1].split()
    assert "read_file" in turnlog("show", f"{session}:{seq}", data=tmp_path / "data").stdout


@pytest.mark.parametrize("columns", [132, 80, 50, 20])
def test_on_a_terminal_no_line_is_wider_than_it(tmp_path: Path, columns: int) -> None:
    fill(tmp_path / "data", CALLS)

    lines = _on_a_terminal(tmp_path / "data", columns, {"TERM": "xterm"})

    plain = [re.sub(r"\x1b\[[0-9]*m", "", line) for line in lines]
    assert all(columns_of(line) <= columns for line in plain), plain
    assert all(line.isprintable() for line in plain)
    assert any("\x1b[32m" in line for line in lines) is (columns >= 50)


def test_a_terminal_without_colours_gets_none(tmp_path: Path) -> None:
    fill(tmp_path / "data", CALLS)

    lines = _on_a_terminal(tmp_path / "data", 100, {"TERM": "xterm", "NO_COLOR": "1"})

    assert lines[0].split()[:6] == ["SESSION", "TIME(UTC)", "SEQ", "TOOL", "STATUS", "INPUT"]
    assert "files/read_file" in lines[1]
    assert not any("\x1b" in line for line in lines)


def _on_a_terminal(data: Path, columns: int, environ: Mapping[str, str]) -> list[str]:
    """Return the header and the rows of `CALLS` as they are printed on a terminal."""
    with on_a_terminal("tail", "--last", "3", data=data, columns=columns, environ=environ) as run:
        lines = run.lines(1 + len(CALLS))
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(BOUND) == 0
    return lines
