"""`turnlog taint`: mark outputs as tainted, and show where their values went."""

import asyncio
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import click

from turnlog.cli.attempts import named_commit
from turnlog.cli.failures import SuggestingGroup
from turnlog.cli.filters import MOST
from turnlog.cli.options import (
    Number,
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
from turnlog.core.text.terminal import escape_unprintable
from turnlog.core.text.units import counted
from turnlog.observe.clock import Clock
from turnlog.provenance.graph import GraphEdge, TreeLine, tree_lines
from turnlog.sessions.lineage.taint import (
    Contamination,
    TaintedBy,
    TaintedCall,
    find_output,
    mark_output,
    read_contamination,
)
from turnlog.sessions.log import find_session
from turnlog.sessions.notes import written_note


class _Format(StrEnum):
    TREE = "tree"
    JSON = "json"
    DOT = "dot"
    MERMAID = "mermaid"


_Place = tuple[str | None, int | None]
_WHY = click.option("--why", metavar="TEXT", required=True, help="The reason; kept in the log.")


@click.group("taint", cls=SuggestingGroup)
def command() -> None:
    """Mark outputs as tainted, and show which calls used their values."""


@command.command("show")
@click.argument("session")
@click.option("--to", type=Number(0, MOST), metavar="SEQ", help="Only what leads to this commit.")
@click.option(
    "--format",
    "form",
    type=word_of("format", _Format),
    default=_Format.TREE.value,
    show_default=True,
    help=f"One of {', '.join(_Format)}.",
)
@data_option
def show(session: str, to: int | None, form: _Format, data: Path) -> None:
    """Show the tainted outputs of SESSION and the calls that used their values.

    It is computed from the log, with all marks made so far. Values are compared, meaning is not
    followed: what is not found here may have been used all the same. `dot` is for Graphviz,
    `mermaid` for Markdown.
    """
    with reading(data) as (view, write):
        found = read_contamination(view, find_session(view, session), to)
        lines = [json_line(found)] if form is _Format.JSON else _DRAWN[form](found)
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
        find_output(view, session, seq)
        limit = view.usage().limit

    async def work() -> Commit:
        async with open_store(folder, limit) as store:
            return await mark_output(store, session, seq, kind, redactor.text(why)[0], Clock())

    commit = asyncio.run(work())
    said = commit.body.summary if commit.body else ""
    with printout() as write:
        text = f"session {ids.to_text(commit.link.session)}: {said}"
        write(json_line(written_note(commit)) if as_json else text)


def _tree(found: Contamination) -> Iterator[str]:
    nodes = _nodes(found)
    yield f"session {found.session}, up to commit {found.head}"
    if not nodes:
        yield "no contamination found so far"
    roots = [_place(one) for one in found.sources]
    unused = [place for place in roots if place not in {edge.source for edge in _edges(found)}]
    for line in tree_lines(_edges(found), [place for place in roots if place not in unused]):
        yield escape_unprintable(_drawn(line, nodes[line.place]))
    for place in unused:
        yield escape_unprintable(f"{_title(nodes[place])}: no use of it was found")
    if found.weak:
        yield f"besides, {counted(found.weak, 'match')} by weak evidence"
    for said in found.partial:
        yield f"partial: {said}"


def _drawn(line: TreeLine[_Place], node: TaintedCall) -> str:
    before = "".join("   " if is_last else "│  " for is_last in line.lasts[:-1])
    if line.lasts:
        before += "└─ " if line.lasts[-1] else "├─ "
    uses = [by for by in node.tainted_by if (by.session, by.seq) == line.above]
    how = f"  {_used(uses)}" if uses else ""
    again = "  (what follows: see above)" if line.is_repeated else ""
    return f"{before}{_title(node)}{how}{again}"


def _used(uses: list[TaintedBy]) -> str:
    return ", ".join(f"{by.pointer or '(all)'} ({by.evidence})" for by in uses[:3])


def _title(node: TaintedCall) -> str:
    parts = [f"{node.seq} {node.server}/{node.tool}", node.input]
    if node.why:
        parts.append(f"[{'; '.join(node.why)}]")
    if node.endorsed is not None:
        parts.append(f"[endorsed: {node.endorsed}]")
    if node.discarded:
        parts.append("[discarded]")
    return " ".join(filter(None, parts))


def _dot(found: Contamination) -> Iterator[str]:
    yield "digraph taint {"
    yield "  rankdir=LR; node [shape=box];"
    nodes = _nodes(found)
    names = _names(nodes)
    for place, node in nodes.items():
        mark = ", style=filled" if node.why else ""
        yield f'  {names[place]} [label="{_quoted(_label(node))}"{mark}];'
    for (source, target), by in _uses(found).items():
        if source in names:
            yield f'  {names[source]} -> {names[target]} [label="{_quoted(_used(by))}"];'
    yield "}"


def _mermaid(found: Contamination) -> Iterator[str]:
    yield "flowchart LR"
    nodes = _nodes(found)
    names = _names(nodes)
    for place, node in nodes.items():
        yield f'  {names[place]}["{_entities(_label(node))}"]'
    for (source, target), by in _uses(found).items():
        if source in names:
            yield f'  {names[source]} -->|"{_entities(_used(by))}"| {names[target]}'
    marked = [names[_place(one)] for one in found.sources]
    if marked:
        yield "  classDef source stroke-width:3px"
        yield f"  class {','.join(marked)} source"


_DRAWN = {_Format.TREE: _tree, _Format.DOT: _dot, _Format.MERMAID: _mermaid}


def _nodes(found: Contamination) -> dict[_Place, TaintedCall]:
    every = {_place(one): one for one in (*found.sources, *found.calls)}
    return dict(sorted(every.items()))


def _names(nodes: dict[_Place, TaintedCall]) -> dict[_Place, str]:
    return {place: f"n{number}" for number, place in enumerate(nodes)}


def _place(node: TaintedCall) -> _Place:
    return node.session, node.seq


def _uses(found: Contamination) -> dict[tuple[_Place, _Place], list[TaintedBy]]:
    """Return the tainted values of each call, by source and call."""
    uses: dict[tuple[_Place, _Place], list[TaintedBy]] = {}
    for call in found.calls:
        for by in call.tainted_by:
            uses.setdefault(((by.session, by.seq), _place(call)), []).append(by)
    return uses


def _edges(found: Contamination) -> list[GraphEdge[_Place]]:
    return [GraphEdge(source, target) for source, target in _uses(found)]


def _label(node: TaintedCall) -> str:
    why = f"\n{'; '.join(node.why)}" if node.why else ""
    return f"{node.seq} {node.server}/{node.tool}{why}"


def _quoted(text: str) -> str:
    """Return a text inside a quoted string of Graphviz."""
    clean = "\n".join(map(escape_unprintable, text.split("\n")))
    return clean.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _entities(text: str) -> str:
    """Return a text inside a quoted string of Mermaid, which is HTML."""
    clean = map(escape_unprintable, text.split("\n"))
    escaped = (
        line.replace("&", "#amp;").replace("<", "#lt;").replace(">", "#gt;").replace('"', "#quot;")
        for line in clean
    )
    return "<br/>".join(escaped)
