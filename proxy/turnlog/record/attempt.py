"""The data that is recorded: a call as requested, one attempt of it, and the facts of its answer."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct, structs

from turnlog.core.classify import EarlierAttempts, Ending, ending_of_call, with_attempt
from turnlog.core.commit import Commit, Facts
from turnlog.core.kinds import LOOKUPS, MCP_METHODS, Effect, Flag, Rung, TurnSource
from turnlog.core.pins import UNVERIFIED, PinStatus, Provenance
from turnlog.exchange.call import CallMachine, Commands
from turnlog.exchange.events import AppendOutcome, Event
from turnlog.rules.model import Access, RequiredProvenance
from turnlog.rules.policy import Policy
from turnlog.store.base import SessionRef, Ticket
from turnlog.wire import mcp
from turnlog.wire.jsonrpc import id_key

from .deadlines import Deadlines


class Driver(Protocol):
    """The driver of one call (`engine.call_driver`), as far as recording needs it."""

    is_guarded: bool
    """Whether the call must not happen twice."""
    machine: CallMachine

    def on_judged(self, attempt: "Attempt", *, ours: bool) -> AppendOutcome:
        """Decide what follows the end of an attempt; return what to record of it."""
        ...

    def on_outcome_written(self, *, written: bool) -> None:
        """Release the answer: its outcome is on disk, or will never be."""
        ...

    def feed(self, event: Event) -> Commands:
        """Carry out what follows an event; return it."""
        ...

    def on_delivered(self) -> None:
        """Note that the whole answer was handed to a caller."""
        ...

    async def resumed(self) -> None:
        """End it for the stream that resumes its own, if its caller has left."""
        ...


TOOL_CHARS: Final = 256
"""Longest tool name that is recorded; a caller may send anything."""


class DuplicateLinks(Struct, frozen=True, kw_only=True, gc=False):
    """Keyed digests by which a call that asks the same finds an earlier one; empty for none."""

    same: bytes = b""
    """Of session, principal, target, tool and input."""
    anyone: bytes = b""
    """Of the same without the principal."""
    key: bytes = b""
    """Of principal, target, tool and idempotency key."""
    keyed_input: bytes = b""
    """Of these and the input."""
    told: bytes = b""
    """Of an earlier call: the caller of this one was told that nobody knows what that did."""
    source: bytes = b""
    """Id of an earlier call, whose answer is that of this one: its key stands for that call."""
    before: tuple[bytes, ...] = ()
    """`same` in the sessions that this one replaces, the latest first."""

    @property
    def claims(self) -> tuple[bytes, ...]:
        """Those for which only one process at a time may have a call under way."""
        return tuple(filter(None, (self.key, self.same)))

    @property
    def stored(self) -> tuple[bytes, ...]:
        """All that an intent carries."""
        source = _SOURCE + self.source if self.source else b""
        links = (self.same, self.anyone, self.key, self.keyed_input, self.told, source)
        return tuple(filter(None, links))


_SOURCE: Final = b"answered by\0"


def source_of(stored: Sequence[bytes]) -> bytes:
    """Return the id of the call whose answer is that of the call with these links; empty for none."""
    return next((link.removeprefix(_SOURCE) for link in stored if link.startswith(_SOURCE)), b"")


NO_LINKS: Final = DuplicateLinks()


class GuessedCaller(Struct, frozen=True, gc=False):
    """The caller of a call in an implicit session, as far as it is known."""

    pair: str
    """Credential and client name; empty where it has neither."""
    beside: str
    """Client version and peer address."""
    connection: int | str


_DEMANDED: Final = RequiredProvenance.PINNED
_DENY: Final = Access.DENY
_PINNED: Final = Provenance.PINNED


class Ask(Struct, frozen=True, kw_only=True, gc=False):
    """A call as it was asked for. `arguments` is JSON as it came, cut if `complete` is false."""

    session: SessionRef
    turn_label: str
    turn_source: TurnSource
    call: bytes
    leg: int
    server: str
    tool: str
    method: str
    effect: Effect
    definition: bytes
    arguments: bytes
    complete: bool
    shown: bytes = b""
    """`arguments` as they are recorded, where values of the upstream's URL are left out; else empty."""
    says_all: bool = True
    """Whether `arguments`, where complete, stands for the whole input: else it has no hash."""
    size: int
    flags: tuple[Flag, ...]
    trace: str
    protocol: str
    policy: Policy = Policy()
    """The decisions of the rules for this call."""
    number: int = 1
    """Of the attempt; the first one is 1."""
    past: EarlierAttempts | None = None
    """The sum of the attempts before this one, where they were made in another exchange."""
    standing: PinStatus = UNVERIFIED
    """How the tool's definition stands against turnlog.lock."""
    is_named: bool = False
    """Whether a rule or a trusted annotation says that it changes something."""
    key: str = ""
    """The idempotency key that its caller gave."""
    key_sent: str = ""
    """The idempotency key that goes to its server, which honours it; empty for none."""
    principal: str = ""
    """Keyed digest of what authenticates its caller."""
    target: str = ""
    """Keyed digest of what it is for: calls of other targets are never the same."""
    guess: GuessedCaller | None = None
    """Its caller, where the session is implicit and comes over HTTP."""
    canonical: tuple[str, bytes] | None = None
    """The result of `canonical` for `arguments`, where it is known already."""
    links: DuplicateLinks = NO_LINKS
    seen: int | None = None
    """Position of the log's newest commit when earlier calls were looked for: its intent is not written
    where another process has begun one with a link that it claims since. `None` where it claims none."""
    why: str = ""
    """Why the caller makes the call, as it says itself."""
    client: str = ""
    """The caller's name for itself, without secrets."""
    effect_link: bytes = b""
    """Keyed digest of the effect that it has, as a rule names it; empty where none does."""

    @property
    def is_mcp(self) -> bool:
        """Whether this is a request of MCP, and not of a plain HTTP tool."""
        return self.method in MCP_METHODS

    @property
    def is_call(self) -> bool:
        """Whether this is the call of a tool, and not a read that is only recorded."""
        return self.method not in LOOKUPS

    @property
    def may_be_guarded(self) -> bool:
        """Whether an earlier call may stand for this one (semantics, section 5)."""
        return self.is_named or bool(self.key)

    @property
    def is_blocked(self) -> bool:
        """Whether a rule keeps it from being sent: access is denied, or a pinned definition is
        demanded and this tool has none, or another one."""
        policy = self.policy
        if policy.access is _DENY:
            return True
        return policy.provenance is _DEMANDED and self.standing.provenance is not _PINNED


