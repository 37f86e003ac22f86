"""What the commits of an earlier call tell."""

import pytest
from msgspec import structs

from kit.commits import Log
from turnlog.core.commit import Commit
from turnlog.core.kinds import CommitKind, NoteKind
from turnlog.exchange.delivery import earlier_call

SECOND = 1_000_000_000


def note(on: Commit, kind: NoteKind, seconds: float) -> Commit:
    """Return a note on a commit, so many seconds behind it."""
    at = on.facts.at + round(seconds * SECOND)
    return structs.replace(
        on, facts=structs.replace(on.facts, kind=CommitKind.NOTE, note=kind, at=at)
    )


@pytest.mark.parametrize("over", [NoteKind.CANCEL_FORWARDED, NoteKind.UNANSWERED])
@pytest.mark.parametrize("is_alive", [True, False])
def test_a_call_that_ran_on_until_it_was_given_up_or_lost_ended_then(
    is_alive: bool, over: NoteKind
) -> None:
    log = Log()
    log.begin("a")
    log.timed_out("a")
    begun, ended = log.commits[-2:]
    left = note(ended, NoteKind.ABANDONED, 0)
    given_up = note(ended, over, 300)
    now = ended.facts.at + 301 * SECOND
    earlier = earlier_call([begun, ended, left, given_up], now, lambda _: is_alive, drain=600.0)
    assert earlier.ending is not None
    assert (earlier.ending.kind, earlier.ended) == ("response_timeout", 1.0)


@pytest.mark.parametrize(("is_alive", "kind"), [(True, None), (False, "outcome_unknown")])
def test_a_call_without_an_outcome_runs_as_long_as_its_process_lives(
    is_alive: bool, kind: str | None
) -> None:
    log = Log()
    log.begin("a")
    begun = log.commits[-1]
    earlier = earlier_call([begun], begun.facts.at + 2 * SECOND, lambda _: is_alive, drain=600.0)
    assert (earlier.ending.kind if earlier.ending is not None else None) == kind
    assert (earlier.began, earlier.elsewhere) == (2.0, True)


def test_the_outcome_of_an_attempt_before_says_nothing_of_one_that_runs() -> None:
    log = Log()
    log.begin("a")
    log.end("a")
    log.begin("a", attempt=2)
    commits = log.commits[-3:]
    assert earlier_call(commits, commits[-1].facts.at, lambda _: True, drain=600.0).ending is None
