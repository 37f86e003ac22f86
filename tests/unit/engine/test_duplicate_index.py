"""What is remembered of calls that must not happen twice, and for how long."""

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from kit.attempts import Bench, ask, bench, session
from kit.branches import Work
from turnlog.core.classify import failed, succeeded
from turnlog.core.kinds import Effect, ErrorKind, Phase
from turnlog.engine.call_driver import CallDriver
from turnlog.engine.duplicate_index import KEPT, MOST, DuplicateIndex
from turnlog.engine.guarded_call import GuardedCall, guarded
from turnlog.exchange.call import Stage
from turnlog.exchange.duplicates import NeverTwice
from turnlog.exchange.events import Woken
from turnlog.exchange.outcome import AnswerFacts
from turnlog.observe.events import CallBug
from turnlog.record.attempt import GuessedCaller
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
def index(one: Bench) -> DuplicateIndex:
    return DuplicateIndex(one.store, one.recorder, NeverTwice(), one.log, asyncio.Event())


async def admitted(
    one: Bench,
    index: DuplicateIndex,
    tool: str,
    ref: SessionRef,
    key: str = "",
    effect: bytes = b"",
) -> GuardedCall:
    """Return a call of which it is decided whether it is sent."""
    named = {"effect": Effect.WRITE, "is_named": True, "effect_link": effect}
    asked = ask(ref, one.recorder.new_call(), tool=tool, key=key, **named)
    running = guarded(index, asked, stateless=False)
    assert running is not None
    await running.decided()
    return running


async def answered(one: Bench, index: DuplicateIndex, running: CallDriver, kept: OwnAnswer) -> None:
    attempt = await one.recorder.begin(running.ask)
    running.begins(attempt)
    ticket = one.recorder.end(attempt, succeeded(), AnswerFacts())
    assert ticket is not None
    await one.recorder.settle([ticket])
    running.on_delivered()
    index.over(running, kept)


async def test_an_answer_is_held_however_much_others_were_given_that_nobody_can_ask_for(
    one: Bench, index: DuplicateIndex
) -> None:
    first = await admitted(one, index, "first", session(), key="one")
    await answered(one, index, first, ANSWER)
    nameless = SessionRef(candidate=b"nameless".ljust(16, b"\0"), rung=session().rung)
    for ref in (nameless, nameless, session(), session(), session()):
        await answered(one, index, await admitted(one, index, "other", ref), LARGE)
    again = await admitted(one, index, "first", session(), key="one")
    assert again.unsent is not None
    assert again.unsent.answer == ANSWER


async def test_the_oldest_answers_go_where_there_are_too_many(
    one: Bench, index: DuplicateIndex
) -> None:
    for tool in ("first", "second", "third"):
        running = await admitted(one, index, tool, session(), key=tool)
        await answered(one, index, running, LARGE)
    kept = await admitted(one, index, "third", session(), key="third")
    assert kept.unsent is not None
    assert kept.unsent.answer == LARGE
    lost = await admitted(one, index, "first", session(), key="first")
    assert lost.unsent is not None
    assert lost.unsent.answer is None


async def ended(one: Bench, index: DuplicateIndex, key: str) -> "weakref.ref[CallDriver]":
    running = await admitted(one, index, "write", session(), key=key)
    await answered(one, index, running, ANSWER)
    return weakref.ref(running)


async def test_forgotten_calls_are_freed_without_the_garbage_collector(
    one: Bench, index: DuplicateIndex
) -> None:
    gc.disable()  # it hardly ever looks at what has lived for long
    try:
        known = [await ended(one, index, str(number)) for number in range(MOST + 3)]
        assert [ref() is None for ref in (*known[:3], *known[-3:])] == [True] * 3 + [False] * 3
    finally:
        gc.enable()


async def test_a_call_that_could_not_be_recorded_keeps_nobody_from_asking_again(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path, store_limit=1) as full:
        index = DuplicateIndex(full.store, full.recorder, NeverTwice(), full.log, asyncio.Event())
        for _ in range(2):
            async with asyncio.timeout(10):
                running = await admitted(full, index, "write", session(), key="one")
            with pytest.raises(StoreFull):
                await full.recorder.begin(running.ask)
            index.over(running)
    assert index.under_way == 0


