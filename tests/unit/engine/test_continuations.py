from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from kit.attempts import Bench, ask, bench, session
from turnlog.core.classify import succeeded
from turnlog.core.kinds import Status
from turnlog.engine.call_registry import CallRegistry
from turnlog.engine.continuations import Continuations
from turnlog.engine.session_gate import ImportedSessions
from turnlog.exchange.outcome import AnswerFacts
from turnlog.record.attempt import Ask, Attempt
from turnlog.wire import mcp
from turnlog.wire.tool_result import CallAnswer

STATE = b"digest of a state".ljust(32)


def legs_of(one: Bench) -> Continuations:
    """Return the legs as a new process knows them."""
    imported = ImportedSessions(one.store)
    return Continuations(one.store, one.recorder, CallRegistry(), imported, one.log)


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made


def asked(one: Bench, **changes: Any) -> Ask:
    return ask(session(), one.recorder.new_call(), **changes)


def call(
    *, state: bytes = b"", responses: bool = False, arguments: bytes = b'{"path":"/tmp/a"}'
) -> mcp.ToolCall:
    return mcp.ToolCall(
        name="write",
        arguments=Raw(arguments),
        meta={},
        has_input_responses=responses,
        request_state=state,
    )


async def parked(one: Bench, legs: Continuations, said: CallAnswer) -> Attempt:
    """Record a call that was answered with `said`, and park it."""
    attempt = await one.recorder.begin(asked(one))
    await one.recorder.on_disk(attempt)
    links = legs.park("files", attempt, said)
    ticket = one.recorder.end(
        attempt, succeeded(said.status), AnswerFacts(http_status=200, links=links)
    )
    assert ticket is not None
    await ticket.done()
    return attempt


STATEFUL = CallAnswer(status=Status.INPUT_REQUIRED, request_state=STATE)
STATELESS = CallAnswer(status=Status.INPUT_REQUIRED)
TASK = CallAnswer(status=Status.ACCEPTED, task_id="t1")


@pytest.mark.parametrize("status", [Status.OK, Status.ERROR])
async def test_an_answer_that_ends_a_call_leaves_no_links(one: Bench, status: Status) -> None:
    links = legs_of(one).links("files", asked(one), CallAnswer(status=status, task_id="t"))
    assert links == ()


@pytest.mark.promise("SEC-5")
async def test_links_are_keyed_and_name_nothing(one: Bench) -> None:
    (link,) = legs_of(one).links("files", asked(one), TASK)
    assert len(link) == 32
    assert b"t1" not in link


@pytest.mark.parametrize("memory", [True, False], ids=["in memory", "after a restart"])
@pytest.mark.parametrize(
    ("said", "next_"),
    [
        (STATEFUL, call(state=STATE, responses=True)),
        (STATEFUL, call(state=STATE)),
        (STATELESS, call(responses=True)),
        (STATELESS, call(responses=True, arguments=b'{ "path" : "\\/tmp\\/a" }')),
    ],
    ids=["state and input", "state alone", "input alone", "input, written otherwise"],
)
async def test_a_continuation_finds_its_call(
    one: Bench, said: CallAnswer, next_: mcp.ToolCall, memory: bool
) -> None:
    legs = legs_of(one)
    attempt = await parked(one, legs, said)
    found = (legs if memory else legs_of(one)).continued("files", next_, session())
    assert found is not None
    assert (found.call, found.leg) == (attempt.ask.call, 0)


@pytest.mark.parametrize(
    "next_",
    [
        call(),
        call(state=b"another digest".ljust(32), responses=True),
        call(responses=True, arguments=b'{"path":"/tmp/b"}'),
    ],
    ids=["no input", "another state", "other arguments"],
)
async def test_a_call_that_continues_nothing_finds_no_leg(one: Bench, next_: mcp.ToolCall) -> None:
    legs = legs_of(one)
    await parked(one, legs, STATEFUL)
    await parked(one, legs, STATELESS)
    assert legs.continued("files", next_, session()) is None


async def test_another_server_or_session_finds_nothing(one: Bench) -> None:
    legs = legs_of(one)
    await parked(one, legs, STATEFUL)
    await parked(one, legs, STATELESS)
    assert legs.continued("git", call(state=STATE), session()) is None
    assert legs.continued("files", call(responses=True), session("other")) is None


@pytest.mark.parametrize("memory", [True, False], ids=["in memory", "after a restart"])
async def test_the_end_of_a_task_finds_its_call(one: Bench, memory: bool) -> None:
    legs = legs_of(one)
    attempt = await parked(one, legs, TASK)
    found = (legs if memory else legs_of(one)).finished_task("files", "t1")
    assert found is not None
    assert (found.ask.call, found.n, found.ended) == (attempt.ask.call, 1, False)


async def test_a_task_ends_once(one: Bench) -> None:
    legs = legs_of(one)
    await parked(one, legs, TASK)
    found = legs.finished_task("files", "t1")
    assert found is not None
    ticket = one.recorder.end(found, succeeded(), AnswerFacts(http_status=200))
    assert ticket is not None
    await ticket.done()
    assert legs.finished_task("files", "t1") is None
    assert legs_of(one).finished_task("files", "t1") is None


async def test_a_task_that_nobody_began_is_not_found(one: Bench) -> None:
    legs = legs_of(one)
    await parked(one, legs, TASK)
    assert legs.finished_task("files", "t2") is None
    assert legs.finished_task("git", "t1") is None
