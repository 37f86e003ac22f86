"""Why there is no answer, or no whole one."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final, TypeVar

from msgspec import Struct

from turnlog.core.classify import MEANINGS, UNSENT, EarlierAttempts
from turnlog.core.kinds import ErrorKind, Executed, Flag, Phase
from turnlog.core.pins import Provenance
from turnlog.rules.model import Access, Timeouts
from turnlog.rules.policy import Policy
from turnlog.wire.jsonrpc import Message

from .attempt import Ask
from .deadlines import Deadlines

_T = TypeVar("_T")
# To look a member up costs more than to compare it.
_SENDING: Final = Phase.SENDING
_SENT: Final = Phase.SENT
_UNSENT_SAYS: Final = {
    ErrorKind.QUEUE_TIMEOUT: "was not called in time",
    ErrorKind.CIRCUIT_OPEN: "has failed too often, and is left alone for a while",
    ErrorKind.CANCELLED_BY_CALLER: "was not called any more",
    ErrorKind.CONNECT_TIMEOUT: "could not be reached in time",
    ErrorKind.DEADLINE_EXHAUSTED: "could not be reached in time",
}
_SAYS: Final = {
    ErrorKind.RESPONSE_TIMEOUT: "did not answer in time",
    ErrorKind.PROGRESS_TIMEOUT: "was silent for too long",
    ErrorKind.DEADLINE_EXHAUSTED: "did not answer in the time for all attempts",
}

_RULED: Final = frozenset({ErrorKind.UNVERIFIED_PROVENANCE, ErrorKind.POLICY_BLOCKED})
"""Of a call alone: whatever was sent together with it is not to blame."""
_BEFORE: Final = {
    Executed.NO: "the call was not executed",
    Executed.MAYBE: "the call may have been executed by an attempt before",
    Executed.YES: "the call was executed by an attempt before",
}


class Failure(Exception):
    """No answer, or no whole one: raised by `upstream`, caught where it is recorded."""

    def __init__(
        self, kind: ErrorKind, phase: Phase, detail: str, *, retry_after: float | None = None
    ) -> None:
        """`retry_after` is what to wait, in seconds, where that is known."""
        super().__init__(detail)
        self.retry_after = retry_after
        self.kind = kind
        self.phase = phase
        """How far the attempt came."""
        self.detail = detail

    def is_managed(self, policy: Policy) -> bool:
        """Tell whether a rule made turnlog answerable for it: a time limit, or retries."""
        if self.kind in _SAYS:
            return True
        named = policy.retry.on if policy.retry is not None else ()
        return self.kind in named or MEANINGS[self.kind].family in named

    def sentence(self, server: str, past: EarlierAttempts | None = None) -> str:
        """Return what the caller of a tool is told; `past` is what other attempts came to."""
        if self.kind is ErrorKind.UNVERIFIED_PROVENANCE:
            return f"{self.detail}; a rule demands it as pinned, and the call was not sent"
        if self.kind is ErrorKind.POLICY_BLOCKED:
            return f"{self.detail}; the call was not sent"
        if self.phase in UNSENT:
            return f"{self._cause(server)}; {_unsent(past)}"
        ran = past is not None and past.executed is Executed.YES
        executed = _BEFORE[Executed.YES] if ran else "the call may have been executed"
        return f"{self._cause(server)}; {executed}"

    def sentence_without_call(self, server: str) -> str:
        """Return what whoever sent something else than a tool call is told."""
        if self.kind in _RULED:
            return f"{self.detail}; the request beside it was not sent"
        arrived = "was not sent" if self.phase in UNSENT else "may have arrived"
        return f"{self._cause(server)}; the request {arrived}"

    def _cause(self, server: str) -> str:
        if self.phase in UNSENT:
            said = _UNSENT_SAYS.get(self.kind, "could not be reached")
        elif self.kind is ErrorKind.MALFORMED_RESULT:
            said = "sent what is no HTTP"
        else:
            said = _SAYS.get(self.kind, "broke the connection")
        return f"the tool server {server!r} {said}"


def blocked(ask: Ask) -> Failure:
    """Return why a call is not sent that a rule blocks."""
    return _denied(ask) if ask.policy.access is Access.DENY else _unpinned(ask)


def _denied(ask: Ask) -> Failure:
    rule, why = ask.policy.decided_by["access"], ask.policy.why
    said = f"the rule {rule!r} denies calls of {ask.tool!r} of {ask.server!r}"
    return Failure(ErrorKind.POLICY_BLOCKED, Phase.QUEUED, f"{said}: {why}" if why else said)


def _unpinned(ask: Ask) -> Failure:
    tool, pinning = f"{ask.tool!r} of {ask.server!r}", f"`turnlog trust {ask.server}/{ask.tool}`"
    if not ask.is_mcp:
        said = f"{tool} is no MCP tool, and has no definition that could be pinned"
    elif ask.standing.provenance is Provenance.MISMATCH:
        said = f"the definition of {tool} has changed since it was pinned ({pinning} shows how)"
    elif not ask.definition:
        said = f"the definition of {tool} was not seen: list the tools first"
    else:
        said = f"{tool} is not pinned ({pinning} does that)"
    return Failure(ErrorKind.UNVERIFIED_PROVENANCE, Phase.QUEUED, said)


def _unsent(past: EarlierAttempts | None) -> str:
    """Return what happened to a call whose last attempt was not sent."""
    return "the call was not sent" if past is None else _BEFORE[past.executed]


def in_time(
    limits: Timeouts, began: float, since: float, step: Coroutine[None, None, _T]
) -> Coroutine[None, None, _T]:
    """Bound what comes before an attempt is sent: it raises `Failure` where it takes too long.

    `began` is when the call did, `since` when the wait does, on the loop's clock.
    """
    if not limits.bounds_queue:
        return step
    patience = Deadlines(limits, began)
    at, kind = patience.queue_by(since)
    assert at is not None
    return _by(at, step, Failure(kind, Phase.QUEUED, patience.detail(kind)))


async def _by(at: float, step: Coroutine[None, None, _T], failure: Failure) -> _T:
    """Do a step; raise `failure` where it is not done at `at`, on the loop's clock."""
    limit = asyncio.timeout_at(at)
    try:
        async with limit:
            return await step
    except TimeoutError:
        if not limit.expired():
            raise
        raise failure from None


LateReader = Callable[[str, Message, bytes], None]
"""Takes the key of an id as the caller gave it, the answer, and its text."""


# One is made for each call, and a struct takes a third of the time of another class.
class Progress(Struct, eq=False):
    """How far one attempt has come; whoever carries it out moves it on."""

    phase: Phase = Phase.QUEUED
    marks: frozenset[Flag] = frozenset()
    """Flags of what happened on the way."""
    patience: Deadlines | None = None
    """Its time limits; `None` where it has none."""
    time_out: Callable[[Failure], bool] | None = None
    """Tells whether the attempt runs on although its caller's time is over, where it may."""
    late: LateReader | None = None
    """Reads the late answers of a command: those to requests that were given up."""

    @property
    def may_outlive(self) -> bool:
        """Whether the attempt may run on when its caller has given it up."""
        return self.time_out is not None

    def outlives(self, failure: Failure) -> bool:
        """Tell whether the attempt runs on, now that a time limit was reached."""
        return self.time_out is not None and self.time_out(failure)

    def mark(self, flag: Flag) -> None:
        """Note what happened on the way."""
        self.marks |= {flag}

    def sent(self) -> None:
        """Note that the whole request has been handed to the connection."""
        if self.phase is _SENDING:
            self.phase = _SENT
        if self.patience is not None:
            self.patience.sent()
