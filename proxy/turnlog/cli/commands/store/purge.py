"""`turnlog purge`: remove all content of a session, or show what would be removed."""

from collections.abc import Iterator
from functools import partial

import click
from msgspec import structs

from turnlog.cli.options import (
    SEQ,
    WrittenStore,
    fence_option,
    json_option,
    open_view,
    printout,
    why_option,
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
from turnlog.store.lmdb import LmdbStore

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
    target: WrittenStore,
    as_json: bool,
) -> None:
    """Show what a purge of SESSION would remove, or remove it with --yes, for good.

    Payloads, summaries, changes, notes, names, metadata and saved states go. The chained headers stay:
    times, servers, tools, outcomes, sizes; `turnlog verify` says `redacted_ok`. The session is closed
    first. Content that other sessions use stays. Backups, exports and forks are not touched. As long
    as another process has the store open, the purge is pending.
    """
    with open_view(target.folder) as view, ProgressLine() as progress:
        found = find_session(view, session)
        plan = progress.during("looking for its content", partial(purge_plan, view, found, session))
    if yes:
        plan = _purge(target, found, plan, PurgeOrder(why=why, expect=expect, fence=fence))
    with printout() as write:
        for line in [json_line(plan)] if as_json else _text(plan):
            write(line)


def _purge(target: WrittenStore, session: bytes, plan: PurgePlan, order: PurgeOrder) -> PurgePlan:
    data = target.folder
    with ProgressLine() as progress:
        on_step = progress.showing("purging")

        async def purge(store: LmdbStore) -> PurgePlan:
            collector = Collector(store, saved_states(data), Clock(), on_step=on_step)
            writer = ControlWriter(store, target.redactor, Clock())
            return await Purger(collector).purge(session, plan, order, writer)

        done = target.write(purge)
        progress.during("rewriting the log", partial(replace_log, data))
    return structs.replace(done, pending=is_pending(data))


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
