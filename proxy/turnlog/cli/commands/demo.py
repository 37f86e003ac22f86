"""`turnlog demo`: a real agent, a real server, turnlog between them, and what each of them says."""

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
from turnlog.cli.options import FolderName, open_view
from turnlog.cli.render import aligned
from turnlog.core.kinds import Status
from turnlog.core.pins import Provenance
from turnlog.core.text.terminal import escape_unprintable, fit_columns
from turnlog.demo.play import DemoError, play
from turnlog.demo.scenes import SERVER, Call
from turnlog.sessions import log
from turnlog.sessions.log import Query
from turnlog.sessions.rows import Row

_WIDTH = 84
"""Columns beside the word that tells who speaks."""
_LEAST = (16, 5, 4, 0)
"""Columns of the log's cells, so that all lines stand below each other."""


@click.command(name="demo")
@click.option(
    "--data",
    "folder",
    type=FolderName(),
    help="Folder to make and keep everything in.  [default: a temporary one]",
)
def command(folder: str | None) -> None:
    """Watch an agent's calls go through turnlog to tools that hang, refuse, crash and change.

    Below each call stand what the agent saw and what the log says.
    """
    if find_spec("mcp") is None:
        raise click.ClickException(
            "the demo's agent and server need the MCP SDK, install it beside turnlog: pip install 'mcp>=2.3'"
        )
    printer = _Printer(_made(folder))
    try:
        came = asyncio.run(_played(printer))
    except DemoError as error:
        raise click.ClickException(str(error)) from error
    if came is not None:
        # The processes have ended; now this one may, as if nothing had been done about it.
        signal.raise_signal(came)
    click.echo()
    printer.run("trust", "--check")
    printer.scene("The log is hash-chained: whatever is changed in it later is found.")
    printer.run("verify")
    printer.closing()


async def _played(printer: "_Printer") -> signal.Signals | None:
    """Play until the end, or until a signal; return that. The demo's processes have ended then."""
    came: list[signal.Signals] = []
    task = asyncio.current_task()
    assert task is not None

    def stop(number: signal.Signals) -> None:
        came.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        # `nohup` has it ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        await play(printer.folder, printer)
    except asyncio.CancelledError:
        if not came:
            raise
    return came[0] if came else None


def _made(name: str | None) -> Path:
    if name is None:
        return Path(tempfile.mkdtemp(prefix="turnlog-demo-"))
    folder = Path(name)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise click.ClickException(f"{name!r} exists already: name a folder to make") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise click.ClickException(f"cannot make {name!r}: {reason}; name another folder") from None
    return folder


def _as_called() -> str:
    """Return how turnlog was called: what is printed is to be typed where its name may say nothing."""
    called = Path(sys.argv[0])
    if called.name != "turnlog":
        return f"{quote(sys.executable)} -m turnlog"
    found = which("turnlog")
    on_path = found is not None and Path(found).absolute() == called.absolute()
    return "turnlog" if on_path else quote(sys.argv[0])


class _Printer:
    """Prints what happens, and remembers which attempts of the log it has printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._data = str(folder / "data")
        self._turnlog = _as_called()
        self._scenes = 0
        self._rows: list[Row] = []

    def ruled(self, rules: Path) -> None:
        """Print the rules in force."""
        click.echo(f"The rules of this demo ({rules}):\n")
        _echo_indented(rules.read_text("utf-8").splitlines())

    def scene(self, title: str) -> None:
        """Print what is about to happen."""
        self._scenes += 1
        click.echo(f"\n{self._scenes}. {title}\n")

    def asked(self, call: Call) -> None:
        """Print a call that is about to be made."""
        click.echo(f"   {call}")

    def answered(self, lines: list[str]) -> None:
        """Print what the agent saw of a call, then what the log says of it."""
        for line in lines:
            _say("agent", fit_columns(escape_unprintable(line), _WIDTH))
        rows = self._new()
        cells = [outcome_cells(row) for row in rows]
        for line in aligned(cells, _LEAST, elastic=(0,), width=_WIDTH):
            _say("log", line)
        if any(row.provenance == Provenance.MISMATCH for row in rows):
            _say("log", "provenance: mismatch")

    def pin(self) -> None:
        """Pin the tools; the whole diff is too long to print."""
        click.echo()
        self.run("trust", "--yes", last=1)

    def run(self, *arguments: str, last: int | None = None) -> None:
        """Run a command of turnlog's on what was kept, and print the end of what it prints."""
        click.echo(f"   $ {self._turnlog} {' '.join(arguments)} --data {quote(self._data)}")
        done = subprocess.run(  # noqa: S603 - turnlog itself, with a folder that was made here
            [sys.executable, "-m", "turnlog", *arguments, "--data", self._data],
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
        """Print where all of it lies, and what a reader may do with it."""
        lost = next(row for row in self._rows if row.status == Status.UNKNOWN)
        rules = self.folder / "rules.yaml"
        click.echo(f"\nAll of it lies in {self.folder}. Look at it:\n")
        click.echo(f"   export TURNLOG_DATA={quote(self._data)}")
        for what, why in (
            ("log", "every attempt of every call"),
            (f"show {lost.session[:13]}:{lost.seq}", "the order that was lost on its way"),
            ("tail --last 5", "the same as it happens, until Ctrl-C"),
            (f"rules explain {SERVER} place_order --rules {quote(str(rules))}", ""),
        ):
            click.echo(f"   {self._turnlog} {what:<23}{'  # ' if why else ''}{why}".rstrip())

    def _new(self) -> list[Row]:
        """Return the attempts that were not printed yet: an outcome is on disk before its answer."""
        with open_view(self._data) as view:
            rows = list(log.read_rows(view, Query()))
        new, self._rows = rows[len(self._rows) :], rows
        return new


def _say(who: str, line: str) -> None:
    click.echo(f"     {who:<5}  {line}")


def _echo_indented(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(f"   {line}".rstrip())
