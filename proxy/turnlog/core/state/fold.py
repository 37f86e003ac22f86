"""The fold of a session's commits into its state: total, deterministic, and in batches of any size.

An attempt counts by its last outcome: an earlier outcome that was uncertain is undone. After a
certain outcome the attempt is closed.
"""

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias, assert_never

from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.call_status import CallState, next_call_state
from turnlog.core.commit import Commit, CommitBody
from turnlog.core.kinds import CommitKind, Executed, Flag, NoteKind, Status, is_tool_call
from turnlog.core.note import (
    Budget,
    Decision,
    EffectNote,
    Evict,
    Fact,
    FactAction,
    Metadata,
    Note,
    Recall,
    TurnStart,
    UserInput,
    decode_note,
    note_kind,
)
from turnlog.core.operation import had_effect

from . import files
from .files import FileTouch
from .session_state import (
    MOST_LABELLED,
    DecisionMade,
    Evicted,
    FactHeld,
    SessionTaint,
    State,
    ToolUse,
    UnsettledAttempt,
)

_FACT_STATUS: Final = {
    FactAction.ASSERT: "asserted",
    FactAction.VERIFY: "verified",
    FactAction.DISPUTE: "disputed",
    FactAction.RETRACT: "retracted",
}
_BUDGET_KEYS: Final = tuple(
    f"{what}_{word}" for what in ("calls", "bytes", "seconds") for word in ("left", "over")
)
_CONTAMINATED: Final = frozenset({Flag.TAINTED_IN, Flag.TAINT_MARKED})
_SESSION_NAMING: Final = frozenset({"rung", "aliases"})
"""Entries of an `open` commit about the session's name, which are not metadata of the state."""


class ContributingCommit(Struct, frozen=True, kw_only=True):
    """A commit that contributed to a change."""

    seq: int
    what: str
    """The tool, or the kind of note."""
    why: str
    """The recorded reason; empty for none."""


Causes: TypeAlias = dict[tuple[str, str], list[ContributingCommit]]
"""The commits that changed an entry of the state, oldest first, by field and key."""


def fold(state: State, commits: Iterable[Commit], causes: Causes | None = None) -> State:
    """Return the state after the next `commits` of the session; add to `causes` which changed what."""
    folding = _Folding(state, causes)
    for commit in commits:
        folding.apply(commit)
    return folding.result()


