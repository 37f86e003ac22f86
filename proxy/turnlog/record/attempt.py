"""The data that is recorded: a call as requested, and one attempt of it."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct, structs

from turnlog.core.classify import EarlierAttempts, Ending, ending_of_call, with_attempt
from turnlog.core.commit import ANSWERED_BY, EFFECT_BEFORE, Commit, Facts
from turnlog.core.kinds import (
    LOOKUPS,
    MCP_METHODS,
    Effect,
    ErrorKind,
    Flag,
    Phase,
    Rung,
    TurnSource,
)
from turnlog.core.lifecycle import Suspension
from turnlog.core.pins import UNCHANGED, UNVERIFIED, PinStatus, Provenance, ServerStatus
from turnlog.exchange.call import CallMachine, Commands
from turnlog.exchange.events import AppendOutcome, Event
from turnlog.provenance.values import Inputs
from turnlog.provenance.verdict import NO_INPUTS, ProvenanceVerdict, verdict
from turnlog.rules.model import Access, RequiredProvenance, Unmet
from turnlog.rules.policy import NO_DEMAND, Policy
from turnlog.store.base import SessionRef, Ticket
from turnlog.wire import mcp
from turnlog.wire.jsonrpc import id_key
from turnlog.wire.message import NO_CHECKS, ResultChecks

from .deadlines import Deadlines
from .errors import Failure


class Driver(Protocol):
    """The driver of one call (`engine.call_driver`), as far as recording needs it."""

    is_guarded: bool
    """Whether the call must not happen twice."""
    machine: CallMachine

    def on_judged(self, attempt: "Attempt", *, is_own_answer: bool) -> AppendOutcome:
        """Decide what follows the end of an attempt; return the outcome to record."""
        ...

    def on_outcome_settled(self) -> None:
        """Release the answer: its outcome is on disk, or could not be written."""
        ...

    def may_give_late(self, attempt: "Attempt") -> bool:
        """Return whether a late answer to an attempt may go to the caller, because the call is retried."""
        ...

    def on_late_answer(self, late: "Attempt") -> None:
        """Release a late answer to the caller, if it has settled the call in place of a retry."""
        ...

    def feed(self, event: Event) -> Commands:
        """Feed an event to the machine, carry out its commands, and return them."""
        ...

    def on_delivered(self) -> None:
        """Mark the whole answer as delivered to a caller."""
        ...

    async def resumed(self) -> None:
        """End the call if its caller has left: another request resumes its stream."""
        ...


TOOL_CHARS: Final = 256
"""Longest tool name that is recorded: callers can send names of any length."""


class KnownServer(Protocol):
    """A server, as far as its identity is known (`engine.tools.server_identities`)."""

    @property
    def status(self) -> ServerStatus:
        """Its identity compared with turnlog.lock."""
        ...


class DuplicateLinks(Struct, frozen=True, kw_only=True, gc=False):
    """The keyed digests that duplicates share, by which the duplicate index finds them; empty for none."""

    same: bytes = b""
    """Digest of session, principal, target, tool and input."""
    anyone: bytes = b""
    """Digest of the same without the principal."""
    key: bytes = b""
    """Digest of principal, target, tool and idempotency key."""
    keyed_input: bytes = b""
    """Digest of these and the input."""
    told: bytes = b""
    """Link of an earlier call with an unknown outcome, which this call's caller was told of."""
    source: bytes = b""
    """Id of the earlier call that this one was answered from; this call's key leads to it."""
    passed: bytes = b""
    """Id of the earlier call beside or after which this one is made; that call counts if this one is not sent."""
    effect: bytes = b""
    """Digest of the session's family and the effect, if the session has other branches."""
    effect_before: bytes = b""
    """Id of an earlier call with this effect on the same branch."""
    choice: bytes = b""
    """Link of the choice by which this call is sent, although another branch had its effect: only one call
    may carry it, whichever process makes it."""
    diverged: bytes = b""
    """Link of the call with which the replay of its session stops."""
    before: tuple[bytes, ...] = ()
    """`same` for each session that this one has replaced, the latest first."""
    elsewhere: tuple[tuple[bytes, bytes], ...] = ()
    """`key` and `keyed_input` as made for sessions whose digests have another secret."""

    @property
    def claims(self) -> tuple[bytes, ...]:
        """The links for which only one process at a time may have a running call."""
        keys = (self.key, *(key for key, _ in self.elsewhere))
        return tuple(filter(None, (*keys, self.same, self.effect)))

    @property
    def stored(self) -> tuple[bytes, ...]:
        """All links that are written with the intent."""
        source = ANSWERED_BY + self.source if self.source else b""
        passed = PASSED + self.passed if self.passed else b""
        before = EFFECT_BEFORE + self.effect_before if self.effect_before else b""
        calls = (self.same, self.anyone, self.key, self.keyed_input, self.told)
        own = self.effect, source, passed, before, self.choice, self.diverged
        return tuple(filter(None, (*calls, *own)))


