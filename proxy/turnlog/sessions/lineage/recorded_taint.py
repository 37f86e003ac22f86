"""Taint of outputs by what was recorded of their calls, also in other sessions."""

from collections import deque
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

from msgspec import Struct

from turnlog.core.bounded_dict import BoundedDict
from turnlog.core.commit import ANSWERED_BY, Commit
from turnlog.core.kinds import (
    TAINT_NOTES,
    CommitKind,
    Flag,
    MatchEvidence,
    NoteKind,
    Status,
    ValueOrigin,
)
from turnlog.provenance.outputs import doubts
from turnlog.provenance.taint import OutputKey, TaintMark
from turnlog.store.read.view import View

from .inputs import recorded

FURTHEST: Final = 1024
"""Outputs that are looked at to answer for one."""
CUT: Final = f"taint was followed back through at most {FURTHEST} outputs of each answer"
_MOST: Final = 16_384
"""Outputs, and sessions, whose answers are remembered."""
OF_ATTEMPTS: Final = frozenset({CommitKind.INTENT, CommitKind.OUTCOME})


class _Source(Struct, frozen=True):
    """An output whose values another call used, and whether it was tainted then."""

    key: OutputKey
    was_tainted: bool = False


class RecordedTaint:
    """Whether outputs are tainted by what was recorded of them, and by all marks made since.

    No content is read: from the inputs of a call it follows what the outcome recorded of them, and from an
    answer out of the record the call that it was recorded of, in whatever session that is.
    """

    def __init__(self, view: View, furthest: int = FURTHEST) -> None:
        self._view = view
        self._furthest = furthest
        self._known: BoundedDict[OutputKey, bool | None] = BoundedDict(_MOST)
        self._marks: BoundedDict[bytes, dict[OutputKey, TaintMark]] = BoundedDict(_MOST)
        self.is_cut = False
        """Whether outputs were left out, because there were more than `furthest`."""

    @cached_property
    def _has_marks(self) -> bool:
        """Whether an operator has marked any output in this store; else the flags of outcomes say all."""
        return any(True for kind in TAINT_NOTES for _ in self._view.calls_with_note(kind))

    def of(self, key: OutputKey) -> bool | None:
        """Return whether an output is tainted: `False` if it is endorsed, `None` if nothing says so."""
        if key not in self._known:
            self._known[key] = self._follow(key)
        return self._known[key]

    def _follow(self, key: OutputKey) -> bool | None:
        # One path to an output that is tainted in itself is enough; an endorsed one ends its path.
        waiting, is_cut = deque([_Source(key)]), False
        seen: dict[OutputKey, bool | None] = {key: None}
        while waiting:
            place = waiting.popleft()
            said, sources = self._look(place)
            seen[place.key] = said
            if said or (said is False and place.key == key):
                return said
            for source in sources:
                if source.key in seen:
                    continue
                is_cut = is_cut or len(seen) >= self._furthest
                if not is_cut:
                    seen[source.key] = None
                    waiting.append(source)
        self.is_cut = self.is_cut or is_cut
        for one, said in () if is_cut else seen.items():
            self._known[one] = said  # nothing that leads to it is tainted
        return None

    def _look(self, place: _Source) -> tuple[bool | None, list[_Source]]:
        """Return what an output itself says of its taint; if that is nothing, the outputs that decide."""
        if place.key in self._known and not place.was_tainted:
            return self._known[place.key], []
        attempt = attempt_of(self._view, place.key)
        ended = [commit for commit in attempt if commit.facts.kind is CommitKind.OUTCOME]
        if not ended:
            return place.was_tainted or None, []  # it is not in this store
        outcome = with_output(ended)
        facts = outcome.facts
        mark = self._marks_of(outcome.link.session).get(place.key)
        if mark is not None:
            return mark.kind is NoteKind.TAINT, []
        if Flag.TAINT_ENDORSED in facts.flags:
            return False, []
        lineage, _ = recorded(ended) if self._has_marks else ((), "")
        is_unexplained = Flag.TAINTED_OUT in facts.flags and not any(e.tainted for e in lineage)
        if doubts(facts) or is_unexplained:
            return True, []
        sources = [
            _Source((entry.call, entry.attempt), entry.tainted)
            for entry in lineage
            if entry.origin is ValueOrigin.SOURCED and entry.evidence is not MatchEvidence.WEAK
        ]
        if facts.status is Status.REPLAYED and (given := answered_from(self._view, attempt)):
            sources.append(_Source((given.facts.call, given.facts.attempt)))
        return None, sources

    def _marks_of(self, session: bytes) -> dict[OutputKey, TaintMark]:
        if not self._has_marks:
            return {}
        if session not in self._marks:
            self._marks[session] = marks_in(self._view.taint_notes(frozenset({session})))
        return self._marks[session]


def marks_in(notes: Iterable[Commit]) -> dict[OutputKey, TaintMark]:
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


def attempt_of(view: View, key: OutputKey) -> list[Commit]:
    """Return the intent and the outcomes of an attempt; empty if it is not in this store."""
    call, number = key
    found = view.readable(call)
    return [c for c in found if c.facts.kind in OF_ATTEMPTS and c.facts.attempt == number]


def with_output(ended: Sequence[Commit]) -> Commit:
    """Return the newest of an attempt's outcomes that has a recorded output, else the newest."""
    return next((c for c in reversed(ended) if c.body and c.body.output_blob), ended[-1])


def answered_from(view: View, attempt: Sequence[Commit]) -> Commit | None:
    """Return the outcome from whose record an attempt was answered; `None` if there is none in this store."""
    begun = (c for c in attempt if c.facts.kind is CommitKind.INTENT and c.body)
    links = (link for commit in begun if commit.body for link in commit.body.links)
    source = next((x.removeprefix(ANSWERED_BY) for x in links if x.startswith(ANSWERED_BY)), b"")
    ended = [c for c in view.readable(source) if c.facts.kind is CommitKind.OUTCOME]
    return with_output(ended) if ended else None
