"""The live view of a session, read from the store: which of its commits count after rewinds."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import takewhile

from turnlog.core.commit import HEAD, Commit
from turnlog.core.kinds import CommitKind
from turnlog.core.live_view import (
    CallStarts,
    LiveView,
    Rewind,
    RewindContent,
    counts,
    decode_rewind,
    is_detached,
    live_commits,
    live_view,
)
from turnlog.store.read.view import View


class SessionBranches:
    """The rewinds of one session, and where its calls began."""

    def __init__(self, view: View, session: bytes, *, with_discarded: bool = False) -> None:
        """With `with_discarded` the rewinds are ignored: every commit counts."""
        self.with_discarded = with_discarded
        found = () if with_discarded else view.controls(session)
        self.commits = [commit for commit in found if commit.facts.kind is CommitKind.REWIND]
        """The rewinds, oldest first."""
        self.rewinds = [_rewind(commit) for commit in self.commits]
        self.view = view
        self.session = session
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

    def between(self, live: LiveView, after: int, until: int) -> Iterator[Commit]:
        """Yield the commits that count with a seq in (`after`, `until`]."""
        found = self.view.commits(self.session, after=after)
        yield from self.filtered(live, takewhile(lambda c: c.link.seq <= until, found))

    def detached(self, live: LiveView) -> Iterator[list[Commit]]:
        """Yield the commits of each discarded call that got an outcome after it was discarded."""
        # Only calls that were open then get one, and each rewind has noted those.
        begun = {seq for commit in self.commits for seq in content_of(commit).open}
        for seq in sorted(begun):
            first = self.view.get(self.session, seq)
            call = self.view.readable(first.facts.call) if first else []
            if any(self.is_detached(live, commit) for commit in call):
                yield call


class LiveCalls:
    """Which calls count at the heads of their sessions, for listings of several sessions."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.sessions: dict[bytes, tuple[SessionBranches, LiveView]] = {}

    def has(self, attempt: list[Commit]) -> bool:
        """Return whether the call of an attempt counts."""
        branches, live = self.read(attempt[0].link.session)
        return live.is_whole or live.has_call(branches.begun(attempt[0]))

    def detached(self, sessions: Iterable[bytes]) -> Iterator[list[Commit]]:
        """Yield the commits of the calls with detached outcomes, as `SessionBranches.detached` does."""
        for session in sessions:
            branches, live = self.read(session)
            yield from branches.detached(live)

    def read(self, session: bytes) -> tuple[SessionBranches, LiveView]:
        """Return the branches of a session, and the view at its head."""
        known = self.sessions.get(session)
        if known is None:
            branches = SessionBranches(self.view, session)
            known = self.sessions[session] = branches, branches.live(HEAD)
        return known


def content_of(commit: Commit) -> RewindContent:
    """Return the content of a rewind; empty where it was dropped."""
    return decode_rewind(commit.body.note) if commit.body else RewindContent()


def _rewind(commit: Commit) -> Rewind:
    seq, target = commit.link.seq, commit.link.ref
    return Rewind(
        seq=seq,
        target=seq - 1 if target is None else target,
        keep=frozenset(content_of(commit).keep),
    )


def _first_intent(view: View, session: bytes, call: bytes) -> int | None:
    found = (c.link.seq for c in view.readable(call) if c.link.session == session)
    return next(found, None)
