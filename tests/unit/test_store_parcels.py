"""What a proxy and the process that writes its store say to each other."""

import os

import pytest
from msgspec import structs

from conformance.store.kit import intent, new_id, note, outcome, session
from turnlog.core.commit import Body, Link
from turnlog.core.kinds import NoteKind, TurnSource
from turnlog.store.base import Blob, Draft, SessionRef, StoreError, StoreFull, Ticket
from turnlog.store.index import Entry
from turnlog.store.packing import REMEMBERED, Inbox, Outbox, put
from turnlog.store.parcels import (
    Delivery,
    Frames,
    Place,
    Receipt,
    Trouble,
    framed,
    read_delivery,
    read_receipt,
)
from turnlog.store.tickets import Pending, Standing, pend


def ticket(draft: Draft, number: int, more: Pending | None = None) -> Pending:
    pending = pend(draft, os.urandom, more)
    pending.number = number
    return pending


def stand(pending: Pending, seq: int) -> Link:
    """Give a draft its place, as the engine does."""
    link = Link(
        session=pending.draft.session.candidate,
        seq=seq,
        epoch=1,
        turn=2,
        step=3,
        turn_source=TurnSource.GAP,
        ref=None,
        body_hash=b"b" * 32,
        prev=b"p" * 32,
    )
    pending.entry = Entry(seq + 100, b"header", link, pending.draft.facts)
    pending.hash = b"h" * 32
    return link


def sent(outbox: Outbox, inbox: Inbox, *drafts: Pending, oldest: int = 1) -> list[Pending]:
    """Return what comes out at the other end."""
    (frame,) = Frames().feed(framed(Delivery(7, 8, oldest, [outbox.pack(one) for one in drafts])))
    delivery = read_delivery(frame)
    received = [inbox.unpack(parcel) for parcel in delivery.parcels]
    inbox.forget(delivery.oldest)
    return received


def followed(pending: Pending) -> Ticket | None:
    return pending.draft.intent


def test_messages_are_whole_however_the_stream_is_cut() -> None:
    told = [Receipt(spare=n, reports=["x" * n]) for n in (0, 1, 300)]
    stream = b"".join(map(framed, told))
    for cut in range(len(stream) + 1):
        frames = Frames()
        found = [*frames.feed(stream[:cut]), *frames.feed(stream[cut:])]
        assert [structs.asdict(read_receipt(one)) for one in found] == list(
            map(structs.asdict, told)
        )


def test_a_draft_arrives_as_it_was_sent() -> None:
    ref = session("one", "two")
    body = Body(summary="said", links=(b"k" * 32,))
    blobs = (Blob(data=b"in" * 500, redacted=True), Blob(data=b"out", cut=True, digest=b"d" * 32))
    first = intent(ref, new_id(), body=body, blob=blobs[0])
    first.claims, first.seen = (b"c" * 32,), 17
    last = outcome(ref, first.facts.call, blob=blobs[1])
    chain = ticket(first, 1, ticket(last, 2))
    (begun,) = sent(Outbox(0), Inbox(), chain)
    assert begun.more is not None
    for there, here in ((begun, chain), (begun.more, chain.more)):
        assert here is not None
        assert there.draft.facts == here.draft.facts
        assert (there.facts, there.body, there.number) == (here.facts, here.body, here.number)
        assert (there.size, there.lazy) == (here.size, here.lazy)
        assert (there.draft.claims, there.draft.seen) == (here.draft.claims, here.draft.seen)
        assert (there.draft.input_blob, there.draft.output_blob) == (
            here.draft.input_blob,
            here.draft.output_blob,
        )
        named = there.draft.session
        assert (named.candidate, named.id, named.rung) == (ref.candidate, None, ref.rung)
        assert (named.aliases, named.metadata) == (ref.aliases, ref.metadata)
    assert begun.draft.body == body


def test_a_session_that_has_its_id_is_named_by_that_alone() -> None:
    ref = session("one")
    ref.id = new_id()
    inbox, outbox = Inbox(), Outbox(0)
    first, second = sent(outbox, inbox, *(ticket(intent(ref, new_id()), n) for n in (1, 2)))
    assert isinstance(first.draft.session, SessionRef)
    assert first.draft.session.id == ref.id
    assert first.draft.session is second.draft.session
    assert outbox.pack(ticket(intent(ref, new_id()), 3)).naming is None


def test_an_outcome_finds_the_intent_that_came_before_it() -> None:
    inbox, outbox, ref = Inbox(), Outbox(0), session()
    begun = ticket(intent(ref, new_id()), 1)
    (there,) = sent(outbox, inbox, begun)
    (ended,) = sent(outbox, inbox, ticket(outcome(ref, begun.draft.facts.call, begun), 2))
    assert followed(ended) is there
    link = stand(there, 4)
    put(begun, inbox.landed(there))
    assert begun.entry is not None
    assert begun.entry.link == link
    assert ref.id == link.session
    (again,) = sent(outbox, inbox, ticket(note(ref, b"", NoteKind.TURN, begun), 3))
    standing = followed(again)
    assert isinstance(standing, Standing)
    assert standing.link == link


