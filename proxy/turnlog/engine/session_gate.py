"""Whether calls of tools may pass in a session: not where it is paused or closed, by whatever process."""

from typing import Final

from turnlog.core import ids
from turnlog.core.commit import Commit
from turnlog.core.kinds import Rung
from turnlog.core.lifecycle import Action, action_of, decode_lifecycle, suspension_of
from turnlog.store.base import SessionRef, StoreError
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View

_MERGES: Final = 8
"""Merges that are followed one after the other."""
_SUSPENDING: Final = frozenset(
    {
        Action.PAUSE,
        Action.CLOSE,
        Action.MERGE,
        Action.HAND_OVER,
        Action.ARCHIVE,
        Action.PURGE,
    }
)
"""Actions after which calls are refused."""


class SessionGate:
    """Looks at the stage of sessions in the store."""

    def __init__(self, store: LmdbStore) -> None:
        self._store = store
        self.number = store.control_counter().read
        """Returns the number of control commits in the store: no stage changes without it."""

    def look(self, ref: SessionRef) -> SessionRef | None:
        """Return the session that a reference means now, with its `suspension`; `None` if the store cannot be read.

        Its names may lead to another session by now, and one that was merged goes on in another.
        """
        try:
            with self._store.view() as view:
                return _looked(view, ref)
        except StoreError:
            return None


def _looked(view: View, ref: SessionRef) -> SessionRef:
    named = view.session_of(ref)
    if named is None:
        return ref  # its first call opens it
    session = named
    for _ in range(_MERGES):
        if (merged := _merged_into(view, session)) is None:
            break
        session = merged
    is_same = session == named and ref.id in (session, None)
    found = ref if is_same else _reference(session, ref)
    row = view.session(session)
    found.suspension = None
    if row is not None and row.control is not None:
        suspending = _suspending(view, session)
        why = (
            suspending.body.detail if suspending is not None and suspending.body is not None else ""
        )
        found.suspension = suspension_of(row.control, why)
    return found


def _merged_into(view: View, session: bytes) -> bytes | None:
    """Return the session that has taken a session over by a merge."""
    suspending = _suspending(view, session)
    if (
        suspending is None
        or suspending.body is None
        or action_of(suspending.facts) is not Action.MERGE
    ):
        return None
    content = decode_lifecycle(suspending.body.note)
    return ids.from_text(content.session) if content.session else None


def _reference(session: bytes, before: SessionRef) -> SessionRef:
    found = SessionRef(candidate=session, rung=Rung.IMPLICIT, aliases=before.aliases)
    found.id = session
    return found


def _suspending(view: View, session: bytes) -> Commit | None:
    """Return the newest commit that paused or closed a session."""
    found = [c for c in view.controls(session) if action_of(c.facts) in _SUSPENDING]
    return found[-1] if found else None
