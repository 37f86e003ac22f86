"""The events of a call and the commands that follow from them, see `exchange.call`."""

from msgspec import Struct

from turnlog.core.classify import Ending
from turnlog.core.kinds import ErrorKind, NoteKind
from turnlog.rules.retry import StopReason

from .duplicates import DuplicateAction, EarlierCall


class Event(Struct, frozen=True):
    """An event: something that happened to a call."""


class Command(Struct, frozen=True):
    """A command: something that the driver must do for a call."""


# -- events: from the driver to the machine ----------------------------------------------------


class Begin(Event, frozen=True):
    """A call that must not happen twice has arrived."""


class LookedUp(Event, frozen=True):
    """Duplicates of the call were looked up."""

    found: tuple[EarlierCall, ...]
    """At most three: of a guessed session, the latest by key or input, the latest of another principal."""


class EarlierCallerChecked(Event, frozen=True):
    """The time in which the earlier call's caller would show that it has abandoned it is over."""


class EarlierEnded(Event, frozen=True):
    """The earlier call has ended; if another process carries it out, it may have ended."""


class ServerGone(Event, frozen=True):
    """The server is gone; the call must not wait for another earlier call."""


class Recorded(Event, frozen=True):
    """The latest intent is on disk, or does not have to be."""

    may_be_gone: bool = False
    """Whether the caller has closed its sending side: it may be gone, or only half-closed."""
    is_repeatable: bool = False
    """Whether the message can be sent again: its whole body is held, and its id can be replaced."""


class NotRecorded(Event, frozen=True):
    """The intent of a retry could not be written."""


class OutcomeSettled(Event, frozen=True):
    """The outcome is on disk, or could not be written: the answer waits for it no longer."""


class Conflicted(Event, frozen=True):
    """The intent was refused: another process has begun a duplicate since the lookup."""


class SlotGranted(Event, frozen=True):
    """The call has got a slot of its concurrency limit."""

    may_be_gone: bool = False


class CallerChecked(Event, frozen=True):
    """The check is over: a caller that is gone would have shown it by now."""


class Judged(Event, frozen=True, kw_only=True):
    """An attempt has ended, by the server's answer or by a failure."""

    number: int
    """Number of the attempt."""
    ending: Ending
    is_own_answer: bool = False
    """Whether turnlog answers in place of the server."""
    retry_after: float | None = None
    """Seconds from `Retry-After`, if the server sent it."""
    has_left: bool = False
    """Whether part of the answer was already sent to the caller."""
    is_held: bool = True
    """Whether the answer can still be withheld from the caller; of a late one whether it can be given."""
    is_stopping: bool = False
    """Whether the proxy is stopping: no new attempt may begin."""
    jitter: float = 0.0
    """Random number in [0, 1), by which the delay of a retry is multiplied where its rule says so."""
    has_retry_left: bool = False
    """Whether the server's quota has a retry left."""


class TimeoutAnswered(Event, frozen=True):
    """The caller was answered with a timeout while the call runs on."""

    ending: Ending


class Left(Event, frozen=True):
    """The caller has disconnected, or its process has ended."""


class Cancelled(Event, frozen=True):
    """The caller cancelled the call; the cancel was forwarded to the server."""


class CancelledLate(Event, frozen=True):
    """The caller cancelled the call while the answer was being sent, or just after, or left without reading it."""

    at_any_time: bool = False
    """Whether it counts however long ago the call ended: a repeat got the answer again, or it was never read."""


class Delivered(Event, frozen=True):
    """The whole answer was sent to a caller."""


class Expired(Event, frozen=True):
    """A time limit was reached."""

    kind: ErrorKind
    can_answer_timeout: bool = False
    """Whether the caller can be answered now while the call runs on."""


class Drained(Event, frozen=True):
    """The time for which a call may run without a caller is over."""


class Woken(Event, frozen=True):
    """The delay before the next attempt is over."""


class Overdue(Event, frozen=True):
    """The next attempt must not begin any more."""

    reason: StopReason
    kind: ErrorKind = ErrorKind.QUEUE_TIMEOUT
    """The error that ends it, if its intent is already written."""


class JoinerCame(Event, frozen=True):
    """Another call has joined: it waits for this one's answer."""


