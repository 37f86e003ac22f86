"""Which commits of a session count after rewinds: its live view, as the current branch of a git history.

A rewind is a commit with a target: the commits between the two stay in the log, but do not count any
more. The parent of a rewind is its target, the parent of any other commit the one before it. The
commits that a reader reaches from the newest one by going to parents are its *path*.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

import msgspec
from msgspec import Struct

from .commit import Commit, decoder
from .kinds import CommitKind, Effect, Executed, Status


class Rewind(Struct, frozen=True, kw_only=True, gc=False):
    """A rewind commit. All numbers are seqs of its session."""

    seq: int
    target: int
    keep: frozenset[int] = frozenset()
    """First intents of calls that count although the rewind discards what is around them."""


class StandingEffect(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A call whose effect stands, as the commit that left it behind knows it. New fields go to the end."""

    # All that is needed to find the call again: bodies expire, and a fork may be without its parent.
    seq: int
    """Where it began."""
    session: bytes
    call: bytes
    server: str
    tool: str
    effect: Effect
    link: bytes
    """Keyed digest of the effect, if a rule names it."""
    input_hash: str
    status: Status
    """As it was then; `unknown` for a call that was running."""
    executed: Executed
    is_shown: bool = False
    """Whether it counts on the branch, because the rewind or an ancestor kept it."""


