"""Slots of calls that a rule counts."""

import pytest

from turnlog.engine.concurrency import Limiter, Slot
from turnlog.rules.policy import Policy


def counted(limit: int, rule: str = "a rule") -> Policy:
    return Policy(concurrency=limit, decided_by={"concurrency": rule})


def three(limiter: Limiter, policy: Policy) -> list[Slot]:
    return [limiter.claim(policy) for _ in range(3)]


def held(limiter: Limiter, policy: Policy) -> list[bool]:
    return [slot.is_held for slot in three(limiter, policy)]


def test_there_are_as_many_slots_as_the_rule_says() -> None:
    assert held(Limiter(), counted(2)) == [True, True, False]


def test_each_rule_counts_for_itself() -> None:
    limiter = Limiter()
    assert held(limiter, counted(1)) == [True, False, False]
    assert held(limiter, counted(1, "another")) == [True, False, False]


@pytest.mark.promise("WAIT-6")
async def test_a_slot_goes_to_the_call_that_came_first() -> None:
    first, second, third = three(Limiter(), counted(1))
    first.give_back()
    first.give_back()
    assert (await second.wait(), third.is_held) == (True, False)


async def test_a_call_that_waits_no_more_is_passed_over() -> None:
    first, second, third = three(Limiter(), counted(1))
    second.give_back()
    first.give_back()
    assert (await second.wait(), await third.wait()) == (False, True)


async def test_a_call_under_a_higher_limit_waits_behind_those_that_came_before() -> None:
    limiter = Limiter()
    assert held(limiter, counted(1)) == [True, False, False]
    assert held(limiter, counted(5)) == [False, False, False]