PASSED: Final = b"made behind\0"
"""What the link begins with that holds the id of the call before."""


def source_of(stored: Sequence[bytes]) -> bytes:
    """Return the id of the call that the call with these links was answered from; empty for none."""
    return _call_behind(ANSWERED_BY, stored)


def passed_by(stored: Sequence[bytes]) -> bytes:
    """Return the id of the earlier call that counts if the call with these links was not sent."""
    return _call_behind(PASSED, stored)


def _call_behind(prefix: bytes, stored: Sequence[bytes]) -> bytes:
    return next((link.removeprefix(prefix) for link in stored if link.startswith(prefix)), b"")


NO_LINKS: Final = DuplicateLinks()


class InputGate(Struct, frozen=True, kw_only=True, gc=False):
    """Reasons from the sources of a call's inputs, by which rules refuse it or its success; empty for none."""

    tainted: str = ""
    """Why it is refused: its inputs carry values of tainted outputs."""
    unsourced: str = ""
    """Why it is refused: its inputs were never seen before."""
    surfaced: str = ""
    """Why its success is an error: its inputs were never seen before."""


NO_GATE: Final = InputGate()


class GuessedCaller(Struct, frozen=True, gc=False):
    """The known properties of the caller of a call in an implicit session."""

    pair: str
    """Credential and client name; empty where it has neither."""
    beside: str
    """Client version and peer address."""
    connection: int | str


