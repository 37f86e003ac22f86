"""A writer that is killed at any moment loses nothing that it acknowledged."""

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

import pytest

from kit.prefork import Printer, printing
from turnlog.core.commit import GENESIS, Commit, body_digest, digest
from turnlog.core.kinds import CommitKind, Status
from turnlog.store.base import Filter
from turnlog.store.lmdb import LmdbReader
from turnlog.store.read.view import View

Acknowledged = dict[tuple[bytes, int], bytes]


def writer(data: Path, callers: int, limit: int = 0) -> AbstractContextManager[Printer]:
    """Run a writer in a process of its own until the block ends."""
    return printing("faults.store_child", str(data), str(callers), str(limit))


def lines(child: Printer) -> Iterator[list[str]]:
    """Yield the words of each line that a writer printed."""
    for line in child.printed:
        assert line.endswith("\n")
        yield line.split()


def ready(child: Printer) -> list[list[str]]:
    """Wait until a writer is open; return what it recovered."""
    found: list[list[str]] = []
    for words in lines(child):
        if words == ["ready"]:
            return found
        found.append(words)
    raise AssertionError("the writer ended before it was ready")


def kill_after(child: Printer, count: int) -> Acknowledged:
    """Kill a writer behind its `count`th acknowledgement; return all that it gave."""
    found: Acknowledged = {}
    for words in lines(child):
        _, session, seq, chained = words
        found[bytes.fromhex(session), int(seq)] = bytes.fromhex(chained)
        if len(found) == count:
            child.process.kill()
    return found


def chain_of(view: View, session: bytes) -> list[Commit]:
    """Return a session's commits, whose chain is whole."""
    commits = list(view.commits(session))
    assert [c.link.seq for c in commits] == list(range(len(commits)))
    assert commits[0].link.prev == GENESIS
    assert all(b.link.prev == a.hash for a, b in pairwise(commits))
    for commit, (_, header, body) in zip(commits, view.headers(session), strict=True):
        assert digest(header) == commit.hash
        assert body_digest(body or b"") == commit.link.body_hash
    return commits


def check(data: Path, acknowledged: Acknowledged) -> None:
    """Assert that all acknowledged commits are there, chained, and that every attempt ended."""
    reader = LmdbReader.open(data)
    with reader.view() as view:
        for row in list(view.sessions()):
            commits = chain_of(view, row.session)
            for (session, seq), chained in acknowledged.items():
                if session == row.session:
                    assert commits[seq].hash == chained
        held = {row.session for row in view.sessions()}
        assert {session for session, _ in acknowledged} <= held
        for attempt in view.attempts(Filter(), newest_first=False):
            assert len(attempt) == 2
    reader.close()


def recover(data: Path) -> list[list[str]]:
    """Open the store in another process, and return what it recovered."""
    with writer(data, 0) as child:
        return ready(child)


@pytest.mark.promise("STORE-2")
@pytest.mark.parametrize("callers", [1, 8])
def test_every_acknowledged_commit_survives_a_kill(tmp_path: Path, callers: int) -> None:
    data = tmp_path / "data"
    dice = random.Random(callers)
    acknowledged: Acknowledged = {}
    for _ in range(6):
        with writer(data, callers) as child:
            ready(child)
            acknowledged |= kill_after(child, dice.randint(1, 150))
    recover(data)
    check(data, acknowledged)


@pytest.mark.promise("REC-11")
def test_open_attempts_of_a_killed_writer_become_unknown_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    acknowledged: Acknowledged = {}
    closed: list[list[str]] = []
    for _ in range(5):
        with writer(data, 4) as child:
            ready(child)
            acknowledged |= kill_after(child, 41)
        closed = recover(data)
        # Else all attempts that had begun had ended when the kill came.
        if closed:
            break
    assert recover(data) == []
    check(data, acknowledged)
    reader = LmdbReader.open(data)
    with reader.view() as view:
        unknown = [attempt[-1] for attempt in view.unsettled()]
    reader.close()
    assert unknown
    assert {c.facts.status for c in unknown} <= {Status.UNKNOWN}
    assert sorted(c.facts.call.hex() for c in unknown) == sorted(words[3] for words in closed)


def test_processes_that_open_at_once_recover_an_attempt_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with writer(data, 8) as child:
        ready(child)
        acknowledged = kill_after(child, 83)
    with writer(data, 0) as one, writer(data, 0) as two, writer(data, 0) as three:
        closed = [words for child in (one, two, three) for words in ready(child)]
    check(data, acknowledged)
    reader = LmdbReader.open(data)
    with reader.view() as view:
        unknown = [a[-1] for a in view.unsettled()]
    reader.close()
    assert sorted(words[3] for words in closed) == sorted(c.facts.call.hex() for c in unknown)


@pytest.mark.promise("REC-25")
def test_several_processes_write_one_chain_for_each_session(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with (
        writer(data, 3, 60) as one,
        writer(data, 3, 60) as two,
        writer(data, 3, 60) as three,
        writer(data, 3, 60) as four,
    ):
        acknowledged: Acknowledged = {}
        for child in (one, two, three, four):
            assert ready(child) == []
            for words in lines(child):
                if words != ["closed"]:
                    acknowledged[bytes.fromhex(words[1]), int(words[2])] = bytes.fromhex(words[3])
            assert child.process.wait() == 0
    assert len(acknowledged) == 4 * 3 * 60 * 2
    check(data, acknowledged)
    reader = LmdbReader.open(data)
    with reader.view() as view:
        rows = list(view.sessions())
        assert len(rows) == 3
        for row in rows:
            commits = chain_of(view, row.session)
            assert len(commits) == 1 + 4 * 60 * 2
            assert len({c.link.epoch for c in commits}) == 4
            for end in commits:
                if end.facts.kind is CommitKind.OUTCOME:
                    assert end.link.ref is not None
                    assert commits[end.link.ref].facts.call == end.facts.call
        assert list(view.unsettled()) == []
    reader.close()


def test_a_killed_process_among_several_harms_no_other(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with writer(data, 2, 100) as survivor:
        ready(survivor)
        acknowledged: Acknowledged = {}
        for count in (5, 21, 33):
            with writer(data, 2) as victim:
                ready(victim)
                acknowledged |= kill_after(victim, count)
        for words in lines(survivor):
            if words != ["closed"]:
                acknowledged[bytes.fromhex(words[1]), int(words[2])] = bytes.fromhex(words[3])
        assert survivor.process.wait() == 0
    recover(data)
    check(data, acknowledged)
