"""Calls whose agent has no answer, with what is recorded about each.

For a runtime whose transcript holds a `tool_use` without a `tool_result`.
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
from turnlog.exchange.delivery import is_delivered, is_settling, runs_on
from turnlog.store.base import Filter
from turnlog.store.read.view import View

from .live import LiveCalls
from .payloads import Payload, read_output
from .rows import Row, row_of

_NS: Final = 1_000_000_000
_Abandoned = dict[bytes, list[Commit]]
"""All commits of each call that was abandoned by its agent."""


class DanglingReason(StrEnum):
    """Why a call has no answer."""

    IN_FLIGHT = "in_flight"
    """A running process waits for its answer."""
    PARKED = "parked"
    """It waits for more input or for its task."""
    UNKNOWN = "unknown"
    """It is not known whether it happened."""
    UNDELIVERED = "undelivered"
    """Its outcome is recorded, but the agent did not get it."""
    DETACHED = "detached"
    """A rewind discarded it, and its outcome came afterwards."""


class DanglingFilter(Struct, frozen=True, kw_only=True):
    """Which calls to return. Empty fields do not narrow."""

    session: bytes | None = None
    since: int | None = None
    """Only calls that began at or after this time, ns UTC."""
    behind: int = 0
    """Only calls whose intent has a later position in the log."""
    with_discarded: bool = False
    """Whether calls that a rewind has discarded are wanted as well."""
    now: int | None = None
    """The time, ns UTC: an answer that ended just before may still be delivered. `None`: none can be."""

    def covers(self, intent: Commit) -> bool:
        """Return whether the attempt with this intent matches."""
        return (
            self.session in (None, intent.link.session)
            and (self.since is None or intent.facts.at >= self.since)
            and intent.position > self.behind
        )


class Dangling(Struct, frozen=True, kw_only=True):
    """One line of `turnlog dangling --json`: a call and its newest attempt."""

    standing: DanglingReason
    abandoned: bool
    """Whether the agent disconnected, cancelled, or was answered before the call ended."""
    row: Row
    """As in the log; for an attempt of a dead process with the outcome that it will get."""
    preview: str
    """Of the input, redacted."""
    output: Payload
    """The recorded answer; its text only when it is whole and nothing was redacted."""


class DanglingCall(Struct, frozen=True, kw_only=True):
    """A dangling call, by its commits' headers alone; `describe` reads the rest."""

    standing: DanglingReason
    abandoned: bool
    attempt: list[Commit]
    """Its newest attempt: the intent, then outcomes."""

    @property
    def position(self) -> int:
        """Position of the intent in the log."""
        return self.attempt[0].position


def find_dangling(view: View, wanted: DanglingFilter) -> list[DanglingCall]:
    """Return the dangling calls, in the order in which their newest attempts began."""
    left = {call: view.readable(call) for call in view.calls_with_note(NoteKind.ABANDONED)}
    sources = (
        *_recovered(view, wanted),
        *_undelivered(view, wanted),
        *_abandoned(left),
        *_unsettled(view, wanted, left),
    )
    live = LiveCalls(view)
    if not wanted.with_discarded:
        sources = tuple(one for one in sources if live.has(one.attempt))
    sources = (*sources, *_detached(view, wanted, live))
    found = {one.attempt[0].facts.call: one for one in sources if wanted.covers(one.attempt[0])}
    return sorted(found.values(), key=lambda one: one.position)


def dangling(view: View, wanted: DanglingFilter) -> Iterator[Dangling]:
    """Yield the dangling calls with what is recorded about them."""
    return (describe(view, one) for one in find_dangling(view, wanted))


def count_dangling(view: View, now: int) -> dict[DanglingReason, int]:
    """Return the number of dangling calls by reason; `now` in ns UTC."""
    found = Counter(one.standing for one in find_dangling(view, DanglingFilter(now=now)))
    return {standing: found[standing] for standing in DanglingReason if found[standing]}


def describe(view: View, found: DanglingCall) -> Dangling:
    """Return what is recorded about a dangling call."""
    intent, *outcomes = found.attempt
    output = read_output(view, outcomes)
    row = row_of(found.attempt)
    # The process that made the attempt is dead.
    is_lost = not outcomes and found.standing is not DanglingReason.IN_FLIGHT
    return Dangling(
        standing=found.standing,
        abandoned=found.abandoned,
        row=_as_recovered(row, intent.facts.effect) if is_lost else row,
        preview=intent.body.preview if intent.body else "",
        output=output if output.is_exact else structs.replace(output, text=""),
    )


def _as_recovered(row: Row, effect: Effect) -> Row:
    """Return a row with the outcome that recovery will write."""
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


