"""What a store does about attempts that nobody will finish."""

import asyncio
from pathlib import Path

import pytest

from conformance.store.kit import (
    MINUTE,
    START,
    Engine,
    begin,
    intent,
    known,
    new_id,
    outcome,
    put,
    session,
    whole_call,
)
from kit.holding import nobody_writes
from turnlog.core.commit import Commit
from turnlog.core.kinds import Actor, Flag, Status
from turnlog.store.base import Filter
from turnlog.store.lmdb import LmdbStore


def last_status(store: LmdbStore, call: bytes) -> str:
    """Return the status of a call's last commit."""
    with store.view() as view:
        return view.call(call)[-1].facts.status


async def test_open_attempts_of_an_ended_writer_are_closed_once(
    engine: Engine, tmp_path: Path
) -> None:
    store = engine.open(tmp_path / "data", flush_every=3)
    ref = session()
    calls = [new_id() for _ in range(4)]
    await put(store, intent(ref, calls[0]))
    for _ in range(4):
        await whole_call(store, ref)
    for call in calls[1:]:
        await put(store, intent(ref, call))
    await store.close()
    store = engine.open(tmp_path / "data", flush_every=3)
    assert [commit.facts.call for commit in store.recovered] == calls
    for commit in store.recovered:
        assert commit.facts.actor is Actor.TURNLOG
        assert commit.facts.error_kind == "outcome_unknown"
        assert commit.link.ref is not None
        with store.view() as view:
            begun = view.get(known(ref), commit.link.ref)
        assert begun is not None
        assert begun.facts.call == commit.facts.call
        assert begun.link.turn == commit.link.turn
    await store.close()
    store = engine.open(tmp_path / "data")
    assert store.recovered == []
    with store.view() as view:
        assert len(list(view.attempts(Filter(), newest_first=True))) == 8
    await store.close()


@pytest.mark.promise("REC-12")
async def test_a_living_writers_attempts_are_left_alone(engine: Engine, tmp_path: Path) -> None:
    living = engine.open(tmp_path / "data")
    ref = session()
    call = new_id()
    ticket = await begin(living, intent(ref, call))
    other = engine.open(tmp_path / "data")
    assert other.recovered == []
    assert await other.recover() == []
    await put(living, outcome(ref, call, ticket))
    await living.close()
    assert await other.recover() == []
    await other.close()


async def test_a_running_writer_closes_what_another_left(engine: Engine, tmp_path: Path) -> None:
    living, ended = engine.open(tmp_path / "data"), engine.open(tmp_path / "data")
    call = new_id()
    await put(ended, intent(session(), call))
    await ended.close()
    (closed,) = await living.recover()
    assert closed.facts.call == call
    assert await living.recover() == []
    await living.close()


async def test_who_closes_what_a_dead_writer_left_is_not_taken_for_it(
    engine: Engine, tmp_path: Path
) -> None:
    living, ended = engine.open(tmp_path / "data"), engine.open(tmp_path / "data")
    left = await put(ended, intent(session(), new_id()))
    await ended.close()
    async with asyncio.TaskGroup() as group:
        with nobody_writes(tmp_path / "data"):
            recovering = group.create_task(living.recover())
            for _ in range(100):  # it waits for its turn meanwhile
                with living.view() as view:
                    assert not view.is_alive(left.link.epoch)
                await asyncio.sleep(0.002)
            assert not recovering.done()
    assert len(recovering.result()) == 1
    await living.close()


async def test_parked_legs_outlive_their_writer(engine: Engine, tmp_path: Path) -> None:
    store = engine.open(tmp_path / "data")
    ref = session()
    parked: dict[Status, bytes] = {}
    for status in (Status.INPUT_REQUIRED, Status.ACCEPTED):
        call = parked[status] = new_id()
        ticket = await begin(store, intent(ref, call))
        await put(store, outcome(ref, call, ticket, status=status, expires=START + MINUTE))
    await store.close()
    store = engine.open(tmp_path / "data")
    assert store.recovered == []
    for status, call in parked.items():
        assert last_status(store, call) == status
    await store.close()


async def _parked(store: LmdbStore, status: Status, expires: int) -> bytes:
    ref = session()
    call = new_id()
    ticket = await begin(store, intent(ref, call))
    await put(store, outcome(ref, call, ticket, status=status, expires=expires))
    return call


@pytest.mark.promise("REC-13")
async def test_a_parked_leg_past_its_time_becomes_unknown(store: LmdbStore) -> None:
    soon = await _parked(store, Status.INPUT_REQUIRED, START + MINUTE)
    later = await _parked(store, Status.ACCEPTED, START + 2 * MINUTE)
    never = await _parked(store, Status.ACCEPTED, 0)
    assert await store.expire(START + MINUTE - 1) == []
    (expired,) = await store.expire(START + MINUTE)
    assert expired.facts.call == soon
    assert expired.facts.flags == (Flag.EXPIRED,)
    assert (expired.facts.n, expired.facts.status) == (1, Status.UNKNOWN)
    assert await store.expire(START + MINUTE) == []
    assert [c.facts.call for c in await store.expire(START + 100 * MINUTE)] == [later]
    assert last_status(store, never) == Status.ACCEPTED
    with store.view() as view:
        assert len(list(view.unsettled())) == 3


