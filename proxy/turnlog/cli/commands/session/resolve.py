"""`turnlog resolve`: settle a call whose outcome is unknown."""

import click

from turnlog.cli.options import (
    WrittenStore,
    fence_option,
    json_option,
    open_view,
    printout,
    why_option,
    writing_options,
)
from turnlog.cli.render import json_line
from turnlog.core.text.terminal import escape_unprintable
from turnlog.sessions.resolve import Claim, find_resolvable, resolve
from turnlog.sessions.rows import Row


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
    target: WrittenStore,
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
    # A reader neither creates a store nor closes calls of dead processes, if there is no such call.
    with open_view(target.folder) as view:
        find_resolvable(view, call)
    claim = Claim(happened=happened, why=target.clean(why), fence=fence)
    with printout() as write:
        row = target.write(lambda store: resolve(store, call, claim))
        write(json_line(row) if as_json else _text(row))


def _text(row: Row) -> str:
    return escape_unprintable(f"call {row.call} of {row.server}/{row.tool}: {row.output_summary}")
