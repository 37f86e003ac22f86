"""Decisions about duplicates of earlier calls, whose effect must not happen twice by accident.

`engine.duplicate_index` finds the earlier call, `exchange.call` does what is decided.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from math import inf
from typing import Final, assert_never

from msgspec import Struct, structs

from turnlog.core.classify import MEANINGS, Ending, retry_class
from turnlog.core.kinds import Effect, ErrorKind, Executed, Phase, RetryClass, Status
from turnlog.core.note import EffectChoice
from turnlog.core.text.units import Duration
from turnlog.rules.model import OnDisconnect, OnDuplicate

KEY_LIFE: Final = 24 * 3600.0
"""s for which an idempotency key is remembered."""
CANCELLED_LIFE: Final = 5.0
"""s after the cancel was sent to the server for which a call can be joined."""


class NeverTwice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times in seconds that decide when two calls are one."""

    join_after: Duration = 5.0
    """Age of a running call from which a duplicate joins it."""
    cancel_grace: Duration = 5.0
    """Delay of the cancel after a stream was closed, in revisions where that is the cancel."""
    drain: Duration = 600.0
    """Time for which a call runs on after its caller has disconnected."""
    window: Duration = 600.0
    """Time for which an undelivered answer is replayed to a duplicate."""


class DuplicateAction(StrEnum):
    """The treatment of a call that may duplicate an earlier one."""

    FORWARD = "forward"
    AGAIN = "again"
    """Forward it, flagged `repeat_of_unknown`: the earlier one may have had the same effect."""
    JOIN = "join"
    """Wait for the running call and take its answer."""
    WAIT = "wait"
    """Wait until another process knows the ending of a call and whether it was delivered."""
    REPLAY = "replay"
    """Answer with the earlier answer."""
    UNKNOWN = "unknown"
    """Answer that the outcome of the earlier call is unknown."""
    CONFLICT = "conflict"
    """Refuse it: its idempotency key belongs to another call."""
    LATE = "late"
    """Answer with a timeout: it has waited for the running call up to its own limit."""
    BLOCK = "block"
    """Refuse it, because a rule forbids duplicates."""
    LEFT = "left"
    """Record that its caller left while it waited for the earlier call."""
    STOPPED = "stopped"
    """Record that turnlog stopped while it waited for the earlier call."""
    GIVEN_UP = "given_up"
    """Record that its caller left before it was decided whether to send it."""
    DISCARDED = "discarded"
    """Refuse it: a discarded call with another input had the same effect, and that stands."""
    DIVERGED = "diverged"
    """Refuse it: the record that its session replays has no answer to it."""


class Likeness(StrEnum):
    """Whether an earlier call has the same target, principal, tool and input."""

    SAME = "same"
    OTHERS = "others"
    """Only the principal is another: the answer is for that one."""
    GUESSED = "guessed"
    """Whether both have the same caller is guessed: the session is implicit."""
    DISCARDED = "discarded"
    """It has the same effect, and does not count for this branch: a rewind discarded it, or another
    branch made it after the two had parted."""
    RECORDED = "recorded"
    """It is the next one of its kind in the record that the session replays; without `same_input`, that
    has none."""


class EarlierCall(Struct, frozen=True, kw_only=True, gc=False):
    """The latest call with the same input or idempotency key. Times are seconds ago."""

    ending: Ending | None
    """Ending of its last attempt; `None` while it runs."""
    began: float
    ended: float = 0.0
    abandoned: bool = False
    """Whether its caller has left; of a guessed one, also whether this call may be the same caller's."""
    is_carried: bool = False
    """Whether this process carries it out: that its caller has given it up may not have been read yet."""
    is_given: bool = False
    """Whether this process is giving its answer again, to a caller that may have left before."""
    cancelled: float | None = None
    """When its cancel was sent to the server."""
    elsewhere: bool = False
    """Whether it belongs to another process."""
    delivered: bool = False
    """Whether its whole answer was delivered."""
    settling: bool = False
    """Whether another process may still note that its answer was delivered."""
    warned: bool = False
    """Whether a duplicate was answered that the outcome is unknown."""
    repeats: bool = False
    """Whether it was forwarded after a call with an unknown outcome."""
    same_input: bool = True
    """Whether its input is the same; if not, only the key is."""
    keyed: bool = False
    """Whether it was found by its idempotency key."""
    likeness: Likeness = Likeness.SAME
    choice: EffectChoice | None = None
    """Of a discarded call: what somebody has said about it."""

    @property
    def is_unexecuted(self) -> bool:
        """Whether it has ended, and was not executed."""
        return self.ending is not None and self.ending.executed is Executed.NO


