"""Whether a caller has had the answer to its call, as the commits of the call tell. Pure."""

from collections.abc import Sequence
from typing import Final

from .commit import Commit
from .kinds import Actor, Flag, NoteKind

_SETTLED: Final = 1.0
"""s: whether an answer arrived is noted by then, unless its process died."""


def is_settling(
    commits: Sequence[Commit], outcome: Commit | None, *, alive: bool, ended: float
) -> bool:
    """Tell whether a note may yet come that says whether a caller has had the answer.

    `alive` tells whether the process that wrote the outcome runs, `ended` how many seconds ago that was.
    """
    # What turnlog or an operator said of it is no answer that a caller has had.
    answered = outcome is not None and outcome.facts.actor is Actor.AGENT
    abandoned = any(commit.facts.note == NoteKind.ABANDONED for commit in commits)
    open_yet = answered and not abandoned and not is_delivered(commits, outcome)
    return alive and open_yet and ended < _SETTLED


def is_delivered(commits: Sequence[Commit], outcome: Commit | None) -> bool:
    """Tell whether a caller has had what the last outcome says; of an operator's word nobody had
    it who had the answer before."""
    notes = [commit for commit in commits if commit.facts.note == NoteKind.DELIVERED]
    if outcome is None or Flag.RESOLVED not in outcome.facts.flags:
        return bool(notes)
    return any(note.link.ref == outcome.link.seq for note in notes)
