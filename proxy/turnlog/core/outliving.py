"""Whether a call goes on whose caller was told that its time is over, as its commits tell. Pure."""

from collections.abc import Iterable
from typing import Final

from .commit import Commit
from .kinds import ErrorFamily, NoteKind

_OVER: Final = frozenset({NoteKind.CANCEL_FORWARDED, NoteKind.UNANSWERED})


def runs_on(commits: Iterable[Commit], outcome: Commit, *, alive: bool) -> bool:
    """Tell whether a process still waits for the answer to an attempt, whose last outcome is given.

    `alive` tells whether the process that wrote the outcome runs.
    """
    if not alive or outcome.facts.error != ErrorFamily.TIMEOUT:
        return False
    place = outcome.facts.leg, outcome.facts.attempt
    notes = {c.facts.note for c in commits if (c.facts.leg, c.facts.attempt) == place}
    return NoteKind.ABANDONED in notes and notes.isdisjoint(_OVER)