class NewCall(Struct, frozen=True, kw_only=True, gc=False):
    """The call to decide about."""

    effect: Effect
    on_duplicate: OnDuplicate = OnDuplicate.JOIN
    keyed: bool = False
    """Whether its caller gave an idempotency key."""
    slower_than: float = inf
    """s: a slower answer is replayed even if it was delivered."""
    waited: float = 0.0
    """s for which it has waited for the earlier call."""


def decide_duplicate(
    earlier: EarlierCall | None, call: NewCall, limits: NeverTwice
) -> DuplicateAction:
    """Return what to do with a call, given the earlier one if there is any."""
    if earlier is None:
        return DuplicateAction.FORWARD
    match earlier.likeness:
        case Likeness.SAME:
            return _decide(earlier, call, limits)
        case Likeness.OTHERS:
            return _after_anothers(earlier, call, limits)
        case Likeness.GUESSED:
            return DuplicateAction.JOIN if earlier.abandoned else DuplicateAction.FORWARD
        case Likeness.DISCARDED:
            return _after_discarded(earlier, call)
        case Likeness.RECORDED:
            return DuplicateAction.REPLAY if earlier.same_input else DuplicateAction.DIVERGED
        case _:
            assert_never(earlier.likeness)


def _after_anothers(earlier: EarlierCall, call: NewCall, limits: NeverTwice) -> DuplicateAction:
    # Another principal's answer is never used; the call is flagged if it may repeat an effect.
    is_open = earlier.ending is None and call.on_duplicate is not OnDuplicate.PASS
    if is_open or _decide(earlier, call, limits) is not DuplicateAction.FORWARD:
        return DuplicateAction.AGAIN
    return DuplicateAction.FORWARD


def _after_discarded(earlier: EarlierCall, call: NewCall) -> DuplicateAction:
    """Return what to do with a call whose effect another branch of the session had."""
    ending, choice = earlier.ending, earlier.choice
    # Doing it again is harmless, and an answer from the record could be out of date.
    if call.effect is Effect.IDEMPOTENT_WRITE:
        return DuplicateAction.FORWARD
    if ending is None:
        return DuplicateAction.JOIN if earlier.same_input else DuplicateAction.DISCARDED
    # Failures are not remembered as answers.
    if ending.executed is Executed.NO or ending.status is Status.ERROR:
        return DuplicateAction.FORWARD
    if ending.status.unsettled:
        return DuplicateAction.UNKNOWN  # until `turnlog resolve`, whoever has chosen what
    if call.on_duplicate is OnDuplicate.PASS or choice is EffectChoice.OVERRIDE:
        return DuplicateAction.FORWARD
    if earlier.same_input and choice is EffectChoice.REDO:
        return DuplicateAction.FORWARD
    is_answer = earlier.same_input or choice is EffectChoice.REPLAY
    return DuplicateAction.REPLAY if is_answer else DuplicateAction.DISCARDED


def _decide(earlier: EarlierCall, call: NewCall, limits: NeverTwice) -> DuplicateAction:
    if not earlier.same_input:
        return DuplicateAction.CONFLICT if earlier.began < KEY_LIFE else DuplicateAction.FORWARD
    if earlier.ending is None:
        return _while_it_runs(earlier, call, limits)
    return _after_its_end(earlier, earlier.ending, call, limits)


