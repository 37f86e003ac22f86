"""Append rewinds: commits that return a session to an earlier one and discard what came after it."""

from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.commit import CommitBody
from turnlog.core.kinds import Actor, CommitKind
from turnlog.core.lifecycle import SessionStage, encode_content
from turnlog.core.live_view import RewindContent, StandingEffect
from turnlog.observe.clock import Clock
from turnlog.sessions.errors import OperationError
from turnlog.store.base import Conflict, Draft, SessionRef, session_facts
from turnlog.store.lmdb import LmdbStore

from .rewind_plan import MAX_DISCARDED_EFFECTS, EffectGroup, RewindPlan
from .standing import effects_of


class RewindOrder(Struct, frozen=True, kw_only=True):
    """A request to carry out a rewind plan."""

    expect: int
    """The newest commit that its author has seen."""
    why: str = ""
    """The reason, redacted."""
    clock: Clock = Clock()
    fence: int | None = None
    """Number of the lease that its author holds, if any."""


async def rewind(store: LmdbStore, plan: RewindPlan, order: RewindOrder) -> RewindPlan:
    """Append the rewind of a plan; return the plan with its seq.

    Raises `Conflict` if the session has grown, `OperationError`, and any other `StoreError`.
    """
    standing = tuple(c.seq for c in plan.discarded if c.group is not EffectGroup.NO_EFFECT)
    if len(standing) > (most := MAX_DISCARDED_EFFECTS):
        raise OperationError(f"more than {most} effects would be discarded; rewind in steps")
    with store.view() as view:
        session = ids.from_text(plan.session)
        row = view.session(session)
        effects = effects_of(view, session, standing, plan.kept)
    # In a paused session only refused calls move the head, and they do not change the plan.
    is_paused = row is not None and row.stage is SessionStage.PAUSED
    if order.expect != plan.head and not is_paused:
        message = (
            f"the session's newest commit is {plan.head}, not {order.expect}; read the plan again"
        )
        raise Conflict(message, plan.head)
    draft = _draft(plan, order, standing, effects)
    draft.allows_calls = is_paused
    placed = await store.submit(draft, wait=True).done()
    return structs.replace(plan, rewound=placed.link.seq)


def _draft(
    plan: RewindPlan,
    order: RewindOrder,
    standing: tuple[int, ...],
    effects: tuple[StandingEffect, ...],
) -> Draft:
    content = RewindContent(
        keep=tuple(plan.kept),
        groups={group.value: count for group, count in plan.groups.items()},
        untracked=plan.untracked,
        in_flight=plan.in_flight,
        standing=standing,
        open=tuple(c.seq for c in plan.discarded if c.standing is not None),
        effects=effects,
    )
    return Draft(
        session=SessionRef.existing(ids.from_text(plan.session)),
        facts=session_facts(CommitKind.REWIND, Actor.OPERATOR, order.clock),
        body=CommitBody(
            summary=f"to commit {plan.target}", note=encode_content(content), detail=order.why
        ),
        expected_head=order.expect,
        fence=order.fence,
        target=plan.target,
    )
