"""`turnlog taint`: mark outputs as tainted, and show where their values went."""

from enum import StrEnum
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from turnlog.cli.attempts import named_commit
from turnlog.cli.contamination import as_dot, as_mermaid, as_tree, beyond_mermaid
from turnlog.cli.failures import SuggestingGroup, complain
from turnlog.cli.options import (
    SEQ,
    WrittenStore,
    data_option,
    json_option,
    open_view,
    printout,
    reading,
    word_of,
    writing_options,
)
from turnlog.cli.render import ProgressLine, json_line
from turnlog.core import ids
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
@click.option("--to", type=SEQ, metavar="SEQ", help="Only what leads to the call of this commit.")
@click.option(
    "--after",
    type=SEQ,
    metavar="SEQ",
    help="Only calls after this commit; of those before counts what was recorded.",
)
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
def show(
    session: str,
    to: int | None,
    after: int | None,
    form: _Format,
    data: Path,
    as_json: bool,
) -> None:
    """Show the tainted outputs of SESSION and the calls that used them.

    It is computed from the log, with all marks made so far. Values are compared, meaning is not
    followed: what is not found here may have been used all the same. A value that an untainted
    output had as well does not count: mark each output that should not be trusted. `dot` is for
    Graphviz, `mermaid` for Markdown.
    """
    with reading(data) as (view, write), ProgressLine() as progress:
        found = read_contamination(
            view,
            find_session(view, session),
            to=to,
            after=after,
            on_progress=lambda seq, last: progress.show(f"looked at commit {seq} of {last}"),
        )
        progress.clear()
        if found.until < found.head and to is None:
            rest = f"--after {found.until} looks at the commits behind it"
            found = structs.replace(found, partial=[*found.partial, rest])
        is_json = as_json or form is _Format.JSON
        lines = [json_line(found)] if is_json else list(_DRAWN[form](found))
        for line in lines:
            write(line)
    if form is _Format.MERMAID and not is_json and (why := beyond_mermaid(found, lines)):
        complain(why)


@command.command("mark")
@click.argument("commit", metavar="SESSION:SEQ")
@_WHY
@writing_options
@json_option
def mark(**given: Any) -> None:
    """Mark the output of a call as tainted.

    SEQ is any commit of the call. Later calls that use values of the output are tainted too, and
    rules with `block_if: tainted` refuse them, unless an untainted output had the values as well.
    Works beside running proxies.
    """
    _note(NoteKind.TAINT, **given)


@command.command("endorse")
@click.argument("commit", metavar="SESSION:SEQ")
@_WHY
@writing_options
@json_option
def endorse(**given: Any) -> None:
    """Record that the output of a call is not tainted, and why.

    That also holds for the values that later calls take from it. A mark after it counts again.
    Works beside running proxies.
    """
    _note(NoteKind.ENDORSE, **given)


def _note(kind: NoteKind, commit: str, why: str, target: WrittenStore, as_json: bool) -> None:
    if not why or len(why) > LONGEST_WHY:
        raise click.UsageError(f"--why needs 1 to {LONGEST_WHY} characters, it has {len(why)}")
    # A reader creates no store where there is no such call.
    with open_view(target.folder) as view:
        output = find_output(view, *named_commit(view, commit))
    made = target.write(
        lambda store: NoteWriter(store, target.redactor, Clock()).mark_output(output, kind, why)
    )
    said = made.body.summary if made.body else ""
    with printout() as write:
        text = f"session {ids.to_text(made.link.session)}: {said}"
        write(json_line(written_note(made)) if as_json else text)
