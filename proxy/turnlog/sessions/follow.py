"""Follow the log: what each look at the store finds that no look before it found."""

from collections.abc import Callable, Generator
from contextlib import closing

from msgspec import Struct, structs

from turnlog.store.base import Filter, Reader, StoreAbsent, View

from .log import Query, find_session, read
from .rows import Row, row_of


class Wanted(Struct, frozen=True, kw_only=True):
    """What a follower wants to see. Empty fields do not narrow."""

    session: str = ""
    """An id, the beginning of one, or a name; the session may be still to come."""
    last: int = 0
    """How many attempts of the past come first."""
    match: Filter = Filter()


class News(Struct, frozen=True, kw_only=True):
    """What one look found."""

    rows: list[Row] = []
    left_out: int = 0
    """Damaged records that were done without."""
    behind: bool = False
    """Whether there is more already, so that nobody needs to wait before the next look."""
    awaited: str = ""
    """What is not there yet, and what to do; empty when nothing is missing."""


def follow(
    open_store: Callable[[], Reader], wanted: Wanted, *, at_once: int = 1000
) -> Generator[News]:
    """Yield what each look finds: an attempt whenever it got an outcome, in the order of outcomes.

    The first look is the present. A store that is there only later, or takes the place of another,
    is new from its first commit on. The caller waits between looks; no snapshot is open then, and
    none covers more than `at_once` commits. Raises `NotFoundError` and `StoreError`.
    """
    anew = False
    awaited = ""
    while True:
        try:
            reader = open_store()
        except StoreAbsent as error:
            # A folder that is on its way to be a store is no other thing to wait for.
            awaited = awaited or str(error)
            yield News(awaited=awaited)
        else:
            awaited = ""
            with closing(reader):
                yield from _follow_one(reader, wanted, anew=anew, at_once=at_once)
        anew = True


def _follow_one(reader: Reader, wanted: Wanted, *, anew: bool, at_once: int) -> Generator[News]:
    """Yield news of one store until it is replaced."""
    after = 0
    match: Filter | None = None
    if not anew:
        with reader.view() as view:
            after = view.last
            news = _past(view, wanted, _narrowed(view, wanted))
        yield news
    while not reader.replaced():
        with reader.view() as view:
            match = match or _narrowed(view, wanted)
            until = min(view.last, after + at_once)
            news = _between(view, wanted, match, after, until)
        after = until
        yield news


def _past(view: View, wanted: Wanted, match: Filter | None) -> News:
    if match is None or not wanted.last:
        return News(awaited=_awaited(wanted, match))
    rows = list(read(view, Query(last=wanted.last, match=match)))
    return News(rows=rows, left_out=view.left_out)


def _between(view: View, wanted: Wanted, match: Filter | None, after: int, until: int) -> News:
    # What a session that is in no table wrote is not in this snapshot either.
    ended = () if match is None else view.ended(match, after=after, until=until)
    return News(
        rows=[row_of(attempt) for attempt in ended],
        left_out=view.left_out,
        behind=until < view.last,
        awaited=_awaited(wanted, match),
    )


def _narrowed(view: View, wanted: Wanted) -> Filter | None:
    """Return what to look for; `None` as long as there is no session of that name."""
    if not wanted.session:
        return wanted.match
    if not view.find_sessions(wanted.session):
        return None
    session = find_session(view, wanted.session)
    return structs.replace(wanted.match, sessions=(session,))


def _awaited(wanted: Wanted, match: Filter | None) -> str:
    return f"no session is called {wanted.session!r} yet" if match is None else ""
