"""The delivery of an answer: what the caller gets of one that broke off, and what commits say of it."""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from turnlog.core.classify import Ending, ending_of, failed
from turnlog.core.commit import Commit
from turnlog.core.kinds import (
    Actor,
    CommitKind,
    ErrorFamily,
    ErrorKind,
    Executed,
    Flag,
    NoteKind,
    Phase,
)

from .duplicates import EarlierCall

_NS: Final = 1_000_000_000
_LEFT: Final = frozenset({NoteKind.ABANDONED, NoteKind.CANCEL_FORWARDED})
_ABOUT_DELIVERY: Final = frozenset({NoteKind.DELIVERED, NoteKind.ABANDONED})
_END_OF_WAIT: Final = frozenset({NoteKind.CANCEL_FORWARDED, NoteKind.UNANSWERED})
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
_CROSSING: Final = 0.05
"""s after a delivery within which a cancel that was sent before it is read."""
_SETTLED: Final = 2.0
"""s after an outcome within which its delivery is noted, unless the process died."""
# An agent may close its connection behind the answer. Whether it had read that is known a second later, as
# then no reset has come (decision 79), and the note is written 20 ms behind that.


def is_settling(
    commits: Sequence[Commit], outcome: Commit | None, *, alive: bool, ended: float
) -> bool:
    """Return whether a note may still come that says whether the caller received the answer.

    `alive` is whether the process that wrote the outcome runs, `ended` how many seconds ago it was.
    """
    # An outcome by turnlog or an operator is not an answer that a caller received.
    if outcome is None or outcome.facts.actor is not Actor.AGENT or not alive:
        return False
    if is_delivered(commits, outcome):
        note = next(c for c in reversed(commits) if c.facts.note == NoteKind.DELIVERED)
        return ended - (note.facts.at - outcome.facts.at) / 1e9 < _CROSSING
    return ended < _SETTLED and not any(commit.facts.note in _LEFT for commit in commits)


def is_delivered(commits: Sequence[Commit], outcome: Commit | None) -> bool:
    """Return whether the caller received the last outcome of a call."""
    if outcome is not None and Flag.RESOLVED in outcome.facts.flags:
        # An operator's word counts only from a note of its own: an earlier note is about the answer
        # before it.
        return any(
            commit.facts.note == NoteKind.DELIVERED and commit.link.ref == outcome.link.seq
            for commit in commits
        )
    # A cancel right behind the answer means that the caller did not take it: the last note counts.
    notes = [commit.facts.note for commit in commits if commit.facts.note in _ABOUT_DELIVERY]
    return bool(notes) and notes[-1] == NoteKind.DELIVERED


def lacks_answer(attempt: Sequence[Commit]) -> bool:
    """Return whether an attempt may have been executed without a known answer.

    `attempt` is its intent, then its outcomes in order.
    """
    last = attempt[-1].facts
    if last.kind is CommitKind.INTENT:
        return True
    return last.error_kind in _NO_ANSWER and last.executed is Executed.MAYBE


def runs_on(commits: Iterable[Commit], outcome: Commit, *, alive: bool) -> bool:
    """Return whether a process still waits for the answer after its caller's timeout.

    `outcome` is the last of the attempt, `alive` whether the process that wrote it runs.
    """
    if not alive or outcome.facts.error != ErrorFamily.TIMEOUT:
        return False
    place = outcome.facts.leg, outcome.facts.attempt
    notes = {c.facts.note for c in commits if (c.facts.leg, c.facts.attempt) == place}
    return NoteKind.ABANDONED in notes and notes.isdisjoint(_END_OF_WAIT)


def last_of(commits: Sequence[Commit], kind: CommitKind) -> Commit | None:
    """Return the newest commit of a kind of the last attempt."""
    found = [commit for commit in commits if commit.facts.kind is kind]
    return max(found, key=place_of, default=None)


