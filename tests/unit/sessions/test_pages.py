"""`sessions.pages`: pages add up to the whole, even if records are added meanwhile."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conformance.store.kit import begin, intent, known, new_id, outcome, put, session, whole_call
from turnlog.core import ids
from turnlog.core.kinds import Status
from turnlog.sessions.dangling import DanglingFilter
from turnlog.sessions.log import Query
from turnlog.sessions.pages import (
    LogPage,
    Order,
    dangling_page,
    log_page,
    page_around,
    sessions_page,
)
from turnlog.store.base import Filter
from turnlog.store.lmdb import LmdbStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LmdbStore]:
    opened = LmdbStore.open(tmp_path / "data", flush_every=4)
    yield opened
    await opened.close()


def page(
    store: LmdbStore,
    order: Order,
    cursor: str | None,
    *,
    limit: int = 2,
    query: Query | None = None,
) -> LogPage:
    at = None if cursor is None else int(cursor)
    with store.view() as view:
        return log_page(view, query or Query(), order, at, limit)


def calls(page: LogPage) -> list[str]:
    return [row.call for row in page.items]


@pytest.mark.promise("API-3")
@pytest.mark.parametrize("by", ["all", "session", "tool", "status"])
async def test_pages_from_the_newest_add_up_to_the_log(store: LmdbStore, by: str) -> None:
    ref, other = session(), session()
    wanted = [
        ids.to_text(await whole_call(store, ref, status=Status.ERROR, error="timeout"))
        for _ in range(5)
    ]
    if by != "all":
        await whole_call(store, other, tool="other")
    query = {
        "all": Query(),
        "session": Query(session=known(ref)),
        "tool": Query(match=Filter(tool="read_*")),
        "status": Query(match=Filter(error="timeout")),
    }[by]
    first = page(store, Order.NEWEST, None, query=query)
    await whole_call(store, ref, status=Status.ERROR, error="timeout")
    second = page(store, Order.NEWEST, first.next, query=query)
    third = page(store, Order.NEWEST, second.next, query=query)
    assert calls(third) + calls(second) + calls(first) == wanted
    assert [one.more for one in (first, second, third)] == [True, True, False]
    assert third.next is None


async def test_the_cursor_of_the_last_page_from_the_oldest_finds_later_attempts(
    store: LmdbStore,
) -> None:
    nothing = page(store, Order.OLDEST, None)
    assert (nothing.items, nothing.next, nothing.more) == ([], "0", False)
    ref = session()
    written = [ids.to_text(await whole_call(store, ref)) for _ in range(3)]
    first = page(store, Order.OLDEST, nothing.next)
    second = page(store, Order.OLDEST, first.next)
    assert (calls(first), first.more) == (written[:2], True)
    assert (calls(second), second.more) == (written[2:], False)
    assert page(store, Order.OLDEST, second.next).items == []
    later = ids.to_text(await whole_call(store, ref))
    assert calls(page(store, Order.OLDEST, second.next)) == [later]


async def test_around_returns_a_single_page(store: LmdbStore) -> None:
    ref = session()
    written = [ids.to_text(await whole_call(store, ref)) for _ in range(5)]
    with store.view() as view:
        found = page_around(view, Query(session=known(ref), around=5, last=3))
    assert (calls(found), found.next, found.more) == (written[1:4], None, False)


async def test_pages_of_sessions_add_up_to_the_list(store: LmdbStore) -> None:
    refs = [session(str(number)) for number in range(5)]
    for ref in refs:
        await whole_call(store, ref)
    with store.view() as view:
        first = sessions_page(view, None, 2)
    # A session that is used again moves to the front, and is not met twice.
    await whole_call(store, refs[4])
    found = first.items
    cursor = first.next
    while cursor is not None:
        with store.view() as view:
            more = sessions_page(view, int(cursor), 2)
        found, cursor = found + more.items, more.next
    assert [line.session for line in found] == [ids.to_text(known(ref)) for ref in refs[::-1]]


async def test_pages_of_dangling_calls_add_up_to_the_list(store: LmdbStore) -> None:
    wanted: list[str] = []
    for number in range(5):
        ref, call = session(), new_id()
        ticket = await begin(store, intent(ref, call))
        if number % 2:
            await put(store, outcome(ref, call, ticket, status=Status.UNKNOWN))
        wanted.append(ids.to_text(call))
    found: list[str] = []
    cursor: str | None = "0"
    while cursor is not None:
        with store.view() as view:
            part = dangling_page(view, DanglingFilter(behind=int(cursor)), 2)
        assert len(part.items) <= 2
        found, cursor = found + [one.row.call for one in part.items], part.next
    assert found == wanted