def _while_it_runs(earlier: EarlierCall, call: NewCall, limits: NeverTwice) -> DuplicateAction:
    if call.on_duplicate is OnDuplicate.PASS and not call.keyed:
        return DuplicateAction.FORWARD
    if earlier.cancelled is not None and earlier.cancelled > CANCELLED_LIFE:
        return _after_cancel(call)
    if call.on_duplicate is OnDuplicate.BLOCK:
        return DuplicateAction.BLOCK
    left = earlier.abandoned or earlier.cancelled is not None
    # Identical calls made at once are two calls: a model may well append twice.
    if call.keyed or left or earlier.began - call.waited >= limits.join_after:
        return DuplicateAction.JOIN
    # Another process may notice late that its caller has left, for example while it is stopped.
    return DuplicateAction.WAIT if earlier.elsewhere else DuplicateAction.FORWARD


def _after_its_end(
    earlier: EarlierCall, ending: Ending, call: NewCall, limits: NeverTwice
) -> DuplicateAction:
    # A parked call has no answer yet, and one that was not executed is made again.
    if ending.status.parked or ending.executed is Executed.NO or ending.retry == RetryClass.SAFE:
        return DuplicateAction.AGAIN if earlier.repeats else DuplicateAction.FORWARD
    dropped = _is_dropped(earlier, ending)
    unknown = dropped or ending.status is Status.UNKNOWN
    if unknown and call.effect is Effect.IRREVERSIBLE:
        return DuplicateAction.UNKNOWN
    if earlier.settling and not call.keyed:
        return DuplicateAction.WAIT
    is_past = earlier.ended > (KEY_LIFE if call.keyed else limits.window)
    if unknown:
        told = is_past or dropped or earlier.warned or earlier.delivered
        return DuplicateAction.AGAIN if told else DuplicateAction.UNKNOWN
    if is_past:
        return DuplicateAction.FORWARD
    slow = earlier.began - earlier.ended > call.slower_than
    if call.keyed or slow or not earlier.delivered:
        return DuplicateAction.REPLAY
    return DuplicateAction.FORWARD


def _is_dropped(earlier: EarlierCall, ending: Ending) -> bool:
    """Return whether a call ended by its cancel."""
    # Servers answer a cancelled call by an error, which does not say how far it got.
    by_server = earlier.cancelled is not None and ending.status is Status.ERROR
    return by_server or ending.kind == ErrorKind.CANCELLED_BY_CALLER


def _after_cancel(call: NewCall) -> DuplicateAction:
    return DuplicateAction.UNKNOWN if call.effect is Effect.IRREVERSIBLE else DuplicateAction.AGAIN


def replayed_ending(ending: Ending, *, whole: bool) -> Ending:
    """Return the ending of a call that was answered from an earlier one.

    `whole` is whether the earlier answer is still recorded.
    """
    retry = ending.retry if whole else RetryClass.NEVER
    return structs.replace(ending, status=Status.REPLAYED, phase=Phase.QUEUED, retry=retry)


_UNSENT: Final = {
    DuplicateAction.CONFLICT: (ErrorKind.CONFLICT, Executed.NO),
    DuplicateAction.BLOCK: (ErrorKind.POLICY_BLOCKED, Executed.NO),
    DuplicateAction.DISCARDED: (ErrorKind.POLICY_BLOCKED, Executed.NO),
    DuplicateAction.DIVERGED: (ErrorKind.POLICY_BLOCKED, Executed.NO),
    DuplicateAction.LATE: (ErrorKind.RESPONSE_TIMEOUT, Executed.MAYBE),
    DuplicateAction.LEFT: (ErrorKind.CANCELLED_BY_CALLER, Executed.MAYBE),
    DuplicateAction.UNKNOWN: (ErrorKind.OUTCOME_UNKNOWN, Executed.MAYBE),
    DuplicateAction.GIVEN_UP: (ErrorKind.CANCELLED_BY_CALLER, Executed.NO),
}
_WAITED: Final = frozenset({DuplicateAction.LATE, DuplicateAction.LEFT})
"""The earlier call, which these waited for, was sent."""
_SAID: Final = {
    DuplicateAction.UNKNOWN: "nobody knows whether the same call, made before, was executed; it was not "
    "sent again",
    DuplicateAction.CONFLICT: "this idempotency key was given before with another input; the call was not "
    "sent",
    DuplicateAction.BLOCK: "the same call is under way, and a rule allows no second one; it was not sent",
    DuplicateAction.LATE: "the same call, made before, did not end in time; it may have been executed, and "
    "was not sent again",
    DuplicateAction.REPLAY: "this call was already executed and its result is not available; it was not "
    "sent again",
    DuplicateAction.LEFT: "left while the call it had joined ran on",
    DuplicateAction.STOPPED: "turnlog stopped while the call it had joined ran",
    DuplicateAction.GIVEN_UP: "left before the call was sent",
    DuplicateAction.DISCARDED: "a call with another input had this effect on another branch of the session, "
    "and the effect stands; it was not sent",
    DuplicateAction.DIVERGED: "this session replays the record of its parent, which has no further answer to "
    "this call; it was not sent",
}
UNANSWERABLE: Final = (
    "this session replays the record of its parent, which answers calls that are alone in their request and "
    "can be read whole; it was not sent"
)
NOT_ALONE: Final = (
    "another branch of the session had the effect of a call in this batch, and the effect stands; only a call that is "
    "alone in its request can be answered from the record, or be chosen about; it was not sent"
)
_GO_ON: Final = "an operator lets it go on by `turnlog rewind` to before that call, or goes on live in a fork of it"


