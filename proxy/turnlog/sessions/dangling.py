"""Calls that their agent has no answer to: what is recorded of each, or that nobody knows.

A runtime whose transcript holds a `tool_use` without a `tool_result` finds the facts here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import lru_cache
from math import inf
from typing import Final

from msgspec import Struct, structs

from turnlog.core.classify import failed
from turnlog.core.commit import Commit
from turnlog.core.kinds import Actor, CommitKind, Effect, ErrorKind, NoteKind, Phase, Status
from turnlog.exchange.delivery import is_delivered, is_settling
from turnlog.exchange.outliving import runs_on
from turnlog.store.base import Filter, View

from .contents import Kept, Payload, payload
from .rows import Row, row_of

_NS: Final = 1_000_000_000
_Left = dict[bytes, list[Commit]]
"""Calls whose agent left, with all their commits."""


class Standing(StrEnum):
    """Why a call has no answer."""

    IN_FLIGHT = "in_flight"
    """A living process waits for it."""
    PARKED = "parked"
    """It waits for more input, or for its task."""
    UNKNOWN = "unknown"
    """Nobody knows whether it happened."""
    UNDELIVERED = "undelivered"
    """How it ended is recorded, and its agent was not told."""


class Wanted(Struct, frozen=True, kw_only=True):
    """Which calls are meant. Empty fields do not narrow."""

    session: bytes | None = None
    since: int | None = None
    """When the call began at the earliest, ns UTC."""
    behind: int = 0
    """Position of an intent: only later ones."""
    now: int | None = None
    """ns UTC: what ended just before may yet be delivered; `None` where nothing did."""

    def covers(self, intent: Commit) -> bool:
        """Tell whether the attempt that began so is meant."""
        return (
            self.session in (None, intent.link.session)
            and (self.since is None or intent.facts.at >= self.since)
            and intent.position > self.behind
        )


class Dangling(Struct, frozen=True, kw_only=True):
    """One line of `turnlog dangling --json`: a call by its newest attempt."""

    standing: Standing
    abandoned: bool
    """Whether the agent is known to have left, cancelled, or been answered before the end."""
    row: Row
    """As in the log; where nobody will finish an attempt, with the outcome that it is going to get."""
    preview: str
    """Of the input."""
    output: Payload
    """The recorded answer. Its text stands here only where it is whole and nothing was cut out."""


class Found(Struct, frozen=True, kw_only=True):
    """A dangling call before anything of it is read that its headers do not say."""

    standing: Standing
    abandoned: bool
    attempt: list[Commit]
    """Its newest attempt: intent, then outcomes."""

    @property
    def position(self) -> int:
        """Where the intent stands in the log."""
        return self.attempt[0].position


def find(view: View, wanted: Wanted) -> list[Found]:
    """Return the calls that dangle, in the order in which their newest attempts began."""
    left = {call: view.readable(call) for call in view.noted(NoteKind.ABANDONED)}
    sources = (
        *_lost(view, wanted),
        *_unheard(view, wanted),
        *_left(left),
        *_open(view, wanted, left),
    )
    found = {one.attempt[0].facts.call: one for one in sources if wanted.covers(one.attempt[0])}
    return sorted(found.values(), key=lambda one: one.position)


def dangling(view: View, wanted: Wanted) -> Iterator[Dangling]:
    """Yield the calls that dangle, with what is recorded of them."""
    return (described(view, one) for one in find(view, wanted))


def count(view: View, now: int) -> dict[Standing, int]:
    """Return how many calls dangle for which reason; `now` in ns UTC."""
    found = Counter(one.standing for one in find(view, Wanted(now=now)))
    return {standing: found[standing] for standing in Standing if found[standing]}


def described(view: View, found: Found) -> Dangling:
    """Return what is recorded of a call that dangles."""
    intent, *outcomes = found.attempt
    bodies = [outcome.body for outcome in reversed(outcomes) if outcome.body]
    kept = payload(view, next((body.output_blob for body in bodies if body.output_blob), b""))
    is_exact = kept.kept is Kept.WHOLE and not kept.redacted
    row = row_of(found.attempt)
    is_lost = not outcomes and found.standing is not Standing.IN_FLIGHT
    return Dangling(
        standing=found.standing,
        abandoned=found.abandoned,
        row=_closed(row, intent.facts.effect) if is_lost else row,
        preview=intent.body.preview if intent.body else "",
        output=kept if is_exact else structs.replace(kept, text=""),
    )


def _closed(row: Row, effect: Effect) -> Row:
    """Return a row with the outcome that the next process to open the store will write."""
    ending = failed(ErrorKind.OUTCOME_UNKNOWN, Phase.SENT, effect)
    return structs.replace(
        row,
        status=ending.status,
        error=ending.error,
        kind=ending.kind,
        retry=ending.retry,
        phase=ending.phase,
        executed=ending.executed,
    )


def _open(view: View, wanted: Wanted, left: _Left) -> Iterator[Found]:
    """Yield the calls of `pending_actions`."""
    sessions = () if wanted.session is None else (wanted.session,)
    # Attempts of one process come together: each is asked after once.
    lives = lru_cache(maxsize=None)(view.lives)
    for attempt in view.unsettled(sessions):
        intent = attempt[0]
        noted = left.get(intent.facts.call, ())
        standing = _standing(attempt, noted, alive=lives(attempt[-1].link.epoch))
        abandoned = _speaks(noted, NoteKind.ABANDONED, intent)
        yield Found(standing=standing, abandoned=abandoned, attempt=attempt)


def _standing(attempt: list[Commit], noted: Iterable[Commit], *, alive: bool) -> Standing:
    """Return why the call of an attempt is open; `noted` is all of it, where its agent left.

    `alive` tells whether the process that wrote last of the attempt runs.
    """
    last = attempt[-1]
    if len(attempt) > 1:
        if runs_on(noted, last, alive=alive):
            return Standing.IN_FLIGHT
        return Standing.PARKED if last.facts.status.parked else Standing.UNKNOWN
    if alive:
        return Standing.IN_FLIGHT
    ending = failed(ErrorKind.OUTCOME_UNKNOWN, Phase.SENT, last.facts.effect)
    return Standing.UNKNOWN if ending.status is Status.UNKNOWN else Standing.UNDELIVERED


def _left(left: _Left) -> Iterator[Found]:
    """Yield the calls that have ended and whose agent had left."""
    for commits in left.values():
        attempt = _newest(commits)
        if len(attempt) < 2 or attempt[-1].facts.status.unsettled:
            continue
        abandoned = _speaks(commits, NoteKind.ABANDONED, attempt[0])
        if abandoned and not _speaks(commits, NoteKind.DELIVERED, attempt[0]):
            yield Found(standing=Standing.UNDELIVERED, abandoned=True, attempt=attempt)


def _unheard(view: View, wanted: Wanted) -> Iterator[Found]:
    """Yield the calls that have ended, and of which no note says that the answer was delivered."""
    lives = lru_cache(maxsize=None)(view.lives)
    for call in view.unheard():
        commits = view.readable(call)
        attempt = _newest(commits)
        if len(attempt) < 2:
            continue
        outcome = attempt[-1]
        ended = inf if wanted.now is None else (wanted.now - outcome.facts.at) / _NS
        alive = lives(outcome.link.epoch)
        on_its_way = is_settling(commits, outcome, alive=alive, ended=ended)
        if not on_its_way and not is_delivered(commits, outcome):
            abandoned = _speaks(commits, NoteKind.ABANDONED, attempt[0])
            yield Found(standing=Standing.UNDELIVERED, abandoned=abandoned, attempt=attempt)


def _lost(view: View, wanted: Wanted) -> Iterator[Found]:
    """Yield the calls that a store closed after their process, and that leave nothing to settle."""
    # The kind narrows more than the session, of which the store would read all attempts.
    match = Filter(kind=ErrorKind.OUTCOME_UNKNOWN, since=wanted.since, behind=wanted.behind)
    for attempt in view.attempts(match, newest_first=False):
        intent, last = attempt[0], attempt[-1].facts
        is_lost = last.actor is Actor.TURNLOG and last.status is Status.ERROR
        if is_lost and wanted.covers(intent) and _newest(view.readable(last.call))[:1] == [intent]:
            yield Found(standing=Standing.UNDELIVERED, abandoned=False, attempt=attempt)


def _newest(commits: list[Commit]) -> list[Commit]:
    """Return the newest attempt of a call's commits: intent, then outcomes."""
    attempts: dict[tuple[int, int], list[Commit]] = {}
    for commit in commits:
        place = commit.facts.leg, commit.facts.attempt
        match commit.facts.kind:
            case CommitKind.INTENT:
                attempts[place] = [commit]
            case CommitKind.OUTCOME if place in attempts:
                attempts[place].append(commit)
            case _:
                pass
    return attempts[max(attempts)] if attempts else []


def _speaks(commits: Iterable[Commit], note: NoteKind, intent: Commit) -> bool:
    """Tell whether a note of this kind speaks of the attempt, or of what came of it."""
    return any(
        commit.facts.note == note and (commit.link.ref or 0) >= intent.link.seq
        for commit in commits
        if commit.facts.kind is CommitKind.NOTE
    )
