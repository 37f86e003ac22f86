"""Contamination of a session, read from its log."""

from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from typing import Final

from msgspec import Struct

from turnlog.core import ids
from turnlog.core.bounded_dict import BoundedDict
from turnlog.core.commit import HEAD, Commit, Lineage
from turnlog.core.hints import Hint
from turnlog.core.kinds import CommitKind, MatchEvidence, Status
from turnlog.provenance.graph import GraphEdge, leading_to
from turnlog.provenance.outputs import doubts
from turnlog.provenance.taint import OUTPUT_GONE, OutputKey, TaintedAttempt, TaintFold
from turnlog.provenance.values import LOOKED_AT_FOR_TAINT
from turnlog.sessions.errors import NotFoundError
from turnlog.sessions.live import SessionBranches
from turnlog.sessions.log import session_row
from turnlog.sessions.state.family import commits_of_line, line_of
from turnlog.store.read.view import View

from .history import (
    content_of_input,
    declared_in,
    given_answer,
    recorded_input,
    recorded_output,
)
from .recorded_taint import CUT, OF_ATTEMPTS, RecordedTaint, attempt_of, marks_in

_REMEMBERED: Final = 65_536
"""Outputs from before the commits that are looked at of which it is remembered whether they are tainted."""
_EVERY: Final = 64
"""Commits after which progress is told."""
Progress = Callable[[int, int], None]
_EARLIER: Final = "tainted by what was recorded of it"


class ReadingBounds(Struct, frozen=True, kw_only=True):
    """How much of a session is looked at, the newest first, and how much may be found."""

    commits: int = HEAD
    size: int = HEAD
    """Bytes of inputs and outputs."""
    calls: int = 20_000
    """Tainted calls; where there are as many, it ends."""
    uses: int = 200_000
    """Places with tainted values in their inputs, of all together."""


WHOLE: Final = ReadingBounds()


class TaintedBy(Struct, frozen=True, kw_only=True):
    """A tainted output whose values a call used. `session` and `seq` are `None` if it is not in this store."""

    session: str | None
    seq: int | None
    evidence: MatchEvidence
    pointer: str
    """JSON Pointer of the value in the input of the call."""
    place: str
    """JSON Pointer of the value in that output."""


class TaintedCall(Struct, frozen=True, kw_only=True):
    """An attempt that is part of a contamination, as source or because it used tainted values."""

    session: str
    seq: int
    """seq of its newest commit."""
    call: str
    attempt: int
    server: str
    tool: str
    input: str
    """The beginning of its redacted input."""
    kind: str | None
    """Kind of the error that it ended as; `policy_blocked` for one that was not sent."""
    why: list[str]
    """Why its output is tainted in itself; empty if it is not."""
    endorsed: str | None
    """Why its output does not count as tainted all the same; `None` if nothing says so."""
    tainted_by: list[TaintedBy]
    discarded: bool
    """Whether a rewind has discarded it."""


class Contamination(Struct, frozen=True, kw_only=True):
    """The output of `turnlog taint show --json`: what was found in the log."""

    session: str
    head: int
    """The session's newest commit."""
    after: int | None
    """Commits up to this one were not looked at; `None` if all before `until` were."""
    until: int
    """The newest commit that was looked at."""
    to: int | None
    """The commit that everything shown leads to; `None` for all."""
    sources: list[TaintedCall]
    """Attempts whose output is tainted in itself."""
    calls: list[TaintedCall]
    """Attempts that used values of tainted outputs; one may be a source as well."""
    weak: int
    """How many more places were found by weak evidence, which does not count."""
    partial: list[str]
    """What was left out; empty if nothing was."""


def read_contamination(
    view: View,
    session: bytes,
    *,
    to: int | None = None,
    after: int | None = None,
    until: int | None = None,
    bounds: ReadingBounds = WHOLE,
    on_progress: Progress = lambda seq, last: None,
) -> Contamination:
    """Return what the log shows of tainted outputs and their use; of all that leads to the call of `to`, if given.

    The commits behind `after` up to `until` are looked at, without `after` as many as `bounds` allow. Of what came
    before counts what was recorded. `on_progress` is told which commit is looked at, and the last one.
    Raises `NotFoundError`.
    """
    row = session_row(view, session)
    last, target = min(row.head_seq, HEAD if until is None else until), None
    if to is not None:
        target = _output_key(view, session, to)
        # Nothing behind it leads to it.
        last = min(last, attempt_of(view, target)[-1].link.seq)
    if after is None:
        after = _not_within(view, session, last, bounds)
    fold = _ContaminationFold(view, session, min(after, last), bounds)
    fold.run(last, on_progress)
    wanted = None if target is None else leading_to(fold.edges(), target)
    shown = list(fold.shown(wanted))
    return Contamination(
        session=ids.to_text(session),
        head=row.head_seq,
        after=fold.after if fold.after >= 0 else None,
        until=fold.until,
        to=to,
        sources=[one for one in shown if one.why],
        calls=[one for one in shown if one.tainted_by],
        weak=sum(made.weak for key, made in fold.found.items() if wanted is None or key in wanted),
        partial=list(fold.partial()),
    )


