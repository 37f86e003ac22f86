"""`cli.contamination`: a contamination drawn as a tree, for Graphviz and for Mermaid, whatever the tools are called."""

import json
import re

import pytest
from msgspec import structs

from turnlog.cli.contamination import as_dot, as_mermaid, as_tree, beyond_mermaid
from turnlog.cli.render import json_line
from turnlog.core.kinds import MatchEvidence
from turnlog.core.text.terminal import escape_unprintable
from turnlog.provenance.graph import DEEPEST
from turnlog.sessions.lineage.taint import Contamination, TaintedBy, TaintedCall

HOSTILE = (
    'a"] --> b["', "a\nn9 -> n0", "\x1b]0;owned\x07\x1b[2J", "\u202egnp.exe\u2066", "<img src=x onerror=y>",
    "#quot;#lt;script#gt;", '%%{init: {"theme": "dark"}}%%', "`code` \\N \\G \\", "|x| ; end", "\r\t\0\x9b1m",
    "\ud800", "snow ☃ 雪", "}", "]", "&amp;",
)  # fmt: skip
BIDI = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]")
_DOT_LABEL = r'"(?:[^"\\\n]|\\[\\"n])*"'
DOT_LINE = re.compile(
    rf"  n\d+ \[label={_DOT_LABEL}(?:, style=filled)?\];|  n\d+ -> n\d+ \[label={_DOT_LABEL}\];"
)
_MERMAID_LABEL = r'"(?:[\w .,:/()-]|#\d+;|<br/>)*"'
MERMAID_LINE = re.compile(
    rf"  n\d+\[{_MERMAID_LABEL}\]|  n\d+ -->\|{_MERMAID_LABEL}\| n\d+|  class(?:Def source stroke-width:3px| [n\d,]+ source)"
)


def tainted(seq: int, tool: str, *used: int, why: tuple[str, ...] = ()) -> TaintedCall:
    by = [
        TaintedBy(
            session="s",
            seq=source,
            evidence=MatchEvidence.ENTITY,
            pointer=f"/{tool}",
            place="/content/0/text",
        )
        for source in used
    ]
    return TaintedCall(
        session="s",
        seq=seq,
        call=f"call-{seq}",
        attempt=1,
        server=tool,
        tool=tool,
        input=f'{{"{tool}": 1}}',
        kind=None,
        why=list(why),
        endorsed=tool if why else None,
        tainted_by=by,
        discarded=False,
    )


def contamination(sources: list[TaintedCall], calls: list[TaintedCall]) -> Contamination:
    return Contamination(
        session="s",
        head=9,
        after=None,
        until=9,
        to=None,
        sources=sources,
        calls=calls,
        weak=2,
        partial=["one\n\x1b[31mtwo"],
    )


def hostile() -> Contamination:
    """Return a source for each hostile name, and 20 calls that used each of them: 300 edges."""
    sources = [tainted(n, name, why=(name, "marked: x")) for n, name in enumerate(HOSTILE)]
    calls = [tainted(100 + n, HOSTILE[n % len(HOSTILE)], *range(len(HOSTILE))) for n in range(20)]
    return contamination(sources, calls)


@pytest.mark.parametrize("draw", [as_tree, as_dot, as_mermaid])
def test_nothing_that_steers_a_terminal_or_hides_text_is_drawn(draw: type) -> None:
    for line in draw(hostile()):
        assert line == escape_unprintable(line)
        assert not BIDI.search(line)


def test_names_of_tools_cannot_leave_their_label_in_graphviz() -> None:
    first, layout, *lines, last = as_dot(hostile())
    assert (first, layout, last) == ("digraph taint {", "  rankdir=LR; node [shape=box];", "}")
    assert [line for line in lines if not DOT_LINE.fullmatch(line)] == []
    assert len(lines) == len(HOSTILE) + 20 + 300


def test_names_of_tools_cannot_leave_their_label_in_mermaid() -> None:
    first, *lines = as_mermaid(hostile())
    assert first == "flowchart LR"
    assert [line for line in lines if not MERMAID_LINE.fullmatch(line)] == []
    assert len(lines) == len(HOSTILE) + 20 + 300 + 2
    assert "#60;img src#61;x onerror#61;y#62;" in "\n".join(lines)


def test_json_keeps_the_names_and_is_one_line() -> None:
    line = json_line(contamination([tainted(1, name, why=("x",)) for name in HOSTILE[:-5]], []))
    assert line == escape_unprintable(line)
    assert [one["tool"] for one in json.loads(line)["sources"]] == list(HOSTILE[:-5])


def test_a_chain_of_5000_calls_is_drawn_in_lines_of_bounded_length() -> None:
    first = tainted(0, "read", why=("marked by a rule",))
    found = contamination([first], [tainted(n, "use", n - 1) for n in range(1, 5001)])
    lines = list(as_tree(found))
    assert max(map(len, lines)) < 3 * DEEPEST + 100
    assert sum("  (what follows: see below)" in line for line in lines) == 4999 // DEEPEST
    numbers = [re.search(r"\d+", line) for line in lines[1:-2]]
    assert {int(number[0]) for number in numbers if number} == set(range(5001))
    assert len(list(as_dot(found))) == 3 + 5001 + 5000
    assert len(json.loads(json_line(found))["calls"]) == 5000


def test_what_mermaid_does_not_draw_without_more_settings_is_said() -> None:
    few = contamination([tainted(0, "read", why=("x",))], [tainted(1, "use", 0)])
    assert beyond_mermaid(few, list(as_mermaid(few))) == ""
    many = contamination(
        [tainted(0, "read", why=("x",))], [tainted(n, "use", 0) for n in range(1, 502)]
    )
    assert beyond_mermaid(many, list(as_mermaid(many))).startswith("this has 501 edges and ")
    assert beyond_mermaid(few, ["x" * 50_000]).startswith("this has 1 edge and 50001 characters")


def test_a_call_that_used_an_output_of_another_store_is_drawn() -> None:
    call = tainted(5, "use", 4)
    by = structs.replace(call.tainted_by[0], session=None, seq=None)
    found = contamination([], [structs.replace(call, tainted_by=[by]), tainted(6, "then", 5)])
    assert list(as_tree(structs.replace(found, after=3)))[:4] == [
        "session s, up to commit 9, behind commit 3",
        "an output that is not in this store",
        '└─ 5 use/use {"use": 1}  /use (entity)',
        '   └─ 6 then/then {"then": 1}  /then (entity)',
    ]
    assert "n0 -> n1" in "\n".join(as_dot(found))


def test_a_source_that_used_values_of_another_stands_only_in_the_tree_of_that_one() -> None:
    first, second = tainted(2, "read", why=("marked",)), tainted(4, "write", 2, why=("error",))
    lines = list(
        as_tree(contamination([first, second, tainted(6, "list", why=("error",))], [second]))
    )
    assert [line.split(" {")[0] for line in lines[1:4]] == [
        "2 read/read",
        "└─ 4 write/write",
        "6 list/list",
    ]
    assert lines[3].endswith(": no use of it was found")
    assert not any("4 write" in line for line in lines[3:])