class JoinerLeft(Event, frozen=True):
    """A joined call no longer waits."""

    is_guessed: bool = False
    """Whether its caller has left, and may be the same as this one's: another one may join for a while."""


class ServerAsked(Event, frozen=True):
    """The server has sent a request to the caller."""


class Resumed(Event, frozen=True):
    """The caller has resumed the call's stream on another one."""


class Stopped(Event, frozen=True):
    """The proxy is stopping."""


class Over(Event, frozen=True):
    """The call has no carrier any more; an answer may still come on another stream."""


# -- commands: from the machine to the driver --------------------------------------------------


class LookUp(Command, frozen=True):
    """Look up duplicates; reply with `LookedUp`."""


class CheckEarlierCaller(Command, frozen=True):
    """Check whether the caller has abandoned the earlier call; reply with `EarlierCallerChecked`."""

    place: int
    """Index of the earlier call among those found."""


class Join(Command, frozen=True):
    """Wait for the end of the earlier call; reply with `EarlierEnded`, or `Expired` after `delay` seconds."""

    place: int
    delay: float


class StopWaiting(Command, frozen=True):
    """Stop waiting for the earlier call."""


class Withhold(Command, frozen=True):
    """Do not send the call: record that, and answer its caller as `action` says."""

    action: DuplicateAction
    place: int
    waited: float | None
    """Seconds for which it waited for an earlier call; `None` if it did not."""


class CreditEarlier(Command, frozen=True):
    """Record on the earlier call whether its answer was delivered to this call's caller."""

    delivered: bool


class AppendIntent(Command, frozen=True):
    """Record that attempt `number` begins; reply with `Recorded`, `NotRecorded` or `Conflicted`."""

    number: int
    is_repeat: bool = False
    """Whether an earlier duplicate has an unknown outcome (flag `repeat_of_unknown`)."""


class RetractIntent(Command, frozen=True):
    """Remove the call from the index of duplicates; wake its joiners."""


class Acquire(Command, frozen=True):
    """Wait for a slot of the concurrency limit; reply with `SlotGranted`."""


class Dequeue(Command, frozen=True):
    """Leave the queue for a slot; the attempt is judged as `cancelled_by_caller`."""


class CheckCaller(Command, frozen=True):
    """Check whether the caller is still there; reply with `Left` or `CallerChecked`."""


class Send(Command, frozen=True):
    """Send attempt `number`; with `hold`, hold its answer until it is judged."""

    number: int
    hold: bool


class AppendOutcome(Command, frozen=True):
    """Record the outcome of the latest attempt; reply with `OutcomeSettled` if the answer waits for it."""

    reason: str = ""
    """Why no retry follows, if the attempt failed."""
    is_told: bool = True
    """Whether turnlog's own answer about it goes to the caller."""
    is_late: bool = False
    """Whether the caller had already left."""


class Rest(Command, frozen=True):
    """Spend a retry of the quota, hold the answer and wait `delay` seconds; reply with `Woken` or `Overdue`."""

    delay: float


class RefuseRetry(Command, frozen=True):
    """Count a retry that the server's quota refused."""


class Release(Command, frozen=True):
    """Send the answer to attempt `number` to the caller, if it is still there."""

    number: int
    reason: StopReason | None = None
    """Why an expected retry is not made."""


class Fail(Command, frozen=True):
    """Abort the attempt; it is judged as a failure of this kind."""

    kind: ErrorKind


class AnswerTimeout(Command, frozen=True):
    """Answer the caller with a timeout while the call runs on; reply with `TimeoutAnswered`."""


class CancelAtServer(Command, frozen=True):
    """Cancel the latest attempt at the server."""


class Drop(Command, frozen=True):
    """Stop carrying the call; an open attempt is judged as a failure of this kind."""

    kind: ErrorKind


class Note(Command, frozen=True):
    """Append a note to the log of the call."""

    kind: NoteKind
    on_outcome: bool = False
    """Whether it follows the outcome; otherwise it follows the intent."""


class Arm(Command, frozen=True):
    """Start the drain timer: reply with `Drained` after `delay` seconds, unless rearmed or disarmed."""

    delay: float


class Disarm(Command, frozen=True):
    """Stop the drain timer."""


class Close(Command, frozen=True):
    """Wake everything that waits for the end of the call."""