class Ask(Struct, frozen=True, kw_only=True, gc=False):
    """A call as requested. `arguments` is the JSON as received, truncated if not `complete`."""

    session: SessionRef
    turn_label: str = ""
    turn_source: TurnSource = TurnSource.GAP
    call: bytes
    leg: int = 0
    server: str
    tool: str
    method: str
    effect: Effect
    definition: bytes = b""
    arguments: bytes
    complete: bool = True
    shown: bytes = b""
    """`arguments` as recorded, if values from the upstream's URL are left out of them; else empty."""
    says_all: bool = True
    """Whether `arguments`, if complete, is the whole input; if not, the input has no hash."""
    size: int = 0
    flags: tuple[Flag, ...] = ()
    trace: str = ""
    protocol: str = ""
    policy: Policy = Policy()
    """The decisions of the rules for this call."""
    number: int = 1
    """Number of the attempt, from 1."""
    past: EarlierAttempts | None = None
    """The combined result of earlier attempts, if they were made in another exchange."""
    standing: PinStatus = UNVERIFIED
    """The tool's definition compared with turnlog.lock."""
    known_server: KnownServer | None = None
    """Its server, whose identity may turn out to be another while the call runs."""
    is_named: bool = False
    """Whether a rule or a trusted annotation names it as a write."""
    key: str = ""
    """The idempotency key from its caller."""
    key_sent: str = ""
    """The idempotency key sent to its server, if the server honours keys; empty for none."""
    principal: str = ""
    """Keyed digest of its caller's credentials."""
    target: str = ""
    """Keyed digest of its target; calls of different targets are never duplicates."""
    guess: GuessedCaller | None = None
    """Its caller, if the session is implicit and over HTTP."""
    canonical: tuple[str, bytes] | None = None
    """The result of `canonical(arguments)`, if already computed."""
    links: DuplicateLinks = NO_LINKS
    seen: int | None = None
    """Position of the log's newest commit at the lookup of duplicates; `None` if it claims no link.

    The store refuses its intent if another process has since begun a call with a link that it claims."""
    refused_at: int | None = None
    """`seen` of the intent that the store has refused, if the call was looked up again for that."""
    why: str = ""
    """The reason that the caller gives for the call."""
    client: str = ""
    """The client's own name, with secrets removed."""
    suspension: Suspension | None = None
    """Why calls are refused in its session, if they are."""
    effect_link: bytes = b""
    """Keyed digest of the effect that a rule names for it; empty for none."""
    replays: bool = False
    """Whether its session replays the record of its parent."""
    gate: InputGate = NO_GATE
    """What rules make of the sources of its inputs."""
    branch_refusal: str = ""
    """Why it is not sent because of the branches of its session: the record that the session replays does not
    answer it, or it is not alone in its request and another branch had its effect. Empty if it may be sent."""
    inputs: Inputs | None = None
    """Where the values in its arguments came from, if that was looked up already."""

    @property
    def is_mcp(self) -> bool:
        """Whether this is an MCP request, and not one of a plain HTTP tool."""
        return self.method in MCP_METHODS

    @property
    def is_call(self) -> bool:
        """Whether this is a tool call, and not a lookup, which is only recorded."""
        return self.method not in LOOKUPS

    @property
    def may_be_guarded(self) -> bool:
        """Whether an earlier call may be joined or replayed for this one."""
        return self.is_named or bool(self.key) or self.replays

    @property
    def is_blocked(self) -> bool:
        """Whether its session is paused or closed, or a rule forbids it: access is denied, or a pinned
        definition is required and this tool's definition is not pinned or differs."""
        policy = self.policy
        if policy.access is Access.DENY or self.suspension is not None or self.branch_refusal:
            return True
        if self.gate.tainted or self.gate.unsourced:
            return True
        return policy.provenance is not NO_DEMAND and self.is_unpinned(Unmet.BLOCK)

    @property
    def server_status(self) -> ServerStatus:
        """The identity of its server, compared with turnlog.lock."""
        return self.known_server.status if self.known_server is not None else UNCHANGED

    def verdict(
        self, checks: ResultChecks = NO_CHECKS, inputs: Inputs | None = None
    ) -> ProvenanceVerdict:
        """Return the provenance of the call; without `inputs` by those that were looked up for a rule."""
        looked_up = inputs or self.inputs or NO_INPUTS
        return verdict(self.standing.provenance, self.server_status, checks, looked_up)

    def is_unpinned(self, then: Unmet) -> bool:
        """Return whether a rule demands a pinned tool with this consequence, and the tool is not as pinned, or
        its server is not."""
        demand = self.policy.provenance
        if demand.tool is not RequiredProvenance.PINNED or demand.then is not then:
            return False
        return self.standing.provenance is not Provenance.PINNED or bool(self.server_status.changes)

    @property
    def shortfall(self) -> str:
        """Why its success is an error, by its tool or its inputs; empty for nothing."""
        return _why_unpinned(self) if self.is_unpinned(Unmet.SURFACE) else self.gate.surfaced


_EVENT_IDS: Final = 256
"""Bound of the event ids that are kept: a client resumes from one of the latest."""
BLANK: Final = Ask(
    session=SessionRef(candidate=bytes(16), rung=Rung.IMPLICIT),
    call=b"",
    server="",
    tool="",
    method="",
    effect=Effect.UNKNOWN,
    arguments=b"",
)
"""The template of all calls, with nothing known."""


def suspended(ask: Ask, suspension: Suspension) -> Ask:
    """Return a call of a session in which calls are refused."""
    session = ask.session.refusals or ask.session
    return structs.replace(ask, suspension=suspension, session=session)


