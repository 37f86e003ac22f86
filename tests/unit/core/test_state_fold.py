"""`core.state.fold`: the state that follows from a session's commits."""

from typing import Any

import pytest
from msgspec import Raw, structs

from kit.commits import AT, Log, call_text, changed
from turnlog.core.commit import CommitBody, Facts
from turnlog.core.kinds import CommitKind, ErrorKind, Executed, Flag, NoteKind, Status
from turnlog.core.note import (
    Budget,
    Decision,
    Evict,
    EvictReason,
    Fact,
    FactAction,
    Metadata,
    Recall,
    TurnStart,
    UserInput,
)
from turnlog.core.operation import OperationType
from turnlog.core.state.files import FileChange
from turnlog.core.state.fold import Causes, ContributingCommit, fold
from turnlog.core.state.session_state import (
    DecisionMade,
    Evicted,
    FactHeld,
    SessionTaint,
    SessionUsage,
    State,
    ToolUse,
    encode_state,
)
from turnlog.core.state.state_view import PendingAction, Table, diff, state_table


def state(log: Log) -> State:
    return fold(State(), log.commits)


def seen(log: Log) -> Table:
    return state_table(state(log))


def files(log: Log) -> dict[str, tuple[str, bool]]:
    """Return of each file what became of it, and whether that is not sure."""
    return {key: (f.op.value, f.maybe) for key, f in seen(log).files_modified.items()}


def test_before_its_first_commit_a_session_has_nothing() -> None:
    assert fold(State(), []) == State()
    assert state_table(State()).files_modified == {}
    assert state_table(State()).usage["calls"] == 0


def test_the_first_commit_says_what_the_session_is_about() -> None:
    found = state(Log(client="agent 1.0"))
    assert (found.seq, found.turn, found.opened_at, found.at) == (0, 1, AT, AT)
    assert found.metadata == {"client": "agent 1.0"}


def test_a_tool_counts_calls_attempts_and_how_they_ended() -> None:
    log = Log()
    log.call("a")
    log.begin("b")
    log.end("b", status=Status.ERROR, error="timeout", executed=Executed.NO)
    log.begin("b", attempt=2)
    log.end("b", attempt=2)
    log.begin("c")
    log.timed_out("c")
    log.begin("d")
    last = log.end("d", status=Status.REPLAYED)
    assert seen(log).tools_used == {
        "files.write": ToolUse(
            calls=4, attempts=5, ok=2, errors={"timeout": 1}, unknown=1, replayed=1, last_seq=last
        )
    }
    assert state(log).usage == SessionUsage(
        calls=4, attempts=5, bytes_in=50, bytes_out=100, duration=15_000_000
    )


def test_a_file_has_its_first_and_last_change() -> None:
    log = Log()
    first = log.call("a", changed("created", "/a"))
    log.turn = 3
    last = log.call("b", changed("modified", "/a", evidence="observed"))
    assert seen(log).files_modified == {
        "/a": FileChange(
            op=OperationType.CREATED,
            first_seq=first,
            last_seq=last,
            first_turn=1,
            last_turn=3,
            evidence="observed",
        )
    }


@pytest.mark.promise("STATE-5")
@pytest.mark.parametrize(
    ("ending", "counts"),
    [
        ({"status": Status.ERROR, "executed": Executed.NO}, False),
        ({"status": Status.ERROR, "kind": ErrorKind.TOOL_FAILED}, False),
        ({"status": Status.ERROR, "kind": ErrorKind.NULL_RESULT}, True),
        ({}, True),
    ],
)
def test_a_call_that_was_not_executed_changes_no_file(
    ending: dict[str, Status], counts: bool
) -> None:
    log = Log()
    log.begin("a", "write", changed("modified", "/a", maybe=True))
    log.end("a", changed("modified", "/a"), **ending)  # type: ignore[arg-type]
    assert files(log) == ({"/a": ("modified", False)} if counts else {})


