"""`sessions.resolve`: an operator settles calls of unknown outcome, and no others."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw, structs

from conformance.store.kit import START, begin, intent, new_id, note, outcome, put, session
from turnlog.core import ids
from turnlog.core.commit import CommitBody
from turnlog.core.kinds import Flag, NoteKind, Status
from turnlog.core.operation import Operation
from turnlog.core.state.state_view import state_table
from turnlog.observe.clock import Clock
from turnlog.sessions.dangling import DanglingFilter, find_dangling
from turnlog.sessions.errors import NotFoundError, UnresolvableError, UnresolvableReason
from turnlog.sessions.resolve import Claim, resolve
from turnlog.sessions.rows import Row
from turnlog.sessions.state.state_at import saved_states, state_at
from turnlog.store.lmdb import LmdbStore


def clock_at(time: int) -> Clock:
    return Clock(wall=lambda: time, monotonic=lambda: 1)


LATER = clock_at(START + 10**9)
HAPPENED = Claim(happened=True, why="the file is there", clock=LATER)
DID_NOT = Claim(happened=False, clock=LATER)
MOVE = Operation(field="files_modified", op="renamed", key="/a", to="/b", maybe=True)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LmdbStore]:
    opened = LmdbStore.open(tmp_path / "data", flush_every=3, now=lambda: START)
    yield opened
    await opened.close()


async def unknown(store: LmdbStore, status: Status = Status.UNKNOWN) -> str:
    """Write a call that ended so, and return its id."""
    ref, call = session(), new_id()
    ticket = await begin(store, intent(ref, call))
    body = CommitBody(delta=(Raw(msgspec.msgpack.encode(MOVE)),))
    await put(store, outcome(ref, call, ticket, status=status, body=body))
    return ids.to_text(call)


async def refused(store: LmdbStore, call: str) -> tuple[UnresolvableReason, str]:
    with pytest.raises(UnresolvableError) as caught:
        await resolve(store, call, HAPPENED)
    return caught.value.reason, str(caught.value)


async def test_a_call_resolved_as_happened_is_ok_and_has_its_changes(store: LmdbStore) -> None:
    row = await resolve(store, await unknown(store), HAPPENED)
    assert (row.status, row.executed, row.error, row.retry) == ("ok", "yes", None, None)
    assert row.flags == [Flag.RESOLVED]
    assert row.tool_result is None
    assert row.output_summary == "it happened"
    assert row.delta[1:] == [structs.replace(MOVE, maybe=False)]


@pytest.mark.parametrize(
    ("claim", "wanted"), [(HAPPENED, {"/b": ("renamed", False)}), (DID_NOT, {})]
)
async def test_the_state_holds_only_changes_of_calls_that_happened(
    tmp_path: Path, store: LmdbStore, claim: Claim, wanted: dict[str, tuple[str, bool]]
) -> None:
    await resolve(store, await unknown(store), claim)
    with store.view() as view:
        (row,) = view.sessions()
        state = state_at(view, saved_states(tmp_path / "data"), row.session, row.head_seq)
    files = state_table(state).files_modified
    assert {name: (change.op, change.maybe) for name, change in files.items()} == wanted
    assert state_table(state).pending_actions == {}


async def test_a_call_resolved_as_not_happened_is_a_safe_error(
    store: LmdbStore,
) -> None:
    row = await resolve(store, await unknown(store), DID_NOT)
    assert (row.status, row.executed) == ("error", "no")
    assert (row.error, row.kind, row.retry) == ("unknown", "outcome_unknown", "safe")
    assert (row.flags, row.tool_result, row.delta[1:]) == ([Flag.RESOLVED], None, [])


@pytest.mark.promise("OPEN-6")
async def test_the_outcome_is_an_operators_and_refers_to_the_intent(store: LmdbStore) -> None:
    name = await unknown(store)
    await resolve(store, name, HAPPENED)
    with store.view() as view:
        begun, before, said = view.call(bytes.fromhex(name.replace("-", "")))
        assert find_dangling(view, DanglingFilter()) == []
        assert list(view.unsettled()) == []
    assert (said.facts.actor, said.facts.n, before.facts.n) == ("operator", 1, 0)
    assert (said.link.ref, said.link.turn) == (begun.link.seq, begun.link.turn)
    assert said.body is not None
    assert said.body.detail == "the file is there"


@pytest.mark.parametrize("status", [Status.ACCEPTED, Status.INPUT_REQUIRED])
async def test_a_parked_call_can_be_resolved(store: LmdbStore, status: Status) -> None:
    row = await resolve(store, await unknown(store, status), DID_NOT)
    assert (row.status, row.executed) == ("error", "no")


@pytest.mark.parametrize("status", [Status.OK, Status.ERROR])
async def test_a_call_with_a_known_outcome_is_refused(store: LmdbStore, status: Status) -> None:
    reason, text = await refused(store, await unknown(store, status))
    assert reason is UnresolvableReason.KNOWN
    assert f"ended as {status}, only unknown calls are resolved" in text


@pytest.mark.promise("OPEN-3")
async def test_a_call_in_flight_is_refused(store: LmdbStore) -> None:
    call = new_id()
    await begin(store, intent(session(), call))
    reason, text = await refused(store, ids.to_text(call))
    assert (reason, "is in flight" in text) == (UnresolvableReason.IN_FLIGHT, True)


async def test_a_timed_out_call_is_refused_while_it_still_runs(
    store: LmdbStore,
) -> None:
    ref, call = session(), new_id()
    ticket = await begin(store, intent(ref, call))
    timed_out = outcome(ref, call, ticket, status=Status.UNKNOWN, error="timeout")
    told = store.submit(timed_out, wait=True)
    await told.done()
    await put(store, note(ref, call, NoteKind.ABANDONED, told))
    assert (await refused(store, ids.to_text(call)))[0] is UnresolvableReason.IN_FLIGHT
    await put(store, note(ref, call, NoteKind.CANCEL_FORWARDED, ticket))
    assert (await resolve(store, ids.to_text(call), DID_NOT)).executed == "no"


async def test_a_call_of_a_dead_process_can_be_resolved(tmp_path: Path, store: LmdbStore) -> None:
    other, call = LmdbStore.open(tmp_path / "data"), new_id()
    await begin(other, intent(session(), call))
    await other.close()
    row = await resolve(store, ids.to_text(call)[:13], HAPPENED)
    assert (row.call, row.status) == (ids.to_text(call), "ok")


async def test_a_call_cannot_be_resolved_twice(store: LmdbStore) -> None:
    name = await unknown(store)
    await resolve(store, name, DID_NOT)
    reason, text = await refused(store, name)
    assert (reason, text) == (
        UnresolvableReason.RESOLVED,
        f"call {name} was resolved before: it did not happen",
    )


async def test_only_one_of_several_simultaneous_claims_is_recorded(
    tmp_path: Path, store: LmdbStore
) -> None:
    name = await unknown(store)
    other = LmdbStore.open(tmp_path / "data")
    claims = [
        structs.replace(HAPPENED if n % 2 else DID_NOT, clock=clock_at(START + n)) for n in range(8)
    ]
    said = await asyncio.gather(
        *(resolve(store if n < 4 else other, name, claim) for n, claim in enumerate(claims)),
        return_exceptions=True,
    )
    rows = [one for one in said if isinstance(one, Row)]
    errors = [one for one in said if isinstance(one, UnresolvableError)]
    with store.view() as view:
        commits = view.call(bytes.fromhex(name.replace("-", "")))
    await other.close()
    assert (len(rows), len(errors), len(commits)) == (1, 7, 3)
    assert {error.reason for error in errors} == {UnresolvableReason.RESOLVED}


@pytest.mark.promise("OPEN-6")
async def test_a_late_answer_is_recorded_after_the_claim(store: LmdbStore) -> None:
    ref, call = session(), new_id()
    ticket = await begin(store, intent(ref, call))
    await put(store, outcome(ref, call, ticket, status=Status.UNKNOWN))
    await resolve(store, ids.to_text(call), DID_NOT)
    late = await put(store, outcome(ref, call, ticket, n=1, flags=(Flag.LATE,)))
    assert (late.facts.n, late.facts.flags) == (2, (Flag.LATE,))
    reason, _ = await refused(store, ids.to_text(call))
    assert reason is UnresolvableReason.KNOWN


async def test_a_unique_beginning_of_an_id_is_enough(store: LmdbStore) -> None:
    open_ended = await unknown(store)
    row = await resolve(store, open_ended[:4], HAPPENED)
    assert (row.call, row.status) == (open_ended, "ok")


async def test_a_beginning_of_two_calls_settles_neither_even_if_one_can_be_resolved(
    store: LmdbStore,
) -> None:
    settled, open_ended = await unknown(store, Status.OK), await unknown(store)
    with pytest.raises(NotFoundError, match="begins several calls, write the whole id") as caught:
        await resolve(store, open_ended[:4], HAPPENED)
    assert [name in str(caught.value) for name in (settled, open_ended)] == [False, True]
    with store.view() as view:
        assert len(find_dangling(view, DanglingFilter())) == 1


async def test_a_beginning_of_calls_that_have_all_ended_is_refused(store: LmdbStore) -> None:
    names = [await unknown(store, status) for status in (Status.OK, Status.ERROR)]
    with pytest.raises(NotFoundError, match="one that can be resolved: there is none"):
        await resolve(store, names[0][:4], HAPPENED)


async def test_an_ambiguous_prefix_error_names_only_resolvable_calls(
    store: LmdbStore,
) -> None:
    settled = await unknown(store, Status.OK)
    names = [await unknown(store), await unknown(store)]
    with pytest.raises(NotFoundError, match="begins several calls") as caught:
        await resolve(store, names[0][:4], HAPPENED)
    assert [name in str(caught.value) for name in (settled, *names)] == [False, True, True]


async def test_an_unknown_call_is_not_found(store: LmdbStore) -> None:
    with pytest.raises(NotFoundError, match="no call begins with '0123'"):
        await resolve(store, "0123", HAPPENED)
