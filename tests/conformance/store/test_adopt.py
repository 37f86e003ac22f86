"""Sessions of another store are appended byte for byte, all of a session or nothing."""

from pathlib import Path

import pytest
from msgspec import structs

from conformance.store.kit import intent, new_id, outcome, session
from turnlog.core.kinds import Effect, Gone
from turnlog.store.base import Blob, Conflict, Incoming, SessionRef, StoreError
from turnlog.store.lmdb import LmdbReader, LmdbStore

SECRET = bytes(range(32))
Records = list[tuple[bytes, bytes]]


def records(data: Path, session: bytes) -> Records:
    with LmdbReader.open(data) as reader, reader.view() as view:
        return [(header, body or b"") for _, header, body in view.headers(session)]


async def written(data: Path, ref: SessionRef, calls: int, *, is_open: bool = False) -> None:
    """Write calls to a store, the last one without its outcome where `is_open`."""
    store = LmdbStore.open(data)
    for number in range(calls):
        call = new_id()
        begun = store.submit(intent(ref, call, effect=Effect.WRITE), wait=True)
        await begun.done()
        if not (is_open and number == calls - 1):
            await store.submit(outcome(ref, call, begun), wait=True).done()
    await store.close()


def incoming(ref: SessionRef, found: Records, **more: object) -> Incoming:
    assert ref.id is not None
    made = Incoming(session=ref.id, expected=None, records=lambda: iter(found), secret=SECRET)
    return structs.replace(made, **more)


async def test_the_commits_stay_what_they_were_and_open_attempts_are_closed(tmp_path: Path) -> None:
    ref = session("work")
    await written(tmp_path / "here", ref, 3, is_open=True)
    assert ref.id is not None
    found = records(tmp_path / "here", ref.id)
    there = LmdbStore.open(tmp_path / "there")
    adopted = await there.adopt(incoming(ref, found, aliases=ref.aliases))
    await there.close()
    assert (adopted.commits, adopted.closed, adopted.taken) == (len(found), 1, ())
    after = records(tmp_path / "there", ref.id)
    assert after[:-1] == found
    with LmdbReader.open(tmp_path / "there") as reader, reader.view() as view:
        assert view.find_sessions("work") == [ref.id]
        assert not list(view.index_flaws())
        assert not list(view.flaws())
        (unknown,) = view.unsettled()
        assert unknown[-1].facts.error_kind == "outcome_unknown"


async def test_a_session_that_is_not_as_expected_is_left_as_it_is(tmp_path: Path) -> None:
    ref = session("work")
    await written(tmp_path / "here", ref, 2)
    assert ref.id is not None
    found = records(tmp_path / "here", ref.id)
    there = LmdbStore.open(tmp_path / "there")
    await there.adopt(incoming(ref, found))
    with there.view() as view:
        row = view.session(ref.id)
    assert row is not None
    for expected in (None, (row.head_seq - 1, row.head_hash)):
        with pytest.raises(Conflict):
            await there.adopt(incoming(ref, found, expected=expected))
    await there.close()
    assert records(tmp_path / "there", ref.id) == found


async def test_a_living_process_with_the_number_of_another_store_is_in_the_way(
    tmp_path: Path,
) -> None:
    ref = session("work")
    await written(tmp_path / "here", ref, 1)
    assert ref.id is not None
    found = records(tmp_path / "here", ref.id)
    there = LmdbStore.open(tmp_path / "there")
    with pytest.raises(StoreError, match="stop the processes that use the store"):
        await there.adopt(incoming(ref, found, epochs=frozenset({there.epoch})))
    await there.close()
    assert records(tmp_path / "there", ref.id) == []


async def test_later_processes_have_numbers_behind_those_of_the_other_store(tmp_path: Path) -> None:
    ref = session("work")
    await written(tmp_path / "here", ref, 1)
    found = records(tmp_path / "here", ref.id or b"")
    there = LmdbStore.open(tmp_path / "there")
    await there.adopt(incoming(ref, found, epochs=frozenset({1 << 40})))
    await there.close()
    again = LmdbStore.open(tmp_path / "there")
    assert again.epoch > 1 << 40
    await again.close()


async def test_payloads_are_read_where_they_lie_here_or_say_why_they_are_gone(
    tmp_path: Path,
) -> None:
    ref = session("work")
    await written(tmp_path / "here", ref, 1)
    found = records(tmp_path / "here", ref.id or b"")
    there = LmdbStore.open(tmp_path / "there")
    (kept,) = await there.keep([Blob(b"content", redacted=True)])
    handles = {b"1" * 40: kept, b"2" * 40: Gone.TRIMMED.encode()}
    await there.adopt(incoming(ref, found, handles=handles))
    with there.view() as view:
        assert view.blob(b"1" * 40) == Blob(b"content", redacted=True)
        assert view.blob(b"2" * 40) is Gone.TRIMMED
        assert view.handle_here(b"3" * 40) == b"3" * 40
    await there.close()


async def test_digests_of_a_session_from_another_store_are_keyed_as_there(tmp_path: Path) -> None:
    ref = session("work")
    await written(tmp_path / "here", ref, 1)
    found = records(tmp_path / "here", ref.id or b"")
    there = LmdbStore.open(tmp_path / "there")
    await there.adopt(incoming(ref, found))
    assert dict(there.secrets) == {ref.id: SECRET}
    assert there.is_imported(ref.id)
    assert there.keyed_for(ref.id, b"x") != there.keyed(b"x")
    assert there.keyed_for(None, b"x") == there.keyed(b"x")
    (file,) = (tmp_path / "there" / "keys").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    await there.close()