def unsent_detail(action: DuplicateAction) -> str:
    """Return the text for a call that was not sent, for its record and its caller."""
    return _SAID[action]


def choice_advice(call: str, effect: Effect) -> str:
    """Return how to choose about calls that have the effect of a discarded one; `effect` is that one's."""
    command = f"`turnlog effect {call}` with --replay, --redo or --override"
    if effect is Effect.IRREVERSIBLE:
        return f"; only an operator can choose, by {command}"
    return f"; choose by turnlog's tool 'effect', or {command}"


def stops_replay(said: str) -> str:
    """Return the text for a call with which the replay of its session stops; `said` is why it was not sent."""
    return f"{said}, and the replay stops with it; {_GO_ON}"


def after_replay(call: str, seq: int | None) -> str:
    """Return the text for a call behind the one with which the replay of its session has stopped.

    `seq` is where that one began, if it is on disk.
    """
    where = "" if seq is None else f" (commit {seq})"
    return (
        f"this session replays the record of its parent, which had no answer to call {call}{where}: the replay "
        f"has stopped there, and this call was not sent; {_GO_ON}"
    )


def unsent_ending(action: DuplicateAction, effect: Effect) -> Ending:
    """Return the ending of a call with this effect that was refused or not answered, and not sent."""
    kind, executed = _UNSENT.get(action, _UNSENT[DuplicateAction.UNKNOWN])
    # Where the earlier call was sent, its effect decides whether repeating it can do harm.
    reached = Phase.SENT if executed is Executed.MAYBE else Phase.QUEUED
    is_refused = kind is ErrorKind.CONFLICT or kind is ErrorKind.POLICY_BLOCKED
    return Ending(
        status=Status.ERROR,
        phase=Phase.SENT if action in _WAITED else Phase.QUEUED,
        executed=executed,
        error=MEANINGS[kind].family,
        kind=kind,
        retry=RetryClass.NEVER if is_refused else retry_class(kind, reached, effect),
    )


def may_join_guessed_session(
    calls: Mapping[int | str, float], own: Collection[int | str], grace: float
) -> bool:
    """Return whether a call may join an abandoned one of an implicit session (decision 68).

    `calls` has the connections that look like this caller, with the seconds since the latest call.
    """
    # If another connection than its `own` made one lately, the call may be another caller's.
    return not any(ago <= grace for connection, ago in calls.items() if connection not in own)


def disconnect_action(
    rule: OnDisconnect | None, *, stateless: bool, is_findable: bool = True
) -> OnDisconnect:
    """Return what to do with a call whose caller has disconnected.

    `is_findable` is whether a duplicate could join it.
    """
    # In the stateless revisions of MCP closing the stream is the cancel (2026-07-28, Streamable HTTP,
    # cancellation); before them a disconnect means nothing.
    if rule is not None:
        return rule
    if stateless:
        # Without a duplicate that could join it, delaying the cancel lets every repetition run on.
        return OnDisconnect.GRACE if is_findable else OnDisconnect.CANCEL
    return OnDisconnect.DRAIN