async def test_a_late_cancel_finds_its_call_also_when_the_same_was_asked_since(
    one: Bench, index: DuplicateIndex
) -> None:
    first = await admitted(one, index, "first", session())
    attempt = await one.recorder.begin(first.ask)
    first.begins(attempt)
    ticket = one.recorder.end(attempt, succeeded(), AnswerFacts())
    assert ticket is not None
    await one.recorder.settle([ticket])
    second = await admitted(one, index, "first", session())
    assert index.on_late_cancel(attempt.scope, attempt.kin, attempt.caller_key)
    assert (first.machine.has_left, second.machine.has_left) == (True, False)


async def lost(one: Bench, index: DuplicateIndex, key: str = "", effect: bytes = b"") -> None:
    """Let a call end whose answer nobody gets."""
    call = await admitted(one, index, "first", session(), key, effect)
    call.begins(await one.recorder.begin(call.ask))
    assert call.attempt is not None
    ticket = one.recorder.end(call.attempt, succeeded(), AnswerFacts())
    assert ticket is not None
    await one.recorder.settle([ticket])
    call.on_left()
    index.over(call, ANSWER)


@pytest.mark.parametrize("age", [0, 60])
async def test_an_answer_that_is_given_again_counts_as_delivered_unless_it_is_cancelled_right_behind(
    one: Bench, index: DuplicateIndex, age: int
) -> None:
    await lost(one, index)
    one.time.now += age * 1_000_000_000
    again = await admitted(one, index, "first", session())
    assert again.unsent is not None
    again.unsent.attempt.scope, again.unsent.attempt.caller_id = ("server", "one"), b"7"
    again.on_delivered()
    assert index.on_late_cancel(("server", "one"), "", again.unsent.attempt.caller_key)
    once_more = await admitted(one, index, "first", session())
    assert once_more.unsent is not None
    once_more.on_delivered()
    assert (await admitted(one, index, "first", session())).unsent is None


async def joined(call: CallDriver, *, by: int) -> None:
    """Wait until so many others wait for a call."""
    async with asyncio.timeout(10):
        while call.machine.joiners != by:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0)


async def test_a_call_that_waits_for_an_earlier_one_gets_its_answer_or_is_taken_back(
    one: Bench, index: DuplicateIndex
) -> None:
    first = await admitted(one, index, "first", session(), key="one")
    first.begins(await one.recorder.begin(first.ask))
    async with asyncio.TaskGroup() as tasks:
        waits = tasks.create_task(admitted(one, index, "first", session(), key="one"))
        leaves = tasks.create_task(admitted(one, index, "first", session(), key="one"))
        await joined(first, by=2)
        leaves.cancel()
        await joined(first, by=1)
        assert first.attempt is not None
        ticket = one.recorder.end(first.attempt, succeeded(), AnswerFacts())
        assert ticket is not None
        await one.recorder.settle([ticket])
        index.over(first, ANSWER)
    assert leaves.cancelled()
    unsent = waits.result().unsent
    assert unsent is not None
    assert unsent.answer == ANSWER


async def test_a_call_that_waits_ends_where_something_happens_to_it_that_cannot_happen(
    one: Bench, index: DuplicateIndex
) -> None:
    first = await admitted(one, index, "first", session(), key="one")
    first.begins(await one.recorder.begin(first.ask))
    asked = ask(session(), one.recorder.new_call(), tool="first", key="one", is_named=True)
    second = guarded(index, structs.replace(asked, effect=Effect.WRITE), stateless=False)
    assert second is not None
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(second.decided())
        await joined(first, by=1)
        second.feed(Woken())
    assert (second.is_over, second.unsent, first.machine.joiners) == (True, None, 0)
    assert [bug.stage for bug in one.log.of(CallBug)] == ["joining"]


async def given_up(one: Bench, index: DuplicateIndex) -> None:
    """Begin the same call a second time; it is not sent, because its caller has left."""
    call = await admitted(one, index, "first", session())
    assert call.unsent is None
    call.begins(await one.recorder.begin(call.ask))
    assert call.attempt is not None
    await one.recorder.on_disk(call.attempt)
    ending = failed(ErrorKind.CANCELLED_BY_CALLER, Phase.QUEUED, Effect.WRITE)
    ticket = one.recorder.end(call.attempt, ending, AnswerFacts())
    assert ticket is not None
    await one.recorder.settle([ticket])
    index.over(call)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("is_remembered", [True, False])
