"""`sessions.lineage`: what the log shows of tainted outputs, within bounds."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from e2e.stores import Call, call_id, fill, session_id, turnlog
from turnlog.core.commit import Lineage
from turnlog.core.kinds import Flag, MatchEvidence, ValueOrigin
from turnlog.sessions.lineage.recorded_taint import RecordedTaint
from turnlog.sessions.lineage.taint import ReadingBounds, read_contamination
from turnlog.store.lmdb import LmdbReader
from turnlog.store.read.view import View

WORK = session_id("work")
GONE = b"\0" * 16


def source(call: bytes, **changes: object) -> Lineage:
    told: dict[str, object] = {"origin": ValueOrigin.SOURCED, "call": call, "place": "/0"}
    return Lineage(pointer="/a", **told | changes)  # type: ignore[arg-type]


def chain(length: int) -> list[Call]:
    """Return calls each of which uses the output of the one before; the first one is marked."""
    return [
        Call(
            tool=f"t{n}",
            minute=n,
            input=b'{"a":"deploy-7f3a9c%02d"}' % n,
            output=b'["deploy-7f3a9c%02d"]' % (n + 1),
            flags=(Flag.TAINTED_IN, Flag.TAINTED_OUT) if n else (Flag.TAINT_MARKED,),
            lineage=(source(call_id(n - 1)),) if n else (),
        )
        for n in range(length)
    ]


@contextmanager
def viewed(data: Path) -> Generator[View]:
    with LmdbReader.open(data) as store, store.view() as view:
        yield view


def test_it_ends_where_too_many_calls_are_tainted_and_goes_on_from_there(tmp_path: Path) -> None:
    fill(tmp_path / "data", chain(8))
    with viewed(tmp_path / "data") as view:
        begun = read_contamination(view, WORK, bounds=ReadingBounds(calls=3))
        assert [one.tool for one in begun.calls] == ["t1", "t2"]
        assert (begun.until, begun.head) == (6, 16)
        assert begun.partial == ["it ends at commit 6, with 3 tainted calls"]
        rest = read_contamination(view, WORK, after=begun.until)
        assert [one.tool for one in rest.calls] == ["t3", "t4", "t5", "t6", "t7"]
        assert [one.tool for one in rest.sources] == ["t2"]
        few = read_contamination(view, WORK, bounds=ReadingBounds(uses=2))
        assert [one.tool for one in few.calls] == ["t1", "t2"]
        behind = read_contamination(view, WORK, after=99)
        assert (behind.after, behind.until, behind.calls) == (16, 16, [])
        exactly = read_contamination(view, WORK, bounds=ReadingBounds(calls=8))
        assert (exactly.until, exactly.partial) == (16, [])


def test_progress_is_told_as_commits_are_looked_at(tmp_path: Path) -> None:
    fill(tmp_path / "data", chain(34))
    told: list[tuple[int, int]] = []
    with viewed(tmp_path / "data") as view:
        read_contamination(view, WORK, on_progress=lambda seq, last: told.append((seq, last)))
    assert told == [(0, 68), (64, 68)]


def test_what_was_recorded_is_followed_back_through_a_bounded_number_of_outputs(
    tmp_path: Path,
) -> None:
    fill(tmp_path / "data", [structs.replace(call, flags=()) for call in chain(8)])
    with viewed(tmp_path / "data") as view:
        # Where nobody has marked anything, flags say all.
        unmarked = RecordedTaint(view)
        assert (unmarked.of((call_id(7), 1)), unmarked.is_cut) == (None, False)
    turnlog("taint", "mark", "work:1", "--why", "forged", data=tmp_path / "data")
    with viewed(tmp_path / "data") as view:
        whole = RecordedTaint(view)
        assert (whole.of((call_id(7), 1)), whole.is_cut) == (True, False)
        short = RecordedTaint(view, furthest=4)
        assert (short.of((call_id(7), 1)), short.is_cut) == (None, True)
        assert short.of((call_id(3), 1)) is True
        # What was found is used further.
        assert short.of((call_id(4), 1)) is True
    turnlog("taint", "endorse", "work:7", "--why", "fine", data=tmp_path / "data")
    with viewed(tmp_path / "data") as view:
        again = RecordedTaint(view)
        assert [again.of((call_id(n), 1)) for n in (7, 5, 3, 2)] == [None, None, False, True]


@pytest.mark.parametrize(
    ("lineage", "flags", "is_tainted"),
    [
        ((), (), None),
        ((source(GONE),), (), None),
        ((source(GONE, tainted=True),), (), True),
        ((), (Flag.TAINTED_OUT,), True),
        ((source(GONE, tainted=True),), (Flag.TAINT_ENDORSED,), False),
        ((source(call_id(0)),), (), True),
        ((source(call_id(0), evidence=MatchEvidence.WEAK),), (), None),
        ((source(call_id(0), origin=ValueOrigin.UNVERIFIED),), (), None),
        ((source(call_id(1)), source(call_id(1))), (), None),
    ],
)
def test_the_record_of_a_call_says_whether_its_output_is_tainted(
    tmp_path: Path, lineage: tuple[Lineage, ...], flags: tuple[Flag, ...], is_tainted: bool | None
) -> None:
    marked = Call(tool="read", minute=0, flags=(Flag.TAINT_MARKED,))
    endorsed = Call(tool="check", minute=1, flags=(Flag.TAINT_MARKED, Flag.TAINT_ENDORSED))
    used = Call(tool="deploy", minute=2, lineage=lineage, flags=flags)
    fill(tmp_path / "data", [marked, endorsed, used, Call(tool="other", minute=3)])
    turnlog("taint", "mark", "work:7", "--why", "other", data=tmp_path / "data")
    with viewed(tmp_path / "data") as view:
        assert RecordedTaint(view).of((call_id(2), 1)) is is_tainted