def place_of(commit: Commit) -> tuple[int, int, int]:
    """Return where a commit stands among those of its call: leg, attempt, number."""
    return commit.facts.leg, commit.facts.attempt, commit.facts.n


def earlier_call(
    commits: Sequence[Commit], now: int, is_alive: Callable[[int], bool], drain: float
) -> EarlierCall:
    """Return what the commits of a call, an intent among them, tell; `now` in ns, `drain` in s.

    `is_alive` tells whether the writer with an epoch runs.
    """
    intent, outcome = last_of(commits, CommitKind.INTENT), last_of(commits, CommitKind.OUTCOME)
    assert intent is not None
    if outcome is not None and place_of(outcome)[:2] < place_of(intent)[:2]:
        outcome = None
    notes = {commit.facts.note: commit.facts.at for commit in commits if commit.facts.note}
    abandoned, cancelled = NoteKind.ABANDONED in notes, notes.get(NoteKind.CANCEL_FORWARDED)
    alive = is_alive((outcome or intent).link.epoch)
    ended = (now - outcome.facts.at) / _NS if outcome is not None else 0.0
    over = cancelled or notes.get(NoteKind.UNANSWERED)
    given_up = ended if over is None else min(ended, (now - over) / _NS)
    goes_on = outcome is not None and runs_on(commits, outcome, alive=alive) and ended < drain
    began = min(c.facts.at for c in commits if c.facts.kind is CommitKind.INTENT)
    return EarlierCall(
        ending=None if goes_on else _ending(intent, outcome, alive=alive),
        began=(now - began) / _NS,
        ended=given_up,
        abandoned=abandoned,
        cancelled=None if cancelled is None else (now - cancelled) / _NS,
        repeats=Flag.REPEAT_OF_UNKNOWN in intent.facts.flags,
        elsewhere=True,
        delivered=is_delivered(commits, outcome),
        settling=is_settling(commits, outcome, alive=alive, ended=ended),
    )


def _ending(intent: Commit, outcome: Commit | None, *, alive: bool) -> Ending | None:
    """Return how a call ended; `None` while a process carries it out."""
    if outcome is not None:
        return ending_of(outcome.facts)
    return None if alive else failed(ErrorKind.OUTCOME_UNKNOWN, Phase.SENT, intent.facts.effect)


# -- an answer that broke off (decision 50) ------------------------------------------------------


class BrokenAnswer(Struct, frozen=True, kw_only=True):
    """An answer that broke off, and how much of it was passed on to the caller."""

    kind: ErrorKind
    untouched: bool
    """Whether nothing was passed on."""
    between_events: bool
    """Whether it is an event stream that was passed on up to the end of an event."""
    resumable: bool
    """Whether the stream can be resumed: an event had an id, the revision resumes streams, and the
    server accepts connections."""


class AfterBreak(StrEnum):
    """The end of an answer that broke off, as the caller gets it."""

    RESUMPTION = "resumption"
    """A closed connection: the caller resumes the stream, and the call stays open."""
    ANSWER = "answer"
    """turnlog's typed answer, as the end of the call."""
    CUT = "cut"
    """A closed connection after the bytes that came."""


def after_break(broken: BrokenAnswer, *, managed: bool, events_are_messages: bool) -> AfterBreak:
    """Return what the caller gets; `managed` is whether a rule made turnlog responsible.

    `events_are_messages` is true for MCP.
    """
    if broken.resumable and broken.kind is ErrorKind.CONNECTION_LOST:
        return AfterBreak.RESUMPTION
    if managed and (broken.untouched or broken.between_events):
        return AfterBreak.ANSWER
    # An MCP client waits for its response until its own timeout: the end of a stream does not tell it
    # that none will come. A client that reads too slowly is not sent more.
    is_slow = broken.kind is ErrorKind.CANCELLED_BY_CALLER
    answers = events_are_messages and broken.between_events and not is_slow
    return AfterBreak.ANSWER if answers else AfterBreak.CUT
