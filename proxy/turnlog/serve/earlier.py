"""What is known of an earlier call: what this process remembers of it, and what its commits tell."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from turnlog.core.classify import ending_of
from turnlog.core.commit import Commit
from turnlog.core.kinds import Actor, CommitKind, Flag, NoteKind
from turnlog.core.repeats import Earlier
from turnlog.store.base import Ticket

from .attempt import Settled
from .running import Running

_SETTLED: Final = 1.0
"""s: whether an answer arrived is noted by then, unless its process died."""
_NS: Final = 1_000_000_000


class Found(Struct, frozen=True, kw_only=True):
    """An earlier call: what is known of it here, or what stands of it in the store."""

    earlier: Earlier
    call: bytes
    keyed: bool
    """Whether it was found by its key."""
    running: Running | None = None
    commits: Sequence[Commit] = ()

    @property
    def outcome(self) -> Commit | None:
        """Its last outcome in the store."""
        return _last(self.commits, CommitKind.OUTCOME)

    @property
    def is_resolved(self) -> bool:
        """Whether an operator said how it ended."""
        return self.outcome is not None and Flag.RESOLVED in self.outcome.facts.flags

    @property
    def source(self) -> Ticket | None:
        """The commit from which another call is answered."""
        if self.running is not None and self.running.attempt is not None:
            return self.running.attempt.outcome or self.running.attempt.intent
        commit = self.outcome or _last(self.commits, CommitKind.INTENT)
        return Settled(commit) if commit is not None else None


def _last(commits: Sequence[Commit], kind: CommitKind) -> Commit | None:
    """Return the newest commit of a kind of the last attempt."""
    found = [commit for commit in commits if commit.facts.kind is kind]
    return max(found, key=_place, default=None)


def _place(commit: Commit) -> tuple[int, int, int]:
    return commit.facts.leg, commit.facts.attempt, commit.facts.n


def earlier_of(commits: Sequence[Commit], now: int) -> Earlier:
    """Return what the commits of a call tell; `now` in ns."""
    intent, outcome = _last(commits, CommitKind.INTENT), _last(commits, CommitKind.OUTCOME)
    assert intent is not None  # it was found by its links
    notes = {commit.facts.note: commit.facts.at for commit in commits if commit.facts.note}
    if outcome is not None and _place(outcome)[:2] < _place(intent)[:2]:
        outcome = None
    ended = (now - outcome.facts.at) / _NS if outcome is not None else 0.0
    abandoned = NoteKind.ABANDONED in notes
    # What turnlog or an operator said of it is no answer that a caller has had.
    answered = outcome is not None and outcome.facts.actor is Actor.AGENT
    cancelled = notes.get(NoteKind.CANCEL_FORWARDED)
    began = min(c.facts.at for c in commits if c.facts.kind is CommitKind.INTENT)
    return Earlier(
        ending=ending_of(outcome.facts) if outcome is not None else None,
        began=(now - began) / _NS,
        ended=ended,
        abandoned=abandoned,
        cancelled=None if cancelled is None else (now - cancelled) / _NS,
        repeats=Flag.REPEAT_OF_UNKNOWN in intent.facts.flags,
        # Whoever has just been answered by another process: the note is on its way.
        delivered=_had(commits, outcome) or (ended < _SETTLED and not abandoned and answered),
    )


def _had(commits: Sequence[Commit], outcome: Commit | None) -> bool:
    """Tell whether a caller has had what the last outcome says; of an operator's word nobody had
    it who had the answer before."""
    notes = [commit for commit in commits if commit.facts.note == NoteKind.DELIVERED]
    if outcome is None or Flag.RESOLVED not in outcome.facts.flags:
        return bool(notes)
    return any(note.link.ref == outcome.link.seq for note in notes)
