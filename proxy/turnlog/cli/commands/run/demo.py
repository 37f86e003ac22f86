"""`turnlog demo`: a real agent and a real server with turnlog between them."""

import asyncio
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from shutil import which

import click

from turnlog.cli.attempts import outcome_cells
from turnlog.cli.options import FOLDER, open_view
from turnlog.cli.render import aligned
from turnlog.core.kinds import Status
from turnlog.core.pins import Provenance
from turnlog.core.text.terminal import escape_unprintable, fit_columns
from turnlog.demo.play import DemoError, play
from turnlog.demo.scenes import SERVER, ScriptedCall
from turnlog.sessions import log
from turnlog.sessions.log import Query
from turnlog.sessions.rows import Row

_WIDTH = 84
"""Width of a line after the word `agent` or `log`."""
_LEAST = (16, 5, 4, 0)
"""Least widths of the log's cells, so that the lines are aligned."""


@click.command(name="demo")
@click.option(
    "--data",
    "folder",
    type=FOLDER,
    help="Folder to create for all files of the demo.  [default: a temporary one]",
)
def command(folder: Path | None) -> None:
    """Watch an agent's calls go through turnlog to tools that hang, refuse, crash and change.

    Each call is followed by what the agent saw and what the log recorded.
    """
    if find_spec("mcp") is None:
        raise click.ClickException(
            "the demo's agent and server need the MCP SDK, install it beside turnlog: pip install 'mcp>=2.3'"
        )
    printer = _Printer(_new_folder(folder))
    try:
        came = asyncio.run(_play(printer))
    except DemoError as error:
        raise click.ClickException(str(error)) from error
    if came is not None:
        # The child processes have ended; now end by the same signal.
        signal.raise_signal(came)
    click.echo()
    printer.run("trust", "--check")
    printer.on_scene("The log is hash-chained: later changes to it are found.")
    printer.run("verify")
    printer.closing()


async def _play(printer: "_Printer") -> signal.Signals | None:
    """Run the demo; return the signal that ended it early, if any. Its processes have ended then."""
    came: list[signal.Signals] = []
    task = asyncio.current_task()
    assert task is not None

    def stop(number: signal.Signals) -> None:
        came.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        # `nohup` ignores SIGHUP; that must stay so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        await play(printer.folder, printer)
    except asyncio.CancelledError:
        if not came:
            raise
    return came[0] if came else None


def _new_folder(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="turnlog-demo-"))
    name = str(folder)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise click.ClickException(f"{name!r} exists already: name a folder to make") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise click.ClickException(f"cannot make {name!r}: {reason}; name another folder") from None
    return folder


def _as_called() -> str:
    """Return how to call turnlog in the user's shell, where its name may not be on PATH."""
    called = Path(sys.argv[0])
    if called.name != "turnlog":
        return f"{quote(sys.executable)} -m turnlog"
    found = which("turnlog")
    on_path = found is not None and Path(found).absolute() == called.absolute()
    return "turnlog" if on_path else quote(sys.argv[0])


class _Printer:
    """Prints the steps of the demo with the new attempts in the log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._data = folder / "data"
        self._turnlog = _as_called()
        self._scenes = 0
        self._rows: list[Row] = []

    def on_rules(self, rules: Path) -> None:
        """Print the rules."""
        click.echo(f"The rules of this demo ({rules}):\n")
        _echo_indented(rules.read_text("utf-8").splitlines())

    def on_scene(self, title: str) -> None:
        """Print the title of a scene."""
        self._scenes += 1
        click.echo(f"\n{self._scenes}. {title}\n")

    def on_call(self, call: ScriptedCall) -> None:
        """Print a call."""
        click.echo(f"   {call}")

    def on_answer(self, lines: list[str]) -> None:
        """Print what the agent saw of a call and what was recorded."""
        for line in lines:
            _print("agent", fit_columns(escape_unprintable(line), _WIDTH))
        rows = self._new_rows()
        cells = [outcome_cells(row) for row in rows]
        for line in aligned(cells, _LEAST, elastic=(0,), width=_WIDTH):
            _print("log", line)
        if any(row.provenance == Provenance.MISMATCH for row in rows):
            _print("log", "provenance: mismatch")

    def on_tools_listed(self) -> None:
        """Pin the tools and print the end of the output."""
        click.echo()
        self.run("trust", "--yes", last=1)

    def run(self, *arguments: str, last: int | None = None) -> None:
        """Run a turnlog command on the demo's store; print its last lines."""
        click.echo(f"   $ {self._turnlog} {' '.join(arguments)} --data {quote(str(self._data))}")
        done = subprocess.run(  # noqa: S603 - turnlog itself, with a folder that was made here
            [sys.executable, "-m", "turnlog", *arguments, "--data", str(self._data)],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = [line for line in done.stdout.splitlines() if line]
        _echo_indented(lines if last is None else ["...", *lines[-last:]])
        if done.returncode:
            click.echo(f"   (exit code {done.returncode})")

    def closing(self) -> None:
        """Print where the files are and which commands to try."""
        lost = next(row for row in self._rows if row.status == Status.UNKNOWN)
        rules = self.folder / "rules.yaml"
        click.echo(f"\nAll files are in {self.folder}. To look at them:\n")
        click.echo(f"   export TURNLOG_DATA={quote(str(self._data))}")
        for what, why in (
            ("log", "every attempt of every call"),
            (f"show {lost.session[:13]}:{lost.seq}", "the order whose answer was lost"),
            ("tail --last 5", "attempts as they end, until Ctrl-C"),
            (f"rules explain {SERVER} place_order --rules {quote(str(rules))}", ""),
        ):
            click.echo(f"   {self._turnlog} {what:<23}{'  # ' if why else ''}{why}".rstrip())

    def _new_rows(self) -> list[Row]:
        """Return the attempts that were not printed yet."""
        with open_view(self._data) as view:
            rows = list(log.read_rows(view, Query()))
        new, self._rows = rows[len(self._rows) :], rows
        return new


def _print(who: str, line: str) -> None:
    click.echo(f"     {who:<5}  {line}")


def _echo_indented(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(f"   {line}".rstrip())
