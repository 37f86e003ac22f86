"""Commands that change a session: `turnlog sessions pause`, `resume`, `close` and others."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from turnlog.cli.options import (
    SEQ,
    Parsed,
    json_option,
    open_store,
    open_view,
    printout,
    writing,
    writing_options,
)
from turnlog.cli.render import json_line
from turnlog.core.kinds import Actor
from turnlog.core.lifecycle import LifecycleContent
from turnlog.core.note import LONGEST_WHY
from turnlog.core.text.terminal import escape_unprintable
from turnlog.core.text.units import duration
from turnlog.observe.clock import Clock
from turnlog.sessions.control.lifecycle import TTL, SessionAction, SessionChange, operation_of
from turnlog.sessions.control.writer import ControlRequest, ControlWriter, OperationResult
from turnlog.sessions.log import find_session

if TYPE_CHECKING:
    from turnlog.redaction.redact import Redactor

Decorator = Callable[[click.Command], click.Command]


def _read_why(text: str) -> str:
    if len(text) > LONGEST_WHY:
        raise ValueError(f"it has {len(text)} characters, {LONGEST_WHY} are kept: cut it")
    return text


why_option: Final = click.option(
    "--why",
    metavar="TEXT",
    type=Parsed("text", _read_why),
    default="",
    help="The reason; kept in the log.",
)
"""Adds `--why` to a command that changes a session."""
fence_option: Final = click.option(
    "--fence",
    metavar="N",
    type=SEQ,
    help="The number of your lease: refused if another is newer, or yours has ended.",
)
"""Adds `--fence` to a command that changes a session."""
_COMMON: Final[tuple[Decorator, ...]] = (
    why_option,
    click.option(
        "--expect",
        metavar="HEAD",
        type=SEQ,
        help="Only if this is the session's newest commit; else any, unless somebody changed the "
        "session meanwhile.",
    ),
    fence_option,
    writing_options,
    json_option,
)
_TTL: Final = click.option(
    "--ttl",
    metavar="TIME",
    type=Parsed("duration", duration),
    default=f"{TTL:g}s",
    show_default=True,
    help="How long the lease holds, unless it is renewed.",
)


def _command(action: SessionAction, help_text: str, *more: Decorator) -> click.Command:
    """Return the command of an action; `more` adds options and arguments, which are fields of `SessionChange`."""

    @click.command(action.value, help=help_text)
    @click.argument("session")
    def command(
        session: str,
        config: str | None,
        data: str | None,
        as_json: bool,
        **fields: Any,
    ) -> None:
        change = SessionChange(action=action, **fields)
        folder, redactor = writing(config, data or _data_of_group(click.get_current_context()))
        with open_view(folder) as view:
            found = find_session(view, session)
            operation = operation_of(
                view, found, change, Actor.OPERATOR, lambda text: redactor.text(text)[0]
            )
            limit = view.usage().limit
        with printout() as write:
            result = asyncio.run(_written(folder, redactor, limit, found, operation))
            write(json_line(result) if as_json else _sentence(result, operation.content))

    for decorate in (*more, *_COMMON):
        command = decorate(command)
    return command


def _data_of_group(ctx: click.Context) -> str | None:
    """Return the `--data` that was given to the group: `turnlog sessions --data DIR pause ...`."""
    parent = ctx.parent
    if parent is None or parent.get_parameter_source("data") is not ParameterSource.COMMANDLINE:
        return None
    return str(parent.params["data"])


async def _written(
    data: Path, redactor: "Redactor", limit: int, session: bytes, operation: ControlRequest
) -> OperationResult:
    async with open_store(data, limit) as store:
        return await ControlWriter(store, redactor, Clock()).write(session, operation)


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
        """Close SESSION; its names and its agent's calls go to the session INTO.

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
