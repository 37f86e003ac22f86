import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.attempts import Bench, ask, bench, session
from turnlog.core.commit import Facts
from turnlog.core.kinds import CommitKind
from turnlog.engine.call_driver import unguarded
from turnlog.engine.call_registry import DETACHED_LIFE, CallRegistry
from turnlog.record.attempt import Attempt
from turnlog.record.deadlines import Deadlines
from turnlog.rules.model import Timeouts

HERE = ("files", "session-1")
THERE = ("files", "session-2")


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made


def attempt(name: str = "a") -> Attempt:
    asked = ask(session(), name.encode().ljust(16, b"\0"))
    return Attempt(asked, Facts(kind=CommitKind.INTENT, at=0, clock=0), 0, waits=True)


def test_a_call_is_open_until_it_is_removed() -> None:
    calls, first = CallRegistry(), attempt()
    calls.add(HERE, "1", first)
    assert calls.has(HERE, "1")
    assert (calls.of(HERE), calls.of(THERE)) == ([first], [])
    calls.remove(HERE, "1", first)
    assert (calls.has(HERE, "1"), calls.of(HERE)) == (False, [])


def test_the_same_id_elsewhere_or_of_another_type_is_another_call() -> None:
    calls = CallRegistry()
    calls.add(HERE, "1", attempt())
    assert not calls.has(THERE, "1")
    assert not calls.has(HERE, '"1"')


def test_removing_one_of_two_calls_with_one_id_leaves_the_other() -> None:
    calls, first, second = CallRegistry(), attempt("a"), attempt("b")
    calls.add(HERE, "1", first)
    calls.add(HERE, "1", second)
    calls.remove(HERE, "1", first)
    calls.remove(HERE, "1", first)
    assert calls.of(HERE) == [second]


async def test_a_cancellation_means_the_newest_call_with_that_id(one: Bench) -> None:
    calls, first, second = CallRegistry(), of_client(one, "a"), of_client(one, "b")
    calls.add(HERE, "1", first)
    calls.add(HERE, "1", second)
    calls.cancel(HERE, "1")
    calls.cancel(THERE, "1")
    calls.cancel(HERE, "2")
    assert (first.is_cancelled, second.is_cancelled) == (False, True)


def of_client(one: Bench, name: str, kin: str = "", wire_id: bytes = b"") -> Attempt:
    made = attempt(name)
    made.caller_id, made.wire_id, made.kin = b"1", wire_id, kin
    unguarded(made, one.recorder)
    return made


async def test_a_cancel_on_another_connection_means_the_clients_only_call_with_that_id(
    one: Bench,
) -> None:
    calls, mine, other = (
        CallRegistry(),
        of_client(one, "a", "me", b'"w"'),
        of_client(one, "b", "you"),
    )
    calls.add(HERE, '"w', mine)
    calls.add(("files", "session-3"), "1", other)
    assert calls.cancel(THERE, "1") is None
    assert calls.cancel(THERE, "2", "me") is None
    assert not mine.is_cancelled
    assert calls.cancel(THERE, "1", "me") == b'"w"'
    assert (mine.is_cancelled, other.is_cancelled) == (True, False)


async def test_a_cancel_that_may_mean_two_calls_means_neither(one: Bench) -> None:
    calls, first, second = CallRegistry(), of_client(one, "a", "me"), of_client(one, "b", "me")
    calls.add(HERE, "1", first)
    with calls.resting(("files", "session-3"), second):
        assert calls.cancel(THERE, "1", "me") is None
        assert (first.is_cancelled, second.is_cancelled) == (False, False)
        calls.cancel(HERE, "1", "me")
        assert (first.is_cancelled, second.is_cancelled) == (True, False)


@pytest.mark.parametrize("scope", [HERE, THERE])
async def test_a_cancel_between_two_attempts_names_the_earlier_attempt(
    one: Bench, scope: tuple[str, str]
) -> None:
    calls, before, due = (
        CallRegistry(),
        of_client(one, "a", "me", b'"w1"'),
        of_client(one, "a", "me", b'"w2"'),
    )
    calls.add(HERE, '"w2', due)
    with calls.resting(HERE, before):
        assert calls.cancel(scope, "1", "me") == b'"w1"'
        assert (before.is_cancelled, due.is_cancelled) == (True, True)
    assert calls.cancel(HERE, "1", "me") == b'"w2"'


def test_an_answer_elsewhere_claims_the_call_whose_own_stream_ended() -> None:
    calls, ended, running = CallRegistry(), attempt("a"), attempt("b")
    calls.add(HERE, "1", ended)
    calls.add(HERE, "1", running)
    calls.detach(HERE, "1", ended, 0)
    assert calls.claim(HERE, "1") is ended
    assert calls.of(HERE) == [running]


