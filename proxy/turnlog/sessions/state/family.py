"""The family of a session: what it was forked from, its forks, and where two of them parted."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from turnlog.core.commit import HEAD, Commit
from turnlog.core.kinds import CommitKind
from turnlog.store.read.view import View

_DEEPEST: Final = 64
"""Forks of forks that are followed."""


class BranchPoint(Struct, frozen=True):
    """A session, and the newest of its commits that another one shares with it."""

    session: bytes
    seq: int


def ancestry(view: View, session: bytes) -> list[BranchPoint]:
    """Return the sessions that a session was forked from, the parent first."""
    found: list[BranchPoint] = []
    bound = HEAD
    while len(found) < _DEEPEST and (point := parent_of(view, session)) is not None:
        bound = min(bound, point.seq)
        session = point.session
        found.append(BranchPoint(session, bound))
    return found


def line_of(view: View, session: bytes) -> list[BranchPoint]:
    """Return a session and those that it was forked from, each up to the commit that it shares."""
    return [BranchPoint(session, HEAD), *ancestry(view, session)]


def commits_of_line(view: View, session: bytes, *, after: int = -1) -> Iterator[Commit]:
    """Yield the readable commits of a session and of those that it was forked from, oldest first."""
    for point in reversed(line_of(view, session)):
        for commit in view.readable_commits(point.session, after=after):
            if commit.link.seq > point.seq:
                break
            yield commit


def parent_of(view: View, session: bytes) -> BranchPoint | None:
    """Return what a session was forked from; `None` if it is no fork."""
    opened = view.opened(session)
    if opened is None or opened.facts.kind is not CommitKind.OPEN or not opened.facts.note:
        return None
    return BranchPoint(bytes.fromhex(opened.facts.note), opened.link.seq - 1)


def branch_point_of(view: View, one: bytes, other: bytes) -> BranchPoint | None:
    """Return the newest commit that two sessions share; `None` if they are no relatives."""
    mine = {point.session: point.seq for point in line_of(view, one)}
    for theirs in line_of(view, other):
        if theirs.session in mine:
            return BranchPoint(theirs.session, min(theirs.seq, mine[theirs.session]))
    return None


def relatives(view: View, session: bytes) -> Iterator[bytes]:
    """Yield the forks of a session, its parent and that one's forks; each may be missing in the store."""
    parent = parent_of(view, session)
    for origin in (session, parent.session if parent else b""):
        if origin:
            yield from (commit.link.session for commit in reversed(list(view.forks(origin))))
    if parent is not None:
        yield parent.session


def family(view: View, session: bytes) -> Iterator[bytes]:
    """Yield all branches of a session's family, each before its forks; each may be missing in the store."""
    parents = ancestry(view, session)
    left = [parents[-1].session if parents else session]
    while left:
        yield (branch := left.pop())
        left += [fork.link.session for fork in view.forks(branch)]


class SharedChange(Struct, frozen=True, kw_only=True):
    """A file that was changed on two branches since they parted."""

    key: str
    seq: int
    """The newest commit of this branch that changed it."""
    session: str
    """The other branch."""
    other_seq: int
