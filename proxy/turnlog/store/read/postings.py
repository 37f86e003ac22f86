"""Commits found by their own content: how an attempt ended, or what it changed."""

import heapq
import re
from collections.abc import Iterable
from fnmatch import translate
from itertools import chain, islice
from typing import Final

from turnlog.store.base import Filter
from turnlog.store.log.keys import CHANGE, ERROR, FLAG, KIND, PATH, read_path_term, text_term

from .snapshot import Snapshot

MOST: Final = 1 << 18
"""Names that are read for one glob, and positions that are put in order before the first is given."""
FEW: Final = 1 << 12
"""Positions that are looked through for those of one session, before its own commits are."""
_STREAMS: Final = 256
"""Lists that are read side by side."""
_LITERAL: Final = re.compile(r"[^*?\[]*")


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
