"""`turnlog taint`: mark outputs as tainted, and show where their values went."""

import asyncio
from enum import StrEnum
from pathlib import Path

import click

from turnlog.cli.attempts import named_commit
from turnlog.cli.contamination import as_dot, as_mermaid, as_tree
from turnlog.cli.failures import SuggestingGroup
from turnlog.cli.options import (
    SEQ,
    data_option,
    json_option,
    open_store,
    open_view,
    printout,
    reading,
    word_of,
    writing,
    writing_options,
)
from turnlog.cli.render import json_line
from turnlog.core import ids
from turnlog.core.commit import Commit
from turnlog.core.kinds import NoteKind
from turnlog.core.note import LONGEST_WHY
from turnlog.observe.clock import Clock
from turnlog.sessions.lineage.taint import find_output, read_contamination
from turnlog.sessions.log import find_session
from turnlog.sessions.notes import NoteWriter, written_note


class _Format(StrEnum):
    TREE = "tree"
    JSON = "json"
    DOT = "dot"
    MERMAID = "mermaid"


_DRAWN = {_Format.TREE: as_tree, _Format.DOT: as_dot, _Format.MERMAID: as_mermaid}
_WHY = click.option("--why", metavar="TEXT", required=True, help="The reason; kept in the log.")


@click.group("taint", cls=SuggestingGroup)
def command() -> None:
    """Mark outputs as tainted, and show which calls used their values."""


@command.command("show")
@click.argument("session")
@click.option("--to", type=SEQ, metavar="SEQ", help="Only what leads to this commit.")
@click.option(
    "--format",
    "form",
    type=word_of("format", _Format),
    default=_Format.TREE.value,
    show_default=True,
    help=f"One of {', '.join(_Format)}.",
)
@data_option
@json_option
def show(session: str, to: int | None, form: _Format, data: Path, as_json: bool) -> None:
    """Show the tainted outputs of SESSION and the calls that used their values.

    It is computed from the log, with all marks made so far. Values are compared, meaning is not
    followed: what is not found here may have been used all the same. `dot` is for Graphviz,
    `mermaid` for Markdown.
    """
    with reading(data) as (view, write):
        found = read_contamination(view, find_session(view, session), to)
        is_json = as_json or form is _Format.JSON
        lines = [json_line(found)] if is_json else _DRAWN[form](found)
        for line in lines:
            write(line)


@command.command("mark")
@click.argument("commit", metavar="SESSION:SEQ")
@_WHY
@writing_options
@json_option
def mark(commit: str, why: str, config: str | None, data: str | None, as_json: bool) -> None:
    """Mark the output of a call as tainted.

    SEQ is any commit of the call. Later calls that use values of the output are tainted too, and
    rules with `block_if: tainted` refuse them. Works beside running proxies.
    """
    _note(NoteKind.TAINT, commit, why, config, data, as_json)


@command.command("endorse")
@click.argument("commit", metavar="SESSION:SEQ")
@_WHY
@writing_options
@json_option
def endorse(commit: str, why: str, config: str | None, data: str | None, as_json: bool) -> None:
    """Record that the output of a call is not tainted, and why.

    That also holds for the values that later calls take from it. A mark after it counts again.
    Works beside running proxies.
    """
    _note(NoteKind.ENDORSE, commit, why, config, data, as_json)


def _note(
    kind: NoteKind, name: str, why: str, config: str | None, data: str | None, as_json: bool
) -> None:
    if not why or len(why) > LONGEST_WHY:
        raise click.UsageError(f"--why needs 1 to {LONGEST_WHY} characters, it has {len(why)}")
    folder, redactor = writing(config, data)
    # A reader creates no store where there is no such call.
    with open_view(folder) as view:
        session, seq = named_commit(view, name)
        output = find_output(view, session, seq)
        limit = view.usage().limit

    async def work() -> Commit:
        async with open_store(folder, limit) as store:
            return await NoteWriter(store, redactor, Clock()).mark_output(output, kind, why)

    commit = asyncio.run(work())
    said = commit.body.summary if commit.body else ""
    with printout() as write:
        text = f"session {ids.to_text(commit.link.session)}: {said}"
        write(json_line(written_note(commit)) if as_json else text)
