"""Slices compose: what two filters want together is what both want, and ranges that meet are one."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import structs

from e2e.stores import MINUTE, START, Call, session_id, written
from kit.commits import changed
from property.test_store_index import folder
from turnlog.core.kinds import Flag, Status
from turnlog.sessions.log import Query, TurnRange, read_rows
from turnlog.store.base import Filter
from turnlog.store.lmdb import LmdbReader
from turnlog.store.read.view import View

WORK = session_id("work")
ENDINGS: list[dict[str, Any]] = [
    {"status": None},
    {},
    {"status": Status.ERROR, "error": "timeout", "error_kind": "response_timeout"},
    {"status": Status.ERROR, "error": "timeout", "error_kind": "queue_timeout"},
    {"status": Status.ERROR, "error": "tool_error", "error_kind": "tool_failed"},
]
NARROW: list[dict[str, Any]] = [
    {"tool": "read*"},
    {"tool": "files/write"},
    {"server": "files"},
    {"error": "timeout"},
    {"kind": "queue_timeout"},
    {"flag": "late"},
    {"since": START + 4 * MINUTE},
    {"until": START + 9 * MINUTE},
    {"field": "files_modified"},
    {"path": "/src/*"},
    {"path": "/src/a.py"},
    {"session": WORK},
    {"turns": TurnRange(2, None)},
    {"turns": TurnRange(None, 2)},
]


def calls() -> st.SearchStrategy[list[Call]]:
    files = (
        changed("created", "/src/a.py"),
        changed("modified", "/src/b.py"),
        changed("deleted", "/c"),
    )
    call = st.builds(
        Call,
        flags=st.sampled_from([(), (Flag.LATE,)]),
        tool=st.sampled_from(["read", "read_all", "write"]),
        server=st.sampled_from(["files", "git"]),
        session=st.sampled_from(["work", "work", "play"]),
        delta=st.sampled_from([(), *((one,) for one in files), files]),
        minute=st.just(0),
    )
    return st.lists(st.builds(ended, call, st.sampled_from(ENDINGS)), min_size=1, max_size=14)


def ended(call: Call, ending: dict[str, Any]) -> Call:
    """Return a call that ended so, or did not."""
    return structs.replace(call, **ending)


def at_times(plan: list[Call]) -> list[Call]:
    """Return the calls in the order of time, every third one in another turn than that before."""
    return [
        structs.replace(call, minute=number + number // 3 * 3) for number, call in enumerate(plan)
    ]


@contextmanager
def store(plan: list[Call], flush_every: int) -> Generator[View]:
    with folder() as name:
        asyncio.run(written(Path(name) / "data", at_times(plan), flush_every=flush_every))
        with LmdbReader.open(Path(name) / "data") as reader, reader.view() as view:
            yield view


def query(*narrow: dict[str, Any]) -> Query:
    """Return the query that wants all of these together."""
    given = {name: value for one in narrow for name, value in one.items()}
    own = {name: given.pop(name) for name in ("session", "turns") if name in given}
    return Query(**own, match=Filter(**given))


def turns_of(view: View) -> int:
    """Return how many turns the session has."""
    row = view.session(WORK)
    return row.place.turn if row is not None else 0


def slice_(view: View, wanted: Query) -> list[tuple[str, int]]:
    """Return the attempts that a query wants, the same from either end."""
    found = [(row.session, row.intent_seq) for row in read_rows(view, wanted)]
    newest = structs.replace(wanted, last=1000)
    assert [(row.session, row.intent_seq) for row in read_rows(view, newest)] == found
    return found


@settings(max_examples=60)
@given(
    plan=calls(),
    flush_every=st.sampled_from([1, 5, 1000]),
    pair=st.lists(
        st.sampled_from(NARROW), min_size=2, max_size=3, unique_by=lambda d: next(iter(d))
    ),
)
def test_what_filters_want_together_is_what_each_of_them_wants(
    plan: list[Call], flush_every: int, pair: list[dict[str, Any]]
) -> None:
    with store(plan, flush_every) as view:
        # Of one session a turn that it has not is an error.
        assume(
            not ({"session": WORK} in pair and any("turns" in one for one in pair))
            or turns_of(view) > 1
        )
        whole = slice_(view, Query())
        parts = [set(slice_(view, query(one))) for one in pair]
        assert slice_(view, query(*pair)) == [one for one in whole if all(one in p for p in parts)]


@settings(max_examples=40)
@given(
    plan=calls(),
    narrow=st.sampled_from([{}, {"path": "/src/*"}, {"error": "timeout"}, {"tool": "read*"}]),
    cut=st.integers(0, 20),
    turn=st.integers(0, 5),
)
def test_ranges_that_meet_are_the_whole(
    plan: list[Call], narrow: dict[str, Any], cut: int, turn: int
) -> None:
    with store(plan, 1000) as view:
        mine = {**narrow, "session": WORK}
        whole = slice_(view, query(mine))
        before, after = ({**mine, "before": cut}, {**mine, "after": cut - 1})
        assert slice_(view, query(before)) + slice_(view, query(after)) == whole
        newest = turns_of(view)
        if newest < 2:
            return  # of one turn nothing can be cut off
        last = 1 + turn % (newest - 1)
        earlier, later = TurnRange(None, last), TurnRange(last + 1, None)
        parts = [slice_(view, query({**mine, "turns": turns})) for turns in (earlier, later)]
        assert sorted(parts[0] + parts[1]) == sorted(whole)
