"""`sessions.dangling`: the calls without an answer, and their description."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from conformance.store.kit import START, begin, intent, known, new_id, note, outcome, put, session
from turnlog.core import ids
from turnlog.core.commit import CommitBody, Facts
from turnlog.core.kinds import Effect, Flag, NoteKind, Status
from turnlog.record.attempt import StoredTicket
from turnlog.sessions.dangling import (
    Dangling,
    DanglingFilter,
    DanglingReason,
    count_dangling,
    dangling,
)
from turnlog.sessions.payloads import PayloadState
from turnlog.store.base import Blob, Draft, SessionRef, Ticket
from turnlog.store.lmdb import LmdbReader, LmdbStore

ANSWER = b'{"content":[{"type":"text","text":"sent"}]}'


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LmdbStore]:
    opened = LmdbStore.open(tmp_path / "data", flush_every=3)
    yield opened
    await opened.close()


def found(store: LmdbStore, wanted: DanglingFilter = DanglingFilter()) -> list[Dangling]:  # noqa: B008 - frozen
    with store.view() as view:
        return list(dangling(view, wanted))


def shown(
    store: LmdbStore,
    wanted: DanglingFilter = DanglingFilter(),  # noqa: B008
) -> list[tuple[DanglingReason, str]]:
    return [(one.standing, one.row.call) for one in found(store, wanted)]


async def ended(store: LmdbStore, draft: Draft) -> Ticket:
    ticket = store.submit(draft, wait=True)
    await ticket.done()
    return ticket


async def left(store: LmdbStore, ref: SessionRef, answer: Blob, *notes: NoteKind) -> bytes:
    """Write a call that has ended, with notes on its outcome."""
    call = new_id()
    ticket = await begin(store, intent(ref, call, body=CommitBody(preview="to=you")))
    done = await ended(store, outcome(ref, call, ticket, blob=answer))
    for kind in notes:
        await put(store, note(ref, call, kind, done))
    return call


async def test_a_call_of_a_running_process_is_in_flight(store: LmdbStore) -> None:
    call = new_id()
    await begin(store, intent(session(), call))
    (one,) = found(store)
    assert (one.standing, one.row.status, one.abandoned) == (
        DanglingReason.IN_FLIGHT,
        "pending",
        False,
    )
    assert (one.row.call, one.output.kept) == (ids.to_text(call), PayloadState.NONE)


@pytest.mark.parametrize(
    ("effect", "standing", "retry"),
    [
        (Effect.WRITE, DanglingReason.UNKNOWN, "unsafe"),
        (Effect.READ, DanglingReason.UNDELIVERED, "safe"),
    ],
)
async def test_a_call_of_a_dead_process_is_shown_as_recovery_will_record_it(
    tmp_path: Path, effect: Effect, standing: DanglingReason, retry: str
) -> None:
    data = tmp_path / "data"
    first = LmdbStore.open(data)
    await begin(first, intent(session(), new_id(), effect=effect))
    await first.close()
    with LmdbReader.open(data) as reader, reader.view() as view:
        (early,) = dangling(view, DanglingFilter())
    second = LmdbStore.open(data)
    (late,) = found(second)
    await second.close()
    assert (early.standing, late.standing) == (standing, standing)
    assert (early.row.kind, early.row.retry, early.row.executed) == (
        "outcome_unknown",
        retry,
        "maybe",
    )
    told = ("status", "error", "kind", "retry", "phase", "executed")
    assert [getattr(early.row, name) for name in told] == [getattr(late.row, name) for name in told]


@pytest.mark.parametrize("status", [Status.INPUT_REQUIRED, Status.ACCEPTED])
async def test_a_call_that_waits_for_its_next_leg_is_parked(
    store: LmdbStore, status: Status
) -> None:
    ref, call = session(), new_id()
    ticket = await begin(store, intent(ref, call))
    await put(store, outcome(ref, call, ticket, status=status))
    assert shown(store) == [(DanglingReason.PARKED, ids.to_text(call))]


async def test_a_call_whose_agent_left_before_the_answer_is_undelivered(store: LmdbStore) -> None:
    ref = session()
    await left(store, ref, Blob(ANSWER))
    call = await left(store, ref, Blob(ANSWER), NoteKind.ABANDONED)
    await left(store, ref, Blob(ANSWER), NoteKind.ABANDONED, NoteKind.DELIVERED)
    await left(store, ref, Blob(ANSWER), NoteKind.DELIVERED)
    (one,) = found(store)
    assert (one.standing, one.abandoned) == (DanglingReason.UNDELIVERED, True)
    assert (one.row.call, one.row.status, one.preview) == (ids.to_text(call), "ok", "to=you")
    assert one.output.text.encode() == ANSWER


@pytest.mark.parametrize(
    ("blob", "kept"),
    [(Blob(ANSWER, redacted=True), PayloadState.WHOLE), (Blob(ANSWER, cut=True), PayloadState.CUT)],
)
async def test_a_cut_or_redacted_answer_is_not_shown(
    store: LmdbStore, blob: Blob, kept: PayloadState
) -> None:
    await left(store, session(), blob, NoteKind.ABANDONED)
    (one,) = found(store)
    assert (one.output.text, one.output.kept) == ("", kept)
    assert one.output.redacted is blob.redacted


async def test_an_abandoned_call_that_still_runs_is_listed_once_as_in_flight(
    store: LmdbStore,
) -> None:
    ref, call = session(), new_id()
    ticket = await begin(store, intent(ref, call))
    await put(store, note(ref, call, NoteKind.ABANDONED, ticket))
    (one,) = found(store)
    assert (one.standing, one.abandoned) == (DanglingReason.IN_FLIGHT, True)


async def test_a_timed_out_call_is_in_flight_until_its_process_gives_it_up(
    store: LmdbStore,
) -> None:
    ref, call = session(), new_id()
    ticket = await begin(store, intent(ref, call))
    timed_out = outcome(ref, call, ticket, status=Status.UNKNOWN, error="timeout")
    told = await ended(store, timed_out)
    assert shown(store) == [(DanglingReason.UNKNOWN, ids.to_text(call))]
    await put(store, note(ref, call, NoteKind.ABANDONED, told))
    (one,) = found(store)
    assert (one.standing, one.abandoned, one.row.status) == (
        DanglingReason.IN_FLIGHT,
        True,
        "unknown",
    )
    await put(store, note(ref, call, NoteKind.UNANSWERED, told))
    assert shown(store) == [(DanglingReason.UNKNOWN, ids.to_text(call))]


async def test_an_abandoned_earlier_leg_does_not_count_for_the_last(store: LmdbStore) -> None:
    ref, call = session(), new_id()
    first = await begin(store, intent(ref, call))
    asked = await ended(store, outcome(ref, call, first, status=Status.INPUT_REQUIRED))
    await put(store, note(ref, call, NoteKind.ABANDONED, asked))
    second = await begin(store, intent(ref, call, leg=1))
    done = await ended(store, outcome(ref, call, second, leg=1))
    assert shown(store) == []
    await put(store, note(ref, call, NoteKind.ABANDONED, done))
    assert shown(store) == [(DanglingReason.UNDELIVERED, ids.to_text(call))]


async def test_calls_are_filtered_by_session_time_and_position(store: LmdbStore) -> None:
    refs = session("one"), session("two")
    calls: list[str] = []
    for number, ref in enumerate((*refs, *refs)):
        call = new_id()
        await begin(store, intent(ref, call, at=START + number))
        calls.append(ids.to_text(call))
    assert [call for _, call in shown(store)] == calls
    of_one = shown(store, DanglingFilter(session=known(refs[0])))
    assert [call for _, call in of_one] == [calls[0], calls[2]]
    assert [call for _, call in shown(store, DanglingFilter(since=START + 2))] == calls[2:]
    with store.view() as view:
        place = view.call(bytes.fromhex(calls[1].replace("-", "")))[0].position
    assert [call for _, call in shown(store, DanglingFilter(behind=place))] == calls[2:]


async def test_recovered_calls_are_filtered_too(tmp_path: Path) -> None:
    first = LmdbStore.open(tmp_path)
    refs = session("one"), session("two")
    calls = [new_id(), new_id()]
    for ref, call in zip(refs, calls, strict=True):
        await begin(first, intent(ref, call, effect=Effect.READ))
    await first.close()
    second = LmdbStore.open(tmp_path)
    assert [call for _, call in shown(second)] == [ids.to_text(call) for call in calls]
    (one,) = shown(second, DanglingFilter(session=known(refs[1])))
    assert one == (DanglingReason.UNDELIVERED, ids.to_text(calls[1]))
    # Another leg has ended since: the lost one is no longer what the call waits for.
    again = await begin(second, intent(refs[1], calls[1], leg=1))
    await put(second, outcome(refs[1], calls[1], again, leg=1))
    assert [call for _, call in shown(second)] == [ids.to_text(calls[0])]
    await second.close()


async def test_calls_are_counted_by_reason(store: LmdbStore) -> None:
    ref = session()
    await left(store, ref, Blob(ANSWER), NoteKind.ABANDONED)
    for _ in range(2):
        await begin(store, intent(ref, new_id()))
    with store.view() as view:
        assert count_dangling(view, START) == {
            DanglingReason.IN_FLIGHT: 2,
            DanglingReason.UNDELIVERED: 1,
        }


async def test_a_resolved_call_does_not_dangle(store: LmdbStore) -> None:
    ref, call = session(), new_id()
    ticket = await begin(store, intent(ref, call))
    unknown = outcome(ref, call, ticket, status=Status.UNKNOWN, kind="outcome_unknown")
    await put(store, unknown)
    assert shown(store) == [(DanglingReason.UNKNOWN, ids.to_text(call))]
    facts = structs.replace(unknown.facts, n=1, status=Status.ERROR, flags=(Flag.RESOLVED,))
    await put(store, Draft(session=ref, facts=facts, body=unknown.body, intent=ticket))
    assert shown(store) == []


async def heard(store: LmdbStore, ref: SessionRef, *notes: NoteKind) -> bytes:
    """Write a call that others can ask for and that has ended, with notes on its outcome."""
    call = new_id()
    draft = intent(ref, call)
    ticket = await begin(store, structs.replace(draft, facts=guarded(draft)))
    draft = outcome(ref, call, ticket, blob=Blob(ANSWER))
    done = await ended(store, structs.replace(draft, facts=guarded(draft)))
    for kind in notes:
        await put(store, note(ref, call, kind, done))
    return call


def guarded(draft: Draft) -> Facts:
    return structs.replace(draft.facts, guarded=True)


@pytest.mark.parametrize("flush_every", [1, 3, 2000])
async def test_an_answer_without_a_delivery_note_of_a_dead_process_is_undelivered(
    tmp_path: Path, flush_every: int
) -> None:
    data, ref = tmp_path / "data", session("one")
    first = LmdbStore.open(data, flush_every=flush_every)
    call = await heard(first, ref)
    await heard(first, ref, NoteKind.DELIVERED)
    just_now = DanglingFilter(now=START + 2_000_000)
    assert shown(first, just_now) == []  # the note may be on its way
    with first.view() as view:
        assert list(view.unsettled()) == []
    await first.close()
    second = LmdbStore.open(data, flush_every=flush_every)
    (one,) = found(second, just_now)
    assert (one.standing, one.abandoned) == (DanglingReason.UNDELIVERED, False)
    assert (one.row.call, one.output.text.encode()) == (ids.to_text(call), ANSWER)
    with second.view() as view:
        delivered = view.readable(call)[-1]
    await put(second, note(ref, call, NoteKind.DELIVERED, StoredTicket(delivered)))
    assert shown(second) == []
    await second.close()


async def test_a_resolved_call_with_a_key_does_not_dangle(
    store: LmdbStore,
) -> None:
    ref = session("one")
    call = await heard(store, ref)
    with store.view() as view:
        first, last = view.readable(call)
    facts = structs.replace(last.facts, n=1, flags=(Flag.RESOLVED,))
    await put(store, Draft(session=ref, facts=facts, intent=StoredTicket(first)))
    assert shown(store) == []
