"""Decide what becomes of a call that asks what an earlier one asked: its effect must not happen twice
by accident (semantics, section 5).

Pure. What is known of the earlier call, and how long ago it was, belongs to the caller
(`engine.duplicates.deduplication`).
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from math import inf
from typing import Final

from msgspec import Struct, structs

from turnlog.core.classify import Ending
from turnlog.core.kinds import Effect, ErrorFamily, ErrorKind, Executed, Phase, RetryClass, Status
from turnlog.core.text.units import Duration
from turnlog.rules.model import OnDisconnect, OnDuplicate

KEY_LIFE: Final = 24 * 3600.0
"""s for which an idempotency key is remembered."""
CANCELLED_LIFE: Final = 5.0
"""s for which a call is joined whose cancel went on to the server."""


class NeverTwice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long turnlog waits before it takes two calls for one. Times are in seconds."""

    join_after: Duration = 5.0
    """A call that began at least so long ago is joined by one that asks the same."""
    cancel_grace: Duration = 5.0
    """Where a closed stream is the cancel, it is passed on after so long."""
    drain: Duration = 600.0
    """For how long a call runs on whose caller is gone."""
    window: Duration = 600.0
    """For how long an answer that did not arrive is given to who asks again."""


class DuplicateAction(StrEnum):
    """What becomes of a call."""

    FORWARD = "forward"
    AGAIN = "again"
    """It is forwarded although an earlier one may have done the same: `repeat_of_unknown`."""
    JOIN = "join"
    """It waits for the call under way, and gets its answer."""
    WAIT = "wait"
    """It waits until another process has ended a call and knows whether its caller got the answer."""
    REPLAY = "replay"
    """It gets the earlier answer."""
    UNKNOWN = "unknown"
    """It is told that nobody knows what the earlier one did."""
    CONFLICT = "conflict"
    """It names a key that was given for something else."""
    LATE = "late"
    """It has waited for the call under way for as long as its own time limit allows."""
    BLOCK = "block"
    """A rule wants no second one."""


class Likeness(StrEnum):
    """How sure it is that an earlier call is the same: by target, principal, tool and input."""

    SAME = "same"
    OTHERS = "others"
    """All but the principal is the same: its answer is for somebody else."""
    UNTARGETED = "untargeted"
    """It was recorded by 0.1, which wrote no target down: it may have gone to another server."""


class EarlierCall(Struct, frozen=True, kw_only=True, gc=False):
    """The latest call that asked the same, or had the same key. Times are seconds ago."""

    ending: Ending | None
    """How its last attempt ended; `None` while it runs."""
    began: float
    ended: float = 0.0
    abandoned: bool = False
    """Whether nobody waits for it any more."""
    cancelled: float | None = None
    """When its cancel went on to the server."""
    elsewhere: bool = False
    """Whether another process carries it out."""
    delivered: bool = False
    """Whether its answer was handed to the caller whole."""
    settling: bool = False
    """Whether it has just ended in another process, which will soon note whether that was so."""
    warned: bool = False
    """Whether somebody who asked the same was told that nobody knows."""
    repeats: bool = False
    """Whether it was sent although nobody knew what one before had done."""
    same_input: bool = True
    """Whether it asked the same; else only its key is the same."""
    likeness: Likeness = Likeness.SAME


class NewCall(Struct, frozen=True, kw_only=True, gc=False):
    """What the call in question is."""

    effect: Effect
    on_duplicate: OnDuplicate = OnDuplicate.JOIN
    keyed: bool = False
    """Whether its caller gave an idempotency key."""
    slower_than: float = inf
    """s: an answer that took longer is replayed even if it was delivered."""
    waited: float = 0.0
    """For how many s it has waited for the earlier one."""


