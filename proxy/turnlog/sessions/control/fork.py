"""Forks: sessions that continue a commit of another one, with the state after it."""

from msgspec import Struct

from turnlog.core import ids
from turnlog.core.commit import Facts
from turnlog.core.kinds import Actor, CommitKind, Rung
from turnlog.core.lifecycle import encode_content, lease_refusal
from turnlog.core.live_view import AfterDivergence, ForkContent, ForkMode, StandingEffect
from turnlog.core.text.units import timestamp
from turnlog.observe.clock import Clock
from turnlog.sessions.errors import OperationError
from turnlog.sessions.log import find_session, session_row
from turnlog.sessions.state.compacted import compact_draft
from turnlog.sessions.state.state_at import commit_at, head_of, state_at
from turnlog.store.base import Draft, ForkOrigin, LeaseRefused, SessionRef
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View
from turnlog.store.saved_states import SavedStates

from .lifecycle import aliases_like, named
from .rewind_plan import MAX_DISCARDED_EFFECTS, standing_calls
from .standing import effects_of, left_behind


class ForkOrder(Struct, frozen=True, kw_only=True):
    """A request to fork a session."""

    session: str
    """The parent: an id, the beginning of one, or a name."""
    seq: int | None = None
    """The commit to fork at; `None` for the newest."""
    name: str = ""
    mode: ForkMode = ForkMode.LIVE
    then: AfterDivergence = AfterDivergence.STOP
    fence: int | None = None
    """The number of the lease on the parent that the operator holds."""


class ForkMade(Struct, frozen=True, kw_only=True):
    """A fork."""

    session: str
    name: str
    """Empty if it was given none: then it is named by its id."""
    seq: int
    """Its newest commit; its first one has the seq behind that of the branch point."""
    parent: str
    parent_seq: int
    mode: ForkMode
    then: AfterDivergence
    timestamp: str


def fork_draft(view: View, saved: SavedStates, order: ForkOrder, clock: Clock) -> Draft:
    """Return the second commit of a fork, behind the one that opens it: it carries the parent's state.

    Raises `NotFoundError`, `CompactedError`, `OperationError`, `LeaseRefused`.
    """
    parent = find_session(view, order.session)
    if order.fence is not None:
        _check_lease(view, parent, order.fence, clock)
    seq = head_of(view, parent) if order.seq is None else order.seq
    commit = commit_at(view, parent, seq)
    state = state_at(view, saved, parent, seq)
    now = clock.wall()
    fork = ids.uuid7(now, clock.entropy(10))
    draft = compact_draft(fork, state, seq + 1, clock)
    if draft is None:
        raise OperationError("the state there is too large to be carried by a fork")
    standing = tuple(standing_calls(view, parent, seq))
    content = ForkContent(
        mode=order.mode,
        then=order.then,
        standing=standing,
        effects=_effects(view, parent, seq, standing),
    )
    draft.session = SessionRef(
        candidate=fork,
        rung=Rung.EXPLICIT,
        aliases=_aliases(view, parent, order.name),
        metadata={"forked_from": f"{ids.to_text(parent)}:{seq}", "mode": order.mode.value},
        origin=ForkOrigin(
            parent=parent,
            seq=seq,
            hash=commit.hash,
            turn=commit.link.turn,
            step=commit.link.step,
            content=encode_content(content),
        ),
    )
    return draft


def has_calls_behind(view: View, draft: Draft) -> bool:
    """Return whether the parent of a fork has calls behind the commit where it is forked."""
    origin = draft.session.origin
    if origin is None:
        return False
    behind = view.readable_commits(origin.parent, after=origin.seq)
    return any(commit.facts.kind is CommitKind.INTENT for commit in behind)


async def fork(store: LmdbStore, draft: Draft, order: ForkOrder) -> ForkMade:
    """Write a fork, all of it or nothing. Raises `Conflict`, `StoreError`."""
    commit = await store.submit(draft, wait=True).done()
    origin = draft.session.origin
    assert origin is not None
    return ForkMade(
        session=ids.to_text(commit.link.session),
        name=order.name,
        seq=commit.link.seq,
        parent=ids.to_text(origin.parent),
        parent_seq=origin.seq,
        mode=order.mode,
        then=order.then,
        timestamp=timestamp(commit.facts.at),
    )


def _check_lease(view: View, parent: bytes, fence: int, clock: Clock) -> None:
    # Not in the write transaction: a fork leaves its parent as it is.
    row = session_row(view, parent)
    control = row.control
    asked = Facts(kind=CommitKind.COMPACT, at=clock.wall(), clock=0, actor=Actor.OPERATOR)
    if why := lease_refusal(control, asked, fence):
        raise LeaseRefused(why, fence=control.fence if control else 0, seq=row.head_seq)


def _effects(
    view: View, parent: bytes, seq: int, standing: tuple[int, ...]
) -> tuple[StandingEffect, ...]:
    """Return the effects that the fork does not show: made behind the branch point, or left behind before."""
    behind = effects_of(view, parent, standing)
    found = (*behind, *left_behind(view, parent, seq))
    if len(found) > MAX_DISCARDED_EFFECTS:
        raise OperationError(
            f"more than {MAX_DISCARDED_EFFECTS} effects stand that the fork would not show"
        )
    return found


def _aliases(view: View, parent: bytes, name: str) -> tuple[str, ...]:
    """Return the aliases of a fork: its name, for each credential of the parent."""
    if not name:
        return ()
    name = named(name)
    if taken := view.find_sessions(name):
        raise OperationError(f"{name!r} means session {ids.to_text(taken[0])}, choose another name")
    return aliases_like(session_row(view, parent), name)
