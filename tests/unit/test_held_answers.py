"""`engine.duplicates.deduplication`: what is remembered of guarded calls, and for how long."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.attempts import Bench, ask, bench, session
from turnlog.core.classify import succeeded
from turnlog.core.kinds import Effect
from turnlog.engine.call_driver import CallDriver
from turnlog.engine.duplicates.deduplication import KEPT, MOST, Deduplicator
from turnlog.engine.duplicates.duplicate_match import Repeated, RequestKey
from turnlog.exchange.duplicates import NeverTwice
from turnlog.record.attempt import AnswerFacts
from turnlog.record.own_answers import JSON, OwnAnswer
from turnlog.store.base import SessionRef, StoreFull

ANSWER = OwnAnswer(200, b"OK", JSON, b"the first one")
LARGE = OwnAnswer(200, b"OK", JSON, b"x" * (KEPT // 2 + 1))
"""Two of these are more than is held."""


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made


@pytest.fixture
def repeats(one: Bench) -> Deduplicator:
    return Deduplicator(
        one.store, one.recorder, NeverTwice(), one.time.clock(), one.log, asyncio.Event()
    )


async def admitted(
    one: Bench, repeats: Deduplicator, tool: str, ref: SessionRef, key: str = ""
) -> CallDriver:
    call, write = one.recorder.new_call(), Effect.WRITE
    asked = ask(ref, call, tool=tool, key=key, effect=write, is_named=True)
    _, running = await repeats.admit(asked, stateless=False)
    assert running is not None
    return running


async def answered(one: Bench, repeats: Deduplicator, running: CallDriver, kept: OwnAnswer) -> None:
    attempt = await one.recorder.begin(running.ask)
    running.begins(attempt)
    ticket = one.recorder.end(attempt, succeeded(), AnswerFacts())
    assert ticket is not None
    await one.recorder.settle([ticket])
    running.on_delivered()
    repeats.over(running, kept)


async def test_an_answer_is_held_however_much_others_were_given_that_nobody_can_ask_for(
    one: Bench, repeats: Deduplicator
) -> None:
    first = await admitted(one, repeats, "first", session(), key="one")
    await answered(one, repeats, first, ANSWER)
    nameless = SessionRef(candidate=b"nameless".ljust(16, b"\0"), rung=session().rung)
    for ref in (nameless, nameless, session(), session(), session()):
        await answered(one, repeats, await admitted(one, repeats, "other", ref), LARGE)
    with pytest.raises(Repeated) as again:
        await admitted(one, repeats, "first", session(), key="one")
    assert again.value.answer == ANSWER


async def test_the_oldest_answers_go_where_there_are_too_many(
    one: Bench, repeats: Deduplicator
) -> None:
    for tool in ("first", "second", "third"):
        running = await admitted(one, repeats, tool, session(), key=tool)
        await answered(one, repeats, running, LARGE)
    with pytest.raises(Repeated) as kept:
        await admitted(one, repeats, "third", session(), key="third")
    assert kept.value.answer == LARGE
    with pytest.raises(Repeated) as lost:
        await admitted(one, repeats, "first", session(), key="first")
    assert lost.value.answer is None


async def ended(one: Bench, repeats: Deduplicator, key: str) -> "weakref.ref[CallDriver]":
    running = await admitted(one, repeats, "write", session(), key=key)
    await answered(one, repeats, running, ANSWER)
    return weakref.ref(running)


async def test_what_is_forgotten_is_gone_without_the_collector(
    one: Bench, repeats: Deduplicator
) -> None:
    gc.disable()  # it hardly ever looks at what has lived for long
    try:
        known = [await ended(one, repeats, str(number)) for number in range(MOST + 3)]
        assert [ref() is None for ref in (*known[:3], *known[-3:])] == [True] * 3 + [False] * 3
    finally:
        gc.enable()


async def test_a_call_that_could_not_be_recorded_keeps_nobody_from_asking_again(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path, store_limit=1) as full:
        repeats = Deduplicator(
            full.store, full.recorder, NeverTwice(), full.time.clock(), full.log, asyncio.Event()
        )
        for _ in range(2):
            async with asyncio.timeout(10):
                running = await admitted(full, repeats, "write", session(), key="one")
            with pytest.raises(StoreFull):
                await full.recorder.begin(running.ask)
            repeats.over(running)
    assert repeats.under_way == 0


async def test_a_late_cancel_finds_its_call_also_when_the_same_was_asked_since(
    one: Bench, repeats: Deduplicator
) -> None:
    first = await admitted(one, repeats, "first", session())
    attempt = await one.recorder.begin(first.ask)
    first.begins(attempt)
    ticket = one.recorder.end(attempt, succeeded(), AnswerFacts())
    assert ticket is not None
    await one.recorder.settle([ticket])
    second = await admitted(one, repeats, "first", session())
    by = RequestKey(attempt.scope, attempt.kin, attempt.caller_key)
    assert repeats.on_late_cancel(by)
    assert (first.has_left, second.has_left) == (True, False)
