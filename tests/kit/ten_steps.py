"""A task of ten steps is killed with its proxy at a step, moved to another store, and finished there."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from kit.beside import proxy_beside, session_rows
from kit.clients import BOUND, wait_until
from kit.proxy import Proxy, data_of
from turnlog.cli.main import main

PROGRAM = Path(__file__).parents[2] / "examples" / "ten_steps.py"
SESSION = "ten-steps"
STEPS = 10


def finished(folder: Path, command: Sequence[str | Path], seed: int) -> list[str]:
    """Do it; return what the program printed in its second life.

    `command` is a filesystem server but for the folder that it may use; `seed` chooses the step, and
    what is waited for before the kill: that the call is recorded, or that its effect is on the disk.
    """
    chance = Random(seed)
    step, on_disk = chance.randint(1, STEPS), chance.random() < 0.5
    files = folder / "files"
    files.mkdir()
    journal = files / "journal.md"
    journal.write_text("(end)\n")
    settings = serving([*command, files])
    for name in ("here", "there"):
        (folder / name).mkdir()
    with (
        proxy_beside(folder / "here", settings=settings) as proxy,
        started(proxy, journal) as program,
    ):
        wait_until(lambda: _has_come(proxy, journal, step, on_disk), f"step {step}")
        proxy.kill()
        program.kill()
    bundle = str(folder / "steps.bundle")
    here, there = (str(data_of(folder / name)) for name in ("here", "there"))
    assert main(["resume", SESSION, "--bundle", bundle, "--data", here]) == 0
    assert main(["import", bundle, "--data", there]) == 0
    with (
        proxy_beside(folder / "there", settings=settings) as proxy,
        started(proxy, journal) as one,
    ):
        printed, _ = one.communicate(timeout=BOUND)
    assert one.returncode == 0
    assert journal.read_text() == "".join(f"step {n}\n" for n in range(1, STEPS + 1)) + "(end)\n"
    assert main(["verify", "--data", there]) == 0
    assert len({row.session for row in session_rows(Path(there), SESSION)}) == 1
    return printed.splitlines()


def _has_come(proxy: Proxy, journal: Path, step: int, on_disk: bool) -> bool:
    if on_disk:
        return f"step {step}\n" in journal.read_text()
    edits = [row for row in session_rows(proxy.data, SESSION) if row.tool == "edit_file"]
    return len(edits) >= step


def serving(command: Sequence[str | Path]) -> dict[str, Any]:
    """Return settings with a filesystem server."""
    # What a command writes to stderr goes to the proxy's, which must stay empty.
    silent = ["sh", "-c", 'exec "$@" 2>/dev/null', "sh", *map(str, command)]
    return {"upstreams": {"files": {"command": silent, "packs": ["filesystem"]}}}


def started(proxy: Proxy, journal: Path) -> "subprocess.Popen[str]":
    """Start the program."""
    command = [sys.executable, str(PROGRAM), proxy.url, str(journal)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