@pytest.mark.promise("STATE-5")
def test_a_call_answered_from_one_that_does_not_count_changes_its_files() -> None:
    log = Log()
    log.begin("a", "write", changed("modified", "/declared", maybe=True))
    log.end("a", changed("modified", "/a", maybe=True), status=Status.REPLAYED)
    assert files(log) == {"/a": ("modified", False)}
    log.begin("b", "write", changed("modified", "/b", maybe=True))
    log.end("b", status=Status.REPLAYED)
    assert "/b" not in files(log)


def test_a_call_in_flight_has_uncertain_changes() -> None:
    log = Log()
    log.begin("a", "write", changed("modified", "/a", maybe=True))
    assert files(log) == {"/a": ("modified", True)}


@pytest.mark.promise("STATE-4", "STATE-5")
def test_a_later_outcome_settles_uncertain_changes() -> None:
    log = Log()
    log.begin("a")
    log.timed_out("a", changed("modified", "/a", maybe=True))
    assert files(log) == {"/a": ("modified", True)}
    assert seen(log).tools_used["files.write"].unknown == 1
    log.end("a", changed("modified", "/a"), n=1, flags=(Flag.LATE,))
    assert files(log) == {"/a": ("modified", False)}
    used = seen(log).tools_used["files.write"]
    assert (used.ok, used.unknown, used.errors, used.calls) == (1, 0, {}, 1)
    assert state(log).usage.bytes_out == 20
    assert state(log).attempts == {}


def test_changes_that_did_not_happen_disappear() -> None:
    log = Log()
    log.begin("a")
    log.timed_out("a", changed("modified", "/a", maybe=True))
    log.end("a", status=Status.ERROR, executed=Executed.NO, error="unknown", n=1)
    assert files(log) == {}


def test_an_outcome_without_an_answer_keeps_the_known_changes() -> None:
    log = Log()
    log.begin("a", "write", changed("modified", "/a", maybe=True))
    log.timed_out("a")
    assert files(log) == {"/a": ("modified", True)}
    last = log.end("a", n=1, flags=(Flag.RESOLVED,))
    assert files(log) == {"/a": ("modified", False)}
    assert seen(log).files_modified["/a"].last_seq == last


@pytest.mark.promise("STATE-4")
def test_a_certain_outcome_is_final() -> None:
    log = Log()
    log.call("a", changed("modified", "/a"))
    before = state(log)
    log.end("a", status=Status.ERROR, executed=Executed.NO, n=1)
    assert structs.replace(state(log), seq=before.seq, at=before.at) == before


def test_an_outcome_without_its_intent_changes_nothing() -> None:
    log = Log()
    log.end("a", changed("modified", "/a"))
    assert seen(log) == state_table(structs.replace(state(Log()), seq=log.seq))


def test_certain_changes_stay_certain_beside_uncertain_ones() -> None:
    log = Log()
    log.call("a", changed("modified", "/a"))
    log.begin("b")
    log.timed_out("b", changed("modified", "/a", maybe=True))
    log.begin("c")
    log.timed_out("c", changed("deleted", "/b", maybe=True))
    assert files(log) == {"/a": ("modified", False), "/b": ("deleted", True)}


def test_changes_that_an_answer_leaves_open_stay_uncertain() -> None:
    log = Log()
    log.call("a", changed("modified", "/a", maybe=True), changed("modified", "/b"))
    assert files(log) == {"/a": ("modified", True), "/b": ("modified", False)}


def test_a_rename_moves_uncertain_changes_as_well() -> None:
    log = Log()
    log.begin("a")
    log.timed_out("a", changed("modified", "/d/a", maybe=True))
    log.call("b", changed("renamed", "/d", "/e"))
    assert files(log) == {"/e": ("renamed", False), "/e/a": ("modified", True)}
    log.end("a", n=1)
    assert files(log) == {"/e": ("renamed", False), "/e/a": ("modified", False)}


