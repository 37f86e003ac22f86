"""`store.read.attempts`: what changed a file is found by an index, and nothing else is read for it."""

from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from e2e.stores import Call, fill, session_id
from kit.commits import changed
from turnlog.core.kinds import Status
from turnlog.sessions import log
from turnlog.sessions.log import Query, TurnRange
from turnlog.store.base import Filter
from turnlog.store.lmdb import LmdbReader
from turnlog.store.log.environment import open_environment
from turnlog.store.log.tables import NAMES, Tables
from turnlog.store.read.attempts import commits_of
from turnlog.store.read.snapshot import Snapshot, TailCache

OTHERS = 40
CALLS = [
    Call(tool="write", minute=0, delta=(changed("created", "/src/a.py"),)),
    Call(tool="write", minute=0, session="other", delta=(changed("created", "/src/b.py"),)),
    *(Call(tool="read", minute=1) for _ in range(OTHERS)),
    *(Call(tool="read", minute=1, session="other") for _ in range(OTHERS)),
    Call(
        tool="read", minute=1, status=Status.ERROR, error="timeout", error_kind="response_timeout"
    ),
    Call(tool="write", minute=9, delta=(changed("modified", "/src/a.py"),)),
    Call(tool="write", minute=9, session="other", delta=(changed("deleted", "/src/a.py"),)),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which nobody can read the calls that changed nothing, and ended well."""
    data = tmp_path_factory.mktemp("postings") / "data"
    fill(data, CALLS)
    spoil(data)
    return data


def spoil(data: Path) -> None:
    """Have everything indexed, then overwrite the runs of the reads."""
    with LmdbReader.open(data) as reader, reader.view() as view:
        reads = [
            commit.position
            for attempt in view.attempts(Filter(tool="read"), newest_first=False)
            for commit in attempt
            if attempt[-1].facts.status is Status.OK
        ]
    with lmdb.open(str(data / "log"), max_dbs=len(NAMES), map_size=1 << 40) as env:
        table = env.open_db(b"log", create=False)
        with env.begin(write=True, db=table) as txn:
            for position in reads:
                assert txn.replace(position.to_bytes(8, "big"), b"damaged")
    assert len(reads) == 4 * OTHERS


@pytest.fixture(params=["newest", "oldest"])
def last(request: pytest.FixtureRequest) -> int | None:
    """How many are asked for: without a number the oldest come first."""
    return 50 if request.param == "newest" else None


def found(data: Path, query: Query) -> list[tuple[str, str]]:
    """Return what a query finds, without having met any of the others."""
    with LmdbReader.open(data) as reader, reader.view() as view:
        rows = list(log.read_rows(view, query))
        assert view.left_out == 0
    return [(row.delta[-1].op, row.delta[-1].key) for row in rows]


A = [("created", "/src/a.py"), ("modified", "/src/a.py"), ("deleted", "/src/a.py")]


@pytest.mark.parametrize("glob", ["/src/a.py", "/src/a*", "*a.py"])
def test_changes_of_a_file_are_found_across_sessions(
    data: Path, glob: str, last: int | None
) -> None:
    assert found(data, Query(match=Filter(path=glob), last=last)) == A
    assert found(data, Query(match=Filter(path=glob, field="files_modified"), last=last)) == A


def test_changes_of_a_field_are_found_across_sessions(data: Path, last: int | None) -> None:
    query = Query(match=Filter(field="files_modified"), last=last)
    assert found(data, query) == [A[0], ("created", "/src/b.py"), *A[1:]]
    assert found(data, Query(match=Filter(field="facts"), last=last)) == []


def test_in_a_session_only_its_own_changes_are_found(data: Path, last: int | None) -> None:
    work, other = session_id("work"), session_id("other")
    assert found(data, Query(session=work, match=Filter(path="*.py"), last=last)) == A[:2]
    assert found(data, Query(session=other, match=Filter(path="*a.py"), last=last)) == A[2:]
    failed = Filter(kind="response_timeout")
    assert len(found(data, Query(session=work, match=failed, last=last))) == 1


def test_a_range_of_turns_reads_no_earlier_turn(data: Path, last: int | None) -> None:
    query = Query(
        session=session_id("work"),
        turns=TurnRange(-1),
        match=Filter(field="files_modified"),
        last=last,
    )
    assert found(data, query) == [("modified", "/src/a.py")]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snapshot]:
    """Three hundred files that are changed one after the other, the last one again."""
    data = tmp_path_factory.mktemp("names") / "data"
    names = [f"/src/{number}.py" for number in range(300)]
    fill(
        data,
        [Call(tool="write", minute=0, delta=(changed("x", n),)) for n in (*names, names[-1])],
    )
    env = open_environment(data / "log", readonly=True, tables=len(NAMES))
    found = Snapshot(env, Tables.of(env, create=False), TailCache())
    yield found
    found.close()
    env.close()


@pytest.mark.parametrize("most", [1, 299, 300, 301, 1000])
def test_results_come_even_if_there_is_too_much_to_search(snapshot: Snapshot, most: int) -> None:
    last = snapshot.last
    few, all_ = Filter(path="*/299.py"), Filter(path="*.py")
    newest = list(commits_of(snapshot, few, 1, newest_first=True, most=most) or ())
    assert newest == sorted(newest, reverse=True)
    assert newest[:2] == [last, last - 2]
    newest = list(commits_of(snapshot, all_, 1, newest_first=True, most=most) or ())
    assert newest == list(range(last, 1, -2))
    oldest = commits_of(snapshot, all_, 1, newest_first=False, most=most)
    assert oldest is None if most < 301 else list(oldest or ()) == newest[::-1]
