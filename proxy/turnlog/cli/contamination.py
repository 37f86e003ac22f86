"""A contamination as lines of text: a tree, or a graph for Graphviz or Mermaid."""

from collections.abc import Iterator

from turnlog.core.text.terminal import escape_unprintable
from turnlog.core.text.units import counted
from turnlog.provenance.graph import GraphEdge, TreeLine, tree_lines
from turnlog.sessions.lineage.taint import Contamination, TaintedBy, TaintedCall

_Place = tuple[str | None, int | None]


def as_tree(found: Contamination) -> Iterator[str]:
    """Yield the lines of a tree that goes from each source to the calls that used its values."""
    nodes, edges = _nodes(found), _edges(found)
    yield f"session {found.session}, up to commit {found.head}"
    if not nodes:
        yield "no contamination found so far"
    roots = [_place(one) for one in found.sources]
    unused = [place for place in roots if place not in {edge.source for edge in edges}]
    for line in tree_lines(edges, [place for place in roots if place not in unused]):
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
            yield f'  {names[source]} -> {names[target]} [label="{_quoted(_used(by))}"];'
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
            yield f'  {names[source]} -->|"{_entities(_used(by))}"| {names[target]}'
    marked = [names[_place(one)] for one in found.sources]
    if marked:
        yield "  classDef source stroke-width:3px"
        yield f"  class {','.join(marked)} source"


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