def decide_duplicate(
    earlier: EarlierCall | None, asked: NewCall, limits: NeverTwice
) -> DuplicateAction:
    """Return what becomes of a call, with what is known of an earlier one that asked the same."""
    if earlier is None:
        return DuplicateAction.FORWARD
    match earlier.likeness:
        case Likeness.SAME:
            return _decide(earlier, asked, limits)
        case Likeness.OTHERS:
            return _after_anothers(earlier, asked, limits)
        case Likeness.UNTARGETED:
            return _after_untargeted(earlier, asked, limits)


def _after_anothers(earlier: EarlierCall, asked: NewCall, limits: NeverTwice) -> DuplicateAction:
    """Return what becomes of a call that another principal made before: it is never answered from
    that one, and says that it may do the same once more."""
    is_open = earlier.ending is None and asked.on_duplicate is not OnDuplicate.PASS
    if is_open or _decide(earlier, asked, limits) is not DuplicateAction.FORWARD:
        return DuplicateAction.AGAIN
    return DuplicateAction.FORWARD


def _after_untargeted(earlier: EarlierCall, asked: NewCall, limits: NeverTwice) -> DuplicateAction:
    """Return what becomes of a call that was maybe made before: it is neither answered from that one,
    nor made again without a word."""
    verdict = _decide(earlier, asked, limits)
    if verdict in _LEFT_AS_IT_IS:
        return verdict
    may_pass = earlier.warned and asked.effect is not Effect.IRREVERSIBLE
    return DuplicateAction.AGAIN if may_pass else DuplicateAction.UNKNOWN


_LEFT_AS_IT_IS: Final = frozenset(
    {DuplicateAction.FORWARD, DuplicateAction.AGAIN, DuplicateAction.UNKNOWN}
)


def _decide(earlier: EarlierCall, asked: NewCall, limits: NeverTwice) -> DuplicateAction:
    if not earlier.same_input:
        return DuplicateAction.CONFLICT if earlier.began < KEY_LIFE else DuplicateAction.FORWARD
    if earlier.ending is None:
        return _while_it_runs(earlier, asked, limits)
    return _after_its_end(earlier, earlier.ending, asked, limits)


def _while_it_runs(earlier: EarlierCall, asked: NewCall, limits: NeverTwice) -> DuplicateAction:
    if asked.on_duplicate is OnDuplicate.PASS and not asked.keyed:
        return DuplicateAction.FORWARD
    if earlier.cancelled is not None and earlier.cancelled > CANCELLED_LIFE:
        return _given_up(asked)
    if asked.on_duplicate is OnDuplicate.BLOCK:
        return DuplicateAction.BLOCK
    left = earlier.abandoned or earlier.cancelled is not None
    # Identical calls of one step are two calls: a model may well append twice.
    if asked.keyed or left or earlier.began - asked.waited >= limits.join_after:
        return DuplicateAction.JOIN
    # Another process may learn only later that its caller has left, if it is stopped for example.
    return DuplicateAction.WAIT if earlier.elsewhere else DuplicateAction.FORWARD


def _after_its_end(
    earlier: EarlierCall, ending: Ending, asked: NewCall, limits: NeverTwice
) -> DuplicateAction:
    # What waits for another leg has no answer yet, and what did not run is asked anew.
    if ending.status.parked or ending.executed is Executed.NO or ending.retry == RetryClass.SAFE:
        return DuplicateAction.AGAIN if earlier.repeats else DuplicateAction.FORWARD
    dropped = _is_dropped(earlier, ending)
    unknown = dropped or ending.status is Status.UNKNOWN
    if unknown and asked.effect is Effect.IRREVERSIBLE:
        return DuplicateAction.UNKNOWN
    if earlier.settling and not asked.keyed:
        return DuplicateAction.WAIT
    is_past = earlier.ended > (KEY_LIFE if asked.keyed else limits.window)
    if unknown:
        told = is_past or dropped or earlier.warned or earlier.delivered
        return DuplicateAction.AGAIN if told else DuplicateAction.UNKNOWN
    if is_past:
        return DuplicateAction.FORWARD
    slow = earlier.began - earlier.ended > asked.slower_than
    if asked.keyed or slow or not earlier.delivered:
        return DuplicateAction.REPLAY
    return DuplicateAction.FORWARD


