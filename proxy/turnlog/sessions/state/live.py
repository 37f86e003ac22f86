"""The live view of a session, read from the store: which of its commits count after rewinds."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import takewhile

from turnlog.core.commit import Commit
from turnlog.core.kinds import CommitKind
from turnlog.core.live_view import (
    CallStarts,
    LiveView,
    Rewind,
    counts,
    decode_rewind,
    is_detached,
    live_commits,
    live_view,
)
from turnlog.store.read.view import View


class SessionBranches:
    """The rewinds of one session, and where its calls began."""

    def __init__(self, view: View, session: bytes) -> None:
        self.rewinds = rewinds_of(view, session)
        self._view = view
        self._session = session
        self._starts = CallStarts(partial(_first_intent, view, session))

    def live(self, at: int) -> LiveView:
        """Return the view of a reader who stands at a commit."""
        return live_view(at, self.rewinds)

    def counts(self, live: LiveView, commit: Commit) -> bool:
        """Return whether a commit counts."""
        return live.is_whole or counts(live, commit, self._starts)

    def is_detached(self, live: LiveView, commit: Commit) -> bool:
        """Return whether a commit is an outcome that came after its call had been discarded."""
        return not live.is_whole and is_detached(live, commit, self._starts)

    def begun(self, commit: Commit) -> int:
        """Return the seq of the first intent of a commit's call."""
        return self._starts.of(commit)

    def filtered(self, live: LiveView, commits: Iterable[Commit]) -> Iterable[Commit]:
        """Return the commits that count."""
        return commits if live.is_whole else live_commits(live, commits, self._starts)

    def commits(self, live: LiveView, *, after: int, until: int) -> Iterator[Commit]:
        """Yield the commits that count with a seq in (`after`, `until`]."""
        found = self._view.commits(self._session, after=after)
        yield from self.filtered(live, takewhile(lambda c: c.link.seq <= until, found))


def rewinds_of(view: View, session: bytes) -> list[Rewind]:
    """Return the rewinds of a session, oldest first."""
    return [_rewind(c) for c in view.controls(session) if c.facts.kind is CommitKind.REWIND]


def _rewind(commit: Commit) -> Rewind:
    seq, target = commit.link.seq, commit.link.ref
    return Rewind(
        seq=seq,
        target=seq - 1 if target is None else target,
        keep=frozenset(decode_rewind(commit.body.note).keep if commit.body else ()),
    )


def _first_intent(view: View, session: bytes, call: bytes) -> int | None:
    found = (c.link.seq for c in view.readable(call) if c.link.session == session)
    return next(found, None)
