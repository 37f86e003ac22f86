from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.attempts import Bench, ask, bench, session
from turnlog.engine.concurrency import Limiter, Slot
from turnlog.record.attempt import Attempt
from turnlog.rules.policy import Policy


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made


def counted(limit: int, rule: str = "a rule") -> Policy:
    return Policy(concurrency=limit, decided_by={"concurrency": rule})


async def asked(one: Bench, policy: Policy) -> Attempt:
    return await one.recorder.begin(ask(session(), one.recorder.new_call(), policy=policy))


async def three(one: Bench, places: Limiter, policy: Policy) -> list[Slot]:
    claimed = [places.claim(await asked(one, policy)) for _ in range(3)]
    return [place for place in claimed if place is not None]


async def held(one: Bench, places: Limiter, policy: Policy) -> list[bool]:
    return [place.is_held for place in await three(one, places, policy)]


async def test_without_a_rule_nobody_has_a_place(one: Bench) -> None:
    assert Limiter().claim(await asked(one, Policy())) is None
    assert Limiter().claim(None) is None


async def test_there_are_as_many_places_as_the_rule_says(one: Bench) -> None:
    assert await held(one, Limiter(), counted(2)) == [True, True, False]


async def test_each_rule_counts_for_itself(one: Bench) -> None:
    places = Limiter()
    assert await held(one, places, counted(1)) == [True, False, False]
    assert await held(one, places, counted(1, "another")) == [True, False, False]


@pytest.mark.promise("WAIT-6")
async def test_a_place_goes_to_who_came_first(one: Bench) -> None:
    places = Limiter()
    first, second, third = await three(one, places, counted(1))
    first.give_back()
    first.give_back()
    assert (await second.wait(), third.is_held) == (True, False)


async def test_who_waits_no_more_is_passed_over(one: Bench) -> None:
    places = Limiter()
    first, second, third = await three(one, places, counted(1))
    second.give_back()
    first.give_back()
    assert (await second.wait(), await third.wait()) == (False, True)


async def test_who_comes_under_a_higher_limit_waits_behind_who_came_before(one: Bench) -> None:
    places = Limiter()
    assert await held(one, places, counted(1)) == [True, False, False]
    assert await held(one, places, counted(5)) == [False, False, False]
