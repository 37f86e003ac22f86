"""Follow the log: poll the store for attempts that got an outcome since the last look."""

from collections.abc import Callable, Generator
from contextlib import closing

from msgspec import Struct, structs

from turnlog.store.base import Filter, StoreAbsent
from turnlog.store.lmdb import LmdbReader
from turnlog.store.read.view import View

from .log import Query, find_session, read_rows
from .rows import Row, row_in


class FollowQuery(Struct, frozen=True, kw_only=True):
    """Which attempts to follow. Empty fields do not narrow."""

    session: str = ""
    """An id, the beginning of one, or a name; the session need not exist yet."""
    last: int = 0
    """Number of past attempts to begin with."""
    match: Filter = Filter()


class News(Struct, frozen=True, kw_only=True):
    """The result of one look at the store."""

    rows: list[Row] = []
    left_out: int = 0
    """Number of damaged records that were left out."""
    behind: bool = False
    """Whether there is more already, so that the next look need not wait."""
    awaited: str = ""
    """What does not exist yet and what to do; empty when nothing is missing."""


def follow(
    open_store: Callable[[], LmdbReader], wanted: FollowQuery, *, at_once: int = 1000
) -> Generator[News]:
    """Yield the result of each look: attempts that got an outcome, in the order of outcomes.

    The caller decides how long to wait between looks. A store that appears later, or replaces
    another, is read from its first commit. Raises `NotFoundError` and `StoreError`.
    """
    # While the caller waits no snapshot is open, and none covers more than `at_once` commits: an
    # open snapshot keeps LMDB from reusing freed pages.
    anew = False
    awaited = ""
    while True:
        try:
            reader = open_store()
        except StoreAbsent as error:
            # A folder in which a store is just being made changes the text, not what is awaited.
            awaited = awaited or str(error)
            yield News(awaited=awaited)
        else:
            awaited = ""
            with closing(reader):
                yield from _follow_one(reader, wanted, anew=anew, at_once=at_once)
        anew = True


def _follow_one(
    reader: LmdbReader, wanted: FollowQuery, *, anew: bool, at_once: int
) -> Generator[News]:
    """Yield the looks at one store until it is replaced."""
    after = 0
    match: Filter | None = None
    if not anew:
        with reader.view() as view:
            after = view.last
            news = _past(view, wanted, _narrowed(view, wanted))
        yield news
    while not reader.is_replaced():
        with reader.view() as view:
            match = match or _narrowed(view, wanted)
            until = min(view.last, after + at_once)
            news = _between(view, wanted, match, after, until)
        after = until
        yield news


def _past(view: View, wanted: FollowQuery, match: Filter | None) -> News:
    if match is None or not wanted.last:
        return News(awaited=_awaited(wanted, match))
    rows = list(read_rows(view, Query(last=wanted.last, match=match, with_discarded=True)))
    return News(rows=rows, left_out=view.left_out)


def _between(view: View, wanted: FollowQuery, match: Filter | None, after: int, until: int) -> News:
    # Without a session of that name in this snapshot, there are no commits of it either.
    ended = () if match is None else view.ended(match, after=after, until=until)
    return News(
        rows=[row_in(view, attempt) for attempt in ended],
        left_out=view.left_out,
        behind=until < view.last,
        awaited=_awaited(wanted, match),
    )


def _narrowed(view: View, wanted: FollowQuery) -> Filter | None:
    """Return the filter with the session in it; `None` while no session has that name."""
    if not wanted.session:
        return wanted.match
    if not view.find_sessions(wanted.session):
        return None
    session = find_session(view, wanted.session)
    return structs.replace(wanted.match, sessions=(session,))


def _awaited(wanted: FollowQuery, match: Filter | None) -> str:
    return f"no session is called {wanted.session!r} yet" if match is None else ""
