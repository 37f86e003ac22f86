"""`turnlog demo`: real processes, and a server that dies midway."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TURNLOG = [sys.executable, "-m", "turnlog"]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """Run the demo once: what it printed, and the rows of the log that it left."""
    folder = tmp_path_factory.mktemp("demo") / "kept"
    shown = run("demo", "--data", str(folder))
    rows = run("log", "--json", "--data", str(folder / "data")).splitlines()
    return shown, [json.loads(row) for row in rows]


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


def test_the_demo_shows_what_the_agent_saw_of_each_call(
    played: tuple[str, list[dict[str, Any]]],
) -> None:
    shown, _ = played
    assert "-> 'The log remembers what the transcript forgets'" in shown
    assert ".. 4 of 4" in shown
    assert "-> failed: Error executing tool fail: the disk is full" in shown
    assert "executed: maybe" in shown
    assert "-> 'one pizza'" in shown


def test_the_demos_killed_call_is_in_the_log_as_possibly_executed(
    played: tuple[str, list[dict[str, Any]]],
) -> None:
    (crashed,) = [row for row in played[1] if row["tool"] == "crash_after_writing"]
    assert (crashed["status"], crashed["executed"]) == ("unknown", "maybe")


def test_the_demos_agent_goes_on_after_the_server_is_back(
    played: tuple[str, list[dict[str, Any]]],
) -> None:
    last = played[1][-1]
    assert (last["tool"], last["status"]) == ("read_note", "ok")


def test_the_demo_leaves_an_existing_folder_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        [*TURNLOG, "demo", "--data", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2
    assert "exists already: name a folder to make" in done.stderr
    assert list(tmp_path.iterdir()) == []