class RewindContent(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The content of a rewind commit, in `CommitBody.note`. New fields go to the end."""

    keep: tuple[int, ...] = ()
    groups: dict[str, int] = {}
    """Number of discarded calls by what stands of them."""
    untracked: int = 0
    """How many of them have an unknown effect."""
    in_flight: int = 0
    """How many of them were running."""
    standing: tuple[int, ...] = ()
    """Where discarded calls began whose effects stand, newest first."""
    open: tuple[int, ...] = ()
    """Where discarded calls began whose outcome was not final: it may come later."""
    effects: tuple[StandingEffect, ...] = ()
    """The calls of `standing` and `keep`."""


class ForkMode(StrEnum):
    """The treatment of calls in a fork."""

    LIVE = "live"
    REPLAY = "replay"
    """They are answered from the parent's record as long as server, tool and input are the same."""


class AfterDivergence(StrEnum):
    """The treatment of a call that the parent's record does not answer, in a fork that replays it."""

    STOP = "stop"
    """It is refused, and so are all later ones until the fork is rewound to before it."""
    LIVE = "live"
    """It is sent, and so are all later ones."""


class ForkContent(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The content of the commit that opens a fork, in `CommitBody.note`. New fields go to the end."""

    mode: ForkMode = ForkMode.LIVE
    then: AfterDivergence = AfterDivergence.STOP
    standing: tuple[int, ...] = ()
    """Where calls of the parent began behind the branch point whose effects stand, newest first."""
    effects: tuple[StandingEffect, ...] = ()
    """The calls of `standing`, and those that the parent had left behind before."""


_decode_content = decoder(RewindContent)
_decode_fork = decoder(ForkContent)


def decode_fork(data: bytes) -> ForkContent:
    """Return the content of the first commit of a fork; that of a live one if it cannot be read."""
    try:
        return _decode_fork(data)
    except msgspec.DecodeError:
        return ForkContent()


def decode_rewind(data: bytes) -> RewindContent:
    """Return the content of a rewind commit; empty where there is none or it cannot be read."""
    try:
        return _decode_content(data)
    except msgspec.DecodeError:
        return RewindContent()


class LiveView(Struct, frozen=True, gc=False):
    """The commits that count for a reader who stands at a commit."""

    ranges: tuple[tuple[int, int], ...]
    """The path, newest first; both ends of a range are included."""
    kept: tuple[Rewind, ...] = ()
    """The rewinds on the path that keep calls."""

    @property
    def newest(self) -> int:
        """The commit that the reader stands at."""
        return self.ranges[0][1]

    @property
    def is_whole(self) -> bool:
        """Whether no commit is discarded."""
        return len(self.ranges) == 1

    def has(self, seq: int) -> bool:
        """Return whether a commit is on the path."""
        return any(first <= seq <= last for first, last in self.ranges)

    def has_call(self, begun: int) -> bool:
        """Return whether the call whose first intent is at `begun` counts."""
        return self.has(begun) or any(begun in rewind.keep for rewind in self.kept)

    def before(self, seq: int) -> int:
        """Return the newest commit of the path up to `seq`."""
        return next(min(last, seq) for first, last in self.ranges if first <= seq)

    def common_ancestor(self, other: "LiveView") -> int:
        """Return the newest commit that is on both paths."""
        return max(
            min(last, end)
            for first, last in self.ranges
            for begin, end in other.ranges
            if max(first, begin) <= min(last, end)
        )

    def extends(self, earlier: "LiveView") -> bool:
        """Return whether this is an earlier view plus later commits, with no rewind among them."""
        return self.ranges[1:] == earlier.ranges[1:] and self.ranges[0][0] == earlier.ranges[0][0]

    def agrees(self, other: "LiveView", until: int) -> bool:
        """Return whether the same commits up to `until` count in another view."""
        return _part(self, until) == _part(other, until)

    def continues(self, seq: int) -> bool:
        """Return whether the view from commit `seq` plus later commits is this view.

        If so, a fold up to there can be continued. Not if a later rewind keeps a call that began
        before, on another branch.
        """
        later = (rewind for rewind in self.kept if rewind.seq > seq)
        return self.has(seq) and all(min(rewind.keep) > seq for rewind in later)


def _part(live: LiveView, until: int) -> tuple[tuple[tuple[int, int], ...], frozenset[int]]:
    """Return what of a path lies up to `until`, and the calls there that count without being on it."""
    ranges = tuple((first, min(last, until)) for first, last in live.ranges if first <= until)
    kept = (begun for rewind in live.kept for begun in rewind.keep)
    return ranges, frozenset(b for b in kept if b <= until and not live.has(b))


def live_view(at: int, rewinds: Iterable[Rewind]) -> LiveView:
    """Return the view of a reader who stands at commit `at` of a session with these rewinds."""
    ranges: list[tuple[int, int]] = []
    kept: list[Rewind] = []
    last = at
    for rewind in sorted(rewinds, key=lambda one: one.seq, reverse=True):
        if rewind.seq <= last and rewind.target < rewind.seq - 1:
            ranges.append((rewind.seq, last))
            last = rewind.target
            kept += [rewind] if rewind.keep else []
    return LiveView((*ranges, (0, last)), tuple(kept))


class CallStarts:
    """The first intents of the calls of one session. `look_up` returns that of a call, if it has one."""

    def __init__(self, look_up: Callable[[bytes], int | None]) -> None:
        self._look_up = look_up
        self._known: dict[bytes, int] = {}

    def of(self, commit: Commit) -> int:
        """Return where the call of a commit began."""
        facts, seq = commit.facts, commit.link.seq
        known = self._known.get(facts.call)
        if known is None:
            is_first = facts.kind is CommitKind.INTENT and facts.leg == 0 and facts.attempt == 1
            found = seq if is_first else self._look_up(facts.call)
            # A call whose intent is not in the log counts where it is first seen.
            known = self._known[facts.call] = seq if found is None else found
        return known


def live_commits(view: LiveView, commits: Iterable[Commit], starts: CallStarts) -> Iterator[Commit]:
    """Yield the commits that count. A commit of a call counts where the call began.

    So a late outcome is part of its call: it counts if the call began before the cut of a rewind,
    and is *detached* if the call was discarded.
    """
    for commit in commits:
        if counts(view, commit, starts):
            yield commit


def counts(view: LiveView, commit: Commit, starts: CallStarts) -> bool:
    """Return whether a commit counts."""
    return view.has_call(starts.of(commit)) if commit.facts.call else view.has(commit.link.seq)


def is_detached(view: LiveView, commit: Commit, starts: CallStarts) -> bool:
    """Return whether a commit is an outcome that came after its call had been discarded."""
    is_outcome = commit.facts.kind is CommitKind.OUTCOME
    return is_outcome and view.has(commit.link.seq) and not counts(view, commit, starts)