def blocked(ask: Ask) -> Failure:
    """Return why a call is not sent that its session or a rule blocks."""
    if ask.suspension is not None:
        return refusal_of(ask.suspension)
    if ask.branch_refusal:
        return Failure(ErrorKind.POLICY_BLOCKED, Phase.QUEUED, ask.branch_refusal)
    if ask.policy.access is Access.DENY:
        return _denied(ask)
    if ask.gate.tainted:
        return Failure(ErrorKind.POLICY_BLOCKED, Phase.QUEUED, ask.gate.tainted)
    if ask.is_unpinned(Unmet.BLOCK):
        return Failure(ErrorKind.UNVERIFIED_PROVENANCE, Phase.QUEUED, _why_unpinned(ask))
    failure = Failure(ErrorKind.UNVERIFIED_PROVENANCE, Phase.QUEUED, ask.gate.unsourced)
    failure.unmet_demand = "a rule demands that each was seen before or declared"
    return failure


def refusal_of(suspension: Suspension) -> Failure:
    """Return why a call is not sent whose session lets no calls pass."""
    failure = Failure(ErrorKind.SESSION_UNAVAILABLE, Phase.QUEUED, suspension.detail)
    failure.is_final = suspension.is_final
    return failure


def _denied(ask: Ask) -> Failure:
    rule, why = ask.policy.decided_by["access"], ask.policy.why
    said = f"the rule {rule!r} denies calls of {ask.tool!r} of {ask.server!r}"
    return Failure(ErrorKind.POLICY_BLOCKED, Phase.QUEUED, f"{said}: {why}" if why else said)


def _why_unpinned(ask: Ask) -> str:
    tool, pinning = f"{ask.tool!r} of {ask.server!r}", f"`turnlog trust {ask.server}/{ask.tool}`"
    if not ask.is_mcp:
        return f"{tool} is no MCP tool, and has no definition that could be pinned"
    if ask.standing.provenance is Provenance.MISMATCH:
        return f"the definition of {tool} has changed since it was pinned ({pinning} shows how)"
    if not ask.definition:
        return f"the definition of {tool} was not seen: list the tools first"
    if (changes := ask.server_status.changes) and ask.standing.provenance is Provenance.PINNED:
        parts, shows = ", ".join(changes), f"`turnlog trust {ask.server}` shows how"
        return f"the server {ask.server!r} has changed since it was pinned: {parts} ({shows})"
    return f"{tool} is not pinned ({pinning} does that)"


def following(before: "Attempt") -> Ask:
    """Return the call for its next attempt."""
    ask = before.ask
    flags = ask.flags if Flag.RETRIED in ask.flags else (*ask.flags, Flag.RETRIED)
    # Between two attempts another process may begin a duplicate, if the failed one was not executed.
    placed = before.intent.placed if before.intent is not None else None
    seen = placed.position if placed is not None and ask.seen is not None else None
    number, inputs = ask.number + 1, before.inputs
    return structs.replace(ask, number=number, flags=flags, seen=seen, inputs=inputs)


