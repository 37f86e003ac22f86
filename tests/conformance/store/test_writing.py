"""What writing to a store means."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from conformance.store.kit import (
    START,
    Engine,
    begin,
    intent,
    known,
    new_id,
    outcome,
    put,
    seqs,
    session,
    whole_call,
)
from turnlog.core.commit import GENESIS, CommitBody, Facts, body_digest, digest
from turnlog.core.kinds import CommitKind, Effect, Gone, NoteKind, Phase, Rung, Status, TurnSource
from turnlog.store.base import Blob, Draft, Filter, SessionRef, StoreClosed, StoreError
from turnlog.store.lmdb import LmdbStore


async def test_the_first_draft_of_a_session_opens_it(store: LmdbStore) -> None:
    ref = session("alice")
    commit = await put(store, intent(ref, new_id()))
    assert commit.link.seq == 1
    with store.view() as view:
        opened = view.get(known(ref), 0)
    assert opened is not None
    assert opened.facts.kind is CommitKind.OPEN
    assert opened.link.prev == GENESIS
    assert opened.body is not None
    assert opened.body.metadata["client"] == "kit"
    assert opened.body.metadata["rung"] == "explicit"


async def test_a_session_has_no_id_before_it_is_on_disk(store: LmdbStore) -> None:
    ref = session()
    ticket = store.submit(intent(ref, new_id()), wait=True)
    assert ref.id is None
    assert ticket.placed is None
    commit = await ticket.done()
    assert ref.id == ref.candidate == commit.link.session
    assert ticket.placed == commit


async def test_what_nobody_waited_for_can_be_waited_for(store: LmdbStore) -> None:
    ref = session()
    tickets = [store.submit(intent(ref, new_id()), wait=False) for _ in range(3)]
    await store.flush()
    assert all(ticket.placed for ticket in tickets)
    await store.close()
    with pytest.raises(StoreClosed):
        await store.flush()


async def test_an_outcome_points_to_its_intent_and_stands_in_its_turn(store: LmdbStore) -> None:
    ref = session()
    call, other = new_id(), new_id()
    ticket = await begin(store, intent(ref, call, turn="one"))
    await put(store, intent(ref, other, turn="two"))
    end = await put(store, outcome(ref, call, ticket))
    begun = ticket.placed
    assert begun is not None
    assert end.link.ref == begun.link.seq
    assert (end.link.turn, end.link.step) == (begun.link.turn, begun.link.step) == (1, 1)
    assert end.link.turn_source is TurnSource.EXPLICIT


async def test_an_outcome_finds_an_intent_whose_ticket_is_gone(store: LmdbStore) -> None:
    ref = session()
    call = new_id()
    begun = await put(store, intent(ref, call))
    for _ in range(3):
        await whole_call(store, ref)
    end = await put(store, outcome(ref, call))
    assert end.link.ref == begun.link.seq


@pytest.mark.promise("REC-25")
async def test_sessions_have_gapless_seqs_and_a_chain_each(store: LmdbStore) -> None:
    refs = [session(), session(), session()]
    for number in range(12):
        await whole_call(store, refs[number % 3])
    with store.view() as view:
        for ref in refs:
            commits = list(view.commits(known(ref)))
            assert [c.link.seq for c in commits] == list(range(9))
            assert all(b.link.prev == a.hash for a, b in pairwise(commits))
            stored = list(view.headers(known(ref)))
            assert [digest(header) for _, header, _ in stored] == [c.hash for c in commits]
            assert all(
                commit.link.body_hash == body_digest(body or b"")
                for commit, (_, _, body) in zip(commits, stored, strict=True)
            )


async def test_a_draft_that_nobody_waits_for_reaches_the_disk_all_the_same(
    store: LmdbStore,
) -> None:
    ticket = store.submit(intent(session(), new_id()), wait=False)
    async with asyncio.timeout(10):
        commit = await ticket.done()
    with store.view() as view:
        assert view.get(commit.link.session, commit.link.seq) == commit


async def test_what_was_queued_before_a_wait_is_on_disk_after_it(store: LmdbStore) -> None:
    ref = session()
    lazy = [store.submit(intent(ref, new_id()), wait=False) for _ in range(5)]
    last = await put(store, intent(ref, new_id()))
    placed = [ticket.placed for ticket in lazy]
    assert [commit.link.seq for commit in placed if commit] == [1, 2, 3, 4, 5]
    assert last.link.seq == 6


@pytest.mark.promise("REC-10")
async def test_a_call_that_was_never_sent_is_written_whole(store: LmdbStore) -> None:
    ref = session()
    call = new_id()
    ticket = store.submit(intent(ref, call), wait=True)
    answered = outcome(ref, call, ticket, status=Status.REPLAYED)
    ended = await store.submit(answered, wait=True).done()
    begun = ticket.placed
    assert begun is not None
    assert ended.position == begun.position + 1
    assert ended.link.ref == begun.link.seq
    with store.view() as view:
        assert list(view.unsettled()) == []


@pytest.mark.parametrize("between", [0, 4])
async def test_the_same_commit_is_written_once(store: LmdbStore, between: int) -> None:
    ref = session()
    call = new_id()
    first = await put(store, intent(ref, call))
    end = await put(store, outcome(ref, call, body=CommitBody(summary="first")))
    for _ in range(between):
        await whole_call(store, ref)
    assert await put(store, intent(ref, call)) == first
    again = await put(store, outcome(ref, call, status=Status.ERROR))
    assert again == end
    with store.view() as view:
        assert len(view.call(call)) == 2


async def test_the_same_commit_twice_in_one_batch_is_written_once(store: LmdbStore) -> None:
    ref = session()
    call = new_id()
    body = CommitBody(summary="once")
    tickets = [store.submit(intent(ref, call, body=body), wait=True) for _ in range(3)]
    commits = [await ticket.done() for ticket in tickets]
    assert commits[0] == commits[1] == commits[2]
    with store.view() as view:
        assert seqs(view, ref) == [0, 1]


async def test_a_later_outcome_of_an_attempt_has_its_own_number(store: LmdbStore) -> None:
    ref = session()
    call = new_id()
    ticket = await begin(store, intent(ref, call))
    await put(store, outcome(ref, call, ticket, status=Status.ERROR, error="timeout"))
    late = await put(store, outcome(ref, call, ticket, n=1))
    assert late.link.seq == 3
    with store.view() as view:
        assert [c.facts.n for c in view.call(call)] == [0, 0, 1]


async def test_a_cancelled_wait_harms_no_other(store: LmdbStore) -> None:
    ticket = store.submit(intent(session(), new_id()), wait=True)
    async with asyncio.TaskGroup() as group:
        given_up = group.create_task(ticket.done())
        patient = group.create_task(ticket.done())
        await asyncio.sleep(0)
        given_up.cancel()
    assert given_up.cancelled()
    assert patient.result() == ticket.placed


async def test_closing_writes_what_was_queued(engine: Engine, tmp_path: Path) -> None:
    store = engine.open(tmp_path / "data")
    ref = session()
    tickets = [store.submit(intent(ref, new_id()), wait=False) for _ in range(20)]
    await store.close()
    assert all(ticket.placed for ticket in tickets)
    reader = engine.read(tmp_path / "data")
    with reader.view() as view:
        assert seqs(view, ref) == list(range(21))
    reader.close()


async def test_a_closed_store_takes_nothing(engine: Engine, tmp_path: Path) -> None:
    store = engine.open(tmp_path / "data")
    await store.close()
    await store.close()
    with pytest.raises(StoreClosed, match="closed"):
        store.submit(intent(session(), new_id()), wait=True)
    with pytest.raises(StoreClosed):
        await store.expire(START)


async def test_facts_that_cannot_be_stored_are_refused_at_once(store: LmdbStore) -> None:
    with pytest.raises(ValueError, match="call id of 16 bytes"):
        store.submit(intent(session(), b""), wait=True)
    with pytest.raises(ValueError, match="surrogates"):
        store.submit(intent(session(), new_id(), tool="\ud800"), wait=True)
    with pytest.raises(ValueError, match="surrogates"):
        store.submit(intent(session(), new_id(), body=CommitBody(summary="\udfff")), wait=True)
    with pytest.raises(ValueError, match="more than 64 bits"):
        store.submit(outcome(session(), new_id(), expires=2**64), wait=True)
    with pytest.raises(ValueError, match="over the cap"):
        store.submit(
            intent(session(), new_id(), body=CommitBody(summary="x" * (2 << 20))), wait=True
        )
    await whole_call(store, session())


async def test_one_name_is_one_session(store: LmdbStore) -> None:
    first, second = session("alice"), session("alice")
    await put(store, intent(first, new_id()))
    commit = await put(store, intent(second, new_id()))
    assert known(second) == known(first)
    assert commit.link.seq == 2


async def test_two_first_drafts_of_one_name_in_one_batch_make_one_session(store: LmdbStore) -> None:
    refs = [session("alice") for _ in range(5)]
    tickets = [store.submit(intent(ref, new_id()), wait=True) for ref in refs]
    commits = [await ticket.done() for ticket in tickets]
    assert {commit.link.session for commit in commits} == {known(refs[0])}
    assert [commit.link.seq for commit in commits] == [1, 2, 3, 4, 5]


async def test_a_known_name_lends_its_session_to_the_others(store: LmdbStore) -> None:
    first = session("alice")
    both = session("bob", "alice")
    last = session("bob")
    for ref in (first, both, last):
        await put(store, intent(ref, new_id()))
    assert known(first) == known(both) == known(last)
    with store.view() as view:
        row = next(view.sessions())
    assert sorted(name.partition("\x1f")[0] for name in row.aliases) == ["alice", "bob"]


@pytest.mark.promise("SESS-5")
async def test_a_name_belongs_to_its_principal_and_rung(store: LmdbStore) -> None:
    refs = [
        session("alice"),
        session("alice", principal="other"),
        session("alice", rung=Rung.TRANSPORT),
    ]
    for ref in refs:
        await put(store, intent(ref, new_id()))
    assert len({known(ref) for ref in refs}) == 3
    with store.view() as view:
        assert sorted(view.find_sessions("alice")) == sorted(known(ref) for ref in refs)


async def test_names_of_any_length_are_told_apart(store: LmdbStore) -> None:
    long = "n" * 3000
    refs = [session(long + "a"), session(long + "b"), session(long + "a")]
    for ref in refs:
        await put(store, intent(ref, new_id()))
    assert known(refs[0]) == known(refs[2]) != known(refs[1])
    with store.view() as view:
        assert view.find_sessions(long + "b") == [known(refs[1])]


async def test_a_ref_to_a_known_session_continues_it(engine: Engine, tmp_path: Path) -> None:
    store = engine.open(tmp_path / "data")
    first = session()
    await put(store, intent(first, new_id()))
    await store.close()
    store = engine.open(tmp_path / "data")
    again = SessionRef(candidate=known(first), rung=Rung.IMPLICIT)
    commit = await put(store, intent(again, new_id()))
    assert commit.link.session == known(first)
    # open, intent, its outcome by recovery, this one
    assert commit.link.seq == 3
    await store.close()


@pytest.mark.promise("CHAIN-5")
async def test_bodies_are_salted(store: LmdbStore) -> None:
    ref = session()
    body = CommitBody(summary="the same")
    first = await put(store, intent(ref, new_id(), body=body))
    second = await put(store, intent(ref, new_id(), body=body))
    assert first.body is not None
    assert second.body is not None
    assert first.body.summary == second.body.summary == "the same"
    assert len(first.body.salt) == 16
    assert first.body.salt != second.body.salt
    assert first.link.body_hash != second.link.body_hash


async def test_bodies_with_content_are_salted_each_for_itself(store: LmdbStore) -> None:
    ref, body = session(), CommitBody(summary="the same")
    drafts = [intent(ref, new_id(), body=body, blob=Blob(b"the same")) for _ in range(3)]
    tickets = [store.submit(draft, wait=True) for draft in drafts]
    bodies = [(await ticket.done()).body for ticket in tickets]
    salts = {found.salt for found in bodies if found}
    assert {len(salt) for salt in salts} == {16}
    assert len(salts) == 3
    assert len({found.input_blob for found in bodies if found}) == 1


async def test_a_commit_without_body_has_none(store: LmdbStore) -> None:
    ref = session()
    commit = await put(store, intent(ref, new_id()))
    assert commit.body is None
    assert commit.link.body_hash == b""


@pytest.mark.parametrize("size", [0, 10, 1024, 1025, 300_000])
async def test_blobs_come_back_as_they_were(store: LmdbStore, size: int) -> None:
    ref = session()
    data = bytes(i * 7 % 251 for i in range(size))
    draft = intent(ref, new_id(), blob=Blob(data, redacted=True))
    commit = await put(store, draft)
    cut = await put(store, outcome(ref, draft.facts.call, blob=Blob(data + b"!", cut=True)))
    assert commit.body is not None
    assert cut.body is not None
    with store.view() as view:
        assert view.blob(commit.body.input_blob) == Blob(data, redacted=True)
        assert view.blob(cut.body.output_blob) == Blob(data + b"!", cut=True)
        assert view.blob(bytes(32)) is Gone.UNSAVED


async def test_a_blob_that_redaction_touched_is_marked_whatever_else_is_the_same(
    store: LmdbStore,
) -> None:
    same = [Blob(b"the same"), Blob(b"the same", redacted=True), Blob(b"the same")]
    commits = [await put(store, intent(session(), new_id(), blob=blob)) for blob in same]
    with store.view() as view:
        kept = [view.blob(commit.body.input_blob) for commit in commits if commit.body]
    assert kept == same


async def test_recovered_outcomes_read_the_effect(engine: Engine, tmp_path: Path) -> None:
    store = engine.open(tmp_path / "data")
    ref = session()
    for effect in Effect:
        await put(store, intent(ref, new_id(), effect=effect))
    await store.close()
    store = engine.open(tmp_path / "data")
    found = {
        c.facts.effect: (c.facts.status, c.facts.retry, c.facts.executed) for c in store.recovered
    }
    # How far they came is not known; a phase before `sent` would say that nothing happened.
    assert {c.facts.phase for c in store.recovered} == {Phase.SENT}
    assert {(c.facts.error, c.facts.error_kind) for c in store.recovered} == {
        ("unknown", "outcome_unknown")
    }
    await store.close()
    assert found == {
        Effect.READ: ("error", "safe", "maybe"),
        Effect.IDEMPOTENT_WRITE: ("unknown", "if_idempotent", "maybe"),
        Effect.WRITE: ("unknown", "unsafe", "maybe"),
        Effect.IRREVERSIBLE: ("unknown", "unsafe", "maybe"),
        Effect.UNKNOWN: ("unknown", "unsafe", "maybe"),
    }


async def test_a_note_is_written_as_often_as_it_is_given(store: LmdbStore) -> None:
    ref = session()
    note = intent(ref, new_id())
    facts = type(note.facts)(kind=CommitKind.NOTE, at=START, clock=0, status=Status.OK)
    for _ in range(2):
        await put(store, Draft(session=ref, facts=facts, body=CommitBody(summary="a note")))
    with store.view() as view:
        assert seqs(view, ref) == [0, 1, 2]


async def test_a_note_follows_the_commit_that_it_speaks_of_in_the_same_turn(
    store: LmdbStore,
) -> None:
    ref, call = session(), new_id()
    begun = await begin(store, intent(ref, call))
    ended = store.submit(outcome(ref, call, begun), wait=False)
    late = START + 400 * 1_000_000_000
    facts = type(intent(ref, call).facts)(
        kind=CommitKind.NOTE, at=late, clock=0, call=call, note=NoteKind.DELIVERED
    )
    note = await put(store, Draft(session=ref, facts=facts, intent=ended))
    answered = await ended.done()
    assert (note.link.ref, note.link.turn) == (answered.link.seq, answered.link.turn)
    with store.view() as view:
        assert [c.facts.note for c in view.call(call)] == ["", "", "delivered"]
        assert [len(found) for found in view.attempts(Filter(), newest_first=False)] == [2]


async def test_errors_of_the_store_are_one_family() -> None:
    assert issubclass(StoreClosed, StoreError)


async def test_another_attempt_follows_the_outcome_before_in_the_same_turn(
    store: LmdbStore,
) -> None:
    ref, call = session(), new_id()
    first = await begin(store, intent(ref, call))
    failed = await put(store, outcome(ref, call, first, status=Status.ERROR, error="timeout"))
    late = 400 * 1_000_000_000
    again = await begin(store, intent(ref, call, attempt=2, at=START + late))
    answered = await put(store, outcome(ref, call, again, attempt=2))
    assert again.placed is not None
    assert first.placed is not None
    assert again.placed.link.ref == failed.link.seq
    assert again.placed.link.turn == first.placed.link.turn
    assert answered.link.ref == again.placed.link.seq
    await whole_call(store, ref, at=START + late + 2_000_000)
    with store.view() as view:
        *_, after = view.commits(known(ref))
    assert (after.link.turn, after.link.step) == (first.placed.link.turn, 2)


def noted(ref: SessionRef, key: bytes, kind: NoteKind = NoteKind.DECISION) -> Draft:
    facts = Facts(kind=CommitKind.NOTE, at=START, clock=0, status=Status.OK, note=kind)
    return Draft(session=ref, facts=facts, body=CommitBody(summary="a note", note_key=key))


@pytest.mark.parametrize("between", [0, 3])
async def test_a_note_is_written_once_under_its_key_in_each_session(
    engine: Engine, tmp_path: Path, between: int
) -> None:
    store = engine.open(tmp_path / "data", flush_every=1)
    one, other = session("one"), session("other")
    first = await put(store, noted(one, b"key"))
    again = [store.submit(noted(other, b"key"), wait=False) for _ in range(2)]
    for _ in range(between):
        await whole_call(store, one)
    assert await put(store, noted(one, b"key")) == first
    await put(store, noted(one, b"another"))
    placed = [await ticket.done() for ticket in again]
    assert placed[0] == placed[1]
    with store.view() as view:
        notes = [c for c in view.commits(known(one)) if c.facts.kind is CommitKind.NOTE]
        assert [c.body.note_key for c in notes if c.body] == [b"key", b"another"]
        assert seqs(view, other) == [0, 1]
    await store.close()
    reopened = engine.open(tmp_path / "data")
    assert await put(reopened, noted(session("one"), b"key")) == first
    await reopened.close()


async def test_a_note_of_a_turn_begins_one(store: LmdbStore) -> None:
    ref = session()
    await whole_call(store, ref)
    marked = await put(store, noted(ref, b"", NoteKind.TURN))
    assert (marked.link.turn, marked.link.turn_source) == (2, TurnSource.EXPLICIT)
    await whole_call(store, ref)
    with store.view() as view:
        *_, last = view.commits(known(ref))
    assert (last.link.turn, last.link.turn_source) == (2, TurnSource.EXPLICIT)
