"""`engine.call_driver`: what is noted of a call that must not happen twice."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from kit.attempts import Bench, ask, bench, session
from turnlog.core.classify import succeeded
from turnlog.engine.call_driver import CallDriver, unguarded
from turnlog.engine.duplicate_index import DuplicateIndex
from turnlog.engine.guarded_call import GuardedCall, guarded
from turnlog.exchange.call import Stage
from turnlog.exchange.duplicates import NeverTwice
from turnlog.exchange.events import Cancelled, Over, Woken
from turnlog.exchange.outcome import AnswerFacts
from turnlog.observe.events import CallBug
from turnlog.rules.model import Retry


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made


async def begun(one: Bench) -> GuardedCall:
    """Return a call that others can ask for, whose intent is queued."""
    index = DuplicateIndex(one.store, one.recorder, NeverTwice(), one.log, asyncio.Event())
    asked = ask(session(), one.recorder.new_call(), is_named=True)
    call = guarded(index, asked, stateless=False)
    assert call is not None
    await call.decided()
    call.begins(await one.recorder.begin(call.ask))
    return call


async def ended(one: Bench) -> CallDriver:
    """Return a call that has ended, and that others can ask for."""
    driver = await begun(one)
    attempt = driver.attempt
    assert attempt is not None
    ticket = one.recorder.end(attempt, succeeded(), AnswerFacts())
    assert ticket is not None
    await ticket.done()
    return driver


async def notes(one: Bench, driver: CallDriver) -> list[str]:
    one.recorder.flush()
    # What comes behind a note is on disk behind it.
    await one.recorder.on_disk(await one.recorder.begin(ask(session(), one.recorder.new_call())))
    with one.store.view() as view:
        commits = view.call(driver.ask.call)
    return [commit.facts.note for commit in commits if commit.facts.note]


async def test_an_answer_that_came_after_its_caller_left_is_noted(
    one: Bench,
) -> None:
    driver = await ended(one)
    driver.feed(Over())
    driver.on_left()
    assert await notes(one, driver) == ["abandoned"]


async def test_an_answer_that_comes_on_another_stream_is_given_again_from_then_on(
    one: Bench,
) -> None:
    driver = await begun(one)
    attempt = driver.attempt
    assert attempt is not None
    driver.feed(Over())  # its own stream has ended
    assert driver.seen().ending is None
    clock = asyncio.get_running_loop().time
    before = clock()
    one.recorder.end(attempt, succeeded(), AnswerFacts())
    seen = driver.seen()
    assert seen.ending == succeeded()
    assert seen.ended <= clock() - before


@pytest.mark.parametrize("looks", [False, True])
async def test_a_remembered_call_holds_no_input_unless_rules_need_it(
    one: Bench, looks: bool
) -> None:
    driver = await ended(one)
    assert driver.attempt is not None
    policy = structs.replace(driver.ask.policy, null_when=("empty",) if looks else ())
    asked = structs.replace(driver.ask, policy=policy, canonical=("sha256", b"{}"))
    driver.attempt.ask = asked
    driver.feed(Over())
    driver.shrink()
    left = asked.arguments if looks else b""
    assert (driver.ask.arguments, driver.ask.canonical) == (left, None)


async def test_a_caller_that_leaves_after_the_answer_does_not_count_as_gone(one: Bench) -> None:
    driver = await ended(one)
    driver.on_delivered()
    driver.feed(Over())
    driver.on_left()
    assert await notes(one, driver) == ["delivered"]


async def test_an_answer_that_never_came_is_not_delivered(one: Bench) -> None:
    driver = await begun(one)
    driver.on_delivered()
    driver.feed(Over())  # its own stream has ended, without the response
    driver.on_left()
    seen = driver.seen()
    assert (seen.delivered, seen.abandoned) == (False, False)
    assert await notes(one, driver) == []


async def test_an_answer_after_a_cancel_is_not_noted_as_delivered(
    one: Bench,
) -> None:
    driver = await ended(one)
    driver.on_delivered()
    assert driver.on_late_cancel()
    assert await notes(one, driver) == ["abandoned"]


async def test_an_answer_that_is_given_again_right_behind_a_cancel_is_noted_as_the_later_one(
    one: Bench,
) -> None:
    driver = await ended(one)
    driver.on_delivered()
    assert driver.on_late_cancel()
    driver.on_delivered()
    assert await notes(one, driver) == ["abandoned", "delivered"]


async def test_an_illegal_event_ends_that_call_and_is_logged(one: Bench) -> None:
    driver = await begun(one)
    driver.feed(Woken())
    assert driver.is_over
    (bug,) = [each for each in one.log.events if isinstance(each, CallBug)]
    assert (bug.stage, bug.happened) == ("recording", "Woken")


async def test_a_call_without_an_answer_can_be_cancelled_until_another_stream_brings_it(
    one: Bench,
) -> None:
    attempt = await one.recorder.begin(ask(session(), one.recorder.new_call()))
    driver = unguarded(attempt, one.recorder, is_member=True)
    driver.on_recorded(is_repeatable=False)
    driver.close()
    driver.feed(Cancelled())
    assert attempt.is_cancelled
    one.recorder.end(attempt, succeeded(), AnswerFacts())
    assert (driver.machine.stage, attempt.driver) == (Stage.DONE, None)


async def test_a_call_that_shares_its_request_is_neither_retried_nor_limited(one: Bench) -> None:
    asked = ask(session(), one.recorder.new_call(), is_named=True)
    policy = structs.replace(asked.policy, retry=Retry(on=("connection",)), concurrency=1)
    attempt = await one.recorder.begin(structs.replace(asked, policy=policy))
    driver = unguarded(attempt, one.recorder, is_member=True)
    terms = driver.machine.terms
    assert (terms.retry, terms.is_limited, terms.is_named) == (None, False, True)


async def test_a_call_that_no_rule_guards_outlives_its_caller_on_a_pipe_only(one: Bench) -> None:
    for is_named in (False, True):
        asked = ask(session(), one.recorder.new_call(), is_named=is_named)
        for is_piped in (False, True):
            attempt = await one.recorder.begin(asked)
            driver = unguarded(attempt, one.recorder, is_piped=is_piped)
            driver.on_recorded(is_repeatable=False)
            driver.on_left()
            assert driver.machine.has_left is not is_piped
            one.recorder.end(attempt, succeeded(), AnswerFacts())
