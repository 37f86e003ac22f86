import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from kit.attempts import Bench, ask, bench, session
from turnlog.core.classify import succeeded
from turnlog.core.kinds import Status
from turnlog.engine.call_registry import CallRegistry
from turnlog.engine.concurrency import Limiter
from turnlog.engine.context import Context
from turnlog.engine.duplicate_index import DuplicateIndex
from turnlog.engine.legacy_sse import LegacyStreams
from turnlog.engine.mcp.continuations import Continuations
from turnlog.engine.redirects import Redirects
from turnlog.engine.request_identity import Clients, Sessions
from turnlog.engine.session_gate import ImportedSessions
from turnlog.engine.tools.definition_writer import DefinitionWriter
from turnlog.engine.tools.pin_set import PinSet
from turnlog.engine.tools.server_identities import ServerIdentities
from turnlog.engine.tools.tool_cache import ActiveRules, HttpToolCache, ToolCache, ToolListings
from turnlog.engine.upstream_health import Health
from turnlog.exchange.duplicates import NeverTwice
from turnlog.exchange.outcome import AnswerFacts
from turnlog.exchange.principal import PrincipalNames
from turnlog.record.attempt import Ask, Attempt
from turnlog.redaction.redact import Redactor
from turnlog.rules.policy import Rulebook
from turnlog.sessions.retention.ages import Retention
from turnlog.sessions.state.state_at import saved_states
from turnlog.transport.routes import Endpoints
from turnlog.wire import mcp
from turnlog.wire.tool_result import CallAnswer

STATE = b"digest of a state".ljust(32)


def context(one: Bench) -> Context:
    clock = one.time.clock()
    pins = PinSet(Path("/nonexistent/turnlog.lock"))
    listings, rules = ToolListings(), ActiveRules(Rulebook((), {}, ()))
    identities = ServerIdentities(pins, lambda _: None)
    return Context(
        store=one.store,
        digest=one.store.keyed,
        recorder=one.recorder,
        lineage=None,
        duplicate_index=DuplicateIndex(
            one.store, one.recorder, NeverTwice(), one.log, asyncio.Event()
        ),
        redactor=Redactor(),
        saved_states=saved_states(Path("/nonexistent")),
        clean=str,
        principals=PrincipalNames(),
        sessions=Sessions(clock, (), str, one.store.keyed),
        imported=ImportedSessions(one.store),
        clients=Clients(),
        tool_listings=listings,
        definition_writer=DefinitionWriter(
            Path("/nonexistent"),
            Redactor(),
            str,
            pins,
            clock,
            one.log,
            one.log.fault,
            asyncio.TaskGroup(),
        ),
        pins=pins,
        calls=CallRegistry(),
        legacy_streams=LegacyStreams(),
        endpoints=Endpoints(),
        redirects=Redirects(),
        rules=rules,
        tools=ToolCache(listings, pins, rules, frozenset(), str, identities),
        http_tools=HttpToolCache(rules, str, identities),
        identities=identities,
        trusted=frozenset(),
        limiter=Limiter(),
        health=Health({}, Path("/nonexistent"), 1, clock, one.log),
        clock=clock,
        log=one.log,
        keep=1 << 20,
        retention=Retention(),
        work=asyncio.TaskGroup(),
        stop=asyncio.Event(),
    )


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


async def parked(one: Bench, where: Context, said: CallAnswer) -> Attempt:
    """Record a call that was answered with `said`, and park it."""
    attempt = await one.recorder.begin(asked(one))
    await one.recorder.on_disk(attempt)
    links = Continuations(where, "files").links(attempt.ask, said)
    ticket = one.recorder.end(
        attempt, succeeded(said.status), AnswerFacts(http_status=200, links=links)
    )
    assert ticket is not None
    await ticket.done()
    where.calls.park(links, attempt)
    return attempt


STATEFUL = CallAnswer(status=Status.INPUT_REQUIRED, request_state=STATE)
STATELESS = CallAnswer(status=Status.INPUT_REQUIRED)
TASK = CallAnswer(status=Status.ACCEPTED, task_id="t1")


@pytest.mark.parametrize("status", [Status.OK, Status.ERROR])
async def test_an_answer_that_ends_a_call_leaves_no_links(one: Bench, status: Status) -> None:
    links = Continuations(context(one), "files").links(
        asked(one), CallAnswer(status=status, task_id="t")
    )
    assert links == ()


@pytest.mark.promise("SEC-5")
async def test_links_are_keyed_and_name_nothing(one: Bench) -> None:
    (link,) = Continuations(context(one), "files").links(asked(one), TASK)
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
    where = context(one)
    attempt = await parked(one, where, said)
    found = Continuations(where if memory else context(one), "files").continued(next_, session())
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
    where = context(one)
    await parked(one, where, STATEFUL)
    await parked(one, where, STATELESS)
    assert Continuations(where, "files").continued(next_, session()) is None


async def test_another_server_or_session_finds_nothing(one: Bench) -> None:
    where = context(one)
    await parked(one, where, STATEFUL)
    await parked(one, where, STATELESS)
    assert Continuations(where, "git").continued(call(state=STATE), session()) is None
    assert Continuations(where, "files").continued(call(responses=True), session("other")) is None


@pytest.mark.parametrize("memory", [True, False], ids=["in memory", "after a restart"])
async def test_the_end_of_a_task_finds_its_call(one: Bench, memory: bool) -> None:
    where = context(one)
    attempt = await parked(one, where, TASK)
    found = Continuations(where if memory else context(one), "files").finished_task("t1")
    assert found is not None
    assert (found.ask.call, found.n, found.ended) == (attempt.ask.call, 1, False)


async def test_a_task_ends_once(one: Bench) -> None:
    where = context(one)
    await parked(one, where, TASK)
    legs = Continuations(where, "files")
    found = legs.finished_task("t1")
    assert found is not None
    ticket = one.recorder.end(found, succeeded(), AnswerFacts(http_status=200))
    assert ticket is not None
    await ticket.done()
    assert legs.finished_task("t1") is None
    assert Continuations(context(one), "files").finished_task("t1") is None


async def test_a_task_that_nobody_began_is_not_found(one: Bench) -> None:
    where = context(one)
    await parked(one, where, TASK)
    assert Continuations(where, "files").finished_task("t2") is None
    assert Continuations(where, "git").finished_task("t1") is None