class Attempt(Struct, eq=False):
    """One attempt of a call. `intent` is `None` if the store could not take it."""

    ask: Ask
    facts: Facts
    """The facts of the intent."""
    started: int
    """Monotonic clock, ns."""
    waits: bool
    """Whether the intent must be on disk before the first byte leaves, and the outcome before the
    answer's last piece is released."""
    is_due: bool = False
    """Whether the intent must be on disk before it is sent: if `waits`, or if it claims links."""
    intent: Ticket | None = None
    n: int = 0
    """Number of the next outcome, from 0."""
    ended: bool = False
    marks: set[Flag] = set()
    """Flags set while it ran."""
    caller_id: bytes = b""
    """JSON-RPC id as the caller wrote it."""
    scope: tuple[str, str] = ("", "")
    """The scope in which its caller's ids are unique: `Request.scope`."""
    kin: str = ""
    """Common to all requests of its client: `Request.kin`."""
    wire_id: bytes = b""
    """JSON-RPC id sent to the server; empty if that is the caller's own."""
    deadlines: Deadlines | None = None
    """Its time limits."""
    past: EarlierAttempts | None = None
    """The combined result of the attempts before it; `None` if there were none."""
    driver: Driver | None = None
    """The driver of its call; `None` once the call is over."""
    message: bytes = b""
    """The response as received, if it may be replayed to a duplicate."""
    amends: bool = False
    """Whether its answer looks like success but counts as an error, so that turnlog amends it."""
    ending: Ending | None = None
    flags: tuple[Flag, ...] = ()
    """Flags of the outcome."""
    retry_after: float | None = None
    """Seconds from the server's `Retry-After`."""
    outcome: Ticket | None = None
    watch: Callable[[Ending], None] | None = None
    """Called once with its ending, if its server has a circuit breaker."""
    yields: bool = False
    """Whether the server's answer to an earlier attempt replaces turnlog's own answer to this one."""
    reason: str = ""
    """Why no retry follows, if it failed and a rule retries such failures."""
    event_ids: deque[str] | None = None
    """Ids of the latest events of its stream, from which a client may resume it."""
    preview: str = ""
    """A short form of its input, if the log shows content."""
    inputs: Inputs | None = None
    """Where the values in its arguments came from; `None` until they are looked up."""
    verdict: ProvenanceVerdict | None = None
    """Its provenance; `None` until its outcome is drafted."""

    @property
    def is_guarded(self) -> bool:
        """Whether its call must not happen twice."""
        return self.driver is not None and self.driver.is_guarded

    @property
    def is_cancelled(self) -> bool:
        """Whether its caller cancelled the call while the attempt was open."""
        return self.driver is not None and self.driver.machine.cancelled_at is not None

    def cause(self, kind: ErrorKind) -> ErrorKind:
        """Return the kind to record of its failure: if its caller had cancelled before, it is a cancel."""
        return kind if self.driver is None else self.driver.machine.cause(kind)

    @property
    def is_answered(self) -> bool:
        """Whether its caller already has an answer, and another outcome may follow."""
        return self.n > 0

    @property
    def overall(self) -> Ending | None:
        """The ending of its call if this attempt's answer goes to the caller; `None` before it has ended."""
        ending, past = self.ending, self.past
        return ending if ending is None or past is None else ending_of_call(ending, past)

    @property
    def so_far(self) -> EarlierAttempts:
        """The combined result of the call's attempts up to this one, which must have ended."""
        assert self.ending is not None
        return with_attempt(self.past, self.ending)

    @property
    def caller_key(self) -> str:
        """The caller's id in the form in which ids are compared."""
        return id_key(self.caller_id)

    def is_of(self, scope: tuple[str, str], kin: str, id_key: str) -> bool:
        """Return whether it belongs to this client's request with this id."""
        is_client = self.scope == scope or (kin != "" and self.kin == kin)
        return is_client and self.caller_key == id_key

    @property
    def cancellation(self) -> bytes:
        """The notification that cancels it (handshake revisions)."""
        return mcp.cancellation(self.wire_id or self.caller_id)

    def numbered(self, event_id: str) -> None:
        """Remember the id of an event of its stream."""
        if self.event_ids is None:
            self.event_ids = deque(maxlen=_EVENT_IDS)
        self.event_ids.append(event_id)

    def tell(self, ending: Ending) -> None:
        """Stop its timers, and report its ending to the circuit breaker."""
        if self.deadlines is not None and self.deadlines.runs:
            self.deadlines.close()
        if self.watch is not None:
            self.watch(ending)

    def shrink(self) -> None:
        """Release the input, which is in the store, unless a rule still needs it."""
        ask = self.ask
        arguments, shown = (ask.arguments, ask.shown) if ask.policy.uses_arguments else (b"", b"")
        self.ask = structs.replace(ask, arguments=arguments, shown=shown, canonical=None)
        self.intent = _settled(self.intent)

    def retire(self) -> None:
        """Release what is needed only in flight: a guarded call may stay in memory for long.

        It can still take another answer."""
        self.shrink()
        self.message, self.event_ids = b"", None
        if self.ended:
            self.outcome = _settled(self.outcome)
            self.deadlines = self.watch = None


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

    async def done(self) -> Commit:
        """Return the commit at once."""
        return self._commit
