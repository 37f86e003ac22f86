"""Commands that change a session: `turnlog sessions pause`, `resume`, `close` and others."""

from collections.abc import Callable
from typing import Any, Final

import click

from turnlog.cli.options import (
    SEQ,
    Parsed,
    WrittenStore,
    fence_option,
    json_option,
    open_view,
    printout,
    why_option,
    with_options,
    writing_options,
)
from turnlog.cli.render import json_line
from turnlog.core.kinds import Actor
from turnlog.core.lifecycle import LifecycleContent
from turnlog.core.text.terminal import escape_unprintable
from turnlog.core.text.units import duration
from turnlog.observe.clock import Clock
from turnlog.sessions.control.lifecycle import TTL, SessionAction, SessionChange, operation_of
from turnlog.sessions.control.writer import ControlWriter, OperationResult
from turnlog.sessions.log import find_session

_TTL: Final = click.option(
    "--ttl",
    metavar="TIME",
    type=Parsed("duration", duration),
    default=f"{TTL:g}s",
    show_default=True,
    help="How long the lease holds, unless it is renewed.",
)


def _command(action: SessionAction, help_text: str, *more: Callable[[Any], Any]) -> click.Command:
    """Return the command of an action; `more` adds options and arguments, which are fields of `SessionChange`."""

    @click.command(action.value, help=help_text)
    @click.argument("session")
    @with_options(*more)
    @why_option
    @click.option(
        "--expect",
        metavar="HEAD",
        type=SEQ,
        help="Only if this is the session's newest commit; else any, unless somebody changed the "
        "session meanwhile.",
    )
    @fence_option
    @writing_options
    @json_option
    def command(session: str, target: WrittenStore, as_json: bool, **fields: Any) -> None:
        change = SessionChange(action=action, **fields)
        with open_view(target.folder) as view:
            found = find_session(view, session)
            operation = operation_of(view, found, change, Actor.OPERATOR, target.clean)
        with printout() as write:
            result = target.write(
                lambda store: ControlWriter(store, target.redactor, Clock()).write(found, operation)
            )
            write(json_line(result) if as_json else _sentence(result, operation.content))

    return command


def _sentence(result: OperationResult, content: LifecycleContent | None) -> str:
    lease = result.lease
    more = f", lease {lease.fence} ends at {lease.until}" if lease is not None else ""
    if content and content.into:
        more = f"; its names and calls go to {content.into}"
    elif content and content.name:
        more = f", and also called {escape_unprintable(content.name)}"
    return f"session {result.session} is {result.stage} after commit {result.seq}{more}"


COMMANDS: Final = (
    _command(
        SessionAction.PAUSE,
        """Refuse the calls of a session until it is resumed.

        Calls of tools are answered with session_unavailable, which may be tried again; calls in
        flight go on. The agent cannot lift it.
        """,
    ),
    _command(
        SessionAction.RESUME,
        """Forward the calls of a paused session again.

        One that `turnlog resume --bundle` has packed for another store goes on here only with --anyway: its
        bundle from there can then be imported as a fork only.
        """,
        click.option("--anyway", is_flag=True, help="Also if it was moved to another store."),
    ),
    _command(
        SessionAction.CLOSE,
        """Refuse the calls of a session for good.

        If the agent did not name the session, its next call opens a new one.
        """,
    ),
    _command(
        SessionAction.ARCHIVE, "Leave a closed session out of `turnlog sessions` without --all."
    ),
    _command(
        SessionAction.ALIAS,
        "Give a session another NAME, for callers and commands.",
        click.argument("name"),
    ),
    _command(
        SessionAction.MERGE,
        """Close SESSION; its names and its agent's calls go to INTO.

        The logs of the two stay as they are.
        """,
        click.argument("into"),
    ),
    _command(
        SessionAction.CLAIM,
        """Take the lease on a session, for runtimes that want one writer.

        The answer has its number, which is higher than that of any lease before. While it holds,
        nobody else can claim the session; changes that give an older number by --fence are refused.
        """,
        click.option("--holder", metavar="NAME", default="", help="Who takes it; kept in the log."),
        _TTL,
    ),
    _command(SessionAction.RENEW, "Extend the lease whose number --fence gives.", _TTL),
    _command(SessionAction.UNCLAIM, "End the lease on a session."),
)
"""The subcommands of `turnlog sessions` that change one."""