def test_an_answer_elsewhere_claims_a_running_call_where_no_other_waits() -> None:
    calls, running = CallRegistry(), attempt()
    calls.add(HERE, "1", running)
    assert calls.claim(THERE, "1") is None
    assert calls.claim(HERE, "1") is running
    assert calls.claim(HERE, "1") is None
    assert calls.of(HERE) == []


def test_a_detached_call_that_nobody_resumes_is_overdue_in_the_end() -> None:
    calls, early, late = CallRegistry(), attempt("a"), attempt("b")
    for key, each, at in (("1", early, 0), ("1", late, 5), ("2", attempt("c"), 7)):
        calls.add(HERE, key, each)
        calls.detach(HERE, key, each, at)
    assert calls.overdue(DETACHED_LIFE - 1) == []
    assert calls.overdue(DETACHED_LIFE + 4) == [early]
    assert calls.overdue(DETACHED_LIFE + 4) == []
    assert (len(calls.of(HERE)), calls.claim(HERE, "1")) == (2, late)


@pytest.mark.parametrize(
    ("limits", "asked", "life"),
    [
        (Timeouts(), False, 600.0),
        (Timeouts(response=1.0), False, 600.0),
        (Timeouts(idle=3.0), False, 3.0),
        (Timeouts(idle=900.0), False, 900.0),
        (Timeouts(total=8.0), False, 6.0),
        (Timeouts(idle=3.0, total=4.0), False, 2.0),
        (Timeouts(total=1.0), False, 0.0),
        (Timeouts(idle=3.0), True, 600.0),
        (Timeouts(idle=3.0, total=8.0), True, 6.0),
    ],
)
def test_a_stream_may_be_resumed_for_as_long_as_rules_say(
    limits: Timeouts, asked: bool, life: float
) -> None:
    deadlines = Deadlines(limits, 100.0)
    if asked:
        deadlines.on_server_request("1")
    deadlines.close()
    assert deadlines.resumable(600.0, 102.0) == life


@pytest.mark.parametrize(
    ("limits", "timed"),
    [
        (Timeouts(), False),
        (Timeouts(queue=1.0, connect=1.0), False),
        (Timeouts(response=9.0), True),
        (Timeouts(idle=9.0), True),
        (Timeouts(total=9.0), True),
    ],
)
async def test_an_attempt_is_timed_once_connected_if_its_answer_is_limited(
    limits: Timeouts, timed: bool
) -> None:
    deadlines = Deadlines(limits, asyncio.get_running_loop().time())
    assert deadlines.connected(lambda kind, detail: True) is timed
    assert deadlines.runs is timed
    deadlines.close()
    assert not deadlines.runs


def test_all_detached_calls_can_be_taken_and_running_ones_stay() -> None:
    calls, running, detached = CallRegistry(), attempt("a"), attempt("b")
    calls.add(HERE, "1", running)
    calls.add(THERE, "1", detached)
    calls.detach(THERE, "1", detached, 0)
    assert calls.everything_detached() == [detached]
    assert calls.everything_detached() == []
    assert calls.of(HERE) == [running]


def test_a_parked_call_is_found_by_any_of_its_keys_until_it_went_on() -> None:
    calls, first = CallRegistry(), attempt()
    calls.park((b"a", b"b"), first)
    assert calls.parked((b"x", b"b")) is first
    calls.unpark((b"b", b"unknown"))
    assert calls.parked((b"b",)) is None
    assert calls.parked((b"a",)) is first


def test_parked_calls_do_not_grow_without_bound() -> None:
    calls, first = CallRegistry(), attempt()
    for number in range(70_000):
        calls.park((number.to_bytes(4, "big"),), first)
    assert calls.parked(((0).to_bytes(4, "big"),)) is None
    assert calls.parked(((69_999).to_bytes(4, "big"),)) is first


async def test_a_call_left_to_another_stream_waits_for_the_rules_time_limit() -> None:
    calls = CallRegistry()
    short, plain = attempt("a"), attempt("b")
    short.deadlines = Deadlines(Timeouts(idle=2.0), asyncio.get_running_loop().time())
    for key, each in (("1", short), ("2", plain)):
        calls.add(HERE, key, each)
        calls.detach(HERE, key, each, 0)
    assert calls.overdue(2 * 10**9 - 1) == []
    assert calls.overdue(2 * 10**9) == [short]
    assert calls.overdue(DETACHED_LIFE) == [plain]
