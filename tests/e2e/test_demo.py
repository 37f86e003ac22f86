"""`turnlog demo`: real processes, and a server that hangs, refuses, dies and changes."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from turnlog.demo.play import DemoError, play
from turnlog.demo.scenes import ScriptedCall

TURNLOG = [sys.executable, "-m", "turnlog"]


class Played(Struct, frozen=True):
    """What the demo printed, the rows of the log that it left, and where."""

    shown: str
    rows: list[dict[str, Any]]
    folder: Path

    def scene(self, number: int) -> str:
        """Return what was printed of a scene, from its title on."""
        return self.shown.split(f"\n{number}. ")[1].split(f"\n{number + 1}. ")[0]

    def of(self, tool: str) -> list[dict[str, Any]]:
        """Return the attempts at a tool."""
        return [row for row in self.rows if row["tool"] == tool]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Run the demo once."""
    folder = tmp_path_factory.mktemp("demo") / "kept"
    shown = run("demo", "--data", str(folder))
    rows = run("log", "--json", "--data", str(folder / "data")).splitlines()
    return Played(shown, [json.loads(row) for row in rows], folder)


def run(*arguments: str) -> str:
    """Run turnlog to its end and return what it printed."""
    done = subprocess.run(
        [*TURNLOG, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_rules_that_the_demo_prints_are_those_that_it_keeps_and_they_are_fine(
    played: Played,
) -> None:
    rules = played.folder / "rules.yaml"
    assert str(rules) in played.shown
    assert all(line in played.shown for line in rules.read_text().splitlines())
    assert "fine" in run("rules", "check", str(rules))


def test_a_successful_result_is_passed_on_unchanged(played: Played) -> None:
    scene = played.scene(1)
    assert "case None: the server's own answer, 'wrote 45 characters to plan'" in scene
    assert "progress 1/4 2/4 3/4 4/4" in scene
    assert "case None: the server's own error" in scene
    assert [row["kind"] for row in played.rows[:3]] == [None, None, "tool_failed"]


def test_a_hang_ends_at_the_rules_limit_is_retried_and_then_reported(played: Played) -> None:
    assert "agent  case Outcome(retry=SAFE)" in played.scene(2)
    assert played.scene(2).count("log    response_timeout  maybe") == 2
    first, second = played.of("search_notes")
    assert first["call"] == second["call"]
    assert [row["attempt"] for row in (first, second)] == [1, 2]
    assert second["flags"] == ["retried"]
    assert all(row["duration_ms"] >= 1000 for row in (first, second))


def test_an_empty_result_is_an_error_that_the_agent_sees(played: Played) -> None:
    assert "agent  case Outcome(error=NULL_RESULT)" in played.scene(3)
    (row,) = played.of("list_tags")
    assert (row["kind"], row["executed"], row["retry"]) == ("null_result", "yes", "safe")


def test_a_rate_limit_is_waited_for_and_the_agent_sees_the_answer_alone(played: Played) -> None:
    assert "agent  case None: the server's own answer, 'SLOWLY'" in played.scene(4)
    refused, answered = played.of("translate")
    assert (refused["kind"], refused["upstream"]["http_status"]) == ("rate_limited", 429)
    assert refused["retry_after_ms"] == 1000
    assert (answered["status"], answered["attempt"]) == ("ok", 2)


@pytest.mark.promise("CLI-12")
def test_an_order_with_an_unknown_outcome_is_placed_once(played: Played) -> None:
    assert "agent  case Outcome(executed=MAYBE): may have happened, look first" in played.scene(5)
    (order,) = played.of("place_order")
    assert (order["status"], order["kind"]) == ("unknown", "connection_lost")
    assert (order["executed"], order["retry"]) == ("maybe", "unsafe")


def test_an_agents_read_after_a_crash_is_answered_once_the_server_is_back(
    played: Played,
) -> None:
    assert "agent  case None: the server's own answer, 'one pizza'" in played.scene(5)
    _, *looks = played.of("read_note")
    assert len({row["call"] for row in looks}) == 1
    assert {row["kind"] for row in looks[:-1]} <= {"connect_failed"}
    assert looks[-1]["status"] == "ok"


def test_a_definition_that_changed_since_it_was_pinned_is_reported(played: Played) -> None:
    scene = played.scene(6)
    assert "[changed_definition]" in scene
    assert "provenance: mismatch" in scene
    assert "notes/count_words  changed: description" in scene
    assert "turnlog: 1 changed against" in scene
    assert "(exit code 1)" in scene
    *others, changed = played.rows
    assert (changed["tool"], changed["status"]) == ("count_words", "ok")
    assert (changed["provenance"], changed["flags"]) == ("mismatch", ["changed_definition"])
    assert {row["provenance"] for row in others if row["tool"] == "place_order"} == {"pinned"}


def test_the_log_is_as_it_was_written(played: Played) -> None:
    assert "  ok  " in played.scene(7)
    (verdict,) = run("verify", "--json", "--data", str(played.folder / "data")).splitlines()
    assert json.loads(verdict)["verdict"] == "ok"


def test_each_line_of_the_log_is_printed_once(played: Played) -> None:
    printed = [line for line in played.shown.splitlines() if line.startswith("     log  ")]
    assert len(printed) == len(played.rows) + len(["provenance: mismatch"])
    assert "pending" not in played.shown


def test_the_commands_named_at_the_end_of_the_demo_work(played: Played) -> None:
    end = played.shown[played.shown.index("All files are in") :]
    assert f"All files are in {played.folder}." in end
    called = " ".join(TURNLOG)
    lines = [line.strip().split("#")[0] for line in end.splitlines()]
    commands = [line.removeprefix(called).split() for line in lines if line.startswith(called)]
    assert [words[0] for words in commands] == ["log", "show", "tail", "rules"]
    data = str(played.folder / "data")
    assert "place_order" in run(*commands[0], "--data", data)
    assert "place_order" in run(*commands[1], "--data", data)
    assert "unsafe" in run(*commands[3])


def into(folder: Path | str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TURNLOG, "demo", "--data", str(folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.promise("CLI-12")
def test_the_demo_leaves_an_existing_folder_alone(tmp_path: Path) -> None:
    done = into(tmp_path)
    assert done.returncode == 2
    assert "exists already: name a folder to make" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_demo_says_where_it_cannot_make_its_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = into(tmp_path / "file" / "demo")
    assert "not a directory; name another folder" in done.stderr
    assert "'' is not a folder" in into("").stderr


class Leaving:
    """A listener that stops the demo at its first call."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def on_rules(self, rules: Path) -> None:
        """Ignore the rules."""

    def on_scene(self, title: str) -> None:
        """Ignore the scene."""

    def on_call(self, call: ScriptedCall) -> None:
        """Stop."""
        raise self._error

    def on_answer(self, lines: list[str]) -> None:
        """Ignore the answer."""

    def on_tools_listed(self) -> None:
        """Pin nothing."""


@pytest.mark.parametrize("error", [DemoError("seen enough"), BrokenPipeError("nobody reads")])
async def test_a_failure_is_raised_alone_and_all_processes_end(
    tmp_path: Path, error: Exception
) -> None:
    with pytest.raises(type(error), match=str(error)):
        await play(tmp_path, Leaving(error))
    assert _events(tmp_path)[-1]["event"] == "proxy.stopped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_demos_processes_then_the_demo(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "kept"
    with subprocess.Popen(
        [*TURNLOG, "demo", "--data", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "write_note(" in line:
                break
        demo.send_signal(number)
        demo.communicate(timeout=60)
    assert demo.returncode == -number
    assert _events(folder)[-1]["event"] == "proxy.stopped"


def _events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "turnlog.jsonl").read_text().splitlines()]
