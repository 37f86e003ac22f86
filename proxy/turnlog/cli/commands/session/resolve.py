"""`turnlog resolve`: settle a call whose outcome is unknown."""

import asyncio
import time
from pathlib import Path

import click

from turnlog.cli.options import (
    json_option,
    open_store,
    open_view,
    printout,
    writing,
    writing_options,
)
from turnlog.cli.render import json_line
from turnlog.core.text.terminal import escape_unprintable
from turnlog.sessions.resolve import Claim, find_resolvable, resolve
from turnlog.sessions.rows import Row

from .change import fence_option, why_option


@click.command("resolve")
@click.argument("call")
@click.option("--happened", is_flag=True, help="The tool did its work.")
@click.option("--did-not", is_flag=True, help="It did not do its work, and will not.")
@why_option
@fence_option
@writing_options
@json_option
def command(
    call: str,
    happened: bool,
    did_not: bool,
    why: str,
    fence: int | None,
    config: str | None,
    data: str | None,
    as_json: bool,
) -> None:
    """Record whether a call of unknown outcome happened.

    CALL is an id from `turnlog dangling`, or a beginning that no other call in the store has. Your
    statement becomes the call's outcome, with the actor `operator`: ok, or an error that is safe to
    try again. A late answer is still recorded after it. Works beside running proxies.
    """
    if happened and did_not:
        raise click.UsageError("--happened and --did-not exclude each other, give one")
    if not happened and not did_not:
        raise click.UsageError("give --happened or --did-not")
    folder, redactor = writing(config, data)
    # A reader neither creates a store nor closes calls of dead processes, if there is no such call.
    with open_view(folder) as view:
        find_resolvable(view, call)
        limit = view.usage().limit
    claim = Claim(
        happened=happened,
        why=redactor.text(why)[0],
        at=time.time_ns(),
        clock=time.monotonic_ns(),
        fence=fence,
    )
    with printout() as write:
        row = asyncio.run(_resolve(folder, limit, call, claim))
        write(json_line(row) if as_json else _text(row))


async def _resolve(data: Path, limit: int, call: str, claim: Claim) -> Row:
    async with open_store(data, limit) as store:
        return await resolve(store, call, claim)


def _text(row: Row) -> str:
    return escape_unprintable(f"call {row.call} of {row.server}/{row.tool}: {row.output_summary}")