def test_what_is_old_is_followed_by_its_place() -> None:
    inbox, outbox, ref = Inbox(), Outbox(0), session()
    begun = ticket(intent(ref, new_id()), 1)
    (there,) = sent(outbox, inbox, begun)
    link = stand(there, 4)
    put(begun, inbox.landed(there))
    late = REMEMBERED + 1
    sent(outbox, inbox, ticket(intent(ref, new_id()), late), oldest=late)
    parcel = outbox.pack(ticket(outcome(ref, begun.draft.facts.call, begun), late + 1))
    assert (parcel.intent, parcel.follows) == (0, link)


def test_what_is_on_its_way_is_known_however_much_came_behind_it() -> None:
    inbox, outbox, ref = Inbox(), Outbox(0), session()
    begun = ticket(intent(ref, new_id()), 1)
    (there,) = sent(outbox, inbox, begun)
    for number in range(2, 3 * REMEMBERED, REMEMBERED // 2):
        sent(outbox, inbox, ticket(intent(ref, new_id()), number))
    late = 3 * REMEMBERED
    (ended,) = sent(outbox, inbox, ticket(outcome(ref, begun.draft.facts.call, begun), late))
    assert followed(ended) is there


def test_an_old_intent_that_failed_goes_along() -> None:
    outbox, ref = Outbox(0), session()
    begun = ticket(intent(ref, new_id(), body=Body(summary="begin")), 1)
    begun.fail(StoreFull("the disk is full"))
    end = ticket(outcome(ref, begun.draft.facts.call, begun), REMEMBERED + 5)
    (ended,) = sent(outbox, Inbox(), end)
    along = followed(ended)
    assert isinstance(along, Pending)
    assert (along.number, along.facts, along.body) == (1, begun.facts, begun.body)
    assert outbox.take_along() == [begun]


def test_a_process_that_began_later_knows_only_what_was_sent_to_it() -> None:
    outbox, ref = Outbox(known_after=9), session()
    placed, open_ = ticket(intent(ref, new_id()), 8), ticket(intent(ref, new_id()), 9)
    link = stand(placed, 4)
    after_placed = outbox.pack(ticket(outcome(ref, placed.draft.facts.call, placed), 10))
    after_open = outbox.pack(ticket(outcome(ref, open_.draft.facts.call, open_), 11))
    assert (after_placed.intent, after_placed.follows) == (0, link)
    assert (after_open.intent, after_open.follows) == (9, None)


@pytest.mark.parametrize("link", [None, "placed"])
def test_a_ticket_of_another_kind_is_followed_where_it_stands(link: str | None) -> None:
    ref = session()
    stood = stand(ticket(intent(ref, new_id()), 1), 5) if link else None
    end = ticket(outcome(ref, new_id(), Standing(stood)), 2)
    (ended,) = sent(Outbox(0), Inbox(), end)
    found = followed(ended)
    assert isinstance(found, Standing)
    assert found.link == stood


def test_what_became_of_a_draft_is_told() -> None:
    inbox, ref = Inbox(), session()
    body = Body(summary="said")
    here = ticket(intent(ref, new_id(), body=body, blob=Blob(data=b"in")), 1)
    (there,) = sent(Outbox(0), inbox, here)
    there.seal(b"s" * 16, iter((b"handle",)))
    stand(there, 4)
    (frame,) = Frames().feed(framed(Receipt(landed=[(1, [inbox.landed(there)])])))
    ((number, (place,)),) = read_receipt(frame).landed
    put(here, place)
    here.land()
    assert number == 1
    assert here.placed is not None
    assert here.placed.position == 104
    assert here.placed.hash == b"h" * 32
    assert here.placed.facts == here.draft.facts
    assert here.placed.body == structs.replace(body, salt=b"s" * 16, input_blob=b"handle")


async def test_who_was_refused_hears_why() -> None:
    here = ticket(intent(session(), new_id()), 1)
    put(here, Place(refused=("commit 3 claims the same", 3)))
    here.land()
    with pytest.raises(StoreError, match="commit 3 claims") as caught:
        await here.done()
    assert getattr(caught.value, "seq", None) == 3
    # Another time it went along with what follows it.
    there = ticket(here.draft, 1)
    stand(there, 4)
    put(here, Inbox().landed(there))
    here.land()
    assert (await here.done()).position == 104


@pytest.mark.parametrize(("full", "kind"), [(True, StoreFull), (False, StoreError)])
def test_an_error_is_of_its_kind_on_the_other_side(full: bool, kind: type[StoreError]) -> None:
    error = Trouble("no room", full).error()
    assert type(error) is kind
    assert str(error) == "no room"
