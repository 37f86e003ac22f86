"""Whether a call runs on after its caller's timeout."""

import pytest
from msgspec import structs

from kit.commits import Log
from turnlog.core.commit import Commit
from turnlog.core.kinds import CommitKind, ErrorKind, Executed, NoteKind
from turnlog.exchange.delivery import lacks_answer, runs_on

LEFT = NoteKind.ABANDONED


def noted(on: Commit, kind: NoteKind, attempt: int = 1) -> Commit:
    facts = structs.replace(on.facts, kind=CommitKind.NOTE, note=kind, attempt=attempt)
    return structs.replace(on, facts=facts)


@pytest.mark.parametrize(
    ("notes", "alive", "goes_on"),
    [
        ((LEFT,), True, True),
        ((LEFT, NoteKind.DELIVERED), True, True),
        ((LEFT,), False, False),
        ((), True, False),
        ((LEFT, NoteKind.CANCEL_FORWARDED), True, False),
        ((LEFT, NoteKind.UNANSWERED), True, False),
    ],
)
def test_a_call_runs_on_while_its_process_lives_and_no_note_ends_it(
    notes: tuple[NoteKind, ...], alive: bool, goes_on: bool
) -> None:
    log = Log()
    log.begin("a")
    log.timed_out("a")
    begun, ended = log.commits[-2:]
    commits = [begun, ended, *(noted(ended, kind) for kind in notes)]
    assert runs_on(commits, ended, alive=alive) is goes_on


def test_notes_of_another_attempt_do_not_count() -> None:
    log = Log()
    log.begin("a")
    log.timed_out("a")
    ended = log.commits[-1]
    assert not runs_on([ended, noted(ended, LEFT, attempt=2)], ended, alive=True)


def test_a_call_without_a_timeout_does_not_run_on() -> None:
    log = Log()
    log.begin("a")
    log.timed_out("a", error="connection")
    ended = log.commits[-1]
    assert not runs_on([ended, noted(ended, LEFT)], ended, alive=True)


@pytest.mark.parametrize(
    ("kind", "executed", "lacks"),
    [
        (ErrorKind.OUTCOME_UNKNOWN, Executed.MAYBE, True),
        (ErrorKind.CONNECTION_LOST, Executed.MAYBE, True),
        (ErrorKind.RESPONSE_TIMEOUT, Executed.MAYBE, True),
        (ErrorKind.CANCELLED_BY_CALLER, Executed.MAYBE, True),
        (ErrorKind.CANCELLED_BY_CALLER, Executed.NO, False),
        (ErrorKind.OUTCOME_UNKNOWN, Executed.NO, False),
        (ErrorKind.TOOL_FAILED, Executed.MAYBE, False),
        (ErrorKind.UPSTREAM_INTERNAL, Executed.MAYBE, False),
        ("", Executed.YES, False),
    ],
)
def test_an_attempt_lacks_an_answer_until_one_came_or_it_was_resolved(
    kind: str, executed: Executed, lacks: bool
) -> None:
    log = Log()
    log.begin("a")
    begun = log.commits[-1]
    log.timed_out("a")
    ended = log.commits[-1]
    facts = structs.replace(ended.facts, error_kind=kind, executed=executed)
    assert lacks_answer([begun])
    assert lacks_answer([begun, structs.replace(ended, facts=facts)]) is lacks