class _Folding:
    """A state in progress: its own copies of the dicts, and what replaces the other fields."""

    def __init__(self, before: State, causes: Causes | None) -> None:
        self.after = structs.replace(
            before,
            tools=dict(before.tools),
            files=dict(before.files),
            attempts=dict(before.attempts),
            calls=dict(before.calls),
            decisions=dict(before.decisions),
            evicted=dict(before.evicted),
            facts=dict(before.facts),
        )
        self.seq, self.turn, self.bodies_gone = before.seq, before.turn, before.bodies_gone
        self.at, self.opened_at, self.metadata = before.at, before.opened_at, before.metadata
        self.usage, self.budget, self.taint = before.usage, before.budget, before.taint
        self._causes = causes
        self._besides: set[str] = set()
        """Files that the commit changes although its operations do not name them."""

    def result(self) -> State:
        """Return the state so far."""
        return structs.replace(
            self.after,
            seq=self.seq,
            turn=self.turn,
            opened_at=self.opened_at,
            at=self.at,
            usage=self.usage,
            budget=self.budget,
            metadata=self.metadata,
            taint=self.taint,
            bodies_gone=self.bodies_gone,
        )

    def apply(self, commit: Commit) -> None:
        """Fold in the next commit."""
        self.seq, self.at = commit.link.seq, commit.facts.at
        self.turn = max(self.turn, commit.link.turn)
        if commit.body is None and commit.link.body_hash:
            self.bodies_gone += 1
        match commit.facts.kind:
            case CommitKind.OPEN:
                self._open(commit)
            case CommitKind.INTENT:
                self._intent(commit)
            case CommitKind.OUTCOME:
                self._outcome(commit)
            case CommitKind.NOTE:
                self._content_note(commit)
            case CommitKind.LIFECYCLE | CommitKind.REWIND | CommitKind.COMPACT | CommitKind.REDACT:
                pass
            case _:
                assert_never(commit.facts.kind)

    def _content_note(self, commit: Commit) -> None:
        if commit.facts.note == NoteKind.TAINT:
            why = commit.body.detail if commit.body else ""
            self._contaminated(commit.link.ref or 0, commit.link.seq, NoteKind.TAINT, why)
        note = decode_note(commit.body.note) if commit.body and commit.body.note else None
        if note is not None:
            self._note(commit.link.seq, note)

    def _open(self, commit: Commit) -> None:
        if commit.facts.note:
            return  # a fork goes on with the state of its parent
        self.opened_at = commit.facts.at
        told = commit.body.metadata if commit.body else {}
        # Not `|=`: the dict is that of the state before.
        self.metadata = self.metadata | {k: v for k, v in told.items() if k not in _SESSION_NAMING}

    def _intent(self, commit: Commit) -> None:
        link, facts, body = commit.link, commit.facts, commit.body or CommitBody()
        tool = f"{facts.server}.{facts.tool}"
        calls = is_tool_call(facts.method)
        first = 1 if calls and facts.leg == 0 and facts.attempt == 1 else 0
        found = files.touches(body.delta, seq=link.seq, turn=link.turn)
        attempt = UnsettledAttempt(
            call=ids.to_text(facts.call),
            tool=tool,
            turn=link.turn,
            at=facts.at,
            why=body.why,
            touches=tuple(found),
        )
        self.after.attempts[str(link.seq)] = attempt
        used, usage = self.after.tools.get(tool, ToolUse()), self.usage
        if calls:
            self.after.tools[tool] = structs.replace(
                used, calls=used.calls + first, attempts=used.attempts + 1, last_seq=link.seq
            )
        self.usage = structs.replace(
            usage,
            calls=usage.calls + first,
            attempts=usage.attempts + calls,
            bytes_in=usage.bytes_in + facts.bytes_in,
        )
        self._update_call(commit)
        named = _file_keys(attempt.touches)
        self._add_causes(link.seq, tool, body.why, [*_attempt_keys(attempt, facts.method), *named])

    def _outcome(self, commit: Commit) -> None:
        """Fold in an outcome; nothing changes if its attempt is closed."""
        link, facts = commit.link, commit.facts
        before = self.after.attempts.pop(str(link.ref), None)
        if before is None:
            return
        after = _with_outcome(before, commit)
        if is_tool_call(facts.method) and before.tool in self.after.tools:
            self._count(before, -1, link.seq)
            self._count(after, 1, link.seq)
        usage = self.usage
        self.usage = structs.replace(
            usage,
            bytes_out=usage.bytes_out + after.bytes_out - before.bytes_out,
            duration=usage.duration + after.duration - before.duration,
        )
        happened = facts.executed is Executed.YES
        rest = tuple(touch for touch in after.touches if touch.maybe or not happened)
        if rest or facts.executed is Executed.MAYBE or facts.status.unsettled:
            self.after.attempts[str(link.ref)] = structs.replace(after, touches=rest)
        for touch in after.touches:
            if touch not in rest:
                self._apply(touch)
        self._update_call(commit)
        # An error alone is no contamination: nothing of it was used.
        if not _CONTAMINATED.isdisjoint(facts.flags):
            self._contaminated(link.seq, link.seq, after.tool, after.why)
        named = _file_keys((*before.touches, *after.touches))
        self._add_causes(
            link.seq, after.tool, after.why, [*_attempt_keys(after, facts.method), *named]
        )

    def _contaminated(self, found: int, seq: int, what: str, why: str) -> None:
        """Label the session as tainted since the commit `found`, as commit `seq` says."""
        known = self.taint.by if isinstance(self.taint, SessionTaint) else ()
        if found in known or len(known) >= MOST_LABELLED:
            return
        self.taint = SessionTaint(since=min((found, *known)), by=(*known, found))
        self._add_causes(seq, what, why, [("labels", "tainted")])

    def _apply(self, touch: FileTouch) -> None:
        before = set(self.after.files) if touch.to else set[str]()
        files.apply_touch(self.after.files, touch)
        if not touch.to:
            return
        self._besides |= before ^ set(self.after.files)
        for seq, attempt in self.after.attempts.items():
            moved = tuple(files.follow_rename(t, touch.key, touch.to) for t in attempt.touches)
            if moved != attempt.touches:
                self._besides |= {t.key for t in (*attempt.touches, *moved)}
                self.after.attempts[seq] = structs.replace(attempt, touches=moved)

    def _count(self, attempt: UnsettledAttempt, by: int, seq: int) -> None:
        """Count an attempt by its outcome (`by` is 1), or undo that (-1)."""
        used = self.after.tools[attempt.tool]
        errors = dict(used.errors)
        if attempt.status == Status.ERROR:
            errors[attempt.error] = errors.get(attempt.error, 0) + by
        self.after.tools[attempt.tool] = structs.replace(
            used,
            ok=used.ok + by * (attempt.status == Status.OK),
            errors={family: count for family, count in errors.items() if count},
            unknown=used.unknown + by * (attempt.status == Status.UNKNOWN),
            replayed=used.replayed + by * (attempt.status == Status.REPLAYED),
            last_seq=seq,
        )

    def _update_call(self, commit: Commit) -> None:
        """Update the state of the call, and drop attempts that it has finished."""
        link, facts = commit.link, commit.facts
        call = ids.to_text(facts.call)
        before = self.after.calls.pop(call, None)
        after = next_call_state(before, link, facts, link.seq)
        if after is not None and (after.status.unsettled or str(link.ref) in self.after.attempts):
            self.after.calls[call] = after
        for seq in _finished_legs(before, after):
            dropped = self.after.attempts.pop(str(seq), None)
            self._besides |= {touch.key for touch in dropped.touches} if dropped else set()

    def _note(self, seq: int, note: Note) -> None:
        why = ""
        match note:
            case Decision():
                self._decision(seq, note)
                named, why = [("decisions_made", note.id or str(seq))], note.why
                named += [("decisions_made", note.supersedes)] if note.supersedes else []
            case Fact():
                self.after.facts[note.id] = _updated_fact(self.after.facts.get(note.id), seq, note)
                named, why = [("facts", note.id)], note.why
            case Evict():
                gone = Evicted(seq=seq, reason=note.reason)
                self.after.evicted.update(dict.fromkeys(note.keys, gone))
                named = [("evicted_keys", key) for key in note.keys]
            case Recall():
                self.after.evicted.pop(note.key, None)
                named = [("evicted_keys", note.key)]
            case Metadata():
                told = self.metadata | note.entries
                self.metadata = {name: text for name, text in told.items() if text}
                named = [("metadata", name) for name in note.entries]
            case Budget():
                self.budget = note
                named = [("usage", name) for name in _BUDGET_KEYS]
            case TurnStart() | UserInput() | EffectNote():
                # Turns are in the links; text of the user is a source of values, not a state; a
                # choice about an effect changes what later calls do.
                named = []
            case _:
                assert_never(note)
        self._add_causes(seq, note_kind(note), why, named)

    def _decision(self, seq: int, note: Decision) -> None:
        name = note.id or str(seq)
        self.after.decisions[name] = DecisionMade(
            text=note.text, why=note.why, seq=seq, supersedes=note.supersedes
        )
        before = self.after.decisions.get(note.supersedes)
        if before is not None and note.supersedes != name:
            self.after.decisions[note.supersedes] = structs.replace(before, superseded_by=name)

    def _add_causes(self, seq: int, what: str, why: str, named: Iterable[tuple[str, str]]) -> None:
        named = (*named, *(("files_modified", key) for key in sorted(self._besides)))
        self._besides.clear()
        if self._causes is not None:
            by = ContributingCommit(seq=seq, what=what, why=why)
            for entry in dict.fromkeys(named):
                self._causes.setdefault(entry, []).append(by)


