"""`store.log.index`: what headers say when they are folded."""

import msgspec
from msgspec import Raw

from conformance.store import kit
from turnlog.core.call_status import CallState
from turnlog.core.commit import GENESIS, CommitBody, Facts, Link, encode_facts, encode_header
from turnlog.core.kinds import CommitKind, Status, TurnSource
from turnlog.core.operation import Operation
from turnlog.core.turns import TurnPosition
from turnlog.store.base import Draft
from turnlog.store.log.index import (
    Entry,
    Segment,
    fold_call,
    fold_head,
    is_first_of_call,
    open_attempts,
    read_entry,
)
from turnlog.store.log.keys import path_term, tool_term

SESSION = bytes(15) + b"s"
CALL = bytes(15) + b"c"


def entry(position: int, draft: Draft, *, ref: int | None = None, epoch: int = 1) -> Entry:
    """Return a draft as the log holds it; its seq is its position."""
    link = Link(
        session=SESSION,
        seq=position,
        epoch=epoch,
        turn=1,
        step=1,
        turn_source=TurnSource.GAP,
        ref=ref,
        body_hash=b"",
        prev=GENESIS,
    )
    return read_entry(position, encode_header(link, encode_facts(draft.facts)))


def begun(position: int, *, leg: int = 0, attempt: int = 1) -> Entry:
    return entry(position, kit.intent(kit.session(), CALL, leg=leg, attempt=attempt))


def ended(position: int, ref: int, status: Status, *, leg: int = 0, attempt: int = 1) -> Entry:
    draft = kit.outcome(kit.session(), CALL, status=status, leg=leg, attempt=attempt)
    return entry(position, draft, ref=ref)


def settled(*entries: Entry) -> bool:
    """Tell whether a run finds that its only call, of these commits, is settled."""
    segment = Segment(0)
    for one in entries:
        segment.add(one)
    return segment.is_settled(segment.calls[CALL])


def states(*entries: Entry) -> list[tuple[int, int, Status]]:
    """Return leg, attempt and status of a call after each of its commits."""
    found: list[tuple[int, int, Status]] = []
    state: CallState | None = None
    for one in entries:
        state = fold_call([one], state)
        assert state is not None
        found.append((state.leg, state.attempt, state.status))
    return found


def test_a_call_stands_where_its_newest_attempt_stands() -> None:
    assert states(
        begun(1),
        ended(2, 1, Status.ERROR),
        begun(3, attempt=2),
        ended(4, 1, Status.OK),
        ended(5, 3, Status.UNKNOWN, attempt=2),
        begun(6, leg=1),
        begun(7, attempt=3),
        ended(8, 6, Status.OK, leg=1),
    ) == [
        (0, 1, Status.PENDING),
        (0, 1, Status.ERROR),
        (0, 2, Status.PENDING),
        (0, 2, Status.PENDING),
        (0, 2, Status.UNKNOWN),
        (1, 1, Status.PENDING),
        (1, 1, Status.PENDING),
        (1, 1, Status.OK),
    ]


def test_an_outcome_without_its_call_begins_none() -> None:
    assert fold_call([ended(1, 0, Status.OK)]) is None


def test_a_whole_call_of_one_attempt_is_settled_in_itself() -> None:
    first = begun(1)
    assert is_first_of_call(first)
    assert settled(first, ended(2, 1, Status.OK))
    assert settled(first, ended(2, 1, Status.ERROR))
    assert not settled(first, ended(2, 1, Status.UNKNOWN))
    assert not settled(first, ended(2, 9, Status.OK))
    assert not settled(first)
    assert not settled(begun(1, attempt=2), ended(2, 1, Status.OK, attempt=2))
    assert not settled(first, begun(2, attempt=2))


def test_open_attempts_are_intents_without_outcome() -> None:
    found = open_attempts([begun(4), begun(5), ended(6, 5, Status.OK), ended(7, 2, Status.OK)])
    assert {key[1]: attempt and attempt.position for key, attempt in found.items()} == {
        4: 4,
        2: None,
    }


def test_a_damaged_header_leaves_a_gap_and_stops_nothing() -> None:
    segment = Segment(10)
    segment.read(11, begun(11).header, lambda _: None)
    segment.read(12, b"damaged", lambda _: None)
    segment.read(13, ended(13, 11, Status.OK).header, lambda _: None)
    assert segment.last == 13
    assert segment.entry(12) is None
    assert segment.calls[CALL] == [11, 13]
    assert [one.position for one in segment.pick([11, 12, 13])] == [11, 13]
    rest = segment.after_position(11)
    assert (rest.after, rest.last, rest.calls[CALL]) == (11, 13, [13])


def test_a_query_gets_the_commits_indexed_since_it_was_made() -> None:
    segment, tool = Segment(10), begun(11).facts
    term = tool_term(tool.server, tool.tool)
    assert (segment.sessions, segment.terms) == ({}, {})
    segment.add(begun(11))
    assert segment.terms[term] == [11]
    segment.add(begun(12))
    assert (segment.sessions, segment.terms) == ({SESSION: [11, 12]}, {term: [11, 12]})
    renamed = Raw(msgspec.msgpack.encode(Operation(field="files_modified", op="m", key="a.py")))
    segment.add_body(12, SESSION, CommitBody(delta=(renamed,)))
    assert segment.terms[path_term("a.py")] == [12]
    rest = segment.after_position(11)
    assert (rest.sessions, rest.terms[term], rest.terms[path_term("a.py")]) == (
        {SESSION: [12]},
        [12],
        [12],
    )


def test_a_head_follows_its_session() -> None:
    opened = entry(
        0, Draft(session=kit.session(), facts=Facts(kind=CommitKind.OPEN, at=5, clock=0))
    )
    head = fold_head(None, [opened, begun(1)])
    assert (head.seq, head.position, head.opened, head.place.in_flight) == (1, 1, 0, 1)
    after = fold_head(head, [ended(2, 1, Status.OK)])
    assert (after.seq, after.opened, after.place.in_flight) == (2, 0, 0)
    assert after == fold_head(None, [opened, begun(1), ended(2, 1, Status.OK)])
    assert after.place != TurnPosition()
