"""Whether a caller has had the answer to its call, as the commits of the call tell. Pure."""

from collections.abc import Sequence
from typing import Final

from .commit import Commit
from .kinds import Actor, Flag, NoteKind

_SETTLED: Final = 1.0
"""s: whether an answer arrived is noted by then, unless its process died."""


def is_delivered(
    commits: Sequence[Commit], outcome: Commit | None, *, alive: bool, ended: float
) -> bool:
    """Tell whether a caller has had what the last outcome says, or is about to.

    `alive` tells whether the process that wrote it runs, `ended` how many seconds ago that was.
    """
    abandoned = any(commit.facts.note == NoteKind.ABANDONED for commit in commits)
    on_its_way = alive and not abandoned and _is_settling(outcome, ended)
    return on_its_way or _had(commits, outcome)


def _is_settling(outcome: Commit | None, ended: float) -> bool:
    """Tell whether a note may be on its way that the answer was delivered by another process."""
    # What turnlog or an operator said of it is no answer that a caller has had.
    answered = outcome is not None and outcome.facts.actor is Actor.AGENT
    return answered and ended < _SETTLED


def _had(commits: Sequence[Commit], outcome: Commit | None) -> bool:
    """Tell whether a caller has had what the last outcome says; of an operator's word nobody had
    it who had the answer before."""
    notes = [commit for commit in commits if commit.facts.note == NoteKind.DELIVERED]
    if outcome is None or Flag.RESOLVED not in outcome.facts.flags:
        return bool(notes)
    return any(note.link.ref == outcome.link.seq for note in notes)
