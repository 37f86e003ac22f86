"""`sessions.follow` on real stores: a look, something is written, the next look."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conformance.store.kit import begin, intent, new_id, outcome, put, session, whole_call
from turnlog.core.kinds import Flag, Status
from turnlog.sessions.errors import NotFoundError
from turnlog.sessions.follow import FollowQuery, News, follow
from turnlog.store.base import Filter, StoreError
from turnlog.store.lmdb import LmdbReader, LmdbStore
from turnlog.store.read.view import View

PRESENT = News()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LmdbStore]:
    """A store that flushes its indexes after every third commit."""
    opened = LmdbStore.open(tmp_path / "data", flush_every=3)
    yield opened
    await opened.close()


class Follower:
    """Looks at the store in a folder whenever a test says so."""

    def __init__(
        self, data: Path, wanted: FollowQuery | None = None, *, at_once: int = 1000
    ) -> None:
        self._looks = follow(
            lambda: LmdbReader.open(data), wanted or FollowQuery(), at_once=at_once
        )

    def look(self) -> News:
        """Look once."""
        return next(self._looks)

    def tools(self) -> list[str]:
        """Look once, and return the tools whose attempts are new."""
        return [row.tool for row in self.look().rows]

    def close(self) -> None:
        """Stop following."""
        self._looks.close()


@pytest.mark.promise("CLI-7")
async def test_new_attempts_come_once_and_past_ones_do_not(
    tmp_path: Path, store: LmdbStore
) -> None:
    ref = session()
    await whole_call(store, ref, tool="past")
    follower = Follower(tmp_path / "data")
    assert follower.look() == PRESENT
    assert follower.look() == PRESENT

    await whole_call(store, ref, tool="one")
    await whole_call(store, ref, tool="two")

    assert follower.tools() == ["one", "two"]
    assert follower.tools() == []
    follower.close()


async def test_an_attempt_comes_again_with_a_late_outcome(tmp_path: Path, store: LmdbStore) -> None:
    ref, call = session(), new_id()
    before = await begin(store, intent(ref, call))
    follower = Follower(tmp_path / "data")
    follower.look()
    assert follower.look().rows == []

    await put(store, outcome(ref, call, before, status=Status.ERROR, error="timeout"))
    (first,) = follower.look().rows
    await put(store, outcome(ref, call, before, n=1, flags=(Flag.LATE,)))
    (second,) = follower.look().rows

    assert (first.status, first.error, first.intent_seq) == (Status.ERROR, "timeout", 1)
    assert (second.status, second.flags, second.intent_seq) == (Status.OK, [Flag.LATE], 1)
    follower.close()


async def test_two_outcomes_between_two_looks_are_two_rows(
    tmp_path: Path, store: LmdbStore
) -> None:
    ref, call = session(), new_id()
    follower = Follower(tmp_path / "data")
    follower.look()
    before = await begin(store, intent(ref, call))
    await put(store, outcome(ref, call, before, status=Status.ERROR, error="timeout"))
    await put(store, outcome(ref, call, before, n=1, flags=(Flag.LATE,)))

    assert [row.status for row in follower.look().rows] == [Status.ERROR, Status.OK]
    follower.close()


async def test_many_commits_come_in_several_looks_without_gaps(
    tmp_path: Path, store: LmdbStore
) -> None:
    follower = Follower(tmp_path / "data", at_once=4)
    follower.look()
    ref = session()
    for number in range(25):
        await whole_call(store, ref, tool=f"t{number}")

    looks = [follower.look()]
    while looks[-1].behind:
        looks.append(follower.look())

    assert [row.tool for news in looks for row in news.rows] == [f"t{n}" for n in range(25)]
    assert max(len(news.rows) for news in looks) <= 4
    assert follower.tools() == []
    follower.close()


views: list[View] = []
"""What `_Remembering` gave."""


class _Remembering(LmdbReader):
    """A reader that keeps the views it gave."""

    def view(self) -> View:
        views.append(super().view())
        return views[-1]


async def test_no_snapshot_is_open_between_looks(tmp_path: Path, store: LmdbStore) -> None:
    looks = follow(lambda: _Remembering.open(tmp_path / "data"), FollowQuery(last=1))
    next(looks)
    await whole_call(store, session())
    assert len(next(looks).rows) == 1

    assert len(views) == 2
    for view in views:
        with pytest.raises(StoreError):
            list(view.sessions())
    looks.close()


async def test_past_attempts_come_first_on_request(tmp_path: Path, store: LmdbStore) -> None:
    ref = session()
    for tool in ("one", "two", "three"):
        await whole_call(store, ref, tool=tool)
    await begin(store, intent(ref, new_id(), tool="slow"))
    follower = Follower(
        tmp_path / "data", FollowQuery(last=2, match=Filter(tool="t*", server="files"))
    )

    assert follower.tools() == ["two", "three"]
    await whole_call(store, ref, tool="four")
    await whole_call(store, ref, tool="ten")
    assert follower.tools() == ["ten"]
    follower.close()


async def test_a_session_that_does_not_exist_yet_is_awaited(
    tmp_path: Path, store: LmdbStore
) -> None:
    follower = Follower(tmp_path / "data", FollowQuery(session="mine"))
    assert follower.look() == News(awaited="no session is called 'mine' yet")
    await whole_call(store, session("theirs"), tool="foreign")
    assert follower.look() == News(awaited="no session is called 'mine' yet")

    mine = session("mine")
    await whole_call(store, mine, tool="first")
    await whole_call(store, session("others"), tool="foreign")
    await whole_call(store, mine, tool="second")

    news = follower.look()
    assert ([row.tool for row in news.rows], news.awaited) == (["first", "second"], "")
    follower.close()


async def test_a_name_of_two_sessions_is_refused(tmp_path: Path, store: LmdbStore) -> None:
    await whole_call(store, session("mine", principal="a"))
    await whole_call(store, session("mine", principal="b"))
    follower = Follower(tmp_path / "data", FollowQuery(session="mine"))
    with pytest.raises(NotFoundError, match="means 2 sessions"):
        follower.look()


async def test_a_store_that_appears_later_is_read_from_its_first_commit(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "data")
    assert "no data folder at" in follower.look().awaited
    (tmp_path / "data" / "log").mkdir(parents=True)
    assert "no data folder at" in follower.look().awaited

    store = LmdbStore.open(tmp_path / "data")
    await whole_call(store, session(), tool="first")

    assert follower.tools() == ["first"]
    assert follower.look() == PRESENT
    follower.close()
    await store.close()


async def test_a_store_that_replaces_another_is_read_from_its_first_commit(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    store = LmdbStore.open(data)
    await whole_call(store, session(), tool="past")
    await store.close()
    follower = Follower(data)
    assert follower.tools() == []

    data.rename(tmp_path / "old")
    assert "no data folder at" in follower.look().awaited
    store = LmdbStore.open(data)
    await whole_call(store, session(), tool="first")

    assert follower.tools() == ["first"]
    follower.close()
    await store.close()


def test_a_folder_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear all")
    with pytest.raises(StoreError, match="is not a turnlog store"):
        Follower(tmp_path).look()