def test_unknown_operations_are_ignored() -> None:
    log = Log()
    log.begin("a")
    facts = structs.replace(log.commits[-1].facts, kind=CommitKind.OUTCOME, status=Status.OK)
    log.add(
        structs.replace(facts, executed=Executed.YES), CommitBody(delta=(Raw(b"\xc1"),)), log.seq
    )
    log.call("b", changed("painted", "/a"), changed("modified", "/b", field="walls"))
    log.add(Facts(kind=CommitKind.NOTE, at=AT, clock=0, note="song"), CommitBody(note=b"\x81"))
    log.add(Facts(kind=CommitKind.NOTE, at=AT, clock=0, note=NoteKind.DELIVERED), None, 2)
    log.add(Facts(kind=CommitKind.LIFECYCLE, at=AT, clock=0))
    assert files(log) == {}
    assert seen(log).tools_used["files.write"].ok == 2


def test_content_that_was_dropped_is_counted() -> None:
    log = Log()
    log.call("a", changed("modified", "/a"))
    dropped = [structs.replace(commit, body=None) for commit in log.commits]
    found = fold(State(), dropped)
    assert (found.bodies_gone, found.files) == (3, {})
    assert found.tools["files.write"].ok == 1


@pytest.mark.promise("STATE-6")
def test_calls_with_an_open_outcome_are_pending() -> None:
    log = Log()
    seq = log.begin("a", "write")
    log.call("b")
    action = PendingAction(
        tool="files.write",
        status="pending",
        seq=seq,
        turn=1,
        leg=0,
        attempt=1,
        executed=Executed.MAYBE,
        since="2026-09-21T14:13:20.001000Z",
    )
    assert seen(log).pending_actions == {call_text("a"): action}
    log.timed_out("a")
    assert seen(log).pending_actions == {call_text("a"): structs.replace(action, status="unknown")}
    log.end("a", n=1)
    assert seen(log).pending_actions == {}


def test_a_parked_leg_ends_when_the_call_continues() -> None:
    log = Log()
    log.begin("a")
    log.end(
        "a",
        changed("modified", "/a", maybe=True),
        status=Status.INPUT_REQUIRED,
        executed=Executed.MAYBE,
    )
    assert seen(log).pending_actions[call_text("a")].status == "input_required"
    log.begin("a", leg=1)
    log.end("a", status=Status.ERROR, executed=Executed.NO, leg=1)
    assert (files(log), seen(log).pending_actions, state(log).attempts) == ({}, {}, {})


def test_a_poll_that_shows_the_end_of_a_task_ends_the_leg_that_began_it() -> None:
    log = Log()
    log.begin("a")
    log.end("a", status=Status.ACCEPTED, executed=Executed.MAYBE)
    log.begin("a", leg=1, method="tasks/result")
    lost = log.timed_out("a", leg=1)
    assert seen(log).pending_actions[call_text("a")].status == "accepted"
    assert lost == log.seq
    log.begin("a", leg=2, method="tasks/result")
    log.end("a", leg=2)
    assert seen(log).pending_actions == {}


def test_decisions_are_known_by_their_id_or_their_commit() -> None:
    log = Log()
    first = log.note(Decision(text="use sqlite", why="one file"))
    second = log.note(Decision(text="use lmdb", id="store", supersedes=str(first)))
    third = log.note(Decision(text="use lmdb 1", id="store", supersedes="store"))
    assert seen(log).decisions_made == {
        str(first): DecisionMade(
            text="use sqlite", why="one file", seq=first, superseded_by="store"
        ),
        "store": DecisionMade(text="use lmdb 1", why="", seq=third, supersedes="store"),
    }
    assert second < third


