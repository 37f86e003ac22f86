"""A contamination as lines of text: a tree, or a graph for Graphviz or Mermaid."""

import re
from collections.abc import Iterator
from typing import Final

from turnlog.core.text.terminal import escape_unprintable
from turnlog.core.text.units import counted
from turnlog.provenance.graph import GraphEdge, TreeLine, tree_lines
from turnlog.sessions.lineage.taint import Contamination, TaintedBy, TaintedCall

_Place = tuple[str | None, int | None]
_SPECIAL: Final = re.compile(r"[^\w .,:/()-]")
"""What Mermaid or HTML might read as their own: also `%%{` for settings, and a `#` of an entity."""
_UNKNOWN: Final = "an output that is not in this store"
_MERMAID_EDGES: Final = 500
_MERMAID_CHARS: Final = 50_000
"""What Mermaid draws unless the page sets more (`maxEdges`, `maxTextSize`)."""


def as_tree(found: Contamination) -> Iterator[str]:
    """Yield the lines of a tree that goes from each source to the calls that used its values."""
    nodes, edges = _nodes(found), _edges(found)
    after = "" if found.after is None else f", behind commit {found.after}"
    yield f"session {found.session}, up to commit {found.until}{after}"
    if not nodes:
        yield "no contamination found so far"
    used = dict.fromkeys(edge.source for edge in edges)
    roots = [_place(one) for one in found.sources]
    # One that used values of another source stands in that one's tree, with its reasons.
    unused = [place for place in roots if place not in used and not nodes[place].tainted_by]
    unknown = [place for place in used if place not in nodes]
    for line in tree_lines(edges, [*(place for place in roots if place in used), *unknown]):
        node = nodes.get(line.place)
        yield escape_unprintable(_drawn(line, node)) if node else _UNKNOWN
    for place in unused:
        yield escape_unprintable(f"{_title(nodes[place])}: no use of it was found")
    if found.weak:
        yield f"besides, {counted(found.weak, 'value')} by weak evidence"
    for said in found.partial:
        yield escape_unprintable(f"partial: {said}")


def _drawn(line: TreeLine[_Place], node: TaintedCall) -> str:
    before = "".join("   " if is_last else "│  " for is_last in line.lasts[:-1])
    if line.lasts:
        before += "└─ " if line.lasts[-1] else "├─ "
    uses = [by for by in node.tainted_by if (by.session, by.seq) == line.above]
    how = f"  {_used(uses)}" if uses else ""
    rest = "  (what follows: see above)" if line.is_repeated else ""
    rest = "  (what follows: see below)" if line.is_cut else rest
    return f"{before}{_title(node)}{how}{rest}"


def _used(uses: list[TaintedBy]) -> str:
    return ", ".join(f"{by.pointer or '(all)'} ({by.evidence})" for by in uses[:3])


def _escaped(uses: list[TaintedBy]) -> str:
    return escape_unprintable(_used(uses))


def _title(node: TaintedCall) -> str:
    parts = [f"{node.seq} {node.server}/{node.tool}", node.input]
    if node.why:
        parts.append(f"[{'; '.join(node.why)}]")
    if node.endorsed is not None:
        parts.append(f"[endorsed: {node.endorsed}]")
    if node.discarded:
        parts.append("[discarded]")
    return " ".join(filter(None, parts))


def as_dot(found: Contamination) -> Iterator[str]:
    """Yield the lines of a graph for Graphviz."""
    yield "digraph taint {"
    yield "  rankdir=LR; node [shape=box];"
    nodes = _nodes(found)
    names = _names(nodes)
    for place, node in nodes.items():
        mark = ", style=filled" if node.why else ""
        yield f'  {names[place]} [label="{_quoted(_label(node))}"{mark}];'
    for (source, target), by in _uses(found).items():
        if source in names:
            yield f'  {names[source]} -> {names[target]} [label="{_quoted([_escaped(by)])}"];'
    yield "}"


def as_mermaid(found: Contamination) -> Iterator[str]:
    """Yield the lines of a flowchart for Mermaid."""
    yield "flowchart LR"
    nodes = _nodes(found)
    names = _names(nodes)
    for place, node in nodes.items():
        yield f'  {names[place]}["{_entities(_label(node))}"]'
    for (source, target), by in _uses(found).items():
        if source in names:
            yield f'  {names[source]} -->|"{_entities([_escaped(by)])}"| {names[target]}'
    marked = [names[_place(one)] for one in found.sources]
    if marked:
        yield "  classDef source stroke-width:3px"
        yield f"  class {','.join(marked)} source"


def beyond_mermaid(found: Contamination, lines: list[str]) -> str:
    """Return why Mermaid does not draw a flowchart without more settings; empty if it does."""
    edges, size = len(_uses(found)), sum(len(line) + 1 for line in lines)
    if edges <= _MERMAID_EDGES and size <= _MERMAID_CHARS:
        return ""
    return (
        f"this has {counted(edges, 'edge')} and {size} characters, Mermaid draws {_MERMAID_EDGES} and {_MERMAID_CHARS} "
        "unless its maxEdges and maxTextSize say more: narrow it by --to or --after, or use --format dot"
    )


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


def _label(node: TaintedCall) -> list[str]:
    """Return the lines of a node, without what is not printable."""
    lines = [f"{node.seq} {node.server}/{node.tool}"]
    if node.why:
        lines.append("; ".join(node.why))
    return list(map(escape_unprintable, lines))


def _quoted(lines: list[str]) -> str:
    """Return lines inside a quoted string of Graphviz."""
    return "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)


def _entities(lines: list[str]) -> str:
    """Return lines inside a quoted string of Mermaid, which is HTML, with entities as Mermaid writes them."""
    return "<br/>".join(_SPECIAL.sub(lambda found: f"#{ord(found[0])};", line) for line in lines)