def _is_dropped(earlier: EarlierCall, ending: Ending) -> bool:
    """Tell whether a call ended because it was taken back.

    Servers answer what was taken back by an error. It does not say how far the call had come, and is
    no answer to who asks again.
    """
    taken_back = earlier.cancelled is not None and ending.status is Status.ERROR
    return taken_back or ending.kind == ErrorKind.CANCELLED_BY_CALLER


def _given_up(asked: NewCall) -> DuplicateAction:
    """Return what becomes of a call whose caller took the one before back."""
    return DuplicateAction.UNKNOWN if asked.effect is Effect.IRREVERSIBLE else DuplicateAction.AGAIN


LEFT_WHILE_WAITING: Final = Ending(
    status=Status.ERROR,
    phase=Phase.SENT,
    executed=Executed.MAYBE,
    error=ErrorFamily.CANCELLED,
    kind=ErrorKind.CANCELLED_BY_CALLER,
    retry=RetryClass.UNSAFE,
)
"""How a call ended whose caller left while the one that it waited for ran on: that one was sent."""


def replayed_ending(ending: Ending, *, whole: bool) -> Ending:
    """Return how a call ended that was answered from one that ended so; `whole` tells whether its
    answer is still held."""
    retry = ending.retry if whole else RetryClass.NEVER
    return structs.replace(ending, status=Status.REPLAYED, phase=Phase.QUEUED, retry=retry)


def unsent_ending(verdict: DuplicateAction) -> Ending:
    """Return how a call ended that was not sent, for one of the reasons that are no answers.

    A call that waited in vain for an earlier one has the phase of that one.
    """
    match verdict:
        case DuplicateAction.CONFLICT:
            kind, family, executed = ErrorKind.CONFLICT, ErrorFamily.INVALID, Executed.NO
        case DuplicateAction.BLOCK:
            kind, family, executed = ErrorKind.POLICY_BLOCKED, ErrorFamily.BLOCKED, Executed.NO
        case DuplicateAction.LATE:
            kind, family, executed = ErrorKind.RESPONSE_TIMEOUT, ErrorFamily.TIMEOUT, Executed.MAYBE
        case _:
            kind, family, executed = ErrorKind.OUTCOME_UNKNOWN, ErrorFamily.UNKNOWN, Executed.MAYBE
    retry = RetryClass.UNSAFE if executed is Executed.MAYBE else RetryClass.NEVER
    return Ending(
        status=Status.ERROR,
        phase=Phase.SENT if verdict is DuplicateAction.LATE else Phase.QUEUED,
        executed=executed,
        error=family,
        kind=kind,
        retry=retry,
    )


def may_join_guessed_session(
    calls: Mapping[int | str, float], own: Collection[int | str], grace: float
) -> bool:
    """Return whether a call may join an abandoned one of a session that is only guessed.

    `calls` are those of all that look like this caller: by connection, how many seconds ago the latest
    was made. Where any but its `own` connections has made one lately, it may be somebody else's.
    """
    return not any(ago <= grace for connection, ago in calls.items() if connection not in own)


def disconnect_action(
    said: OnDisconnect | None, *, stateless: bool, is_findable: bool = True
) -> OnDisconnect:
    """Return what becomes of a call whose caller is gone; `is_findable`: whether a repeat could join it.

    In the stateless revisions of MCP closing the stream is the cancel (2026-07-28, Streamable HTTP,
    cancellation); before them a disconnect says nothing.
    """
    if said is not None:
        return said
    if stateless:
        # Where no repeat can join the call, to hold its cancel back lets each repeat run to its end.
        return OnDisconnect.GRACE if is_findable else OnDisconnect.CANCEL
    return OnDisconnect.DRAIN
