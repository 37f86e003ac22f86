"""`core.call_status`: the state of a call after each of its commits."""

from msgspec import structs

from kit.commits import Log, call_id
from turnlog.core.call_status import CallState, next_call_state
from turnlog.core.kinds import CommitKind, Executed, Flag, NoteKind, Status


def stands(log: Log) -> list[tuple[int, int, str]]:
    """Return leg, attempt and status of the call `a` after each of its commits."""
    state: CallState | None = None
    found: list[tuple[int, int, str]] = []
    for commit in log.commits:
        if commit.facts.call == call_id("a"):
            state = next_call_state(state, commit.link, commit.facts, commit.position)
            found.append((state.leg, state.attempt, state.status.value) if state else (0, 0, ""))
    return found


def test_the_state_of_a_call_is_that_of_its_newest_attempt() -> None:
    log = Log()
    log.begin("a")
    log.timed_out("a")
    log.begin("a", attempt=2)
    log.end("a", n=1)
    log.end("a", attempt=2, status=Status.INPUT_REQUIRED, executed=Executed.MAYBE)
    log.begin("a", leg=1)
    log.begin("a", attempt=3)
    log.end("a", leg=1)
    assert stands(log) == [
        (0, 1, "pending"),
        (0, 1, "unknown"),
        (0, 2, "pending"),
        (0, 2, "pending"),
        (0, 2, "input_required"),
        (1, 1, "pending"),
        (1, 1, "pending"),
        (1, 1, "ok"),
    ]


def test_a_poll_without_an_answer_leaves_the_task_running() -> None:
    log = Log()
    log.begin("a")
    log.end("a", status=Status.ACCEPTED, executed=Executed.MAYBE)
    for leg in (1, 2):
        log.begin("a", leg=leg, method="tasks/get")
    log.timed_out("a", leg=2)
    assert stands(log)[-1] == (0, 1, "accepted")
    log.begin("a", leg=3, method="tasks/get")
    log.end("a", leg=3, status=Status.ERROR, error="tool_error", code=-32603)
    assert stands(log)[-1] == (3, 1, "error")


def test_an_answer_is_delivered_by_a_note_or_an_operators_resolution() -> None:
    log = Log()
    log.begin("a")
    log.end("a")
    said = next(commit for commit in log.commits if commit.facts.kind is CommitKind.OUTCOME)
    guarded = structs.replace(said.facts, guarded=True)
    delivered = structs.replace(guarded, kind=CommitKind.NOTE, note=NoteKind.DELIVERED)
    steps = (
        (structs.replace(guarded, kind=CommitKind.INTENT), True),
        (guarded, False),
        (structs.replace(delivered, leg=1), False),
        (structs.replace(delivered, note=NoteKind.ABANDONED), False),
        (delivered, True),
        (structs.replace(guarded, n=1), True),
        (structs.replace(guarded, kind=CommitKind.INTENT, attempt=2), True),
        (structs.replace(guarded, attempt=2), False),
        (structs.replace(guarded, attempt=2, n=1), False),
        (structs.replace(guarded, attempt=2, n=2, flags=(Flag.RESOLVED,)), True),
    )
    state: CallState | None = None
    for facts, heard in steps:
        state = next_call_state(state, said.link, facts, 1)
        assert state is not None
        assert state.delivered is heard


def test_other_commits_do_not_change_the_state_of_a_call() -> None:
    log = Log()
    log.end("a")
    assert stands(log) == [(0, 0, "")]
    (opened, *_) = log.commits
    assert next_call_state(None, opened.link, opened.facts, 0) is None
