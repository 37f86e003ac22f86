"""The stages of a session, the actions that move it between them, and the lease on it.

An action is a *control commit*: of kind `lifecycle` (its `facts.note` names the action), `rewind`,
`compact` or `redact`. `TRANSITIONS` says which action is possible at which stage, and where it leads.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct, structs

from .commit import CommitBody, Facts, decoder
from .hints import Hint, HintedError
from .kinds import Actor, CommitKind
from .text.units import timestamp

CONTROL_KINDS: Final = (
    CommitKind.LIFECYCLE,
    CommitKind.REWIND,
    CommitKind.COMPACT,
    CommitKind.REDACT,
)


class SessionStage(StrEnum):
    """The stage of a session's life."""

    OPEN = "open"
    """No call has begun yet."""
    ACTIVE = "active"
    PAUSED = "paused"
    """Calls of tools are refused until it is resumed."""
    CLOSED = "closed"
    """For good: calls of tools are refused, a fork goes on."""
    ARCHIVED = "archived"
    """Closed, and left out of lists."""
    PURGED = "purged"
    """Its content is removed."""


class Action(StrEnum):
    """A cause of a transition. All but `CALL` are commits."""

    CALL = "call"
    """A call begins."""
    PAUSE = "pause"
    RESUME = "resume"
    CLOSE = "close"
    ARCHIVE = "archive"
    PURGE = "purge"
    MERGE = "merge"
    """Another session takes over its names."""
    ALIAS = "alias"
    """It gets a further name."""
    CLAIM = "claim"
    """Somebody takes the lease on it."""
    RENEW = "renew"
    UNCLAIM = "unclaim"
    REWIND = "rewind"
    COMPACT = "compact"
    REDACT = "redact"


_OPEN, _ACTIVE, _PAUSED = SessionStage.OPEN, SessionStage.ACTIVE, SessionStage.PAUSED
_CLOSED, _ARCHIVED, _PURGED = SessionStage.CLOSED, SessionStage.ARCHIVED, SessionStage.PURGED
LIVE: Final = (_OPEN, _ACTIVE, _PAUSED)
"""The stages of a session that is not closed."""
_ENDED: Final = (_CLOSED, _ARCHIVED)
_KEPT: Final = (*LIVE, *_ENDED)

_Transitions: TypeAlias = dict[tuple[SessionStage, Action], SessionStage]


def _at(
    stages: Iterable[SessionStage], *actions: Action, to: SessionStage | None = None
) -> _Transitions:
    return {(stage, action): to or stage for stage in stages for action in actions}


TRANSITIONS: Final[_Transitions] = {
    **_at((_OPEN, _ACTIVE), Action.CALL, to=_ACTIVE),
    # A second pause is possible so that an operator can pause what the agent has paused itself.
    **_at(LIVE, Action.PAUSE, to=_PAUSED),
    **_at((_PAUSED,), Action.RESUME, to=_ACTIVE),
    **_at(LIVE, Action.CLOSE, Action.MERGE, to=_CLOSED),
    **_at((_CLOSED,), Action.ARCHIVE, to=_ARCHIVED),
    **_at(_ENDED, Action.PURGE, to=_PURGED),
    **_at(LIVE, Action.CLAIM, Action.RENEW, Action.UNCLAIM, Action.REWIND),
    **_at(_KEPT, Action.ALIAS, Action.COMPACT),
    **_at(SessionStage, Action.REDACT),
}
"""The stage that an action leads to. What is not in it is refused."""


_KIND_ACTIONS: Final = {
    CommitKind.REWIND: Action.REWIND,
    CommitKind.COMPACT: Action.COMPACT,
    CommitKind.REDACT: Action.REDACT,
}


