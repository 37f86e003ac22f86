"""Data and errors of the store: drafts, tickets, filters, rows.

Writing: `submit` a `Draft`, keep the `Ticket`, `await ticket.done()` where the disk must be
waited for. Reading: open a `View`, a consistent snapshot, and close it soon.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol, Self, TypeAlias

from msgspec import Struct

from turnlog.core.commit import Commit, CommitBody, Facts
from turnlog.core.hints import Hint, HintedError
from turnlog.core.kinds import Actor, CommitKind, Phase, Rung, Status
from turnlog.core.lifecycle import Action, Control, SessionStage, Suspension
from turnlog.core.turns import TurnPosition
from turnlog.observe.clock import Clock

ALIAS_SEPARATOR = "\x1f"


class StoreError(HintedError):
    """The store cannot be used. The message says what, where and what to do."""


class StoreAbsent(StoreError):
    """There is no store yet, and nothing in the way of one: a proxy that starts makes it."""


class CopyRefused(StoreError):
    """A copy of the store cannot be made in the place that was named; the store can be used."""


class ProcessIdTaken(StoreError):
    """A process in another pid namespace has this one's id, and LMDB cannot tell the two apart."""

    def __init__(self, message: str, lock: Path) -> None:
        super().__init__(message)
        self.lock = lock
        """LMDB's lock file, which says what ids are taken."""


class StoreFull(StoreError):
    """No room is left: for an intent or a note because the limit or the disk is nearly reached, or for any
    write because the disk is full."""


class Conflict(StoreError):
    """The writer of a note or a claim has not seen the newest commit that it speaks of, `seq`."""

    def __init__(self, message: str, seq: int, hint: Hint | None = None) -> None:
        super().__init__(message, hint)
        self.seq = seq


