"""Whether a caller has had the answer to its call, as the commits of the call tell. Pure."""

from collections.abc import Sequence
from typing import Final

from turnlog.core.commit import Commit
from turnlog.core.kinds import Actor, Flag, NoteKind

_GIVEN_UP: Final = frozenset({NoteKind.ABANDONED, NoteKind.CANCEL_FORWARDED})
_SPEAK: Final = frozenset({NoteKind.DELIVERED, NoteKind.ABANDONED})
_CROSSING: Final = 0.05
"""s: a cancel that was sent before the answer came has been read by then."""
_SETTLED: Final = 1.0
"""s: whether an answer arrived is noted by then, unless its process died."""


def is_settling(
    commits: Sequence[Commit], outcome: Commit | None, *, alive: bool, ended: float
) -> bool:
    """Return whether a note may yet come that says whether a caller has had the answer.

    `alive` tells whether the process that wrote the outcome runs, `ended` how many seconds ago that was.
    """
    # What turnlog or an operator said of it is no answer that a caller has had.
    answered = outcome is not None and outcome.facts.actor is Actor.AGENT
    if outcome is None or not answered or not alive:
        return False
    if is_delivered(commits, outcome):
        note = next(c for c in reversed(commits) if c.facts.note == NoteKind.DELIVERED)
        return ended - (note.facts.at - outcome.facts.at) / 1e9 < _CROSSING
    return ended < _SETTLED and not any(commit.facts.note in _GIVEN_UP for commit in commits)


def is_delivered(commits: Sequence[Commit], outcome: Commit | None) -> bool:
    """Tell whether a caller has had what the last outcome says; of an operator's word nobody had
    it who had the answer before."""
    notes = [commit for commit in commits if commit.facts.note == NoteKind.DELIVERED]
    if outcome is None or Flag.RESOLVED not in outcome.facts.flags:
        # A cancel right behind the answer says that its caller did not take it.
        spoken = [c.facts.note for c in commits if c.facts.note in _SPEAK]
        return bool(spoken) and spoken[-1] == NoteKind.DELIVERED
    return any(note.link.ref == outcome.link.seq for note in notes)
