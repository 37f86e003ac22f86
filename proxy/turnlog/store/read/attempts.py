"""Attempts that match a filter, found by the most selective index."""

import heapq
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from turnlog.core.kinds import CommitKind
from turnlog.store.base import Filter
from turnlog.store.log.index import Entry
from turnlog.store.log.keys import TOOL, read_tool_term
from turnlog.store.log.tables import NEVER

from .postings import commits_of
from .snapshot import Snapshot

Attempt = list[Entry]
_REMEMBERED = 64
"""Calls whose commits are cached, because attempts of one call are close together."""


class AttemptReader:
    """Joins intents with their outcomes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._calls: dict[bytes, list[Entry]] = {}

    def read(self, intent: Entry) -> Attempt:
        """Return an intent with its outcomes."""
        facts, session = intent.facts, intent.link.session
        return [intent] + [
            entry
            for entry in self._call(facts.call)
            if entry.facts.kind is CommitKind.OUTCOME
            and entry.facts.leg == facts.leg
            and entry.facts.attempt == facts.attempt
            and entry.link.session == session
        ]

    def _call(self, call: bytes) -> list[Entry]:
        found = self._calls.get(call)
        if found is None:
            if len(self._calls) >= _REMEMBERED:
                self._calls.clear()
            positions = self._snapshot.call(call)
            entries = map(self._snapshot.readable, positions)
            found = self._calls[call] = [entry for entry in entries if entry]
        return found


def find_attempts(snapshot: Snapshot, want: Filter, *, newest_first: bool) -> Iterator[Attempt]:
    """Yield the attempts that `want` covers, in order of the intent's position."""
    reader = AttemptReader(snapshot)
    for position in _candidates(snapshot, want, newest_first=newest_first):
        if not _within(position, want.behind, want.ahead_of, exclusive=True):
            continue
        intent = snapshot.readable(position)
        if not intent or intent.facts.kind is not CommitKind.INTENT:
            continue
        if not wants_intent(want, intent):
            continue
        attempt = reader.read(intent)
        if wants_outcome(want, attempt):
            yield attempt


def ended_attempts(snapshot: Snapshot, want: Filter, positions: range) -> Iterator[Attempt]:
    """Yield for each outcome at `positions` its attempt as it stood then, if `want` covers it."""
    reader = AttemptReader(snapshot)
    for position in positions:
        outcome = snapshot.readable(position)
        if not outcome or outcome.facts.kind is not CommitKind.OUTCOME:
            continue
        at = _intent_of(snapshot, position)
        intent = None if at is None else snapshot.readable(at)
        if not intent or not wants_intent(want, intent):
            continue
        attempt = [entry for entry in reader.read(intent) if entry.position <= position]
        if wants_outcome(want, attempt):
            yield attempt


def wants_intent(want: Filter, intent: Entry) -> bool:
    """Return whether an attempt's intent matches the filter."""
    link, facts = intent.link, intent.facts
    return (
        (not want.sessions or link.session in want.sessions)
        and _within(link.seq, want.after, want.before, exclusive=True)
        and _within(link.turn, want.first_turn, want.last_turn, exclusive=False)
        and _within(facts.at, want.since, want.until, exclusive=False)
        and wants_tool(want, facts.server, facts.tool)
        and want.trace in ("", facts.trace)
    )


def wants_tool(want: Filter, server: str, tool: str) -> bool:
    """Return whether a tool of a server matches the filter."""
    if want.server and not fnmatchcase(server, want.server):
        return False
    if not want.tool or fnmatchcase(tool, want.tool):
        return True
    # Names of plain HTTP tools hold a slash themselves: neither reading excludes the other.
    whole = (f"{server}{mark}{tool}" for mark in "/." if mark in want.tool)
    return any(fnmatchcase(name, want.tool) for name in whole)


def wants_outcome(want: Filter, attempt: Attempt) -> bool:
    """Return whether an attempt's last outcome matches the filter."""
    if not (want.error or want.kind or want.flag):
        return True
    last = attempt[-1].facts
    return (
        len(attempt) > 1
        and want.error in ("", last.error)
        and want.kind in ("", last.error_kind)
        and (not want.flag or want.flag in last.flags)
    )


def _within(value: int, low: int | None, high: int | None, *, exclusive: bool) -> bool:
    edge = 1 if exclusive else 0
    return (low is None or value >= low + edge) and (high is None or value <= high - edge)


def _candidates(snapshot: Snapshot, want: Filter, *, newest_first: bool) -> Iterator[int]:
    low, high = snapshot.bounds(want.since, want.until)
    low = max(low, (want.behind or 0) + 1)
    high = high if want.ahead_of is None else min(high, want.ahead_of - 1)
    commits = commits_of(snapshot, want, low, newest_first=newest_first)
    if commits is not None:
        return _intents(snapshot, commits, high, newest_first=newest_first)
    if want.sessions:
        return _of_sessions(snapshot, want, newest_first=newest_first)
    if want.tool or want.server:
        terms = [term for term in snapshot.terms(TOOL) if _may_match(want, term)]
        found = (snapshot.term(t, low, high, newest_first=newest_first) for t in terms)
        return heapq.merge(*found, reverse=newest_first)
    return iter(range(high, low - 1, -1) if newest_first else range(low, high + 1))


def _of_sessions(snapshot: Snapshot, want: Filter, *, newest_first: bool) -> Iterator[int]:
    first = 0 if want.after is None else want.after + 1
    last = NEVER - 1 if want.before is None else want.before - 1
    if want.first_turn is not None and not newest_first:
        found = _of_sessions(snapshot, want, newest_first=True)
        return iter(sorted(found))
    streams = (
        _until_turn(
            snapshot,
            snapshot.session(session, first, max(last, 0), newest_first=newest_first),
            want.first_turn,
        )
        for session in want.sessions
    )
    return heapq.merge(*streams, reverse=newest_first)


def _until_turn(
    snapshot: Snapshot, positions: Iterable[int], first_turn: int | None
) -> Iterator[int]:
    """Yield positions, newest first, as long as their intents are not of an earlier turn."""
    for position in positions:
        if first_turn is not None:
            entry = snapshot.readable(position)
            if entry and entry.facts.kind is CommitKind.INTENT and entry.link.turn < first_turn:
                return
        yield position


def _intents(
    snapshot: Snapshot, commits: Iterable[int], high: int, *, newest_first: bool
) -> Iterator[int]:
    """Yield once, in order, the intents of the attempts that `commits`, in order, belong to.

    Outcomes stand at any distance behind their intents, whose times alone `high` bounds.
    """
    if not newest_first:
        found = {_intent_of(snapshot, position) for position in commits}
        yield from sorted(p for p in found if p is not None and p <= high)
        return
    waiting: list[int] = []
    seen: set[int] = set()
    for position in commits:
        # All later candidates have lower positions, and so do their intents.
        while waiting and -waiting[0] > position:
            yield -heapq.heappop(waiting)
        intent = _intent_of(snapshot, position)
        if intent is not None and intent not in seen:
            seen.add(intent)
            heapq.heappush(waiting, -intent)
    while waiting:
        yield -heapq.heappop(waiting)


def _intent_of(snapshot: Snapshot, position: int) -> int | None:
    """Return the intent of the attempt that a commit belongs to."""
    entry = snapshot.readable(position)
    if entry is None:
        return None
    if entry.facts.kind is CommitKind.INTENT:
        return position
    return None if entry.link.ref is None else snapshot.find(entry.link.session, entry.link.ref)


def _may_match(want: Filter, term: bytes) -> bool:
    names = read_tool_term(term)
    return names is None or wants_tool(want, *names)
