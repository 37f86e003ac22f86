"""`sessions.lineage.history`: what a session has seen, as far as it is read."""

import shutil
from pathlib import Path
from typing import Any

from e2e.stores import Call, fill, session_id
from turnlog.core.note import Fact, FactAction, TurnStart, UserInput
from turnlog.provenance.outputs import RecordedOutput
from turnlog.provenance.values import LOOKED_AT
from turnlog.sessions.lineage import history
from turnlog.sessions.lineage.history import Declaration, History, Wanted, read_history
from turnlog.store.lmdb import LmdbReader

WORK = session_id("work")


def past(data: Path, **want: Any) -> History:
    with LmdbReader.open(data) as store, store.view() as view:
        return read_history(view, WORK, Wanted(**want))


def contents(found: History) -> list[bytes]:
    return [item.content for item in found.items if isinstance(item, RecordedOutput)]


def test_outputs_and_declarations_come_in_the_order_of_the_log(tmp_path: Path) -> None:
    notes = (
        UserInput(text="see /srv/a", source="user"),
        TurnStart(name="two"),
        Fact(id="f", action=FactAction.ASSERT, subject="host", value="db-01.example"),
        Fact(id="g", action=FactAction.RETRACT),
    )
    fill(tmp_path / "data", [Call(tool="a", minute=0, output=b'"1"', notes=notes),
                             Call(tool="b", minute=1, output=b'"2"', status=None),
                             Call(tool="c", minute=2, output=b'"3"')])  # fmt: skip
    found = past(tmp_path / "data")
    assert contents(found) == [b'"1"', b'"3"']
    assert found.items[1:3] == [
        Declaration(seq=3, text="see /srv/a"),
        Declaration(seq=5, text="host\ndb-01.example"),
    ]
    assert (found.until, found.is_whole) == (9, True)


def test_what_was_read_before_is_not_read_again(tmp_path: Path) -> None:
    fill(tmp_path / "data", [Call(tool="a", minute=n, output=b'"%d"' % n) for n in range(3)])
    assert contents(past(tmp_path / "data", after=2)) == [b'"1"', b'"2"']
    nothing = past(tmp_path / "data", after=6)
    assert (nothing.items, nothing.until, nothing.is_whole) == ([], 6, True)


def test_the_commits_of_one_process_can_be_left_out(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, [Call(tool="a", minute=0)])
    with LmdbReader.open(data) as store, store.view() as view:
        commit = view.get(WORK, 1)
    assert commit is not None
    assert past(data, without=commit.link.epoch).items == []


def test_the_oldest_outputs_are_left_out_where_there_is_too_much(tmp_path: Path) -> None:
    calls = [Call(tool="a", minute=n, output=b"%02d" % n * 40_000) for n in range(70)]
    fill(tmp_path / "data", calls)
    found = past(tmp_path / "data")
    kept = history.MOST_BYTES // (LOOKED_AT + 1)
    assert {len(content) for content in contents(found)} == {LOOKED_AT + 1}
    assert [content[:2] for content in contents(found)] == [
        b"%02d" % n for n in range(70 - kept, 70)
    ]
    assert not found.is_whole


def test_a_session_that_is_not_on_disk_has_no_past(tmp_path: Path) -> None:
    fill(tmp_path / "data", [Call(tool="a", minute=0, session="other")])
    assert past(tmp_path / "data") == history.EMPTY


def test_outputs_that_are_gone_are_missed(tmp_path: Path) -> None:
    fill(tmp_path / "data", [Call(tool="a", minute=0), Call(tool="b", minute=1)])
    assert past(tmp_path / "data").is_whole
    shutil.rmtree(tmp_path / "data" / "blobs")
    found = past(tmp_path / "data")
    assert (found.items, found.is_whole) == ([], False)
