"""`turnlog effect`: decide about later calls with the effect of a call that the branch does not show."""

import click

from turnlog.cli.failures import complain
from turnlog.cli.options import (
    WrittenStore,
    fence_option,
    json_option,
    open_view,
    printout,
    writing_options,
)
from turnlog.cli.render import json_line
from turnlog.core import ids
from turnlog.core.kinds import Actor
from turnlog.core.note import TEXT_CHARS, EffectChoice
from turnlog.observe.clock import Clock
from turnlog.sessions.control.effects import chosen_effect
from turnlog.sessions.log import find_session
from turnlog.sessions.notes import NoteWriter, WrittenNote
from turnlog.store.base import SessionRef
from turnlog.store.lmdb import LmdbStore

_SAID = {
    EffectChoice.REPLAY: "later calls with its effect are answered from the record",
    EffectChoice.REDO: "the next call with its effect and the same input is sent",
    EffectChoice.OVERRIDE: "the next call with its effect is sent, with any input",
}


@click.command("effect")
@click.argument("call")
@click.option("--replay", is_flag=True, help="Answer later calls from the record, with any input.")
@click.option("--redo", is_flag=True, help="Let the next call through, if its input is the same.")
@click.option("--override", is_flag=True, help="Let the next call through, with any input.")
@click.option("--session", metavar="S", help="The branch whose calls it is for.")
@click.option("--why", metavar="TEXT", default="", help="The reason; kept in the log.")
@fence_option
@writing_options
@json_option
def command(
    call: str,
    replay: bool,
    redo: bool,
    override: bool,
    session: str | None,
    why: str,
    fence: int | None,
    target: WrittenStore,
    as_json: bool,
) -> None:
    """Decide about later calls with the same effect as CALL.

    CALL was discarded by a rewind, or made on another branch of its session, and its effect still stands.
    Unless you choose otherwise, a later call with the same input gets the recorded answer, and one with
    another input is refused. --redo and --override let one later call through; a call that is not
    executed does not use up the choice. A rewind to before the choice voids it, and forks do not take it
    over: where several branches do not show CALL, name the one by --session. A call whose session was
    purged, or is in another store, is found by the branch that left it behind; its input hash names it
    too. Works while proxies run.
    """
    chosen = [
        choice
        for choice, given in zip(EffectChoice, (replay, redo, override), strict=True)
        if given
    ]
    if len(chosen) != 1:
        raise click.UsageError("give one of --replay, --redo and --override")
    if len(why) > TEXT_CHARS:
        raise click.UsageError(f"--why has {len(why)} characters, {TEXT_CHARS} are kept: cut it")
    with open_view(target.folder) as view:
        branch = find_session(view, session) if session else None
        found = chosen_effect(view, call, chosen[0], why, Actor.OPERATOR, branch)

    async def write_note(store: LmdbStore) -> WrittenNote:
        noter, of = NoteWriter(store, target.redactor, Clock()), SessionRef.existing(found.session)
        return await noter.write(of, found.note, actor=Actor.OPERATOR, fence=fence)

    with printout() as write:
        written = target.write(write_note)
        choice = found.note.choice
        said = f"{choice} {found.server}/{found.tool}, call {found.note.call}: {_SAID[choice]}"
        write(json_line(written) if as_json else said)
    if found.is_shown:
        complain(
            f"call {found.note.call} stands in session {ids.to_text(found.session)}: no rewind has "
            "discarded it there, so this choice changes nothing; its repeats follow the rules "
            "(on_duplicate)"
        )
