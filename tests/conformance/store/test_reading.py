"""What reading from a store means."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec import structs

from conformance.store.kit import (
    MINUTE,
    START,
    Engine,
    begin,
    intent,
    known,
    new_id,
    note,
    outcome,
    put,
    session,
    whole_call,
)
from turnlog.core.commit import Commit, CommitBody
from turnlog.core.ids import to_text
from turnlog.core.kinds import Flag, NoteKind, Rung, Status
from turnlog.store.base import Filter
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View


def calls_of(attempts: Iterable[list[Commit]]) -> list[bytes]:
    """Return the calls of attempts."""
    return [attempt[0].facts.call for attempt in attempts]


def find(view: View, want: Filter) -> list[bytes]:
    """Return the calls of the attempts that `want` covers; both orders agree on them."""
    found = calls_of(view.attempts(want, newest_first=True))
    assert calls_of(view.attempts(want, newest_first=False)) == found[::-1]
    return found[::-1]


async def test_an_attempt_is_an_intent_with_its_outcomes(store: LmdbStore) -> None:
    ref = session()
    call = new_id()
    ticket = await begin(store, intent(ref, call))
    await whole_call(store, ref)
    await put(store, outcome(ref, call, ticket, status=Status.ERROR, error="timeout"))
    retry = await begin(store, intent(ref, call, attempt=2))
    await put(store, outcome(ref, call, ticket, n=1, flags=(Flag.LATE,)))
    await put(store, outcome(ref, call, retry, attempt=2))
    with store.view() as view:
        attempts = list(view.attempts(Filter(), newest_first=False))
    shape = [[(c.facts.kind.value, c.facts.attempt, c.facts.n) for c in a] for a in attempts]
    assert shape == [
        [("intent", 1, 0), ("outcome", 1, 0), ("outcome", 1, 1)],
        [("intent", 1, 0), ("outcome", 1, 0)],
        [("intent", 2, 0), ("outcome", 2, 0)],
    ]


async def test_attempts_are_found_by_tool_and_server(store: LmdbStore) -> None:
    ref = session()
    read = await whole_call(store, ref, tool="read_file")
    write = await whole_call(store, ref, tool="write_file")
    push = await whole_call(store, ref, tool="push", server="git")
    odd = await whole_call(store, ref, tool="\0" + "x" * 600, server="files")
    with store.view() as view:
        assert find(view, Filter(tool="read_file")) == [read]
        assert find(view, Filter(tool="*_file")) == [read, write]
        assert find(view, Filter(server="git")) == [push]
        assert find(view, Filter(server="files", tool="push")) == []
        assert find(view, Filter(tool="\0*")) == [odd]
        assert find(view, Filter(tool="[!r]*", server="*")) == [write, push, odd]


async def test_a_tool_pattern_with_a_slash_may_name_the_server(store: LmdbStore) -> None:
    ref = session()
    write = await whole_call(store, ref, tool="write_file")
    push = await whole_call(store, ref, tool="push", server="git")
    items = await whole_call(store, ref, tool="GET /items/*", server="web")
    odd = await whole_call(store, ref, tool="x" * 600, server="git")
    with store.view() as view:
        assert find(view, Filter(tool="files/write_*")) == [write]
        assert find(view, Filter(tool="files.write_*")) == [write]
        assert find(view, Filter(tool="git/*")) == [push, odd]
        assert find(view, Filter(tool="*/push")) == [push]
        assert find(view, Filter(tool="GET /items/*")) == [items]
        assert find(view, Filter(tool="web/GET /items/*")) == [items]
        assert find(view, Filter(tool="git/*", server="files")) == []
        assert find(view, Filter(tool="gitpush")) == []


async def test_attempts_are_found_by_how_they_ended_last(store: LmdbStore) -> None:
    ref = session()
    await whole_call(store, ref)
    slow = await whole_call(
        store, ref, status=Status.ERROR, error="timeout", kind="response_timeout"
    )
    call = new_id()
    ticket = await begin(store, intent(ref, call))
    lost = await whole_call(
        store, ref, status=Status.ERROR, error="connection", flags=(Flag.RESUMED, Flag.BOM)
    )
    failed = outcome(ref, call, ticket, status=Status.ERROR, error="timeout", kind="idle")
    await put(store, failed)
    with store.view() as view:
        assert find(view, Filter(error="timeout")) == [slow, call]
        assert find(view, Filter(kind="idle")) == [call]
        assert find(view, Filter(kind="idle", error="connection")) == []
        assert find(view, Filter(flag="bom")) == [lost]
        assert find(view, Filter(flag="bom", tool="nothing")) == []
    await put(store, outcome(ref, call, ticket, n=1, flags=(Flag.LATE,)))
    with store.view() as view:
        assert find(view, Filter(error="timeout")) == [slow]
        assert find(view, Filter(flag="late")) == [call]


async def test_attempts_that_ended_behind_a_position_come_as_each_outcome_left_them(
    store: LmdbStore,
) -> None:
    ref = session()
    await whole_call(store, ref)
    slow, quick = new_id(), new_id()
    ticket = await begin(store, intent(ref, slow, tool="slow"))
    with store.view() as view:
        after = view.last
        assert list(view.ended(Filter(), after=after, until=after)) == []
    await put(store, outcome(ref, quick, await begin(store, intent(ref, quick, tool="quick"))))
    await begin(store, intent(ref, new_id(), tool="endless"))
    await put(store, outcome(ref, slow, ticket, status=Status.ERROR, error="timeout"))
    await put(store, outcome(ref, slow, ticket, n=1, flags=(Flag.LATE,)))
    with store.view() as view:
        tools = [
            (attempt[0].facts.tool, len(attempt), attempt[-1].facts.status)
            for attempt in view.ended(Filter(), after=after, until=view.last)
        ]
        failed = list(view.ended(Filter(error="timeout"), after=after, until=view.last))
        elsewhere = list(view.ended(Filter(server="git"), after=after, until=view.last))
        early = list(view.ended(Filter(), after=0, until=after))
    assert tools == [("quick", 2, Status.OK), ("slow", 2, Status.ERROR), ("slow", 3, Status.OK)]
    assert [len(attempt) for attempt in failed] == [2]
    assert elsewhere == []
    assert len(early) == 1


async def test_a_reader_opens_beside_the_writer_of_its_own_process(
    engine: Engine, tmp_path: Path
) -> None:
    store = engine.open(tmp_path / "data", flush_every=3)
    ref = session()
    for number in range(1, 101):
        # The writer still flushes its indexes when the reader comes.
        await whole_call(store, ref)
        reader = engine.read(tmp_path / "data")
        with reader.view() as view:
            assert view.last == 1 + 2 * number
        reader.close()
    await store.close()


async def test_a_reader_tells_when_the_folder_holds_another_store(
    engine: Engine, tmp_path: Path
) -> None:
    await engine.open(tmp_path / "data").close()
    reader = engine.read(tmp_path / "data")
    assert not reader.is_replaced()
    (tmp_path / "data").rename(tmp_path / "old")
    assert reader.is_replaced()
    await engine.open(tmp_path / "data").close()
    assert reader.is_replaced()
    reader.close()


async def test_attempts_are_found_by_session_seq_and_turn(store: LmdbStore) -> None:
    one, two = session(), session()
    calls = [await whole_call(store, one, turn=f"turn {n // 2}") for n in range(8)]
    other = await whole_call(store, two)
    with store.view() as view:
        mine = (known(one),)
        assert find(view, Filter(sessions=mine)) == calls
        assert find(view, Filter(sessions=(known(two),))) == [other]
        assert find(view, Filter(sessions=(*mine, known(two)))) == [*calls, other]
        assert find(view, Filter(sessions=mine, after=3)) == calls[2:]
        assert find(view, Filter(sessions=mine, before=3)) == calls[:1]
        assert find(view, Filter(sessions=mine, after=3, before=9)) == calls[2:4]
        assert find(view, Filter(sessions=mine, first_turn=3)) == calls[4:]
        assert find(view, Filter(sessions=mine, last_turn=1)) == calls[:2]
        assert find(view, Filter(sessions=mine, first_turn=2, last_turn=2)) == calls[2:4]
        assert find(view, Filter(sessions=mine, after=100)) == []
        assert find(view, Filter(sessions=(new_id(),))) == []


async def test_attempts_are_found_by_time(store: LmdbStore) -> None:
    ref = session()
    times = [START + n * MINUTE for n in (0, 1, 2, 9, 4, 5, 6)]
    calls = [await whole_call(store, ref, at=at) for at in times]
    with store.view() as view:
        since = Filter(since=START + 2 * MINUTE)
        assert find(view, since) == calls[2:]
        between = Filter(since=START + MINUTE, until=START + 4 * MINUTE)
        assert find(view, between) == [calls[1], calls[2], calls[4]]
        assert find(view, Filter(until=START)) == calls[:1]
        assert find(view, Filter(until=START - 1)) == []
        assert find(view, Filter(since=START + 10 * MINUTE)) == []
        both = Filter(since=START + 5 * MINUTE, tool="read*")
        assert find(view, both) == [calls[3], calls[5], calls[6]]


async def test_an_attempt_in_flight_has_no_outcome(store: LmdbStore) -> None:
    ref = session()
    call = new_id()
    await put(store, intent(ref, call))
    with store.view() as view:
        assert find(view, Filter()) == [call]
        assert find(view, Filter(error="timeout")) == []
        assert [len(attempt) for attempt in view.attempts(Filter(), newest_first=True)] == [1]


async def test_calls_are_found_by_the_start_of_their_id(store: LmdbStore) -> None:
    ref = session()
    calls = [await whole_call(store, ref) for _ in range(5)]
    with store.view() as view:
        for call in calls:
            assert view.find_calls(to_text(call)) == [call]
            assert view.find_calls(call.hex()[:-1]) == [call]
            assert view.find_calls(to_text(call)[:-3].upper()) == sorted(
                c for c in calls if to_text(c)[:-3] == to_text(call)[:-3]
            )
        assert view.find_calls("ffffffff") == []
        assert view.find_calls("not an id") == []
        assert view.find_calls("") == []
        assert view.find_calls(to_text(new_id())) == []


async def test_sessions_are_found_by_id_prefix_and_name(store: LmdbStore) -> None:
    named, plain = session("build 42"), session()
    for ref in (named, plain):
        await whole_call(store, ref)
    with store.view() as view:
        assert view.find_sessions(to_text(known(named))) == [known(named)]
        assert view.find_sessions(to_text(known(plain))[:-1]) == [known(plain)]
        assert view.find_sessions(known(plain).hex()[:-1]) == [known(plain)]
        assert view.find_sessions("build 42") == [known(named)]
        assert view.find_sessions("build") == []
        assert view.find_sessions("") == []
        assert view.find_sessions(to_text(new_id())) == []


async def test_sessions_come_with_the_most_recently_active_first(store: LmdbStore) -> None:
    refs = [session(f"s{n}", rung=Rung.VENDOR) for n in range(6)]
    for ref in [*refs, refs[2], refs[0]]:
        await whole_call(store, ref, at=START + MINUTE)
    with store.view() as view:
        rows = list(view.sessions())
    order = [known(refs[n]) for n in (0, 2, 5, 4, 3, 1)]
    assert [row.session for row in rows] == order
    assert rows[0].head_seq == 4
    assert rows[0].rung is Rung.VENDOR
    assert rows[0].metadata == {"client": "kit"}
    assert rows[0].opened_at == START + MINUTE
    assert rows[0].place.in_flight == 0


async def test_a_sessions_row_is_its_newest_commit(store: LmdbStore) -> None:
    ref = session()
    await whole_call(store, ref)
    commit = await put(store, intent(ref, new_id()))
    with store.view() as view:
        row = next(view.sessions())
    assert (row.head_seq, row.head_hash) == (commit.link.seq, commit.hash)
    assert row.place.in_flight == 1


async def test_commits_are_read_from_any_seq(store: LmdbStore) -> None:
    ref = session()
    for _ in range(4):
        await whole_call(store, ref)
    with store.view() as view:
        for after in (-1, 0, 3, 7, 8, 50):
            found = [c.link.seq for c in view.commits(known(ref), after=after)]
            assert found == list(range(after + 1, 9))
        assert list(view.commits(new_id())) == []
        assert [view.get(known(ref), n) is None for n in (-1, 0, 8, 9)] == [
            True,
            False,
            False,
            True,
        ]


async def test_a_link_leads_to_the_newest_commit_that_carries_it(store: LmdbStore) -> None:
    ref = session()
    first = await put(store, intent(ref, new_id(), body=CommitBody(links=(b"task", b"x" * 600))))
    for _ in range(2):
        await whole_call(store, ref)
    with store.view() as view:
        assert view.linked(b"task") == first
        assert view.linked(b"x" * 600) == first
        assert view.linked(b"other") is None
    second = await put(store, intent(ref, new_id(), body=CommitBody(links=(b"task",))))
    with store.view() as view:
        assert view.linked(b"task") == second
        assert view.linked(b"x" * 600) == first


@pytest.mark.parametrize(
    ("status", "unsettled"),
    [
        (Status.OK, False),
        (Status.ERROR, False),
        (Status.REPLAYED, False),
        (Status.UNKNOWN, True),
        (Status.ACCEPTED, True),
        (Status.INPUT_REQUIRED, True),
    ],
)
async def test_a_call_is_unsettled_by_its_last_status(
    store: LmdbStore, status: Status, unsettled: bool
) -> None:
    ref = session()
    call = new_id()
    ticket = await begin(store, intent(ref, call))
    with store.view() as view:
        assert calls_of(view.unsettled()) == [call]
    await put(store, outcome(ref, call, ticket, status=status))
    await whole_call(store, ref)
    with store.view() as view:
        assert calls_of(view.unsettled()) == ([call] if unsettled else [])
        assert calls_of(view.unsettled((new_id(),))) == []
        assert calls_of(view.unsettled((known(ref),))) == calls_of(view.unsettled())
    await put(store, outcome(ref, call, ticket, n=1, flags=(Flag.RESOLVED,)))
    with store.view() as view:
        assert calls_of(view.unsettled()) == []


async def test_the_newest_leg_of_a_call_tells_how_it_stands(store: LmdbStore) -> None:
    ref = session()
    call = new_id()
    ticket = await begin(store, intent(ref, call))
    await put(store, outcome(ref, call, ticket, status=Status.INPUT_REQUIRED))
    second = await begin(store, intent(ref, call, leg=1))
    with store.view() as view:
        (attempt,) = view.unsettled()
        assert [c.facts.leg for c in attempt] == [1]
    await put(store, outcome(ref, call, second, leg=1))
    await put(store, outcome(ref, call, ticket, n=1, status=Status.UNKNOWN, flags=(Flag.LATE,)))
    with store.view() as view:
        assert list(view.unsettled()) == []


async def test_a_poll_that_got_no_answer_leaves_its_task_pending(store: LmdbStore) -> None:
    ref = session()
    call = new_id()
    ticket = await begin(store, intent(ref, call))
    await put(store, outcome(ref, call, ticket, status=Status.ACCEPTED))
    for leg in (1, 2):
        poll = await begin(store, intent(ref, call, leg=leg, method="tasks/get"))
        failed = outcome(
            ref, call, poll, leg=leg, method="tasks/get", status=Status.ERROR, error="connection"
        )
        await put(store, failed)
        with store.view() as view:
            assert [a[0].facts.leg for a in view.unsettled()] == [0]
    poll = await begin(store, intent(ref, call, leg=3, method="tasks/get"))
    gone = outcome(
        ref,
        call,
        poll,
        leg=3,
        method="tasks/get",
        status=Status.ERROR,
        error="invalid",
        code=-32602,
    )
    await put(store, gone)
    with store.view() as view:
        assert list(view.unsettled()) == []


async def test_a_view_does_not_move(store: LmdbStore) -> None:
    ref = session()
    await whole_call(store, ref)
    with store.view() as early:
        before = list(early.commits(known(ref)))
        for _ in range(5):
            await whole_call(store, ref)
        late = session()
        await whole_call(store, late)
        assert list(early.commits(known(ref))) == before
        assert len(find(early, Filter())) == 1
        assert len(list(early.sessions())) == 1
        assert early.find_sessions(to_text(known(late))) == []
        assert early.usage().commits == 3


async def test_a_view_first_used_late_does_not_see_what_came_later(store: LmdbStore) -> None:
    ref = session()
    await put(store, intent(ref, new_id()))
    with store.view() as early:
        await put(store, intent(ref, new_id()))
        with store.view() as late:
            assert len(find(late, Filter())) == 2
            assert len(list(late.unsettled())) == 2
        assert len(find(early, Filter())) == 1
        assert len(list(early.unsettled())) == 1
        assert next(early.sessions()).head_seq == 1


async def test_a_reader_sees_what_a_running_writer_wrote(
    engine: Engine, store: LmdbStore, tmp_path: Path
) -> None:
    ref = session("alice")
    reader = engine.read(tmp_path / "data")
    for number in range(1, 6):
        call = await whole_call(store, ref)
        with reader.view() as view:
            assert find(view, Filter())[-1] == call
            assert view.find_sessions("alice") == [known(ref)]
            assert view.usage().commits == 1 + 2 * number
    reader.close()


async def test_usage_counts_what_is_there(store: LmdbStore) -> None:
    with store.view() as view:
        assert (view.usage().commits, view.usage().sessions) == (0, 0)
    for _ in range(2):
        ref = session()
        await whole_call(store, ref)
        await put(store, intent(ref, new_id()))
    with store.view() as view:
        usage = view.usage()
    assert (usage.commits, usage.sessions, usage.pending) == (8, 2, 2)
    assert usage.limit == 1 << 30
    assert usage.log_bytes > 0
    assert usage.disk_free > 0


async def test_keyed_digests_belong_to_the_store(engine: Engine, tmp_path: Path) -> None:
    one, two = engine.open(tmp_path / "one"), engine.open(tmp_path / "two")
    assert one.keyed(b"x") == one.keyed(b"x") != one.keyed(b"y")
    assert one.keyed(b"x") != two.keyed(b"x")
    again = one.keyed(b"x")
    await one.close()
    await two.close()
    reopened = engine.open(tmp_path / "one")
    assert reopened.keyed(b"x") == again
    await reopened.close()


async def test_one_session_is_read_as_it_is_listed(store: LmdbStore) -> None:
    refs = [session(name) for name in ("alice", "bob")]
    for ref in (*refs, refs[0]):
        await whole_call(store, ref)
    with store.view() as view:
        assert [view.session(row.session) for row in view.sessions()] == list(view.sessions())
        assert view.session(new_id()) is None


@pytest.mark.parametrize("want", [Filter(), Filter(tool="read_*"), Filter(flag="late")])
async def test_attempts_are_found_in_pages(store: LmdbStore, want: Filter) -> None:
    ref = session()
    for _ in range(5):
        await whole_call(store, ref, flags=(Flag.LATE,))
    with store.view() as view:
        for narrowed in (want, structs.replace(want, sessions=(known(ref),))):
            found = list(view.attempts(narrowed, newest_first=False))
            middle = found[2][0].position
            assert len(found) == 5
            later = structs.replace(narrowed, behind=middle)
            assert find(view, later) == calls_of(found[3:])
            earlier = structs.replace(narrowed, ahead_of=middle)
            assert find(view, earlier) == calls_of(found[:2])


async def test_sessions_come_in_the_order_of_their_newest_commits(store: LmdbStore) -> None:
    for name in ("one", "two", "three"):
        await whole_call(store, session(name))
    with store.view() as view:
        positions = [row.position for row in view.sessions()]
        newest = [view.get(row.session, row.head_seq) for row in view.sessions()]
    assert positions == [commit.position for commit in newest if commit]
    assert positions == sorted(positions, reverse=True)


async def test_a_call_stands_where_its_newest_attempt_left_it(store: LmdbStore) -> None:
    ref = session()
    call = new_id()
    await begin(store, intent(ref, call))
    with store.view() as view:
        assert [c.link.seq for c in view.unsettled_attempt(call)] == [1]
    await put(store, outcome(ref, call, status=Status.UNKNOWN))
    await whole_call(store, ref)
    with store.view() as view:
        assert [c.facts.status for c in view.unsettled_attempt(call)] == [
            Status.PENDING,
            Status.UNKNOWN,
        ]
    await put(store, outcome(ref, call, n=1))
    with store.view() as view:
        assert view.unsettled_attempt(call) == []
        assert view.unsettled_attempt(new_id()) == []


async def test_calls_are_found_by_notes_on_them(store: LmdbStore) -> None:
    ref = session()
    tickets = [await begin(store, intent(ref, new_id())) for _ in range(3)]
    for ticket, kind in (
        (tickets[2], NoteKind.ABANDONED),
        (tickets[0], NoteKind.ABANDONED),
        (tickets[0], NoteKind.DELIVERED),
        (tickets[2], NoteKind.ABANDONED),
    ):
        begun = await ticket.done()
        await put(store, note(ref, begun.facts.call, kind, ticket))
    first, _, third = [(await ticket.done()).facts.call for ticket in tickets]
    with store.view() as view:
        assert list(view.calls_with_note(NoteKind.ABANDONED)) == [third, first]
        assert list(view.calls_with_note(NoteKind.DELIVERED)) == [first]
        assert list(view.calls_with_note(NoteKind.CANCEL_FORWARDED)) == []
        assert view.readable(third) == view.call(third)
        assert [c.facts.note for c in view.readable(third)] == ["", "abandoned", "abandoned"]


async def test_a_writer_lives_until_it_is_closed(engine: Engine, tmp_path: Path) -> None:
    first, second = engine.open(tmp_path / "data"), engine.open(tmp_path / "data")
    one = await put(first, intent(session("one"), new_id()))
    other = await put(second, intent(session("two"), new_id()))
    with second.view() as view:
        assert view.is_alive(one.link.epoch)
        assert view.is_alive(other.link.epoch)
    await first.close()
    with second.view() as view:
        assert not view.is_alive(one.link.epoch)
        assert view.is_alive(other.link.epoch)
    await second.close()
