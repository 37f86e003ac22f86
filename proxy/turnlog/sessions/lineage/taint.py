"""Contamination of a session, read from its log."""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from turnlog.core import ids
from turnlog.core.commit import HEAD, Commit
from turnlog.core.kinds import CommitKind, MatchEvidence, NoteKind, Status
from turnlog.core.live_view import LiveView
from turnlog.provenance.graph import GraphEdge, leading_to
from turnlog.provenance.taint import OUTPUT_GONE, OutputKey, TaintedAttempt, TaintFold, TaintMark
from turnlog.sessions.errors import NotFoundError
from turnlog.sessions.live import SessionBranches
from turnlog.sessions.state.family import commits_of_line, line_of
from turnlog.store.read.view import View

from .history import content_of_input, declared_in, given_answer, recorded_output

_KINDS: Final = frozenset({CommitKind.INTENT, CommitKind.OUTCOME})


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
    """seq of the commit of its output."""
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
    """The output of `turnlog taint show --json`: what was found in the log up to `head`."""

    session: str
    head: int
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


def read_contamination(view: View, session: bytes, to: int | None = None) -> Contamination:
    """Return what the log shows of tainted outputs and their use; of all that leads to `to`, if given.

    Raises `NotFoundError`.
    """
    row = view.session(session)
    if row is None:
        raise NotFoundError(f"there is no session {ids.to_text(session)!r}")
    head, keys = row.head_seq, _ContaminationFold(view, session)
    target = None if to is None else _output_key(view, session, to)
    wanted = set(keys.found) if target is None else leading_to(keys.edges(), target)
    shown = [keys.shown(key) for key in keys.found if key in wanted]
    return Contamination(
        session=ids.to_text(session),
        head=head,
        to=to,
        sources=[one for one in shown if one.why],
        calls=[one for one in shown if one.tainted_by],
        weak=sum(keys.found[key].weak for key in keys.found if key in wanted),
        partial=list(keys.partial),
    )


class _ContaminationFold:
    """The fold of a session's log, and the commits that it found to be contaminated."""

    def __init__(self, view: View, session: bytes) -> None:
        fold = TaintFold(_marks(notes_about(view, session)))
        self.found: dict[OutputKey, TaintedAttempt] = {}
        self._begun: dict[OutputKey, Commit] = {}
        self._ended: dict[OutputKey, Commit] = {}
        self._branches = SessionBranches(view, session)
        self._live: LiveView = self._branches.live(HEAD)
        for commit in commits_of_line(view, session):
            if commit.facts.kind is CommitKind.INTENT:
                key = commit.facts.call, commit.facts.attempt
                self._begun[key] = commit
                content, is_cut = content_of_input(view, commit)
                fold.on_input(key, content, is_cut=is_cut)
            elif commit.facts.kind is CommitKind.OUTCOME:
                self._on_outcome(view, fold, commit)
            elif (declared := declared_in(commit)) is not None:
                fold.declare(declared.text, str(declared.seq))
        self.partial = fold.partial
        for key, why in fold.missed.items():
            of = self._ended[key].link
            said = f"values of {ids.to_text(of.session)}:{of.seq} may be missing: {why}"
            self.partial[said] = None

    def _on_outcome(self, view: View, fold: TaintFold, commit: Commit) -> None:
        key, session = (commit.facts.call, commit.facts.attempt), commit.link.session
        recorded = commit.body.lineage if commit.body else ()
        is_replayed, is_source_tainted = commit.facts.status is Status.REPLAYED, None
        content, missing = recorded_output(view, commit)
        if is_replayed and (given := given_answer(view, commit.facts.call, session)) is not None:
            content, missing, is_source_tainted = given.content, given.missing, given.is_tainted
            if not content:
                fold.partial[OUTPUT_GONE] = None
        made = fold.on_output(
            key,
            commit.facts,
            content,
            recorded,
            is_source_tainted=is_source_tainted,
            missing=missing,
        )
        if key in self._ended and not (content or made.reasons):
            return  # a later outcome without an answer takes nothing back
        self._ended[key] = commit
        if made.reasons or made.carried or made.endorsed is not None:
            self.found[key] = made
        else:
            self.found.pop(key, None)

    def edges(self) -> Iterator[GraphEdge[OutputKey]]:
        """Yield an edge for each value that a call carried on."""
        for key, made in self.found.items():
            yield from (GraphEdge((e.call, e.attempt), key) for e in made.carried)

    def shown(self, key: OutputKey) -> TaintedCall:
        """Return an attempt as it is shown."""
        made, ended = self.found[key], self._ended[key]
        begun = self._begun.get(key, ended)
        facts = begun.facts
        by: dict[TaintedBy, None] = {}
        for entry in made.carried:
            source = self._ended.get((entry.call, entry.attempt))
            one = TaintedBy(
                session=ids.to_text(source.link.session) if source else None,
                seq=source.link.seq if source else None,
                evidence=entry.evidence,
                pointer=entry.pointer,
                place=entry.place,
            )
            by[one] = None
        return TaintedCall(
            session=ids.to_text(ended.link.session),
            seq=ended.link.seq,
            call=ids.to_text(facts.call),
            attempt=facts.attempt,
            server=facts.server,
            tool=facts.tool,
            input=begun.body.preview if begun.body else "",
            kind=ended.facts.error_kind or None,
            why=list(made.reasons),
            endorsed=made.endorsed,
            tainted_by=list(by),
            discarded=not self._branches.counts(self._live, begun),
        )


def notes_about(view: View, session: bytes) -> list[Commit]:
    """Return the notes that mark or endorse outputs of a session or of those that it was forked from."""
    return view.taint_notes(frozenset(point.session for point in line_of(view, session)))


def tainted_by_marks(view: View, session: bytes) -> frozenset[OutputKey]:
    """Return the tainted outputs of a session by all marks made so far."""
    found = _ContaminationFold(view, session).found
    return frozenset(key for key, made in found.items() if made.is_tainted)


def _marks(notes: Iterable[Commit]) -> dict[OutputKey, TaintMark]:
    """Return the newest note about each output."""
    found: dict[OutputKey, TaintMark] = {}
    for commit in notes:
        facts = commit.facts
        found[facts.call, facts.attempt] = TaintMark(
            kind=NoteKind(facts.note),
            seq=commit.link.seq,
            why=commit.body.detail if commit.body else "",
        )
    return found


def find_output(view: View, session: bytes, seq: int) -> Commit:
    """Return the newest outcome of the attempt that a commit belongs to. Raises `NotFoundError`."""
    key = _output_key(view, session, seq)
    outcomes = [
        commit
        for commit in view.readable(key[0])
        if commit.facts.kind is CommitKind.OUTCOME
        and (commit.facts.attempt, commit.link.session) == (key[1], session)
    ]
    if not outcomes:
        raise NotFoundError(f"the call of commit {seq} has no output yet")
    return outcomes[-1]


def _output_key(view: View, session: bytes, seq: int) -> OutputKey:
    commit = view.get(session, seq)
    if commit is None or commit.facts.kind not in _KINDS:
        row = view.session(session)
        newest = f"; its newest commit is {row.head_seq}" if row is not None else ""
        raise NotFoundError(f"commit {seq} of the session belongs to no call{newest}")
    return commit.facts.call, commit.facts.attempt
