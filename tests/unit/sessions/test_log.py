from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from e2e.stores import Call, fill, session_id
from turnlog.sessions.errors import NotFoundError
from turnlog.sessions.log import Query, TurnRange, find_session, only_session, read_rows
from turnlog.store.base import Filter
from turnlog.store.lmdb import LmdbReader
from turnlog.store.read.view import View

CALLS = [Call(tool=f"t{n}", minute=10 * n) for n in range(6)]
WORK = session_id("work")


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    fill(tmp_path, CALLS)
    with LmdbReader.open(tmp_path) as reader, reader.view() as view:
        yield view


def _tools(view: View, query: Query) -> list[str]:
    return [row.tool for row in read_rows(view, query)]


def test_all_attempts_come_oldest_first(view: View) -> None:
    assert _tools(view, Query()) == ["t0", "t1", "t2", "t3", "t4", "t5"]


def test_the_last_few_come_oldest_first(view: View) -> None:
    assert _tools(view, Query(last=2)) == ["t4", "t5"]
    assert _tools(view, Query(last=2, match=Filter(until=2**62))) == ["t4", "t5"]


@pytest.mark.parametrize(
    ("seq", "count", "expected"),
    [
        (5, 3, ["t1", "t2", "t3"]),
        (6, 3, ["t1", "t2", "t3"]),
        (1, 3, ["t0", "t1", "t2"]),
        (12, 3, ["t4", "t5"]),
        (5, 1, ["t2"]),
        (0, 2, ["t0", "t1"]),
    ],
)
def test_around_returns_the_commit_in_the_middle(
    view: View, seq: int, count: int, expected: list[str]
) -> None:
    assert _tools(view, Query(session=WORK, around=seq, last=count)) == expected


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (TurnRange(2, 3), ["t1", "t2"]),
        (TurnRange(-2, None), ["t4", "t5"]),
        (TurnRange(None, -5), ["t0", "t1"]),
        (TurnRange(-99, 1), ["t0"]),
        (TurnRange(4, 4), ["t3"]),
        (TurnRange(5, 2), []),
    ],
)
def test_turns_count_from_either_end(view: View, turns: TurnRange, expected: list[str]) -> None:
    assert _tools(view, Query(session=WORK, turns=turns)) == expected


def test_a_session_is_found_by_any_of_its_names(view: View) -> None:
    assert find_session(view, "work") == WORK
    with pytest.raises(NotFoundError, match="no session is called 'play'"):
        find_session(view, "play")


def test_an_ambiguous_session_prefix_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, [structs.replace(CALLS[0], session=name) for name in ("work", "krow")])
    with LmdbReader.open(tmp_path) as reader, reader.view() as view:
        with pytest.raises(NotFoundError, match="means 2 sessions, name one of: 01"):
            find_session(view, WORK.hex()[:8])
        assert only_session(view) is None


def test_the_only_session_needs_no_name(view: View) -> None:
    assert only_session(view) == WORK


def test_turns_from_the_end_need_a_session(view: View) -> None:
    with pytest.raises(NotFoundError, match="need a session"):
        read_rows(view, Query(session=bytes(16), turns=TurnRange(-1, None)))
