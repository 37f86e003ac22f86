"""`store.recovery` and `store.write.engine`: one damaged record keeps no other attempt open."""

from pathlib import Path

import lmdb
import pytest

from conformance.store.kit import MINUTE, START, begin, intent, known, new_id, outcome, put, session
from turnlog.core.commit import Commit
from turnlog.core.kinds import Status
from turnlog.store.base import StoreError
from turnlog.store.lmdb import LmdbReader, LmdbStore
from turnlog.store.log.keys import number
from turnlog.store.log.tables import NAMES

GARBAGE = b"\xc1 no record"


def damage(data: Path, table: str, *keys: bytes) -> None:
    """Overwrite values behind the store's back; all of the table when no key is named."""
    with lmdb.open(str(data / "log"), max_dbs=len(NAMES), map_size=1 << 40) as env:
        database = env.open_db(table.encode(), create=False)
        with env.begin(write=True, db=database) as txn:
            for key in keys or list(txn.cursor().iternext(values=False)):
                assert txn.put(key, GARBAGE)


async def two_open_attempts(data: Path) -> tuple[Commit, Commit]:
    """Leave two attempts of one session open, and indexed."""
    store = LmdbStore.open(data, flush_every=1, now=lambda: START)
    ref = session()
    first = await put(store, intent(ref, new_id()))
    second = await put(store, intent(ref, new_id()))
    await store.close()
    return first, second


async def test_a_damaged_open_attempt_is_reported_once_and_skipped(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first, second = await two_open_attempts(data)
    damage(data, "log", number(first.position))
    reports: list[StoreError] = []

    store = LmdbStore.open(data, flush_every=1, now=lambda: START, report=reports.append)
    closed = [commit.facts.call for commit in store.recovered]
    again = await store.recover()
    await store.close()

    assert closed == [second.facts.call]
    assert again == []
    (report,) = reports
    assert f"open attempt at position {first.position}" in str(report)
    assert "turnlog verify" in str(report)


async def test_a_damaged_index_of_open_attempts_hides_only_what_it_says(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first, second = await two_open_attempts(data)
    damage(data, "open", first.link.session + number(first.link.seq))
    reports: list[StoreError] = []

    store = LmdbStore.open(data, now=lambda: START, report=reports.append)
    await store.close()

    assert [commit.facts.call for commit in store.recovered] == [second.facts.call]
    assert f"seq {first.link.seq} of session" in str(reports[0])


async def test_a_damaged_state_of_a_parked_call_expires_no_other_later(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = LmdbStore.open(data, flush_every=1, now=lambda: START)
    calls = [new_id(), new_id()]
    for call in calls:
        ref = session()
        ticket = await begin(store, intent(ref, call))
        parked = outcome(ref, call, ticket, status=Status.ACCEPTED, expires=START + MINUTE)
        await put(store, parked)
    await store.close()
    damage(data, "unsettled", calls[0])
    reports: list[StoreError] = []

    store = LmdbStore.open(data, now=lambda: START, report=reports.append)
    expired = await store.expire(START + MINUTE)
    await store.close()

    assert [commit.facts.call for commit in expired] == [calls[1]]
    assert "the state of call" in str(reports[0])


async def test_a_start_that_fails_gives_back_what_it_took(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first, _ = await two_open_attempts(data)
    damage(data, "heads")

    with pytest.raises(StoreError, match="damaged: run `turnlog verify`"):
        LmdbStore.open(data, now=lambda: START)

    assert list((data / "epochs").iterdir()) == []
    # LMDB refuses to open what this process has open.
    damage(data, "heads", first.link.session)


async def test_a_damaged_index_is_an_error_of_the_store_for_readers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = LmdbStore.open(data, flush_every=1, now=lambda: START)
    ref = session()
    await put(store, intent(ref, new_id()))
    await store.close()
    damage(data, "heads")

    reader = LmdbReader.open(data)
    with reader.view() as view:
        with pytest.raises(StoreError, match="damaged: run `turnlog verify`"):
            list(view.sessions())
        with pytest.raises(StoreError, match="cannot read"):
            view.session(known(ref))
    reader.close()
