"""Lifecycle commits: written only if the session's head is still the one that their author has seen."""

from contextlib import suppress

from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.commit import Commit, CommitBody
from turnlog.core.hints import HintedError
from turnlog.core.kinds import Actor, CommitKind
from turnlog.core.lifecycle import (
    Action,
    Control,
    LifecycleContent,
    SessionStage,
    after_control,
    decode_lifecycle,
    encode_content,
    stage_of,
)
from turnlog.core.text.units import timestamp
from turnlog.observe.clock import Clock
from turnlog.redaction.redact import Redactor
from turnlog.sessions.log import session_row
from turnlog.store.base import Corrupt, Draft, LeaseRefused, SessionRef, SessionRow, session_facts
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View


class ControlRequest(Struct, frozen=True, kw_only=True):
    """An operation on a session. `expect` is the seq of its head as the caller saw it."""

    action: Action
    actor: Actor = Actor.OPERATOR
    why: str = ""
    expect: int | None = None
    """`None` for the present one; then calls may move it meanwhile, but no other operation."""
    fence: int | None = None
    """Number of the lease that the caller holds."""
    content: LifecycleContent | None = None
    """With secrets removed."""
    lease: float | None = None
    """Seconds for which a lease is taken."""
    names: dict[str, bytes] = {}
    """Aliases with the sessions that they lead to from then on."""


class Lease(Struct, frozen=True, kw_only=True):
    """The newest lease on a session."""

    fence: int
    """Its number: an operation that gives another one is refused."""
    holder: str
    """The name that its holder gave; empty for none."""
    until: str
    """When it ends, or has ended, by the clock of the store's host."""


class OperationResult(Struct, frozen=True, kw_only=True):
    """Where an operation was recorded, and the session's stage after it."""

    session: str
    seq: int
    hash: str
    action: Action
    actor: Actor
    stage: SessionStage
    lease: Lease | None


class ControlWriter:
    """Writes control commits to a store."""

    def __init__(self, store: LmdbStore, redactor: Redactor, clock: Clock) -> None:
        self._store = store
        self._redactor = redactor
        self._clock = clock

    async def write(self, session: bytes, operation: ControlRequest) -> OperationResult:
        """Append a control commit and wait until it is durable.

        Raises `Conflict`, `TransitionRefused`, `LeaseRefused`, `NotFoundError`, `StoreError`.
        """
        with self._store.view() as view:
            row = session_row(view, session)
        content, note = operation.content, operation.action.value
        facts = session_facts(CommitKind.LIFECYCLE, operation.actor, self._clock, note=note)
        if operation.lease is not None:
            facts = structs.replace(facts, expires=facts.at + round(operation.lease * 1e9))
        draft = Draft(
            session=SessionRef.existing(session),
            facts=facts,
            body=CommitBody(
                summary=note,
                detail=self._redactor.text(operation.why)[0],
                note=encode_content(content) if content is not None else b"",
            ),
            expected_head=row.head_seq if operation.expect is None else operation.expect,
            allows_calls=operation.expect is None,
            fence=operation.fence,
            names=operation.names,
        )
        try:
            commit = await self._store.submit(draft, wait=True).done()
        except LeaseRefused as refused:
            raise self._with_holder(refused, session) from None
        with self._store.view() as view:
            return _result(view, commit, row)

    def _with_holder(self, refused: LeaseRefused, session: bytes) -> LeaseRefused:
        """Return a refusal that also names who claimed the lease, if they have given a name."""
        with self._store.view() as view:
            holder = _holder(view, session, refused.fence)
        said = f"{refused} (its holder is {holder!r})" if holder else str(refused)
        return LeaseRefused(HintedError(said, refused.hint), fence=refused.fence, seq=refused.seq)


def lease_of(view: View, session: bytes, control: Control | None) -> Lease | None:
    """Return the newest lease on a session, unless it was released."""
    if control is None or not control.leased_until:
        return None
    holder = _holder(view, session, control.fence)
    return Lease(fence=control.fence, holder=holder, until=timestamp(control.leased_until))


def _holder(view: View, session: bytes, fence: int) -> str:
    with suppress(Corrupt):
        claim = view.get(session, fence)
        if claim is not None and claim.body is not None:
            return decode_lifecycle(claim.body.note).holder
    return ""


def _result(view: View, commit: Commit, before: SessionRow) -> OperationResult:
    control = after_control(before.control, commit.facts, commit.link.seq)
    return OperationResult(
        session=ids.to_text(commit.link.session),
        seq=commit.link.seq,
        hash=f"sha256:{commit.hash.hex()}",
        action=Action(commit.facts.note),
        actor=commit.facts.actor,
        stage=stage_of(control, has_calls=before.place.started_at > 0),
        lease=lease_of(view, commit.link.session, control),
    )
