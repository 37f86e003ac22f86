"""Errors of commands as one line on stderr, and their exit codes."""

from collections.abc import Generator
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, EIO, ENOSPC
from typing import Final

import click

from turnlog.core.hints import Hint, in_words
from turnlog.core.text.terminal import escape_unprintable
from turnlog.packs.errors import ConfigError, SettingError, did_you_mean
from turnlog.sessions.errors import SessionsError
from turnlog.store.base import Conflict, CopyRefused, LeaseRefused, StoreError, TransitionRefused

FINE = 0
FAILED = 1
"""A check found a problem: `verify`, `rules check`, `rules test`, `trust --check`."""
WRONG_USE = 2
NO_STORE = 3

NO_OUTPUT = 74
"""EX_IOERR of sysexits.h."""
PIPE_CLOSED = 141
"""128 + SIGPIPE, as shells report it."""
INTERRUPTED = 130
"""128 + SIGINT."""


class SuggestingGroup(click.Group):
    """A group that suggests the closest of its commands for one that it does not have."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        hint = "" if args[0] in names else did_you_mean(args[0], names)
        if hint:
            raise click.UsageError(f"no such command {args[0]!r}, {hint}", ctx)
        return super().resolve_command(ctx, args)


class PipeClosedError(Exception):
    """The reader of the output (`| head`) closed it."""


class OutputError(Exception):
    """The output cannot be written."""


HINTS: Final = {
    Hint.SESSIONS: "`turnlog sessions` lists them",
    Hint.CALLS: "`turnlog log --json` names them",
    Hint.CALLS_OF_SESSION: "`turnlog log {} --json` names its calls",
    Hint.DANGLING: "`turnlog dangling` lists those that can be resolved",
    Hint.LATER_STATE: "ask for a later one, as with `--at {}` or `--seq {}..`",
    Hint.GO_ON_HERE: "import its bundle from there to go on here, or give --anyway to go on without what was done there",
    Hint.UNPACK: "do this there, or first let the session go on here (`turnlog sessions resume SESSION --anyway`)",
    Hint.RELEASE: "`turnlog sessions release` ends the hold",
    Hint.LEASE_NUMBER: "give it by --fence, `turnlog sessions --json` has it",
    Hint.BRANCH: "name the one whose later calls your choice is for by --session",
    Hint.UNCLAIM: "wait, or end it by `turnlog sessions unclaim`",
}
_NOT_TAKEN = frozenset({EDQUOT, EFBIG, EIO, ENOSPC})
"""Errors of a full or broken device."""

FAILURES = (
    click.ClickException,
    ConfigError,
    SettingError,
    SessionsError,
    StoreError,
    OSError,
)
"""The expected errors; any other is a bug and ends in a traceback."""


@contextmanager
def output_errors() -> Generator[None]:
    """Raise `PipeClosedError` and `OutputError` when the output cannot be written."""
    # Errors of stdout and stderr have no file name; those of the store and other files do.
    try:
        yield
    except BrokenPipeError:
        raise PipeClosedError from None
    except OSError as error:
        if error.filename is not None or error.errno not in _NOT_TAKEN:
            raise
        reason = (error.strerror or str(error)).lower()
        raise OutputError(
            f"cannot write the output ({reason}), make room or write it to another place"
        ) from None


def describe(error: Exception) -> tuple[str, int]:
    """Return the line for stderr and the exit code of an expected error."""
    match error:
        case click.UsageError():
            return _usage(error), WRONG_USE
        case click.ClickException():
            return _sentence(error.format_message()), WRONG_USE
        # What the caller asked for is not possible; the store can be used.
        case Conflict() | TransitionRefused() | LeaseRefused() | CopyRefused():
            return in_words(error, HINTS), WRONG_USE
        case StoreError():
            return str(error), NO_STORE
        case OSError():
            return _system(error)
        case _:
            return in_words(error, HINTS), WRONG_USE


def complain(what: object) -> None:
    """Write a text or an error as one line to stderr, control characters escaped."""
    click.echo(f"turnlog: {escape_unprintable(str(what))}", err=True)


def _system(error: OSError) -> tuple[str, int]:
    """Return the line and code: errors with a file name are the store's."""
    reason = (error.strerror or str(error)).lower()
    if error.filename is None:
        return reason, WRONG_USE
    return f"{reason}: {str(error.filename)!r}", NO_STORE


def _usage(error: click.UsageError) -> str:
    message = _sentence(error.format_message())
    if error.ctx is None:
        return message
    return f"{message} (see `{error.ctx.command_path} --help`)"


def _sentence(text: str) -> str:
    """Return a message of click as one line, lower case, without a full stop."""
    line = " ".join(text.split()).removesuffix(".")
    return line[:1].lower() + line[1:]
