"""`make bench-values`: how well values are found in arguments, on the labelled corpus of the tests.

Shares of cases, not times; they depend on the seeds alone. Below them, what a look-up costs.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from timeit import repeat

from kit.value_corpus import BLIND, CHANGES, LOOKALIKES, Judged, judge, make_session
from turnlog.core.kinds import MatchEvidence
from turnlog.provenance.values import SessionValues, ValueSource

RECALL, FALSE = 0.95, 0.02
TEXT = (
    "The parser reads each message in order and keeps a copy of what it needs. See docs/parsing.md "
    "for the format, or ask jane.doe@example.com about ticket PARSE-1234 of 2026-11-30. "
)
LINE = (
    "2026-11-30T04:50:37Z INFO [worker-3] request req_8c41d{} path=/srv/app/item_{}.py took 4711ms"
)


def share(answers: Iterable[bool]) -> float:
    """Return which part of the answers is yes."""
    listed = list(answers)
    return sum(listed) / max(len(listed), 1)


def show(title: str, cases: Sequence[Judged], names: Iterable[str]) -> None:
    """Print a table of cases by how they were changed."""
    print(f"\n{title:40}{'cases':>8}{'found':>8}{'sure':>8}{'unverified':>12}")
    for name in [*names, ""]:
        some = [one for one in cases if name in (one.case.change, "")]
        print(
            f"{name or 'all':40}{len(some):8}{share(one.is_found for one in some):8.3f}"
            f"{share(one.is_sure for one in some):8.3f}"
            f"{share(one.is_unverified for one in some):12.3f}"
        )


def show_evidence(cases: Sequence[Judged]) -> None:
    """Print how often each kind of evidence connects what only looks alike, by kinds of values."""
    print(f"\n{'false, by evidence':40}" + "".join(f"{kind:>9}" for kind in MatchEvidence))
    by_kind = sorted(cases, key=lambda one: one.case.kind)
    groups: list[tuple[str, list[Judged]]] = [
        (kind, list(some)) for kind, some in groupby(by_kind, lambda one: one.case.kind)
    ]
    for kind, some in [*groups, ("all", list(cases))]:
        shares = (share(evidence in one.evidence for one in some) for evidence in MatchEvidence)
        print(f"{kind:40}" + "".join(f"{part:9.4f}" for part in shares))


def contents() -> Mapping[str, bytes]:
    """Return results of some 500 bytes, by what they are."""
    rows = [{"id": 48210 + n, "path": f"/srv/app/src/item_{n}.py", "ok": True} for n in range(8)]
    texts = {
        "prose": (TEXT * 3)[:430],
        "a log": "\n".join(LINE.format(n, n) for n in range(5))[:430],
        "JSON in a text": json.dumps(rows[:6]),
        "a listing": "\n".join(f"[FILE] module_{n}.py" for n in range(22)),
    }
    results = {name: {"content": [{"type": "text", "text": text}]} for name, text in texts.items()}
    return {name: json.dumps(result).encode() for name, result in results.items()} | {
        "structured content": json.dumps({"structuredContent": {"rows": rows[:7]}}).encode()
    }


def arguments() -> Mapping[str, bytes]:
    """Return arguments by what they are, some of 500 bytes."""
    shell = (
        "cd /srv/app && grep -rn 'item_3' src | head -n 20 && cat /srv/app/src/item_3.py > a.txt"
    )
    values: Mapping[str, dict[str, str]] = {
        "a path": {"path": "/srv/app/src/item_3.py"},
        "a shell line": {"command": shell},
        "a query": {
            "sql": "SELECT id, name FROM items WHERE id = 48212 ORDER BY created_at LIMIT 50"
        },
        "a file of prose": {"path": "/srv/app/src/item_3.py", "content": (TEXT * 3)[20:430]},
    }
    return {name: json.dumps(value).encode() for name, value in values.items()}


def show_times() -> None:
    """Print what remembering and looking up cost."""
    known = SessionValues()
    print(f"\n{'least of 200 runs':40}{'bytes':>8}{'us':>8}")
    for name, content in contents().items():
        known.add(ValueSource(b"1"), content)
        show_time(f"remember {name}", content, partial(remember, content))
    for name, content in arguments().items():
        show_time(f"look up {name}", content, partial(known.look_up, content))


def remember(content: bytes) -> None:
    """Remember the values of an output in a session that has seen no other."""
    SessionValues().add(ValueSource(b"1"), content)


def show_time(name: str, content: bytes, work: Callable[[], object]) -> None:
    """Print how long some work takes."""
    least = min(repeat(work, number=20, repeat=200)) / 20
    print(f"{name:40}{len(content):8}{least * 1e6:8.1f}")


def judged(seeds: Iterable[str], sessions: int) -> Iterator[Judged]:
    """Yield what a look-up says of all cases."""
    for seed in seeds:
        for number in range(sessions):
            yield from judge(make_session(f"{seed}-{number}"))


def main() -> None:
    """Print all tables, and whether the goals are met."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.provenance_corpus", description=__doc__
    )
    parser.add_argument("--sessions", type=int, default=20, help="sessions of each seed (20)")
    parser.add_argument("--seeds", nargs="+", default=["1", "2", "3"], help="any texts (1 2 3)")
    options = parser.parse_args()
    cases = list(judged(options.seeds, options.sessions))
    changed, alike = (
        [one for one in cases if one.case.change in names] for names in (CHANGES, LOOKALIKES)
    )
    show("copied or reformatted", changed, CHANGES)
    show("only alike", alike, LOOKALIKES)
    show_evidence(alike)
    show("blind spots", [one for one in cases if one.case.change in BLIND], BLIND)
    show_times()
    recall, false = share(one.is_sure for one in changed), share(one.is_sure for one in alike)
    print(
        f"\nsure of {recall:.3f} of the copies (goal {RECALL}), of {false:.4f} of the rest (goal {FALSE})"
    )


if __name__ == "__main__":
    main()
