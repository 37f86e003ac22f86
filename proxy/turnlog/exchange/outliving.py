"""Whether a call goes on whose caller was told that its time is over, as its commits tell. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from turnlog.core.commit import Commit
from turnlog.core.kinds import CommitKind, ErrorFamily, ErrorKind, Executed, NoteKind

_OVER: Final = frozenset({NoteKind.CANCEL_FORWARDED, NoteKind.UNANSWERED})


_NO_ANSWER: Final = frozenset(
    {
        ErrorKind.RESPONSE_TIMEOUT,
        ErrorKind.PROGRESS_TIMEOUT,
        ErrorKind.DEADLINE_EXHAUSTED,
        ErrorKind.CONNECTION_LOST,
        ErrorKind.CANCELLED_BY_CALLER,
        ErrorKind.OUTCOME_UNKNOWN,
    }
)


def lacks_answer(attempt: Sequence[Commit]) -> bool:
    """Return whether an attempt may have been executed and no answer to it is known.

    `attempt` is its intent, and its outcomes in order.
    """
    last = attempt[-1].facts
    if last.kind is CommitKind.INTENT:
        return True
    return last.error_kind in _NO_ANSWER and last.executed is Executed.MAYBE


def runs_on(commits: Iterable[Commit], outcome: Commit, *, alive: bool) -> bool:
    """Tell whether a process still waits for the answer to an attempt, whose last outcome is given.

    `alive` tells whether the process that wrote the outcome runs.
    """
    if not alive or outcome.facts.error != ErrorFamily.TIMEOUT:
        return False
    place = outcome.facts.leg, outcome.facts.attempt
    notes = {c.facts.note for c in commits if (c.facts.leg, c.facts.attempt) == place}
    return NoteKind.ABANDONED in notes and notes.isdisjoint(_OVER)
