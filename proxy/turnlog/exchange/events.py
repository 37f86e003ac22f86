"""The events of a call and the commands that follow from them, see `exchange.call`."""

from collections.abc import Callable

from msgspec import Struct

from turnlog.core.classify import Ending
from turnlog.core.kinds import ErrorKind, NoteKind
from turnlog.rules.retry import StopReason

from .duplicates import DuplicateAction, EarlierCall


class Event(Struct, frozen=True):
    """Something that happens to a call."""


class Command(Struct, frozen=True):
    """Something that a driver does for a call."""


# -- events: what the driver tells the call ---------------------------------------------------


class Begin(Event, frozen=True):
    """A call that must not happen twice is made."""


class LookedUp(Event, frozen=True):
    """Earlier calls were looked for that are the same."""

    found: tuple[EarlierCall, ...]
    """The guessed one, the latest one by key or input, the latest one of another principal: those that are there."""


class CertaintyCame(Event, frozen=True):
    """It is known, as far as it shows in time, whether the caller of the earlier call has given that up."""


class EarlierEnded(Event, frozen=True):
    """The earlier call has ended, or may have, where another process carries it out."""


class ServerGone(Event, frozen=True):
    """The server is gone, so that no earlier call is waited for any more."""


class Recorded(Event, frozen=True):
    """The latest record is on disk, or need not be waited for."""

    in_doubt: bool = False
    """Whether the caller has closed its side: it may be gone, or only have no more to say."""
    is_repeatable: bool = False
    """Whether the same message can be sent again: its whole body is here, and has an id of its own."""


class NotRecorded(Event, frozen=True):
    """The latest record could not be written."""


class SlotGranted(Event, frozen=True):
    """The call may run beside the others that its rule counts."""

    in_doubt: bool = False


class CallerChecked(Event, frozen=True):
    """The time in which a caller that is gone would have shown it is over."""


class Judged(Event, frozen=True, kw_only=True):
    """It is known how an attempt ended: by the server's answer, or by a failure."""

    number: int
    """Of the attempt."""
    ending: Ending
    ours: bool = False
    """Whether turnlog has to answer in the server's place."""
    retry_after: float | None = None
    """s that the server asked to wait."""
    has_left: bool = False
    """Whether some of the answer has left."""
    is_held: bool = True
    """Whether the answer can still be kept from the caller."""
    is_stopping: bool = False
    """Whether the proxy stops: nothing new begins."""
    dice: float = 0.0
    """In [0, 1): spreads retries."""
    may_retry: Callable[[], bool] = bool
    """Takes one retry out of the server's quota; false where none is left."""


class Told(Event, frozen=True):
    """The caller got turnlog's own answer while the call runs on."""

    ending: Ending


class Left(Event, frozen=True):
    """The caller has closed its connection, or has ended."""


class Cancelled(Event, frozen=True):
    """The caller took the call back, and the server is told."""


class CancelledLate(Event, frozen=True):
    """The caller took the call back when the answer was on its way or had just arrived."""


class Delivered(Event, frozen=True):
    """The whole answer was handed to a caller."""


class Expired(Event, frozen=True):
    """A time limit was reached."""

    kind: ErrorKind
    can_tell: bool = False
    """Whether the caller can be told now, and the call run on."""


class Drained(Event, frozen=True):
    """The time for which a call runs on without its caller is over."""


class Woken(Event, frozen=True):
    """The wait between two attempts is over."""


class Overdue(Event, frozen=True):
    """The attempt that was to follow may not begin any more."""

    reason: StopReason
    kind: ErrorKind = ErrorKind.QUEUE_TIMEOUT
    """How it ends, where its intent is written already."""


class JoinerCame(Event, frozen=True):
    """Another call waits for this one's answer."""


class JoinerLeft(Event, frozen=True):
    """Another call waits no more."""


class ServerAsked(Event, frozen=True):
    """The server asks the caller something."""


class Resumed(Event, frozen=True):
    """Another stream of the caller's goes on with the call's own."""


class Stopped(Event, frozen=True):
    """The proxy stops."""


class Over(Event, frozen=True):
    """Nobody carries the call out any more; an answer may yet come on another stream."""


# -- commands: what the call tells the driver -------------------------------------------------


class LookUp(Command, frozen=True):
    """Look for earlier calls that are the same; answer with `LookedUp`."""


class MakeCertain(Command, frozen=True):
    """Wait until it is known whether the caller has given the earlier call up; answer with `CertaintyCame`."""

    place: int
    """Of the earlier call, among those found."""


class Join(Command, frozen=True):
    """Wait for the end of the earlier call; answer with `EarlierEnded`, or with `Expired` in `delay` seconds."""

    place: int
    delay: float


class StopWaiting(Command, frozen=True):
    """Wait no more for the end of the earlier call."""


class Withhold(Command, frozen=True):
    """Do not send the call: record that, and give its caller what `action` says."""

    action: DuplicateAction
    place: int
    waited: float | None
    """s for which it has waited for an earlier call, if it has."""


class CreditEarlier(Command, frozen=True):
    """Note of the earlier call's answer whether this call's caller has taken it."""

    delivered: bool


class AppendIntent(Command, frozen=True):
    """Record that attempt `number` begins; answer with `Recorded` or `NotRecorded`."""

    number: int
    is_repeat: bool = False
    """Whether nobody knows if an earlier call has had the effect already (flag `repeat_of_unknown`)."""


class Acquire(Command, frozen=True):
    """Wait for a slot among the calls that a rule counts; answer with `SlotGranted`."""


class Dequeue(Command, frozen=True):
    """Leave the queue for a slot; the attempt is judged as `cancelled_by_caller`."""


class Check(Command, frozen=True):
    """Check whether the caller is still there; answer with `Left` or `CallerChecked`."""


class Send(Command, frozen=True):
    """Send attempt `number`; keep its answer from the caller until it is judged, if `hold`."""

    number: int
    hold: bool


class AppendOutcome(Command, frozen=True):
    """Record how the latest attempt ended."""

    reason: str = ""
    """Why no other attempt follows one that failed."""
    is_told: bool = True
    """Whether what turnlog says of it goes to the caller."""
    is_late: bool = False
    """Whether the caller had left before."""


class Rest(Command, frozen=True):
    """Keep the answer from the caller, and wait `delay` seconds; answer with `Woken` or `Overdue`."""

    delay: float


class Release(Command, frozen=True):
    """Pass the answer to attempt `number` on to the caller, if it is still there."""

    number: int
    reason: StopReason | None = None
    """Why the attempt that was to follow is not made."""


class Fail(Command, frozen=True):
    """Abort the attempt; it is judged as a failure of this kind."""

    kind: ErrorKind


class Tell(Command, frozen=True):
    """Answer the caller with a timeout while the call runs on; answer with `Told`."""


class TakeBack(Command, frozen=True):
    """Cancel the latest attempt at the server."""


class Drop(Command, frozen=True):
    """Stop carrying the call out; an attempt that is open then is judged as failed so."""

    kind: ErrorKind


class Note(Command, frozen=True):
    """Append a note to the log of the call."""

    kind: NoteKind
    on_outcome: bool = False
    """Whether it speaks of the answer; else of the attempt that runs."""


class Arm(Command, frozen=True):
    """Answer with `Drained` in `delay` seconds, unless another `Arm` or `Disarm` comes before."""

    delay: float


class Disarm(Command, frozen=True):
    """Answer with `Drained` no more."""


class Close(Command, frozen=True):
    """Wake everything that waits for the end of the call."""