_EVENT_IDS: Final = 256
"""Most ids of events that are remembered: an agent has read all but the latest."""
BLANK: Final = Ask(
    session=SessionRef(candidate=bytes(16), rung=Rung.IMPLICIT),
    turn_label="",
    turn_source=TurnSource.GAP,
    call=b"",
    leg=0,
    server="",
    tool="",
    method="",
    effect=Effect.UNKNOWN,
    definition=b"",
    arguments=b"",
    complete=True,
    size=0,
    flags=(),
    trace="",
    protocol="",
)
"""A call of which nothing is known: others are made of it by what they say."""


class AnswerFacts(Struct, frozen=True, kw_only=True, gc=False):
    """An answer as far as it is known. `content` is the result as it came, cut if not `complete`."""

    http_status: int = 0
    code: int | None = None
    content: bytes = b""
    complete: bool = True
    digest: bytes = b""
    """sha256 of the whole content; empty where `content` and `rest` are all of it."""
    rest: bytes = b""
    """The part that was cut off from `content`, as far as it is still here."""
    media_type: str = ""
    is_mcp: bool = False
    is_result: bool = False
    """Whether `content` is what the tool gave, and not an error or some other answer."""
    size: int = 0
    flags: tuple[Flag, ...] = ()
    links: tuple[bytes, ...] = ()
    ttl: int | None = None
    """ns that a task lives; `None` where nothing was said, -1 for ever."""
    detail: str = ""
    retry_after: float | None = None
    """s that the server asked to wait."""
    said: str = ""
    """The text that the caller gets from turnlog in place of an answer."""


def following(before: "Attempt") -> Ask:
    """Return what another attempt of the same call asks."""
    ask = before.ask
    flags = ask.flags if Flag.RETRIED in ask.flags else (*ask.flags, Flag.RETRIED)
    # Another process may have begun the same call in between, as this one had not been executed.
    placed = before.intent.placed if before.intent is not None else None
    seen = placed.position if placed is not None and ask.seen is not None else None
    return structs.replace(ask, number=ask.number + 1, flags=flags, seen=seen)