def _unsettled(view: View, wanted: DanglingFilter, left: _Abandoned) -> Iterator[DanglingCall]:
    """Yield the calls whose last status is not final (`pending_actions` of the state)."""
    sessions = () if wanted.session is None else (wanted.session,)
    # `is_alive` tries to take a lock: once for each process is enough.
    is_alive = lru_cache(maxsize=None)(view.is_alive)
    for attempt in view.unsettled(sessions):
        intent = attempt[0]
        noted = left.get(intent.facts.call, ())
        standing = open_reason(attempt, noted, alive=is_alive(attempt[-1].link.epoch))
        yield _dangling(standing, attempt, noted)


def _dangling(
    standing: DanglingReason, attempt: list[Commit], noted: Iterable[Commit]
) -> DanglingCall:
    """Return a call by its newest attempt; `noted` are the commits that may say that it was abandoned."""
    abandoned = _has_note(noted, NoteKind.ABANDONED, attempt[0])
    return DanglingCall(standing=standing, abandoned=abandoned, attempt=attempt)


def open_reason(attempt: list[Commit], noted: Iterable[Commit], *, alive: bool) -> DanglingReason:
    """Return why the call of an attempt is open.

    `noted` holds all commits of an abandoned call; `alive` says whether the process that wrote the
    attempt's last commit is running.
    """
    last = attempt[-1]
    if len(attempt) > 1:
        if runs_on(noted, last, alive=alive):
            return DanglingReason.IN_FLIGHT
        return DanglingReason.PARKED if last.facts.status.parked else DanglingReason.UNKNOWN
    if alive:
        return DanglingReason.IN_FLIGHT
    ending = failed(ErrorKind.OUTCOME_UNKNOWN, Phase.SENT, last.facts.effect)
    return DanglingReason.UNKNOWN if ending.status is Status.UNKNOWN else DanglingReason.UNDELIVERED


def _detached(view: View, wanted: DanglingFilter, live: LiveCalls) -> Iterator[DanglingCall]:
    """Yield the discarded calls that got an outcome after their rewind."""
    sessions = view.rewound() if wanted.session is None else (wanted.session,)
    for commits in live.detached(sessions):
        attempt = newest_attempt(commits)
        if len(attempt) > 1:
            yield _dangling(DanglingReason.DETACHED, attempt, commits)


def _abandoned(left: _Abandoned) -> Iterator[DanglingCall]:
    """Yield the ended calls that their agent had abandoned."""
    for commits in left.values():
        attempt = newest_attempt(commits)
        if len(attempt) < 2 or attempt[-1].facts.status.unsettled:
            continue
        call = _dangling(DanglingReason.UNDELIVERED, attempt, commits)
        if call.abandoned and not _has_note(commits, NoteKind.DELIVERED, attempt[0]):
            yield call


def _undelivered(view: View, wanted: DanglingFilter) -> Iterator[DanglingCall]:
    """Yield the ended calls without a note that their answer was delivered."""
    is_alive = lru_cache(maxsize=None)(view.is_alive)
    for call in view.undelivered():
        commits = view.readable(call)
        attempt = newest_attempt(commits)
        if len(attempt) < 2:
            continue
        outcome = attempt[-1]
        ended = inf if wanted.now is None else (wanted.now - outcome.facts.at) / _NS
        alive = is_alive(outcome.link.epoch)
        on_its_way = is_settling(commits, outcome, alive=alive, ended=ended)
        if not on_its_way and not is_delivered(commits, outcome):
            yield _dangling(DanglingReason.UNDELIVERED, attempt, commits)


def _recovered(view: View, wanted: DanglingFilter) -> Iterator[DanglingCall]:
    """Yield the calls that recovery closed as safe to repeat, so that nothing is left to resolve."""
    # Filtering by kind reads fewer attempts than filtering by session.
    match = Filter(kind=ErrorKind.OUTCOME_UNKNOWN, since=wanted.since, behind=wanted.behind)
    for attempt in view.attempts(match, newest_first=False):
        intent, last = attempt[0], attempt[-1].facts
        is_lost = last.actor is Actor.TURNLOG and last.status is Status.ERROR
        if (
            is_lost
            and wanted.covers(intent)
            and newest_attempt(view.readable(last.call))[:1] == [intent]
        ):
            yield _dangling(DanglingReason.UNDELIVERED, attempt, ())


def newest_attempt(commits: list[Commit]) -> list[Commit]:
    """Return the newest attempt among a call's commits: the intent, then outcomes."""
    attempts: dict[tuple[int, int], list[Commit]] = {}
    for commit in commits:
        key = commit.facts.leg, commit.facts.attempt
        match commit.facts.kind:
            case CommitKind.INTENT:
                attempts[key] = [commit]
            case CommitKind.OUTCOME if key in attempts:
                attempts[key].append(commit)
            case _:
                pass
    return attempts[max(attempts)] if attempts else []


def _has_note(commits: Iterable[Commit], note: NoteKind, intent: Commit) -> bool:
    """Return whether a note of this kind refers to the attempt or one of its outcomes."""
    return any(
        commit.facts.note == note and (commit.link.ref or 0) >= intent.link.seq
        for commit in commits
        if commit.facts.kind is CommitKind.NOTE
    )