def _with_outcome(before: UnsettledAttempt, commit: Commit) -> UnsettledAttempt:
    facts = commit.facts
    return structs.replace(
        before,
        status=facts.status.value,
        error=facts.error,
        duration=facts.duration,
        bytes_out=facts.bytes_out,
        touches=_effects(before, commit),
    )


def _effects(before: UnsettledAttempt, commit: Commit) -> tuple[FileTouch, ...]:
    """Return the file operations of an attempt by its newest outcome."""
    link, facts = commit.link, commit.facts
    delta = commit.body.delta if commit.body else ()
    if facts.status is Status.REPLAYED:
        # It lists changes only where the call that it was answered from does not count.
        made = files.touches(delta, seq=link.seq, turn=before.turn)
        return tuple(structs.replace(touch, maybe=False) for touch in made)
    if not had_effect(facts.executed, facts.status, facts.error_kind):
        return ()
    # An outcome by turnlog or an operator, who has not seen the answer, names no files: then the
    # operations known before remain.
    own = tuple(files.touches(delta, seq=link.seq, turn=before.turn))
    return own or tuple(structs.replace(t, seq=link.seq, maybe=False) for t in before.touches)


def _attempt_keys(attempt: UnsettledAttempt, method: str) -> tuple[tuple[str, str], ...]:
    pending = ("pending_actions", attempt.call)
    return (("tools_used", attempt.tool), pending) if is_tool_call(method) else (pending,)


def _file_keys(touches: Iterable[FileTouch]) -> Iterator[tuple[str, str]]:
    """Yield the keys of the state that operations name."""
    for touch in touches:
        yield "files_modified", touch.key
        if touch.to:
            yield "files_modified", touch.to


def _finished_legs(before: CallState | None, after: CallState | None) -> Iterator[int]:
    """Yield the intents of parked legs that a later leg has finished."""
    if before is None or (after is not None and after.polled_leg is not None):
        return
    if before.polled_leg is not None and after != before.polled_leg:
        yield before.polled_leg.seq
    elif before.status.parked and after is not None and after.seq != before.seq:
        yield before.seq


def _updated_fact(before: FactHeld | None, seq: int, note: Fact) -> FactHeld:
    held = before or FactHeld(status=_FACT_STATUS[note.action])
    asserted = note.action is FactAction.ASSERT
    return structs.replace(
        held,
        subject=note.subject if asserted else held.subject,
        value=note.value if asserted else held.value,
        status=_FACT_STATUS[note.action],
        sources=(*held.sources, seq),
        validity=note.validity if asserted else held.validity,
    )