class TransitionRefused(StoreError):
    """An action is not possible at the present stage of its session; `seq` is the session's head."""

    def __init__(
        self, message: str, *, stage: SessionStage, action: Action | None, seq: int
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.action = action
        self.seq = seq


class LeaseRefused(StoreError):
    """A control operation under a lease that does not hold, or a claim while another holds.

    `fence` is the number of the newest lease, `seq` the session's head.
    """

    def __init__(self, why: HintedError, *, fence: int, seq: int) -> None:
        super().__init__(str(why), why.hint)
        self.fence = fence
        self.seq = seq


class SessionSuspended(StoreError):
    """Calls are refused in the session by now: it was paused or closed since its writer looked."""

    def __init__(self, suspension: Suspension) -> None:
        super().__init__(suspension.detail)
        self.suspension = suspension


Refusal: TypeAlias = Conflict | TransitionRefused | LeaseRefused
"""Why a draft was not placed, although its transaction is on disk."""
REFUSALS: Final = (Conflict, TransitionRefused, LeaseRefused)
"""The same, for `except`."""


class StoreGone(StoreError):
    """The file of a store that is open is not at its place any more: removed, moved, or another one."""


class StoreDamaged(StoreError):
    """A file of the store is not as it was written."""


class StoreClosed(StoreError):
    """The store was closed before the draft reached the disk."""


class Corrupt(StoreError):
    """A record cannot be read. `position` is the global counter where reading stopped."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


def alias(rung: Rung, name: str, principal: str) -> str:
    """Return the alias that `name` is on `rung` for `principal`.

    The name stands first, so that `View.find_sessions` finds it whatever the rest is.
    """
    return f"{name}{ALIAS_SEPARATOR}{rung}{ALIAS_SEPARATOR}{principal}"


class ForkOrigin(Struct, frozen=True, kw_only=True):
    """The commit behind which a fork goes on: its first commit has the next seq, and that one's hash."""

    parent: bytes
    seq: int
    hash: bytes
    turn: int
    step: int
    content: bytes
    """Of the fork's first commit, see `core.live_view.ForkContent`."""


class SessionRef(Struct, kw_only=True, eq=False):
    """A session that may not be on disk yet, as its first caller knows it.

    The store looks the aliases up inside the write transaction of the first draft, so that two
    processes that meet the same name at once end in one session: the first alias that is known
    decides, the others become names of that session too. A ref made with the `candidate` of a
    session that exists means that one.
    """

    candidate: bytes
    """UUIDv7 that the session gets if no alias is known."""
    rung: Rung
    aliases: tuple[str, ...] = ()
    """As `alias` makes them; implicit sessions have none."""
    metadata: dict[str, str] = {}
    id: bytes | None = None
    """Set once the session is on disk."""
    is_logged: bool = False
    """Whether the log has its `session.opened`."""
    origin: ForkOrigin | None = None
    """Where it forks from another session, if it is new."""
    suspension: Suspension | None = None
    """Why calls of tools are refused in it, as its process knows; `None` if they are not."""
    refusals: "SessionRef | None" = None
    """The session that gets the refused calls, if not this one: it was moved to another store."""

    @classmethod
    def existing(cls, session: bytes) -> Self:
        """Return a reference to a session that is on disk."""
        return cls(candidate=session, rung=Rung.IMPLICIT, id=session)


class Blob(Struct, frozen=True, gc=False):
    """Content to keep beside a commit, as redaction left it. `digest`: its sha256, where that is known."""

    data: bytes
    redacted: bool = False
    cut: bool = False
    digest: bytes = b""


class Draft(Struct, kw_only=True, eq=False):
    """A commit that the store is to write, and the ticket for it once it is submitted.

    From `submit` on it belongs to the writer's thread, until the ticket is resolved on the loop; only
    `on_written` and what stands below it are the loop's all the time.
    """

    session: SessionRef
    facts: Facts
    body: CommitBody | None = None
    """The store sets `salt`, and the handle of `blob`."""
    intent: "Ticket | None" = None
    """The intent that this outcome answers, or the commit that a note follows (its seq becomes
    `Link.ref`, its turn is copied). Of an intent: the commit from which its call is answered.
    Without one the store looks the attempt up. If the intent could not be written, it is tried
    again with its outcome, in one transaction."""
    blob: Blob | None = None
    """The content to keep beside it: of an intent the input, of an outcome the output."""
    claims: tuple[bytes, ...] = ()
    """Links of an intent that is not written (`Conflict`) where another writer's commit behind `seen`
    carries one of them."""
    sole_claim: bytes = b""
    """A link of an intent, beside its `claims`, that no other call's commit behind `seen` may carry: not
    even one of the same writer."""
    seen: int | None = None
    """The newest commit that its writer has seen: for a note about a fact (`fact_key`) the seq of its
    session's newest commit, of claims the position of the log's."""
    awaits_session: bool = False
    """Whether the call of this intent is sent only once it is on disk: then it is not written
    (`SessionSuspended`) where the session lets no calls pass by then."""
    expected_head: int | None = None
    """On a control commit, and only there: the seq that must be the session's newest (`Conflict`)."""
    allows_calls: bool = False
    """Whether calls and notes behind `expected_head` are no conflict, but only further control commits."""
    fence: int | None = None
    """The number of the lease on the session that an operator believes to hold (`LeaseRefused`)."""
    target: int | None = None
    """On a rewind: the seq that the session goes back to, which becomes `Link.ref`."""
    names: dict[str, bytes] = {}
    """On a control commit: aliases with the sessions that they lead to from then on."""
    encoded_facts: bytes = b""
    """Set by `submit`, with all below."""
    encoded_body: bytes = b""
    size: int = 0
    """Bytes that it takes while it waits."""
    lazy: bool = False
    """Whether it was submitted without `wait`."""
    commit: Commit | None = None
    """The commit, once its transaction has placed it; what is on disk is `placed`."""
    refused: Refusal | SessionSuspended | None = None
    on_written: Callable[[bool], None] | None = None
    """Called with whether the commit is on disk, as soon as that is known."""
    landed: bool = False
    """Whether the commit is written, maybe after it had failed."""
    waiters: "Sequence[asyncio.Future[None]]" = ()
    error: StoreError | None = None
    """Why it was not written."""

    @property
    def placed(self) -> Commit | None:
        """The commit once its transaction is on disk, else `None`, as `Ticket.placed`."""
        return self.commit if self.landed else None

    async def done(self) -> Commit:
        """Wait until the transaction is on disk, as `Ticket.done`."""
        if not self.landed and self.error is None:
            # Each waits on a future of its own: one that is cancelled must not cancel the others.
            waiter = asyncio.get_running_loop().create_future()
            self.waiters = (*self.waiters, waiter)
            await waiter
        placed = self.placed
        if placed is not None:
            return placed
        raise self.error or StoreError("the draft was not written")


def session_facts(
    kind: CommitKind, actor: Actor, clock: Clock, *, note: str = "", server: str = ""
) -> Facts:
    """Return the facts of a commit that is about a session and no call: it is done when it is written."""
    return Facts(
        kind=kind,
        at=clock.wall(),
        clock=clock.monotonic(),
        actor=actor,
        server=server,
        phase=Phase.DONE,
        status=Status.OK,
        note=note,
    )


class Incoming(Struct, frozen=True, kw_only=True):
    """A session of another store, checked, to be appended to the log byte for byte."""

    session: bytes
    expected: tuple[int, bytes] | None
    """seq and hash of its newest commit here, which the records follow; `None` where it is new."""
    records: Callable[[], Iterable[tuple[bytes, bytes]]]
    """Called for the headers and bodies of all its commits, in order of seq."""
    secret: bytes
    """The secret that its digests are keyed with."""
    aliases: tuple[str, ...] = ()
    handles: Mapping[bytes, bytes] = {}
    """Where the payloads that its bodies name lie here, or the word (`Gone`) for why they are gone."""
    epochs: frozenset[int] = frozenset()
    """Of its commits that are not here yet."""
    control: "Draft | None" = None
    """A control commit that says that it goes on here, or why it does not."""


class Adopted(Struct, frozen=True, kw_only=True):
    """The result of appending a session of another store."""

    seq: int
    """Of its newest commit now, which has this hash."""
    hash: bytes
    commits: int
    """How many were appended as they came."""
    closed: int
    """How many open attempts got the outcome `outcome_unknown`."""
    taken: tuple[str, ...]
    """The names that stay with another session here."""


class FlawKind(StrEnum):
    """Ways in which records of the log can be damaged."""

    UNREADABLE = "unreadable"
    ALTERED = "altered"
    """They can be read, but are not as they were written."""
    MISSING = "missing"
    """They were the newest, and are gone."""


class Flaw(Struct, frozen=True):
    """Records of the log that are not as they were written: positions `first` to `last`."""

    first: int
    last: int
    kind: FlawKind


class Ticket(Protocol):
    """The result of a submitted draft, once it is on disk: the draft itself, or what stands for it later."""

    @property
    def placed(self) -> Commit | None:
        """The commit once its transaction is on disk, else `None`.

        A draft that was on disk before (same session, call, leg, attempt, kind and n) is not
        written again: its ticket is placed at the commit that exists.
        """
        ...

    async def done(self) -> Commit:
        """Wait until the transaction is on disk. Raises `StoreClosed`, `StoreError`, also a `Refusal`.

        A cancelled wait cancels nothing else.
        """
        ...


class SessionRow(Struct, frozen=True, kw_only=True):
    """One session, as `turnlog sessions` lists it."""

    session: bytes
    rung: Rung
    aliases: tuple[str, ...]
    metadata: dict[str, str]
    opened_at: int
    """ns UTC; 0 when the session's first commit cannot be read."""
    first_seq: int
    """0, but for a fork."""
    head_seq: int
    head_hash: bytes
    position: int
    """Of the session's newest commit: the order of `View.sessions`."""
    place: TurnPosition
    stage: SessionStage
    control: Control | None
    """The result of its control commits; `None` for none."""


class Usage(Struct, frozen=True, kw_only=True):
    """Sizes of a store and its limits, in bytes."""

    commits: int
    sessions: int
    log_bytes: int
    blob_bytes: int
    state_bytes: int
    limit: int
    disk_free: int
    rekeyed_at: int
    """When the store's secret was last found to be another one than before, ns UTC; 0 for never."""
    pending: int
    """Calls whose last status is pending, input_required, accepted or unknown; `turnlog status` shows it."""


class Filter(Struct, frozen=True, kw_only=True):
    """Which commits a slice wants. Empty fields do not narrow. Globs as in `fnmatch`."""

    sessions: tuple[bytes, ...] = ()
    after: int | None = None
    """seq, exclusive; needs exactly one session, as `before` does."""
    before: int | None = None
    first_turn: int | None = None
    last_turn: int | None = None
    tool: str = ""
    """A tool's name; with a `/` or a `.` in it also `server/tool` or `server.tool`."""
    server: str = ""
    error: str = ""
    kind: str = ""
    flag: str = ""
    field: str = ""
    """A field of the state that a commit of the attempt says it changed. This and `path` choose what
    is looked at: an attempt may come whose last outcome says otherwise."""
    path: str = ""
    """The name, old or new, of a file that a commit of the attempt says it changed."""
    trace: str = ""
    input: str = ""
    """Text that the recorded input holds, or its summary where no input is kept; in any case."""
    since: int | None = None
    """Wall clock, ns UTC, inclusive."""
    until: int | None = None
    behind: int | None = None
    """Position of an intent, exclusive: where a reader of many pages goes on."""
    ahead_of: int | None = None
