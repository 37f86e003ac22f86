"""Rewinds in the state of a session: discarded calls whose effects stand, and detached outcomes."""

from typing import Final

from msgspec import Struct

from turnlog.core import ids
from turnlog.core.commit import Commit
from turnlog.core.kinds import Actor, Effect, Executed, Status
from turnlog.core.text.units import timestamp
from turnlog.sessions.live import SessionBranches, content_of
from turnlog.store.read.view import View

_SHOWN: Final = 10
"""Rewinds that are described."""
_NAMED: Final = 200
"""Calls that are named of each, as its docstring says."""


class RewindCall(Struct, frozen=True, kw_only=True):
    """A call that a rewind names."""

    seq: int
    """Where it began."""
    call: str
    server: str
    tool: str
    preview: str
    """Of the input, redacted."""
    effect: Effect
    """If it is `unknown`, nobody knows what it changed."""


class RewindMade(Struct, frozen=True, kw_only=True):
    """A rewind, with what it discarded and did not undo."""

    seq: int
    target: int
    timestamp: str
    actor: Actor
    why: str
    groups: dict[str, int]
    """Number of discarded calls: `irreversible`, `stands`, `idempotent`, `no_effect`."""
    untracked: int
    """How many of them have an unknown effect."""
    in_flight: int
    """How many of them were still running."""
    standing: list[RewindCall]
    """Those whose effects stand, newest first; at most 200."""
    kept: list[RewindCall]
    """Calls behind the target that count nevertheless; at most 200."""


class DetachedOutcome(Struct, frozen=True, kw_only=True):
    """An outcome that came after its call had been discarded."""

    seq: int
    began: int
    """Where the call began."""
    call: str
    server: str
    tool: str
    status: Status
    executed: Executed
    summary: str


def rewinds_made(
    view: View, session: bytes, branches: SessionBranches, at: int
) -> list[RewindMade]:
    """Return the rewinds on the path to commit `at`, newest first."""
    live = branches.live(at)
    made = [c for c in reversed(branches.commits) if c.link.seq <= at and live.has(c.link.seq)]
    return [_rewind(view, session, commit) for commit in made[:_SHOWN]]


def detached_outcomes(branches: SessionBranches, at: int) -> list[DetachedOutcome]:
    """Return the newest detached outcome of each call, for a reader who stands at commit `at`."""
    live = branches.live(at)
    found = (
        [c for c in call if c.link.seq <= at and branches.is_detached(live, c)]
        for call in branches.detached(live)
    )
    return [_detached(branches, outcomes[-1]) for outcomes in found if outcomes]


def _rewind(view: View, session: bytes, commit: Commit) -> RewindMade:
    content = content_of(commit)
    standing, kept = (
        [_call(intent) for seq in seqs[:_NAMED] if (intent := view.get(session, seq)) is not None]
        for seqs in (content.standing, content.keep)
    )
    return RewindMade(
        seq=commit.link.seq,
        target=commit.link.ref or 0,
        timestamp=timestamp(commit.facts.at),
        actor=commit.facts.actor,
        why=commit.body.detail if commit.body else "",
        groups=content.groups,
        untracked=content.untracked,
        in_flight=content.in_flight,
        standing=standing,
        kept=kept,
    )


def _call(intent: Commit) -> RewindCall:
    return RewindCall(
        seq=intent.link.seq,
        call=ids.to_text(intent.facts.call),
        server=intent.facts.server,
        tool=intent.facts.tool,
        preview=intent.body.preview if intent.body else "",
        effect=intent.facts.effect,
    )


def _detached(branches: SessionBranches, outcome: Commit) -> DetachedOutcome:
    facts = outcome.facts
    return DetachedOutcome(
        seq=outcome.link.seq,
        began=branches.begun(outcome),
        call=ids.to_text(facts.call),
        server=facts.server,
        tool=facts.tool,
        status=facts.status,
        executed=facts.executed,
        summary=outcome.body.summary if outcome.body else "",
    )