def test_a_fact_has_the_state_of_its_last_note() -> None:
    log = Log()
    first = log.note(
        Fact(id="p", action=FactAction.ASSERT, subject="port", value="80", validity="today")
    )
    second = log.note(Fact(id="p", action=FactAction.VERIFY, value="no matter"))
    other = log.note(Fact(id="q", action=FactAction.RETRACT))
    held = FactHeld(
        subject="port", value="80", status="verified", sources=(first, second), validity="today"
    )
    assert seen(log).facts == {"p": held, "q": FactHeld(status="retracted", sources=(other,))}
    third = log.note(Fact(id="p", action=FactAction.DISPUTE))
    assert seen(log).facts["p"] == structs.replace(
        held, status="disputed", sources=(first, second, third)
    )


def test_a_recall_brings_back_that_key_only() -> None:
    log = Log()
    log.note(Evict(keys=("a", "b"), reason=EvictReason.TTL))
    last = log.note(Evict(keys=("c", "b"), reason=EvictReason.COMPACTION))
    log.note(Recall(key="a"))
    log.note(Recall(key="unheard of"))
    gone = Evicted(seq=last, reason="compaction")
    assert seen(log).evicted_keys == {"b": gone, "c": gone}


def test_metadata_is_added_and_removed() -> None:
    log = Log(client="agent")
    log.note(Metadata(entries={"goal": "a", "model": "m"}))
    log.note(Metadata(entries={"goal": "b", "model": ""}))
    assert seen(log).metadata == {"client": "agent", "goal": "b"}


@pytest.mark.promise("STATE-9")
def test_a_budget_shows_the_rest() -> None:
    log = Log()
    log.note(Budget(calls=2, bytes=100, seconds=1.0))
    log.call("a")
    left = {name: n for name, n in seen(log).usage.items() if name.endswith("_left")}
    assert left == {"calls_left": 1, "bytes_left": 70, "seconds_left": 0.997}
    log.note(Budget())
    assert not any(name.endswith(("_left", "_over")) for name in seen(log).usage)


@pytest.mark.promise("STATE-9")
def test_an_exceeded_budget_shows_by_how_much() -> None:
    log = Log()
    log.note(Budget(calls=1, bytes=100, seconds=0.001))
    log.call("a")
    assert "calls_over" not in seen(log).usage
    before = state_table(state(log))
    log.call("b")
    usage = seen(log).usage
    assert (usage["calls_left"], usage["calls_over"]) == (0, 1)
    assert (usage["bytes_left"], "bytes_over" in usage) == (40, False)
    assert (usage["seconds_left"], usage["seconds_over"] > 0) == (0, True)
    changes = {change.key: change for change in diff(before, state_table(state(log)))}
    assert (changes["calls_over"].before, changes["calls_over"].after) == (None, 1)


def test_turns_and_user_input_change_no_field() -> None:
    log = Log()
    before = seen(log)
    log.turn = 2
    log.notes([TurnStart(name="b"), UserInput(text="do it")])
    assert seen(log) == before
    assert state(log).turn == 2


def test_every_change_names_its_commit_and_the_reason() -> None:
    log = Log()
    begun = log.begin("a", "write", changed("modified", "/a", maybe=True), why="the user asked")
    ended = log.end("a", changed("modified", "/a"))
    noted = log.note(Decision(text="x", why="y", id="d", supersedes="c"))
    budget = log.note(Budget(calls=1))
    causes: Causes = {}
    assert fold(State(), log.commits, causes) == state(log)
    asked = [
        ContributingCommit(seq=seq, what="files.write", why="the user asked")
        for seq in (begun, ended)
    ]
    decided = [ContributingCommit(seq=noted, what="decision", why="y")]
    assert causes == {
        ("tools_used", "files.write"): asked,
        ("pending_actions", call_text("a")): asked,
        ("files_modified", "/a"): asked,
        ("decisions_made", "d"): decided,
        ("decisions_made", "c"): decided,
        **{
            ("usage", f"{what}_{word}"): [ContributingCommit(seq=budget, what="budget", why="")]
            for what in ("calls", "bytes", "seconds")
            for word in ("left", "over")
        },
    }


def test_a_lookup_does_not_count_as_use_of_a_tool() -> None:
    log = Log()
    log.begin("a", method="resources/read")
    log.end("a")
    assert seen(log).tools_used == {}
    assert seen(log).usage["bytes_in"] == 10