async def test_a_leg_that_went_on_does_not_expire(store: LmdbStore) -> None:
    ref = session()
    call = new_id()
    ticket = await begin(store, intent(ref, call))
    wait = outcome(ref, call, ticket, status=Status.INPUT_REQUIRED, expires=START + MINUTE)
    await put(store, wait)
    second = await begin(store, intent(ref, call, leg=1))
    assert await store.expire(START + 2 * MINUTE) == []
    await put(store, outcome(ref, call, second, leg=1))
    assert await store.expire(START + 2 * MINUTE) == []


async def test_an_answer_after_the_expiry_settles_the_call(store: LmdbStore) -> None:
    ref = session()
    call = new_id()
    ticket = await begin(store, intent(ref, call))
    accepted = outcome(ref, call, ticket, status=Status.ACCEPTED, expires=START + MINUTE)
    await put(store, accepted)
    await store.expire(START + 2 * MINUTE)
    late: Commit = await put(store, outcome(ref, call, ticket, n=2, flags=(Flag.LATE,)))
    assert late.facts.n == 2
    with store.view() as view:
        assert list(view.unsettled()) == []


async def test_an_answer_that_does_not_know_of_the_expiry_is_late(store: LmdbStore) -> None:
    ref = session()
    call = new_id()
    ticket = await begin(store, intent(ref, call))
    accepted = outcome(ref, call, ticket, status=Status.ACCEPTED, expires=START + MINUTE)
    await put(store, accepted)
    (expired,) = await store.expire(START + 2 * MINUTE)
    answer = outcome(ref, call, ticket, n=1, flags=(Flag.REDACTED,))
    late = await put(store, answer)
    assert (expired.facts.n, late.facts.n) == (1, 2)
    assert late.facts.flags == (Flag.REDACTED, Flag.LATE)
    assert late.link.ref == 1
    with store.view() as view:
        assert list(view.unsettled()) == []
        assert [c.facts.status for c in view.call(call)[1:]] == ["accepted", "unknown", "ok"]
        assert view.call(call)[-1] == late
    # Whoever gives the same again gets the commit that exists, be it indexed or not.
    assert await put(store, answer) == late
    for _ in range(3):
        await whole_call(store, ref)
    assert await put(store, answer) == late


async def test_an_answer_to_an_attempt_that_was_thought_dead_is_late(
    engine: Engine, tmp_path: Path
) -> None:
    living, other = engine.open(tmp_path / "data"), engine.open(tmp_path / "data")
    ref, call = session(), new_id()
    ticket = await begin(living, intent(ref, call))
    for lock in (tmp_path / "data" / "epochs").iterdir():
        lock.unlink()
    (recovered,) = await other.recover()
    late = await put(living, outcome(ref, call, ticket))
    assert (recovered.facts.n, recovered.facts.status) == (0, Status.UNKNOWN)
    assert (late.facts.n, late.facts.flags) == (1, (Flag.LATE,))
    assert last_status(other, call) == Status.OK
    await living.close()
    await other.close()


async def test_dead_writers_are_counted(engine: Engine, tmp_path: Path) -> None:
    writers = [engine.open(tmp_path / "data") for _ in range(3)]
    for _ in range(2):
        for writer in writers[:2]:
            await put(writer, intent(session(), new_id()))
    assert writers[0].recovered_epochs == 0
    await writers[0].close()
    assert len(await writers[2].recover()) == 2
    assert writers[2].recovered_epochs == 1
    assert await writers[2].recover() == []
    assert writers[2].recovered_epochs == 0
    await writers[1].close()
    await writers[2].close()
    store = engine.open(tmp_path / "data")
    assert (len(store.recovered), store.recovered_epochs) == (2, 1)
    await store.close()


async def test_opening_expires_what_is_overdue(engine: Engine, tmp_path: Path) -> None:
    store = engine.open(tmp_path / "data")
    call = await _parked(store, Status.ACCEPTED, START - 1)
    await store.close()
    store = engine.open(tmp_path / "data")
    assert [c.facts.call for c in store.recovered] == [call]
    await store.close()


async def test_a_poll_in_flight_leaves_its_task_pending(engine: Engine, tmp_path: Path) -> None:
    store = engine.open(tmp_path / "data")
    ref = session()
    call = new_id()
    ticket = await begin(store, intent(ref, call))
    await put(store, outcome(ref, call, ticket, status=Status.ACCEPTED))
    await put(store, intent(ref, call, leg=1, method="tasks/get"))
    await store.close()
    store = engine.open(tmp_path / "data")
    assert [c.facts.leg for c in store.recovered] == [1]
    with store.view() as view:
        (attempt,) = view.unsettled()
        assert [c.facts.status for c in attempt] == [Status.PENDING, Status.ACCEPTED]
    await store.close()