class Control(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The result of the control commits of a session. Times are ns UTC, wall clock of the store's host."""

    stage: SessionStage = SessionStage.OPEN
    """`OPEN` also once a call has begun, see `stage_of`: calls are no control commits."""
    actor: Actor = Actor.OPERATOR
    """Who brought the session to its stage."""
    newest: int = 0
    """seq of the newest control commit."""
    fence: int = 0
    """Number of the newest lease, the seq of its claim; 0 for none."""
    leased_until: int = 0
    """When that lease ends; 0 for none."""
    resumes: int = 0
    """How often it was resumed."""


class Suspension(Struct, frozen=True, gc=False):
    """Why calls of tools are refused in a session."""

    stage: SessionStage
    detail: str
    is_moved: bool = False
    """Whether the session goes on in another store."""

    @property
    def is_final(self) -> bool:
        """Whether the same call would be refused again: only a pause ends by itself."""
        return self.stage is not _PAUSED or self.is_moved


class LifecycleContent(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The content of a lifecycle commit, in `CommitBody.note`; its reason is in `detail`. New fields go to the end."""

    holder: str = ""
    """On `claim`: the name of who takes the lease."""
    name: str = ""
    """On `alias`: the further name."""
    into: str = ""
    """On `merge`: the session that takes over."""
    moved: bool = False
    """On `pause`: whether the session goes on in another store."""
    packed: bool = False
    """On such a pause: whether the bundle for that ends with it."""


encode_content: Final[Callable[[Struct], bytes]] = msgspec.msgpack.Encoder().encode
"""Return the bytes of a control commit's content."""
_decode_content = decoder(LifecycleContent)


def decode_lifecycle(data: bytes) -> LifecycleContent:
    """Return the content of a lifecycle commit; empty where there is none or it cannot be read."""
    try:
        return _decode_content(data) if data else LifecycleContent()
    except msgspec.DecodeError:
        return LifecycleContent()


def is_move(facts: Facts, body: CommitBody | None) -> bool:
    """Return whether a commit paused its session because that goes on in another store."""
    is_pause = action_of(facts) is Action.PAUSE
    return is_pause and body is not None and decode_lifecycle(body.note).moved


def ends_bundle(facts: Facts, body: CommitBody | None) -> bool:
    """Return whether a commit is the last one in a bundle by which its session was moved."""
    return is_move(facts, body) and body is not None and decode_lifecycle(body.note).packed


def action_of(facts: Facts) -> Action | None:
    """Return the action of a control commit; `None` for one that this version does not know."""
    if facts.kind is not CommitKind.LIFECYCLE:
        return _KIND_ACTIONS.get(facts.kind)
    try:
        action = Action(facts.note)
    except ValueError:
        return None
    return None if action is Action.CALL or action in _KIND_ACTIONS.values() else action


def stage_of(control: Control | None, *, has_calls: bool) -> SessionStage:
    """Return the stage of a session. `has_calls`: whether a call has ever begun in it."""
    stage = control.stage if control else _OPEN
    return TRANSITIONS.get((stage, Action.CALL), stage) if has_calls else stage


def after_control(control: Control | None, facts: Facts, seq: int) -> Control:
    """Return the result of one more control commit, for any commit that a log may hold."""
    before, action = control or Control(), action_of(facts)
    after = structs.replace(before, newest=seq)
    if action is None:
        return after
    if action is Action.CLAIM:
        return structs.replace(after, fence=seq, leased_until=facts.expires)
    if action is Action.RENEW or action is Action.UNCLAIM:
        return structs.replace(after, leased_until=facts.expires)
    stage = TRANSITIONS.get((before.stage, action), before.stage)
    moves = stage is not before.stage or action is Action.PAUSE
    if not moves:
        return after
    resumes = before.resumes + (action is Action.RESUME)
    return structs.replace(after, stage=stage, actor=facts.actor, resumes=resumes)


def suspension_of(
    control: Control | None, why: str, *, is_moved: bool = False
) -> Suspension | None:
    """Return why calls are refused in a session; `None` if they are not. `why` is the recorded reason."""
    if control is None or control.stage in (_OPEN, _ACTIVE):
        return None
    said = f"the session is {control.stage}"
    is_moved = is_moved and control.stage is _PAUSED
    if is_moved:
        said = "the session was moved to another store, make the call there"
    elif control.stage is _PAUSED:
        said += " by the agent itself" if control.actor is Actor.AGENT else " by an operator"
    return Suspension(control.stage, f"{said}: {why}" if why else said, is_moved)


def transition_refusal(control: Control | None, stage: SessionStage, facts: Facts) -> str:
    """Return why the action of a control commit is not possible at a session's present stage; empty if it is."""
    action = action_of(facts)
    if action is None or (stage, action) not in TRANSITIONS:
        name = action.value if action else facts.note
        return f"{name!r} is not possible while the session is {stage}{_advice(stage, action)}"
    is_agents = facts.actor is Actor.AGENT and action in (Action.PAUSE, Action.RESUME)
    if is_agents and stage is _PAUSED and control and control.actor is not Actor.AGENT:
        return f"an operator paused the session: the agent cannot {action} it"
    return ""


def _advice(stage: SessionStage, action: Action | None) -> str:
    """Return what to do about an action that is not possible at a stage; empty where there is nothing."""
    if (_CLOSED, action) in TRANSITIONS and stage in LIVE:
        return "; close it first"
    if (_ACTIVE, action) in TRANSITIONS or action is Action.RESUME:
        return "; it is never opened again, fork it to go on" if stage in _ENDED else ""
    return ""


def lease_refusal(control: Control | None, facts: Facts, fence: int | None) -> HintedError | None:
    """Return why a control commit is refused because of the lease on the session; `None` if it is not.

    `fence` is the number of the lease that its writer believes to hold; `None` for none.
    """
    lease, action = control or Control(), action_of(facts)
    is_held = facts.at < lease.leased_until
    if fence is not None:
        if fence != lease.fence or not lease.fence:
            return HintedError(f"the lease {fence} is not the newest, {lease.fence} is")
        if not is_held:
            return HintedError(f"the lease {fence} has ended; claim the session anew")
    if action is Action.RENEW and fence is None:
        return HintedError("the number of the lease is missing", Hint.LEASE_NUMBER)
    if action is Action.CLAIM and is_held:
        until = timestamp(lease.leased_until)
        return HintedError(f"lease {lease.fence} holds until {until}", Hint.UNCLAIM)
    return None