def _not_within(view: View, session: bytes, last: int, bounds: ReadingBounds) -> int:
    """Return the newest commit up to `last` that is not within bounds; -1 for none."""
    if bounds.size == HEAD:
        return max(-1, last - bounds.commits)
    after, room = max(-1, last - bounds.commits), bounds.size
    commits = takewhile(lambda c: c.link.seq <= last, commits_of_line(view, session, after=after))
    sizes = [
        (c.link.seq, c.facts.bytes_in if c.facts.kind is CommitKind.INTENT else c.facts.bytes_out)
        for c in commits
    ]
    for seq, size in reversed(sizes):
        room -= min(size, LOOKED_AT_FOR_TAINT)
        if room < 0:
            return seq
    return after


class _ContaminationFold:
    """The fold of a session's log, and the attempts that it found to be contaminated."""

    def __init__(self, view: View, session: bytes, after: int, bounds: ReadingBounds) -> None:
        self._bounds = bounds
        self._view, self._session, self.after = view, session, after
        self._recorded = RecordedTaint(view)
        self._earlier: BoundedDict[OutputKey, bool] = BoundedDict(_REMEMBERED)
        self._fold = TaintFold(
            marks_in(notes_about(view, session)),
            is_earlier_tainted=self._is_earlier_tainted if after >= 0 else None,
        )
        self.found: dict[OutputKey, TaintedAttempt] = {}
        self.until = after
        self._uses = 0
        self._is_full = False
        self._branches = SessionBranches(view, session)
        self._live = self._branches.live(HEAD)

    def run(self, last: int, on_progress: Progress) -> None:
        """Look at all commits up to `last`, or until there are too many tainted attempts."""
        commits = commits_of_line(self._view, self._session, after=self.after)
        for number, commit in enumerate(takewhile(lambda c: c.link.seq <= last, commits)):
            if len(self.found) >= self._bounds.calls or self._uses >= self._bounds.uses:
                self._is_full = True
                return
            if number % _EVERY == 0:
                on_progress(commit.link.seq, last)
            self._add(commit)
            self.until = commit.link.seq
        self.until = last

    def _add(self, commit: Commit) -> None:
        key = commit.facts.call, commit.facts.attempt
        if commit.facts.kind is CommitKind.INTENT:
            self._fold.on_input(key, lambda: content_of_input(self._view, commit))
        elif commit.facts.kind is CommitKind.OUTCOME:
            self._on_outcome(key, commit)
        elif (declared := declared_in(commit)) is not None:
            self._fold.declare(declared.text, str(declared.seq))

    def _on_outcome(self, key: OutputKey, commit: Commit) -> None:
        facts, is_source_tainted = commit.facts, None
        content, missing = recorded_output(self._view, commit)
        if facts.status is Status.REPLAYED:
            session = commit.link.session
            given = given_answer(self._view, facts.call, session, self._recorded)
            if given is not None:
                content, missing, is_source_tainted = given.content, given.missing, given.is_tainted
                if not content:
                    self._fold.partial[OUTPUT_GONE] = None
        if facts.n and not content and not doubts(facts):
            return  # a later outcome without an answer takes nothing back
        before = self.found.get(key)
        made = self._fold.on_output(
            key,
            facts,
            content,
            commit.body.lineage if commit.body else (),
            own_input=lambda: recorded_input(self._view, facts)[0],
            is_source_tainted=is_source_tainted,
            missing=missing,
        )
        self._uses += len(made.carried) - (len(before.carried) if before else 0)
        if made.reasons or made.carried or made.endorsed is not None:
            self.found[key] = made
        else:
            self.found.pop(key, None)

    def _is_earlier_tainted(self, entry: Lineage) -> bool:
        """Return whether a recorded entry is of a tainted output from before what is looked at."""
        key = entry.call, entry.attempt
        if not entry.call or entry.evidence is MatchEvidence.WEAK:
            return False
        if key not in self._earlier:
            attempt = attempt_of(self._view, key)
            is_earlier = not attempt or attempt[-1].link.seq <= self.after
            # An output that is not in this store is what it was when it was recorded.
            said = self._recorded.of(key) if attempt else entry.tainted
            self._earlier[key] = is_earlier and bool(said)
        return self._earlier[key]

    @property
    def missed(self) -> dict[OutputKey, str]:
        """The outputs of which tainted values may have been missed, and why."""
        return self._fold.missed

    def edges(self) -> Iterator[GraphEdge[OutputKey]]:
        """Yield an edge for each value that a call carried on."""
        for key, made in self.found.items():
            yield from (GraphEdge((e.call, e.attempt), key) for e in made.carried)

    def partial(self) -> Iterator[str]:
        """Yield what was left out, in words."""
        if self.after >= 0:
            yield f"of commits up to {self.after} counts what was recorded"
        if self._is_full:
            yield f"it ends at commit {self.until}, with {len(self.found)} tainted calls"
        yield from self._fold.partial
        for key, why in self.missed.items():
            session, seq = _name(attempt_of(self._view, key)[-1])
            yield f"values of {session}:{seq} may be missing: {why}"
        if self._recorded.is_cut:
            yield CUT

    def shown(self, wanted: set[OutputKey] | None) -> Iterator[TaintedCall]:
        """Yield the attempts as they are shown: all, or those that are wanted; first the sources from before."""
        keys = [key for key in self.found if wanted is None or key in wanted]
        named: dict[OutputKey, tuple[str, int] | None] = {}
        for entry in (e for key in keys for e in self.found[key].carried):
            key = entry.call, entry.attempt
            if key not in named:
                attempt = attempt_of(self._view, key)
                named[key] = _name(attempt[-1]) if attempt else None
                if attempt and key not in self.found:
                    yield self._shown(attempt, (), why=[*doubts(attempt[-1].facts)] or [_EARLIER])
        for key in keys:
            made = self.found[key]
            by = dict.fromkeys(_tainted_by(e, named[e.call, e.attempt]) for e in made.carried)
            attempt = attempt_of(self._view, key)
            yield self._shown(attempt, by, why=list(made.reasons), endorsed=made.endorsed)

    def _shown(
        self,
        attempt: list[Commit],
        by: Iterable[TaintedBy],
        *,
        why: list[str],
        endorsed: str | None = None,
    ) -> TaintedCall:
        begun, ended = attempt[0], attempt[-1]
        session, seq = _name(ended)
        return TaintedCall(
            session=session,
            seq=seq,
            call=ids.to_text(begun.facts.call),
            attempt=begun.facts.attempt,
            server=begun.facts.server,
            tool=begun.facts.tool,
            input=begun.body.preview if begun.body else "",
            kind=ended.facts.error_kind or None,
            why=why,
            endorsed=endorsed,
            tainted_by=list(by),
            discarded=not self._branches.counts(self._live, begun),
        )


