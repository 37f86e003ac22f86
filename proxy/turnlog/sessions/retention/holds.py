"""Hold the content of a session: it is kept, whatever its age, until the hold is released."""

from turnlog.core.commit import Commit, CommitBody, Facts
from turnlog.core.kinds import Actor, CommitKind, NoteKind, Phase, Status
from turnlog.observe.clock import Clock
from turnlog.sessions.errors import NotHeldError
from turnlog.sessions.notes import session_ref
from turnlog.store.base import Draft
from turnlog.store.lmdb import LmdbStore


async def append_hold(
    store: LmdbStore, name: str, kind: NoteKind, why: str, clock: Clock, fence: int | None = None
) -> Commit:
    """Append the note by which a session is held (`HOLD`; it may be held already), or its holds end (`RELEASE`).

    `why` is redacted, at most `LONGEST_WHY` characters; `fence` is the number of a lease.
    Raises `NotFoundError`, `NotHeldError`, `LeaseRefused`, `StoreError`.
    """
    with store.view() as view:
        session = session_ref(view, name)
        if kind is NoteKind.RELEASE and session.id not in view.held():
            raise NotHeldError(f"the session {name!r} is not held")
    facts = Facts(
        kind=CommitKind.NOTE,
        at=clock.wall(),
        clock=clock.monotonic(),
        actor=Actor.OPERATOR,
        phase=Phase.DONE,
        status=Status.OK,
        note=kind,
    )
    summary = "its content is held" if kind is NoteKind.HOLD else "its content is no longer held"
    body = CommitBody(summary=summary, detail=why)
    draft = Draft(session=session, facts=facts, body=body, fence=fence)
    return await store.submit(draft, wait=True).done()