def test_a_rename_leaves_uncertain_changes_of_other_files() -> None:
    log = Log()
    log.begin("a")
    log.timed_out("a", changed("modified", "/d/a", maybe=True))
    log.call("b", changed("renamed", "/x", "/y"))
    assert files(log) == {"/y": ("renamed", False), "/d/a": ("modified", True)}


def test_a_fold_leaves_the_state_that_it_began_with_as_it_was() -> None:
    log = Log(client="one")
    log.call("first", changed("write", "a"), why="it is wanted")
    log.notes(
        [
            Metadata(entries={"a": "b"}),
            Decision(id="d", text="so"),
            Evict(keys=("k",), reason=EvictReason.TTL),
        ]
    )
    before = fold(State(), log.commits)
    encoded = encode_state(before)
    seq = before.seq
    log.add(log.commits[0].facts, log.commits[0].body)
    log.call("second", changed("rename", "a", "b"))
    log.notes([Metadata(entries={"a": ""}), Decision(id="d", text="no"), Recall(key="k")])
    after = fold(before, log.commits[seq + 1 :])
    assert after != before
    assert encode_state(before) == encoded
    assert State.__struct_config__.frozen


def test_the_first_commit_of_a_fork_changes_nothing_of_its_parents_state() -> None:
    log = Log(client="agent")
    log.call("a")
    before = fold(State(), log.commits)
    facts = Facts(kind=CommitKind.OPEN, at=AT, clock=0, note="ab" * 16)
    log.add(facts, CommitBody(metadata={"rung": "explicit", "forked_from": "x"}))
    after = fold(before, log.commits[-1:])
    assert state_table(after) == state_table(before)
    assert after.opened_at == before.opened_at


def flagged(log: Log, name: str, **more: Any) -> int:
    log.begin(name)
    return log.end(name, **more)


def marks(log: Log, kind: NoteKind, ref: int, why: str = "") -> int:
    return log.add(
        Facts(kind=CommitKind.NOTE, at=AT, clock=0, note=kind), CommitBody(detail=why), ref
    )


@pytest.mark.promise("TAINT-5")
def test_a_session_is_labelled_since_the_first_commit_that_was_found_to_be_contaminated() -> None:
    log = Log()
    assert seen(log).labels == {"tainted": None}
    flagged(log, "fails", error="tool_error")
    assert seen(log).labels == {"tainted": None}
    first = flagged(log, "used", flags=(Flag.TAINTED_IN,))
    second = flagged(log, "marked", flags=(Flag.TAINT_MARKED, Flag.TAINTED_OUT))
    assert seen(log).labels == {"tainted": SessionTaint(since=first, by=(first, second))}
    marks(log, NoteKind.ENDORSE, second)
    assert seen(log).labels == {"tainted": SessionTaint(since=first, by=(first, second))}


@pytest.mark.promise("TAINT-5")
def test_a_mark_labels_a_session_since_the_marked_output_and_names_its_reason() -> None:
    log = Log()
    read = flagged(log, "read")
    flagged(log, "used", flags=(Flag.TAINTED_IN,))
    before = state(log)
    note = marks(log, NoteKind.TAINT, read, "forged")
    causes: Causes = {}
    after = fold(before, log.commits[-1:], causes)
    assert after.taint == SessionTaint(since=read, by=(read + 2, read))
    assert causes["labels", "tainted"] == [ContributingCommit(seq=note, what="taint", why="forged")]
    no_body = fold(State(), [structs.replace(log.commits[-1], body=None)])
    assert no_body.taint == SessionTaint(since=read, by=(read,))


def test_a_label_names_a_few_commits_of_many() -> None:
    log = Log()
    for number in range(40):
        flagged(log, f"c{number}", flags=(Flag.TAINTED_IN,))
    found = state(log).taint
    assert isinstance(found, SessionTaint)
    assert len(found.by) == 16
