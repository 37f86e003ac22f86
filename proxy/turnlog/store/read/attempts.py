"""Attempts that match a filter, found by the most selective index."""

import heapq
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase, translate
from itertools import chain, islice
from typing import Final

from turnlog.core.bounded_dict import BoundedDict
from turnlog.core.kinds import CommitKind
from turnlog.store.base import Filter
from turnlog.store.log.index import Entry
from turnlog.store.log.keys import (
    CHANGE,
    ERROR,
    FLAG,
    KIND,
    PATH,
    TOOL,
    read_path_term,
    read_tool_term,
    text_term,
)
from turnlog.store.log.tables import NEVER

from .snapshot import Snapshot

MOST: Final = 1 << 18
"""Names that are read for one glob, and positions that are put in order before the first is given."""
FEW: Final = 1 << 12
"""Positions that are looked through for those of one session, before its own commits are."""
_STREAMS: Final = 256
"""Lists that are read side by side."""
_LITERAL: Final = re.compile(r"[^*?\[]*")
Attempt = list[Entry]
_REMEMBERED = 64
"""Calls whose commits are cached, because attempts of one call are close together."""


class AttemptReader:
    """Joins intents with their outcomes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._calls: BoundedDict[bytes, list[Entry]] = BoundedDict(_REMEMBERED)

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

    An outcome may be any distance behind its intent; `high` bounds the intents alone.
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


def commits_of(
    snapshot: Snapshot, want: Filter, low: int, *, newest_first: bool, most: int = MOST
) -> Iterable[int] | None:
    """Return, in order, positions from `low` on of commits whose attempts may be wanted.

    `None` where attempts are not wanted for what one of their commits says, or are found sooner by
    their session or by their own place.
    """
    lists = _lists(snapshot, want, most)
    if lists is None or (want.sessions and want.first_turn is not None):
        return None
    if newest_first and not want.sessions:
        return _newest_first(snapshot, want, lists, low, most)
    found = _ordered(snapshot, lists, low, min(FEW, most) if want.sessions else most)
    return found[::-1] if found is not None and newest_first else found


def _lists(snapshot: Snapshot, want: Filter, most: int) -> list[bytes] | None:
    """Return the posting lists of the commits that are wanted; `None` where anything is."""
    if want.kind:
        return [text_term(KIND, want.kind)]
    if want.flag:
        return [text_term(FLAG, want.flag)]
    if want.error:
        return [text_term(ERROR, want.error)]
    if want.path:
        return _named(snapshot, want, most)
    return _of_fields(snapshot, want) if want.field else None


def _named(snapshot: Snapshot, want: Filter, most: int) -> list[bytes]:
    """Return the lists of the names that a glob matches; of all changes where names are too many."""
    start = _LITERAL.match(want.path)
    literal = start[0].encode("utf-8", "surrogatepass") if start else b""
    # Of long names only hashes are kept: they may match.
    marks = (PATH + literal, PATH + b"\0") if literal else (PATH,)
    names = list(islice(chain.from_iterable(map(snapshot.terms, marks)), most + 1))
    if len(names) > most:
        return _of_fields(snapshot, want)
    match = re.compile(translate(want.path)).match
    return [term for term in names if (name := read_path_term(term)) is None or match(name)]


def _of_fields(snapshot: Snapshot, want: Filter) -> list[bytes]:
    return [text_term(CHANGE, want.field)] if want.field else list(snapshot.terms(CHANGE))


def _newest_first(
    snapshot: Snapshot, want: Filter, lists: list[bytes], low: int, most: int
) -> Iterable[int]:
    if len(lists) > _STREAMS:
        found = _ordered(snapshot, lists, low, most)
        if found is not None:
            return found[::-1]
        lists = _of_fields(snapshot, want)
    streams = (snapshot.term(term, low, snapshot.last, newest_first=True) for term in lists)
    return heapq.merge(*streams, reverse=True)


def _ordered(snapshot: Snapshot, lists: Iterable[bytes], low: int, most: int) -> list[int] | None:
    """Return the positions on the lists; `None` for more than `most`."""
    streams = (snapshot.term(term, low, snapshot.last, newest_first=False) for term in lists)
    found = list(islice(chain.from_iterable(streams), most + 1))
    return sorted(set(found)) if len(found) <= most else None