async def test_a_call_that_was_not_sent_does_not_hide_the_one_beside_which_it_was_made(
    one: Bench, index: DuplicateIndex, is_remembered: bool, times: int
) -> None:
    first = await admitted(one, index, "first", session())
    first.begins(await one.recorder.begin(first.ask))
    first.on_recorded(is_repeatable=False)
    for _ in range(times):
        await given_up(one, index)
    first.on_left()
    if not is_remembered:
        assert first.attempt is not None
        await one.recorder.on_disk(await one.recorder.begin(ask(session(), b"last".ljust(16))))
        index = DuplicateIndex(one.store, one.recorder, NeverTwice(), one.log, asyncio.Event())
    asked = ask(
        session(), one.recorder.new_call(), tool="first", effect=Effect.WRITE, is_named=True
    )
    again = guarded(index, asked, stateless=False)
    assert again is not None
    again.begin()
    assert again.machine.stage is Stage.JOINING
    again.give_up()


async def test_the_wait_for_running_calls_includes_one_that_a_bug_has_ended(
    one: Bench, index: DuplicateIndex
) -> None:
    running = await admitted(one, index, "write", session())
    running.begins(await one.recorder.begin(running.ask))
    running.feed(Woken())  # it waits for nothing
    idle = asyncio.ensure_future(index.idle())
    await asyncio.sleep(0)
    assert not idle.done()
    index.over(running)
    await idle


async def test_a_guessed_caller_is_not_alone_where_others_are_forgotten(
    one: Bench, index: DuplicateIndex
) -> None:
    guess = GuessedCaller("token", "", 1)
    asked = ask(session(), one.recorder.new_call(), effect=Effect.WRITE, is_named=True, guess=guess)
    running = guarded(index, asked, stateless=False)
    assert running is not None
    await running.decided()
    running.begins(await one.recorder.begin(running.ask))
    running.on_left()
    assert running.seen_by_guess(is_alone=True).abandoned
    again = structs.replace(asked, call=one.recorder.new_call())
    _, found = index.find(again, index.guess_link(again), None)
    assert found[0].is_guessed
    assert not found[0].earlier.abandoned


async def test_branches_that_begin_the_same_effect_at_once_do_not_both_send_it(
    one: Bench, index: DuplicateIndex, tmp_path: Path
) -> None:
    work = Work(one.store, tmp_path)
    await work.call("/a")
    other, _ = await work.fork()
    assert one.store.control_counter().read() > 0

    def begun(branch: Work, **arguments: str) -> GuardedCall:
        asked = ask(
            branch.ref,
            one.recorder.new_call(),
            tool="pay",
            effect=Effect.IRREVERSIBLE,
            is_named=True,
            arguments=json.dumps(arguments).encode(),
            effect_link=b"order 1".ljust(32),
        )
        call = guarded(index, asked, stateless=False)
        assert call is not None
        call.begin()
        return call

    first = begun(work, amount="5")
    assert not first.machine.is_undecided
    assert not first.is_written
    same = begun(other, amount="5")
    assert same.machine.stage is Stage.JOINING
    refused = begun(other, amount="6").unsent
    assert refused is not None
    assert refused.attempt.ending is not None
    assert refused.attempt.ending.kind == ErrorKind.POLICY_BLOCKED
    assert "under way" in refused.sentence
    # A branch's own calls are its own.
    assert not begun(work, amount="6").machine.is_undecided
    same.give_up()


@pytest.mark.parametrize("effect", [b"", b"digest of the effect"])
@pytest.mark.parametrize(("key", "is_found"), [("", True), ("one", False)])
async def test_a_call_with_a_key_repeats_one_without_a_key_and_none_with_another(
    one: Bench, index: DuplicateIndex, effect: bytes, key: str, is_found: bool
) -> None:
    await lost(one, index, key, effect)
    later = DuplicateIndex(one.store, one.recorder, NeverTwice(), one.log, asyncio.Event())
    again = await admitted(one, later, "first", session(), "two", effect)
    assert (again.unsent is not None) is is_found
