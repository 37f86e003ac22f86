"""The command `turnlog`: runs a subcommand and turns expected errors into one line.

Each subcommand is a module that is imported when it is called, so that `turnlog log` does not load
the server.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import takewhile
from typing import Any, Final, NamedTuple

import click

from turnlog.store.base import ProcessIdTaken

from .failures import (
    FAILURES,
    FINE,
    INTERRUPTED,
    NO_OUTPUT,
    PIPE_CLOSED,
    WRONG_USE,
    OutputError,
    PipeClosedError,
    SuggestingGroup,
    complain,
    describe,
    output_errors,
)


class Subcommand(NamedTuple):
    """A subcommand: its module in `cli.commands`, which has it as `command`, and one line of help."""

    module: str
    help: str


COMMANDS: Final = {
    "backup": Subcommand("store.backup", "Copy a store while proxies write to it."),
    "convert": Subcommand("store.convert", "Convert a store of turnlog 0.2 to the present format."),
    "dangling": Subcommand("read.dangling", "List unknown, open and undelivered calls."),
    "demo": Subcommand("run.demo", "Watch an agent's calls go through turnlog."),
    "diff": Subcommand("read.diff", "Show what changed between two states, and by which commits."),
    "effect": Subcommand("session.effect", "Decide about later calls with a discarded effect."),
    "export": Subcommand("store.export", "Write attempts, or a whole session, to a file."),
    "gc": Subcommand("store.gc", "Delete what has outlived its retention."),
    "import": Subcommand("store.importing", "Import a session that was packed elsewhere."),
    "fork": Subcommand("session.fork", "Begin a session with the state of another one."),
    "log": Subcommand("read.log", "List attempts of calls and their outcomes."),
    "mcp": Subcommand("run.mcp", "Give an agent its own session as tools, over stdin and stdout."),
    "purge": Subcommand("store.purge", "Remove all content of a session for good."),
    "resolve": Subcommand("session.resolve", "Settle a call whose outcome is unknown."),
    "rewind": Subcommand(
        "session.rewind", "Return a session to an earlier commit; first as a plan."
    ),
    "resume": Subcommand("session.resume", "Show or pack what is needed to go on with a session."),
    "rules": Subcommand("rules.rules", "Check, explain and test rules."),
    "serve": Subcommand("run.serve", "Run the proxy: forward tool calls and record each of them."),
    "sessions": Subcommand(
        "session.sessions", "List sessions; pause, resume, close, name or claim one."
    ),
    "show": Subcommand("read.show", "Show a call or a commit in full."),
    "state": Subcommand("read.state", "Show the state of a session."),
    "status": Subcommand("read.status", "Show what the store holds and which calls are pending."),
    "tail": Subcommand("read.tail", "Print attempts as they end."),
    "taint": Subcommand("session.taint", "Mark tainted outputs, and show where their values went."),
    "trust": Subcommand("rules.trust", "Pin tools and their servers, and show changes."),
    "verify": Subcommand("read.verify", "Check that the log was not changed."),
    "why": Subcommand("read.why", "Show which calls a value in an input came from."),
    "wrap": Subcommand("run.wrap", "Run a stdio tool server and record each call."),
}
"""Subcommands by name."""
_STDERR = 2


class _Commands(SuggestingGroup):
    """A group that imports a command when it is called."""

    # When the output has no reader, click itself would exit with 1, the code of a failed check.
    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        with output_errors():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with output_errors():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = COMMANDS.get(cmd_name)
        if found is None:
            return None
        command: click.Command = import_module(f"turnlog.cli.commands.{found.module}").command
        # SIGINT has ended the process so far (`__main__`). `wrap` handles it itself, like SIGTERM.
        if cmd_name != "wrap" and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted((name, found.help) for name, found in COMMANDS.items()))


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="turnlog", message="%(prog)s %(version)s")
def turnlog() -> None:
    """A transparent proxy between an agent and its tool servers that keeps a log of every call.

    Exit codes: 0 fine, 1 the check failed, 2 wrong use or configuration, 3 the store cannot be
    used, 74 the output cannot be written, 130 Ctrl-C, 141 the reader of the output closed it.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code; expected errors are one line on stderr."""
    _open_closed_streams()
    try:
        # Text from tools may not fit the terminal's encoding; that must not end a listing.
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        with output_errors():
            code = _run(sys.argv[1:] if arguments is None else arguments)
            sys.stdout.flush()
    except ProcessIdTaken as taken:
        # Commands open the store first, so nothing was done yet and the command can be run again.
        return _print_error(taken) if arguments is not None else _run_again(taken)
    except PipeClosedError:
        _drop_output()
        return PIPE_CLOSED
    except OutputError as error:
        _drop_output()
        with suppress(OSError):
            complain(error)
        return NO_OUTPUT
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        _refuse_other_encodings(arguments)
        return int(turnlog.main(arguments, prog_name="turnlog", standalone_mode=False) or FINE)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return WRONG_USE
    except ProcessIdTaken:
        raise
    except FAILURES as error:
        return _print_error(error)


def _print_error(error: Exception) -> int:
    """Print an expected error; return its exit code."""
    message, code = describe(error)
    complain(message)
    return code


def _run_again(taken: ProcessIdTaken) -> int:
    """Run the command line again under another process id; return its exit code."""
    from .rerun import run_again

    try:
        return run_again(taken)
    except (ProcessIdTaken, OSError) as error:
        return _print_error(error)


def _drop_output() -> None:
    """Discard buffered output, so that flushing at exit raises no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse_other_encodings(arguments: Sequence[str]) -> None:
    """Refuse arguments that are not UTF-8: records, events and JSON cannot hold them."""
    for what, text in _texts_in_use(arguments):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"{what} {text!r} is not UTF-8, use a name that is") from None


def _texts_in_use(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield all texts that a command may use, each with a name for errors."""
    # Arguments after -- belong to another program.
    own = takewhile(lambda text: text != "--", arguments)
    yield from (("the argument", text) for text in own)
    for name, text in os.environ.items():
        if name.startswith("TURNLOG_"):
            yield f"the value of {name}", text
    with suppress(OSError):
        yield "the working directory", os.getcwd()  # noqa: PTH109 - a text is wanted


def _open_closed_streams() -> None:
    """Open /dev/null for each of the descriptors 0, 1 and 2 that is closed."""
    # Otherwise a file of the store could become descriptor 2, and what a child or the interpreter
    # writes to stderr would go into it. `open` returns the lowest free descriptor.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))