class Attempt(Struct, eq=False):
    """One attempt under way. `intent` is `None` where the store could not take it."""

    ask: Ask
    facts: Facts
    """The facts of the intent."""
    started: int
    """Monotonic clock, ns."""
    waits: bool
    """Whether the disk is waited for: the intent before the first byte leaves, the outcome
    before the answer's last piece is released."""
    is_due: bool = False
    """Whether the intent has to be on disk before it leaves: also where it claims links."""
    intent: Ticket | None = None
    n: int = 0
    """Number of the outcome to come."""
    ended: bool = False
    marks: set[Flag] = set()
    """Flags of what happened on the way."""
    cancelled: bool = False
    """Whether the caller took the call back."""
    caller_id: bytes = b""
    """JSON-RPC id as the caller wrote it."""
    scope: tuple[str, str] = ("", "")
    """Within what its caller's ids are unique: `Request.scope`."""
    kin: str = ""
    """Common to all requests of its client: `Request.kin`."""
    wire_id: bytes = b""
    """Under which the server knows it; empty for the caller's own."""
    patience: Deadlines | None = None
    """Its time limits."""
    past: EarlierAttempts | None = None
    """The sum of the attempts before it; `None` where there was none."""
    driver: Driver | None = None
    """The driver of its call; `None` for requests that are only recorded, and for several in one request."""
    message: bytes = b""
    """The response to it as it came, where it may be given to who asks the same again."""
    amends: bool = False
    """Whether its answer looks like success and is an error: turnlog says so in it."""
    ending: Ending | None = None
    flags: tuple[Flag, ...] = ()
    """Of the outcome."""
    retry_after: float | None = None
    """s that the server asked to wait."""
    outcome: Ticket | None = None
    watch: Callable[[Ending], None] | None = None
    """Called once with how it ended, where its server has a circuit breaker."""
    yields: bool = False
    """Whether the server's answer to an attempt before takes the place of one of turnlog's."""
    reason: str = ""
    """Why no other attempt follows one that failed, where a rule could have wanted it."""
    event_ids: deque[str] | None = None
    """Of the latest events of its stream, behind which another one may go on."""
    preview: str = ""
    """A short form of its input, where the log tells that."""

    @property
    def is_guarded(self) -> bool:
        """Whether its call must not happen twice."""
        return self.driver is not None and self.driver.is_guarded

    @property
    def is_answered(self) -> bool:
        """Whether its caller has got an answer already, and another outcome is to come."""
        return self.n > 0

    @property
    def overall(self) -> Ending | None:
        """How its call ended, if this attempt's answer is the caller's; `None` before it has ended."""
        ending, past = self.ending, self.past
        return ending if ending is None or past is None else ending_of_call(ending, past)

    @property
    def so_far(self) -> EarlierAttempts:
        """The sum of the attempts of its call up to this one, which has ended."""
        assert self.ending is not None
        return with_attempt(self.past, self.ending)

    @property
    def caller_key(self) -> str:
        """The caller's id, as ids are compared."""
        return id_key(self.caller_id)

    def is_of(self, scope: tuple[str, str], kin: str, id_key: str) -> bool:
        """Return whether it is for the request that this client has given the id with this key."""
        is_client = self.scope == scope or (kin != "" and self.kin == kin)
        return is_client and self.caller_key == id_key

    @property
    def cancellation(self) -> bytes:
        """The message that takes it back (handshake revisions)."""
        return mcp.cancellation(self.wire_id or self.caller_id)

    def numbered(self, event_id: str) -> None:
        """Remember the id of an event of its stream."""
        if self.event_ids is None:
            self.event_ids = deque(maxlen=_EVENT_IDS)
        self.event_ids.append(event_id)

    def tell(self, ending: Ending) -> None:
        """Stop its timers, and report how it ended to the circuit breaker."""
        if self.patience is not None and self.patience.runs:
            self.patience.close()
        if self.watch is not None:
            self.watch(ending)

    def shrink(self) -> None:
        """Drop the input, which is in the store, unless a rule will look at it."""
        ask = self.ask
        arguments, shown = (ask.arguments, ask.shown) if ask.policy.uses_arguments else (b"", b"")
        self.ask = structs.replace(ask, arguments=arguments, shown=shown, canonical=None)
        self.intent = _settled(self.intent)

    def retire(self) -> None:
        """Drop all that mattered only while it was in flight: what guards its call may be kept for long.

        Another answer may still come."""
        self.shrink()
        self.message, self.event_ids = b"", None
        if self.ended:
            self.outcome = _settled(self.outcome)
            self.patience = self.watch = None


def _settled(ticket: Ticket | None) -> Ticket | None:
    """Return a ticket for the same commit that holds no draft, once it is on disk."""
    placed = ticket.placed if ticket is not None else None
    return StoredTicket(placed) if placed is not None else ticket


class StoredTicket:
    """A ticket for a commit that has long been on disk."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit

    @property
    def placed(self) -> Commit:
        """The commit."""
        return self._commit

    @property
    def more(self) -> None:
        """Nothing was appended with it."""
        return

    async def done(self) -> Commit:
        """Return the commit at once."""
        return self._commit
