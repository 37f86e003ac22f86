"""`turnlog purge`: remove all content of a session, or show what would be removed."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from turnlog.cli.commands.session.change import fence_option, why_option
from turnlog.cli.options import (
    SEQ,
    json_option,
    open_store,
    open_view,
    printout,
    writing,
    writing_options,
)
from turnlog.cli.render import ProgressLine, json_line
from turnlog.core.text.units import counted
from turnlog.observe.clock import Clock
from turnlog.sessions.control.writer import ControlWriter
from turnlog.sessions.log import find_session
from turnlog.sessions.retention.collect import Collector
from turnlog.sessions.retention.purge import PurgeOrder, PurgePlan, Purger, purge_plan
from turnlog.sessions.state.state_at import saved_states
from turnlog.store.compact_copy import is_pending, replace_log

if TYPE_CHECKING:
    from turnlog.redaction.redact import Redactor

_PENDING = (
    "purge pending: another process has the store open, so that the log's file cannot be rewritten; "
    "the next start of turnlog, or `turnlog gc --yes`, does it once none has"
)
_OUT_OF_REACH = (
    "out of reach: backups, exports, bundles, logs of turnlog, forks of the session, what tools and "
    "agents keep"
)


@click.command("purge")
@click.argument("session")
@click.option("--yes", is_flag=True, help="Remove it; without this nothing is changed.")
@why_option
@click.option(
    "--expect",
    metavar="HEAD",
    type=SEQ,
    help="Only if this is the session's newest commit, as the plan named it.",
)
@fence_option
@writing_options
@json_option
def command(
    session: str,
    yes: bool,
    why: str,
    expect: int | None,
    fence: int | None,
    config: str | None,
    data: str | None,
    as_json: bool,
) -> None:
    """Show what a purge of SESSION would remove, or remove it with --yes, for good.

    Payloads, summaries, changes, notes, names, metadata and saved states go. The chained headers stay:
    times, servers, tools, outcomes, sizes; `turnlog verify` says `redacted_ok`. The session is closed
    first. Content that other sessions use stays. Backups, exports and forks are not touched. As long
    as another process has the store open, the purge is pending.
    """
    folder, redactor = writing(config, data)
    with open_view(folder) as view, ProgressLine() as progress:
        found = find_session(view, session)
        plan = progress.during("looking for its content", partial(purge_plan, view, found, session))
        limit = view.usage().limit
    if yes:
        order = PurgeOrder(why=why, expect=expect, fence=fence)
        plan = asyncio.run(_purge(folder, limit, found, plan, order, redactor))
    with printout() as write:
        for line in [json_line(plan)] if as_json else _text(plan):
            write(line)


async def _purge(
    data: Path,
    limit: int,
    session: bytes,
    plan: PurgePlan,
    order: PurgeOrder,
    redactor: "Redactor",
) -> PurgePlan:
    from msgspec import structs

    with ProgressLine() as progress:
        async with open_store(data, limit) as store:
            collector = Collector(
                store,
                saved_states(data),
                Clock(),
                on_step=lambda text: progress.show(f"purging {text}"),
            )
            writer = ControlWriter(store, redactor, Clock())
            plan = await Purger(collector).purge(session, plan, order, writer)
        progress.during("rewriting the log", partial(replace_log, data))
    return structs.replace(plan, pending=is_pending(data))


def _text(plan: PurgePlan) -> Iterator[str]:
    did = "purged" if plan.done else "would purge"
    yield (
        f"session {plan.session}: {did} the content of {counted(plan.commits, 'commit')}, "
        f"{counted(plan.payloads - plan.shared, 'payload')} on {counted(plan.buckets, 'day')}, "
        f"{counted(plan.names, 'name')}, {counted(plan.states, 'saved state')}"
    )
    if plan.shared:
        stay = "stays" if plan.shared == 1 else "stay"
        yield f"{counted(plan.shared, 'payload')} of it {stay}, because other sessions use the same content"
    if not plan.done:
        yield "it cannot be undone, --yes does it"
    elif plan.pending:
        yield _PENDING
    yield _OUT_OF_REACH
