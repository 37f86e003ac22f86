"""Operations on a session as callers ask for them: pause, resume, close, archive, names, leases."""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from turnlog.core import ids
from turnlog.core.commit import Commit
from turnlog.core.hints import Hint
from turnlog.core.identity import session_name
from turnlog.core.kinds import Actor, Rung
from turnlog.core.lifecycle import (
    LIVE,
    Action,
    LifecycleContent,
    SessionStage,
    action_of,
    is_move,
)
from turnlog.core.note import LONGEST_WHY
from turnlog.sessions.errors import OperationError
from turnlog.sessions.log import find_session, session_row
from turnlog.store.base import ALIAS_SEPARATOR, SessionRow, alias
from turnlog.store.read.view import View

from .writer import ControlRequest

TTL: Final = 60.0
"""Seconds of a lease by default."""
_LONGEST_TTL: Final = 365 * 86_400.0
_LONGEST_NAME: Final = 512
_MOST_SEQ: Final = 10**18


class SessionAction(StrEnum):
    """An operation that callers ask for by name."""

    PAUSE = "pause"
    RESUME = "resume"
    CLOSE = "close"
    ARCHIVE = "archive"
    ALIAS = "alias"
    MERGE = "merge"
    CLAIM = "claim"
    RENEW = "renew"
    UNCLAIM = "unclaim"


class SessionChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operation on a session."""

    action: SessionAction
    why: Annotated[str, Meta(max_length=LONGEST_WHY, description="The reason; kept.")] = ""
    expect: (
        Annotated[int, Meta(ge=0, le=_MOST_SEQ, description="The session's newest commit.")] | None
    ) = None
    fence: (
        Annotated[int, Meta(ge=0, le=_MOST_SEQ, description="Number of the lease you hold.")] | None
    ) = None
    name: Annotated[str, Meta(max_length=_LONGEST_NAME, description="Of `alias`.")] = ""
    into: Annotated[str, Meta(max_length=_LONGEST_NAME, description="Of `merge`.")] = ""
    holder: Annotated[str, Meta(max_length=_LONGEST_NAME, description="Of `claim`.")] = ""
    anyway: Annotated[bool, Meta(description="Of `resume`: also if it was moved elsewhere.")] = (
        False
    )
    ttl: Annotated[float, Meta(gt=0, le=_LONGEST_TTL, description="Seconds of a lease.")] | None = (
        None
    )


_NEEDS: Final = {SessionAction.ALIAS: "name", SessionAction.MERGE: "into"}
_LEASING: Final = frozenset({SessionAction.CLAIM, SessionAction.RENEW})


def operation_of(
    view: View, session: bytes, change: SessionChange, actor: Actor, clean: Callable[[str], str]
) -> ControlRequest:
    """Return the operation that a change of a session asks for; `clean` removes secrets from a text.

    Raises `NotFoundError`, `OperationError`.
    """
    _check(change)
    row = session_row(view, session)
    content = _moved(view, session, change)
    names: dict[str, bytes] = {}
    if change.action is SessionAction.ALIAS:
        content, names = _alias(view, row, change.name, clean)
    elif change.action is SessionAction.MERGE:
        content, names = _merge(view, row, change.into)
    elif change.holder:
        content = LifecycleContent(holder=clean(change.holder))
    leases = change.action in _LEASING
    return ControlRequest(
        action=Action(change.action.value),
        actor=actor,
        why=change.why,
        expect=change.expect,
        fence=change.fence,
        content=content,
        lease=(change.ttl or TTL) if leases else None,
        names=names,
    )


def _moved(view: View, session: bytes, change: SessionChange) -> LifecycleContent | None:
    """Return the content of a pause or a resume where the session was moved to another store."""
    if change.action not in (SessionAction.PAUSE, SessionAction.RESUME):
        return None
    moved = moved_by(view, session)
    if moved is None:
        return None
    if change.action is SessionAction.PAUSE:
        return LifecycleContent(moved=True)
    if not change.anyway:
        raise OperationError(
            f"commit {moved.link.seq} has packed the session for another store, where it may go on",
            Hint.GO_ON_HERE,
        )
    return None


def moved_by(view: View, session: bytes) -> Commit | None:
    """Return the commit that paused a session because it goes on in another store; `None` if it goes on here."""
    row = view.session(session)
    if row is None or row.stage is not SessionStage.PAUSED:
        return None
    controls = view.controls(session, newest_first=True)
    pause = next((c for c in controls if action_of(c.facts) is Action.PAUSE), None)
    return pause if pause is not None and is_move(pause.facts, pause.body) else None


def _check(change: SessionChange) -> None:
    """Raise `OperationError` where a field is missing, or belongs to another action."""
    needed = _NEEDS.get(change.action)
    if needed is not None and not getattr(change, needed):
        raise OperationError(f"{change.action.value!r} needs {needed!r}")
    allowed = {needed, "ttl"} if change.action in _LEASING else {needed}
    allowed |= {"holder"} if change.action is SessionAction.CLAIM else set()
    allowed |= {"anyway"} if change.action is SessionAction.RESUME else set()
    for name in ("name", "into", "holder", "ttl", "anyway"):
        if getattr(change, name) and name not in allowed:
            raise OperationError(f"{change.action.value!r} has no {name!r}, leave it out")


def _alias(
    view: View, row: SessionRow, name: str, clean: Callable[[str], str]
) -> tuple[LifecycleContent, dict[str, bytes]]:
    """Return the content and the aliases of a further name."""
    if clean(name) != name:
        raise OperationError("the name holds a secret, choose another")
    name = named(name)
    taken = [session for session in view.find_sessions(name) if session != row.session]
    if taken:
        other = ids.to_text(taken[0])
        raise OperationError(f"{name!r} means session {other}, choose another name, or merge them")
    return LifecycleContent(name=name), dict.fromkeys(aliases_like(row, name), row.session)


def named(name: str) -> str:
    """Return a name for a session as it is kept. Raises `OperationError`."""
    try:
        return session_name(name)
    except ValueError as error:
        raise OperationError(str(error)) from error


def aliases_like(row: SessionRow, name: str) -> tuple[str, ...]:
    """Return the aliases of a name, one for each credential that has a name for a session."""
    # Names belong to a credential: those that reach the session already reach it by the new name too.
    principals = {one.rpartition(ALIAS_SEPARATOR)[2] for one in row.aliases} or {""}
    return tuple(alias(Rung.EXPLICIT, name, principal) for principal in sorted(principals))


def _merge(view: View, row: SessionRow, into: str) -> tuple[LifecycleContent, dict[str, bytes]]:
    """Return the content of a merge, and the aliases that lead to the other session after it."""
    session = find_session(view, into)
    if session == row.session:
        raise OperationError("a session cannot be merged into itself, name another")
    other = view.session(session)
    if other is None or other.stage not in LIVE:
        stage = "gone" if other is None else other.stage
        raise OperationError(f"{into!r} is {stage}, name a session that goes on")
    content = LifecycleContent(into=ids.to_text(session))
    return content, dict.fromkeys(row.aliases, session)
