"""The plan of a rewind: which calls and notes it would discard, and which of their effects remain.

turnlog undoes no effect: it only proposes the calls that rules name.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final

from msgspec import Struct

from turnlog.core import ids
from turnlog.core.commit import Commit
from turnlog.core.kinds import CommitKind, Effect, Executed, NoteKind, Status
from turnlog.core.live_view import LiveView, Rewind, live_view
from turnlog.rules.policy import Rulebook
from turnlog.sessions.dangling import DanglingReason, newest_attempt, open_reason
from turnlog.sessions.errors import OperationError
from turnlog.sessions.live import SessionBranches
from turnlog.sessions.rows import row_of
from turnlog.sessions.state.compacted import compacted_state
from turnlog.sessions.state.state_at import commit_at, end_of_turn, head_of
from turnlog.store.read.view import View

from .compensation import Compensations, Proposal

_VOIDED: Final = frozenset({NoteKind.DECISION, NoteKind.FACT, NoteKind.EFFECT})
MAX_DISCARDED_EFFECTS: Final = 10_000
"""Most calls with standing effects that one rewind or fork leaves behind: its commit names them."""
_EXECUTED_ORDER: Final = tuple(Executed)


class EffectGroup(StrEnum):
    """Kinds of discarded calls by their effect outside the log, the gravest first."""

    IRREVERSIBLE = "irreversible"
    """It stands, and cannot be undone."""
    STANDS = "stands"
    """It stands; also where the effect of the tool is unknown."""
    IDEMPOTENT = "idempotent"
    """It stands, and the same call may be made again."""
    NO_EFFECT = "no_effect"
    """It was a read, was not executed, or was answered from the record."""


class DiscardedCall(Struct, frozen=True, kw_only=True):
    """A call that a rewind discards. Numbers are seqs of its session."""

    seq: int
    """Where it began: the number for `keep`."""
    last_seq: int
    turn: int
    call: str
    server: str
    tool: str
    preview: str
    """Of the input, redacted."""
    status: Status
    executed: Executed
    """The highest of its attempts."""
    effect: Effect
    group: EffectGroup
    tracked: bool
    """Whether its effect is known. If not, nothing says what it changed, or how to restore that."""
    standing: DanglingReason | None
    """Why it is still open; `None` once it has ended."""
    compensation: Proposal | None = None
    """The call that would undo it, if a rule names one."""


class VoidedNote(Struct, frozen=True, kw_only=True):
    """A decision, a fact or a choice about an effect that a rewind discards."""

    seq: int
    kind: NoteKind
    summary: str


class RewindPlan(Struct, frozen=True, kw_only=True):
    """Calls and notes that a rewind discards. Nothing outside the log is undone by it."""

    session: str
    head: int
    """The newest commit: `expect` of the rewind."""
    target: int
    target_turn: int
    commits: int
    """Number of commits that would not count any more."""
    groups: dict[EffectGroup, int]
    """Number of discarded calls by group."""
    untracked: int
    """How many of them have an unknown effect."""
    in_flight: int
    """How many are still running. They go on; what they bring is listed as detached."""
    discarded: list[DiscardedCall]
    """Newest first, the order in which effects would be undone."""
    voided: list[VoidedNote]
    returning: int
    """Number of calls that count again, because an earlier rewind is taken back."""
    kept: list[int]
    """Calls that stay in the view, by where they began."""
    rewound: int | None = None
    """The commit of the rewind; `None` for a plan that was not carried out."""


def rewind_plan(
    view: View,
    session: bytes,
    target: int,
    *,
    keep: Sequence[int] = (),
    rules: Rulebook | None = None,
) -> RewindPlan:
    """Return the plan of a rewind to commit `target`. Raises `NotFoundError`, `OperationError`, `CompactedError`."""
    head = head_of(view, session)
    back_to = commit_at(view, session, target)
    if target >= head:
        raise OperationError(f"commit {target} is the newest: there is nothing to rewind")
    branches = SessionBranches(view, session)
    before, after = branches.live(head), _view_after(branches, head, target)
    compacted_state(branches, after)
    kept = sorted({_begun(view, session, branches, (before, after), seq) for seq in keep})
    if kept:
        after = _view_after(branches, head, target, frozenset(kept))
    discarded, returning = _difference(view, session, branches, before, after)
    calls = _discarded_calls(view, discarded, rules)
    groups = Counter(one.group for one in calls)
    return RewindPlan(
        session=ids.to_text(session),
        head=head,
        target=target,
        target_turn=back_to.link.turn,
        commits=len(discarded),
        groups={group: groups[group] for group in EffectGroup},
        untracked=sum(not one.tracked for one in calls),
        in_flight=sum(one.standing is DanglingReason.IN_FLIGHT for one in calls),
        discarded=calls[::-1],
        voided=[_voided(commit) for commit in discarded if commit.facts.note in _VOIDED],
        returning=returning,
        kept=kept,
    )


def rewind_target(view: View, session: bytes, *, seq: int | None, turn: int | None) -> int:
    """Return the commit that a rewind names by its seq or by a turn. Raises `NotFoundError`."""
    if seq is not None:
        return seq
    return end_of_turn(view, session, -1 if turn is None else turn)


def standing_calls(view: View, session: bytes, after: int) -> list[int]:
    """Return where the calls of a session began behind a commit whose effects stand, newest first.

    Raises `OperationError` for more than `MAX_DISCARDED_EFFECTS`.
    """
    calls = _discarded_calls(view, view.commits(session, after=after), None)
    found = [one.seq for one in reversed(calls) if one.group is not EffectGroup.NO_EFFECT]
    if len(found) > MAX_DISCARDED_EFFECTS:
        raise OperationError(
            f"more than {MAX_DISCARDED_EFFECTS} effects stand behind commit {after}"
        )
    return found


def group_of(effect: Effect, status: Status, executed: Executed) -> EffectGroup:
    """Return what stands of a call with this effect."""
    if effect is Effect.READ or executed is Executed.NO or status is Status.REPLAYED:
        return EffectGroup.NO_EFFECT
    if effect is Effect.IDEMPOTENT_WRITE:
        return EffectGroup.IDEMPOTENT
    return EffectGroup.IRREVERSIBLE if effect is Effect.IRREVERSIBLE else EffectGroup.STANDS


def _view_after(
    branches: SessionBranches, head: int, target: int, keep: frozenset[int] = frozenset()
) -> LiveView:
    rewind = Rewind(seq=head + 1, target=target, keep=keep)
    return live_view(head + 1, [*branches.rewinds, rewind])


def _begun(
    view: View,
    session: bytes,
    branches: SessionBranches,
    views: tuple[LiveView, LiveView],
    seq: int,
) -> int:
    """Return where the call begins that a commit belongs to, if the rewind discards it."""
    commit, (before, after) = commit_at(view, session, seq), views
    is_discarded = branches.counts(before, commit) and not branches.counts(after, commit)
    if not commit.facts.call or not is_discarded:
        raise OperationError(f"commit {seq} is of no call that this rewind discards")
    return branches.begun(commit)


def _difference(
    view: View, session: bytes, branches: SessionBranches, before: LiveView, after: LiveView
) -> tuple[list[Commit], int]:
    """Return the commits that count in the first view alone, and how many calls in the second."""
    kept = (min(rewind.keep) for live in (before, after) for rewind in live.kept)
    first = min(before.common_ancestor(after) + 1, *kept, before.newest)
    discarded: list[Commit] = []
    returning: set[bytes] = set()
    for commit in view.commits(session, after=first - 1):
        was, stays = branches.counts(before, commit), branches.counts(after, commit)
        if was and not stays:
            discarded.append(commit)
        elif stays and not was and commit.facts.call:
            returning.add(commit.facts.call)
    return discarded, len(returning)


def _discarded_calls(
    view: View, discarded: Iterable[Commit], rules: Rulebook | None
) -> list[DiscardedCall]:
    calls: dict[bytes, list[Commit]] = {}
    for commit in discarded:
        if commit.facts.call:
            calls.setdefault(commit.facts.call, []).append(commit)
    # `is_alive` tries to take a lock: once for each process is enough.
    is_alive = lru_cache(maxsize=None)(view.is_alive)
    proposed = Compensations(view, rules, calls).propose if rules else _no_proposal
    # A call whose intent is damaged has no attempt to show.
    attempts = (
        (commits, newest_attempt(commits))
        for commits in calls.values()
        if commits[0].facts.kind is CommitKind.INTENT
    )
    return [
        _discarded_call(commits, attempt, is_alive, proposed)
        for commits, attempt in attempts
        if attempt
    ]


def _discarded_call(
    commits: list[Commit],
    attempt: list[Commit],
    is_alive: Callable[[int], bool],
    proposed: Callable[[list[Commit]], Proposal | None],
) -> DiscardedCall:
    row, unsettled = row_of(attempt), attempt[-1].facts.status.unsettled or len(attempt) == 1
    executed = max(_executed(commits), key=_EXECUTED_ORDER.index)
    group = group_of(row.effect, row.status, executed)
    alive = unsettled and is_alive(attempt[-1].link.epoch)
    return DiscardedCall(
        seq=commits[0].link.seq,
        last_seq=commits[-1].link.seq,
        turn=row.turn,
        call=row.call,
        server=row.server,
        tool=row.tool,
        preview=row.input_summary,
        status=row.status,
        executed=executed,
        effect=row.effect,
        group=group,
        tracked=row.effect is not Effect.UNKNOWN or group is EffectGroup.NO_EFFECT,
        standing=open_reason(attempt, commits, alive=alive) if unsettled else None,
        compensation=None if group is EffectGroup.NO_EFFECT else proposed(attempt),
    )


def _executed(commits: Iterable[Commit]) -> Iterator[Executed]:
    """Yield whether each attempt was executed, by its newest outcome; without one it may have been."""
    newest: dict[tuple[int, int], Executed] = {}
    for commit in commits:
        attempt = commit.facts.leg, commit.facts.attempt
        if commit.facts.kind is CommitKind.INTENT:
            newest[attempt] = Executed.MAYBE
        elif commit.facts.kind is CommitKind.OUTCOME:
            newest[attempt] = commit.facts.executed
    yield from newest.values()


def _voided(commit: Commit) -> VoidedNote:
    return VoidedNote(
        seq=commit.link.seq,
        kind=NoteKind(commit.facts.note),
        summary=commit.body.summary if commit.body else "",
    )


def _no_proposal(_: list[Commit]) -> None:
    return None