def _name(commit: Commit) -> tuple[str, int]:
    return ids.to_text(commit.link.session), commit.link.seq


def _tainted_by(entry: Lineage, source: tuple[str, int] | None) -> TaintedBy:
    session, seq = source or (None, None)
    return TaintedBy(
        session=session,
        seq=seq,
        evidence=entry.evidence,
        pointer=entry.pointer,
        place=entry.place,
    )


def notes_about(view: View, session: bytes) -> list[Commit]:
    """Return the notes that mark or endorse outputs of a session or of those that it was forked from."""
    return view.taint_notes(frozenset(point.session for point in line_of(view, session)))


def tainted_by_marks(view: View, session: bytes) -> dict[OutputKey, bool | None]:
    """Return the tainted outputs of a session by all marks made so far; `None` for one that may be."""
    # None may be missing: a rule that gates on them would let pass what it is to refuse (decision 92).
    fold = _ContaminationFold(view, session, -1, ReadingBounds(calls=HEAD, uses=HEAD))
    fold.run(HEAD, lambda seq, last: None)
    tainted = {key: True for key, made in fold.found.items() if made.is_tainted}
    return dict.fromkeys(fold.missed) | tainted


def find_output(view: View, session: bytes, seq: int) -> Commit:
    """Return the newest outcome of the attempt that a commit belongs to. Raises `NotFoundError`."""
    key = _output_key(view, session, seq)
    ended = [c for c in attempt_of(view, key) if c.facts.kind is CommitKind.OUTCOME]
    if not ended:
        raise NotFoundError(f"the call of commit {seq} has no output yet")
    if (own := ended[-1].link.session) != session:
        raise NotFoundError(f"commit {seq} is one of the parent's, write {ids.to_text(own)}:{seq}")
    return ended[-1]


def _output_key(view: View, session: bytes, seq: int) -> OutputKey:
    found = (view.get(p.session, seq) for p in line_of(view, session) if seq <= p.seq)
    commit = next(filter(None, found), None)
    if commit is None or commit.facts.kind not in OF_ATTEMPTS:
        row = view.session(session)
        newest = f"; its newest commit is {row.head_seq}" if row is not None else ""
        said = f"commit {seq} of the session belongs to no call{newest}"
        raise NotFoundError(said, Hint.CALLS_OF_SESSION, ids.to_text(session))
    return commit.facts.call, commit.facts.attempt
