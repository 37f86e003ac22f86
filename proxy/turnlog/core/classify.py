"""Say how an attempt ended: status, kind of error, whether the tool's work may have happened, and
whether the call may be repeated.

One pure table (semantics, section 2). Transport, protocol and tool failures stay apart: each kind
belongs to one family, and `executed` is an axis of its own.
"""

from typing import Final

from msgspec import Struct, structs

from .commit import Facts
from .kinds import Effect, ErrorFamily, ErrorKind, Executed, Phase, RetryClass, Status


class Ending(Struct, frozen=True, kw_only=True, gc=False):
    """How an attempt ended. `error`, `kind` and `retry` are empty for success."""

    status: Status
    phase: Phase
    executed: Executed
    error: str = ""
    kind: str = ""
    retry: str = ""


class EarlierAttempts(Struct, frozen=True, kw_only=True, gc=False):
    """What the attempts of a call have come to so far."""

    attempts: int
    """How many there were."""
    executed: Executed
    """The most that one of them came to."""
    retry: RetryClass
    """The strictest of their classes."""
    unknown: bool
    """Whether one of them ended with nobody knowing what it did."""


class KindMeaning(Struct, frozen=True):
    """What a kind means once a request has been sent, before its effect is known."""

    family: ErrorFamily
    base: RetryClass
    executed: Executed


_F, _K, _R, _X = ErrorFamily, ErrorKind, RetryClass, Executed
MEANINGS = {
    _K.QUEUE_TIMEOUT: KindMeaning(_F.TIMEOUT, _R.SAFE, _X.NO),
    _K.CONNECT_TIMEOUT: KindMeaning(_F.TIMEOUT, _R.SAFE, _X.NO),
    _K.RESPONSE_TIMEOUT: KindMeaning(_F.TIMEOUT, _R.UNSAFE, _X.MAYBE),
    _K.PROGRESS_TIMEOUT: KindMeaning(_F.TIMEOUT, _R.UNSAFE, _X.MAYBE),
    _K.DEADLINE_EXHAUSTED: KindMeaning(_F.TIMEOUT, _R.UNSAFE, _X.MAYBE),
    _K.CONNECT_FAILED: KindMeaning(_F.CONNECTION, _R.SAFE, _X.NO),
    _K.CONNECTION_LOST: KindMeaning(_F.CONNECTION, _R.UNSAFE, _X.MAYBE),
    # A 503 can follow the payment.
    _K.UPSTREAM_UNAVAILABLE: KindMeaning(_F.CONNECTION, _R.UNSAFE, _X.MAYBE),
    _K.CIRCUIT_OPEN: KindMeaning(_F.CONNECTION, _R.SAFE, _X.NO),
    _K.RATE_LIMITED: KindMeaning(_F.RATE_LIMITED, _R.SAFE, _X.NO),
    _K.UNAUTHENTICATED: KindMeaning(_F.AUTH, _R.NEVER, _X.NO),
    _K.PERMISSION_DENIED: KindMeaning(_F.AUTH, _R.NEVER, _X.NO),
    _K.INVALID_REQUEST: KindMeaning(_F.INVALID, _R.NEVER, _X.NO),
    _K.TOOL_NOT_FOUND: KindMeaning(_F.INVALID, _R.NEVER, _X.NO),
    _K.NOT_FOUND: KindMeaning(_F.INVALID, _R.NEVER, _X.NO),
    _K.CONFLICT: KindMeaning(_F.INVALID, _R.IF_IDEMPOTENT, _X.MAYBE),
    _K.TOOL_FAILED: KindMeaning(_F.TOOL_ERROR, _R.NEVER, _X.MAYBE),
    _K.UPSTREAM_INTERNAL: KindMeaning(_F.TOOL_ERROR, _R.UNSAFE, _X.MAYBE),
    _K.NULL_RESULT: KindMeaning(_F.NULL_RESULT, _R.UNSAFE, _X.YES),
    _K.MALFORMED_RESULT: KindMeaning(_F.MALFORMED_RESULT, _R.UNSAFE, _X.MAYBE),
    _K.RESULT_TOO_LARGE: KindMeaning(_F.MALFORMED_RESULT, _R.NEVER, _X.YES),
    _K.UNVERIFIED_PROVENANCE: KindMeaning(_F.UNVERIFIED, _R.NEVER, _X.MAYBE),
    _K.POLICY_BLOCKED: KindMeaning(_F.BLOCKED, _R.NEVER, _X.NO),
    _K.SESSION_UNAVAILABLE: KindMeaning(_F.SESSION, _R.SAFE, _X.NO),
    _K.SESSION_LOST: KindMeaning(_F.SESSION, _R.SAFE, _X.NO),
    _K.CANCELLED_BY_CALLER: KindMeaning(_F.CANCELLED, _R.UNSAFE, _X.MAYBE),
    _K.OUTCOME_UNKNOWN: KindMeaning(_F.UNKNOWN, _R.UNSAFE, _X.MAYBE),
}
UNSENT = frozenset({Phase.QUEUED, Phase.CONNECTING})
"""Phases in which nothing has left yet."""

_CODES: dict[int | None, ErrorKind] = {
    -32700: _K.INVALID_REQUEST,
    -32600: _K.INVALID_REQUEST,
    -32601: _K.TOOL_NOT_FOUND,
    -32602: _K.INVALID_REQUEST,
    -32603: _K.UPSTREAM_INTERNAL,
    # MCP 2026-07-28: header mismatch, missing capability, unsupported version.
    -32020: _K.INVALID_REQUEST,
    -32021: _K.INVALID_REQUEST,
    -32022: _K.INVALID_REQUEST,
    # MCP 2025-11-25, URL elicitation required: nothing ran, and the client makes the call again.
    -32042: _K.INVALID_REQUEST,
    -32800: _K.CANCELLED_BY_CALLER,
}
"""Kinds of JSON-RPC errors (JSON-RPC 2.0 section 5.1; MCP); any other is `upstream_internal`."""
_STATUSES = {
    401: _K.UNAUTHENTICATED,
    403: _K.PERMISSION_DENIED,
    404: _K.NOT_FOUND,
    408: _K.RESPONSE_TIMEOUT,
    409: _K.CONFLICT,
    410: _K.NOT_FOUND,
    412: _K.CONFLICT,
    429: _K.RATE_LIMITED,
    502: _K.UPSTREAM_UNAVAILABLE,
    503: _K.UPSTREAM_UNAVAILABLE,
    504: _K.RESPONSE_TIMEOUT,
}
"""Kinds of HTTP statuses (RFC 9110 section 15); any other of 4xx is `invalid_request`, of 5xx
`upstream_internal`."""
_EXECUTED = tuple(Executed)
"""From the least to the most."""
_RETRIES = tuple(RetryClass)
"""From the most free to the strictest."""
_CONFLICTS = frozenset({409, 412})
_OF_TRANSPORT = frozenset({401, 403, 408, 429, 502, 503, 504})
"""Statuses that say more than the body does."""
_SAME_AGAIN = frozenset({307, 308})
"""Redirects that ask for the same request elsewhere (RFC 9110 sections 15.4.8 and 15.4.9)."""
_NOT_MODIFIED = 304
_OK: Final = Status.OK
_SUCCESS: Final = Ending(status=_OK, phase=Phase.DONE, executed=Executed.YES)


def failed(kind: ErrorKind, phase: Phase, effect: Effect, *, answered: bool = False) -> Ending:
    """Return the ending of an attempt that failed so, having come to `phase`.

    `answered` tells whether the upstream answered at all: then the status is never `unknown`.
    """
    meaning = MEANINGS[kind]
    executed = Executed.NO if phase in UNSENT else meaning.executed
    open_ended = not answered and executed is Executed.MAYBE and effect is not Effect.READ
    return Ending(
        status=Status.UNKNOWN if open_ended else Status.ERROR,
        phase=phase,
        executed=executed,
        error=meaning.family,
        kind=kind,
        retry=retry_class(kind, phase, effect),
    )


def retry_class(kind: ErrorKind, phase: Phase, effect: Effect) -> RetryClass:
    """Return whether a call that failed so may be repeated. An unknown effect counts as a write."""
    base = MEANINGS[kind].base
    if base is RetryClass.NEVER:
        return base
    if phase in UNSENT or effect is Effect.READ:
        return RetryClass.SAFE
    match base, effect:
        case RetryClass.UNSAFE, Effect.IDEMPOTENT_WRITE:
            return RetryClass.IF_IDEMPOTENT
        case RetryClass.IF_IDEMPOTENT, Effect.IRREVERSIBLE:
            return RetryClass.UNSAFE
        case _:
            return base


def with_attempt(past: EarlierAttempts | None, ending: Ending) -> EarlierAttempts:
    """Return what the attempts of a call have come to, with one more that ended so."""
    retry = RetryClass(ending.retry) if ending.retry else RetryClass.SAFE
    unknown = ending.status is Status.UNKNOWN
    if past is None:
        return EarlierAttempts(attempts=1, executed=ending.executed, retry=retry, unknown=unknown)
    return EarlierAttempts(
        attempts=past.attempts + 1,
        executed=more_executed(past.executed, ending.executed),
        retry=_strictest(past.retry, retry),
        unknown=past.unknown or unknown,
    )


def ending_of_call(ending: Ending, past: EarlierAttempts | None) -> Ending:
    """Return how a call ended that has this ending, and this past besides.

    Kind and phase are those of the ending. What may have happened, and whether the call may be made
    again, is about all attempts: one that was never sent takes nothing back.
    """
    if past is None:
        return ending
    executed = more_executed(past.executed, ending.executed)
    retry = _strictest(past.retry, RetryClass(ending.retry)) if ending.retry else ""
    unknown = past.unknown and bool(ending.error) and ending.phase in UNSENT
    status = Status.UNKNOWN if unknown else ending.status
    return structs.replace(ending, status=status, executed=executed, retry=retry)


def more_executed(one: Executed, other: Executed) -> Executed:
    """Return what two attempts came to together."""
    return max(one, other, key=_EXECUTED.index)


def _strictest(one: RetryClass, other: RetryClass) -> RetryClass:
    return max(one, other, key=_RETRIES.index)


def succeeded(status: Status = _OK) -> Ending:
    """Return the ending of an attempt that was answered as it should be.

    What was accepted, or waits for more input, may or may not have begun.
    """
    if status is _OK:
        return _SUCCESS
    return Ending(status=status, phase=Phase.DONE, executed=Executed.MAYBE)


def refused(kind: ErrorKind, effect: Effect) -> Ending:
    """Return the ending of an attempt whose whole answer says that it failed so."""
    return failed(kind, Phase.DONE, effect, answered=True)


def ending_of(facts: Facts) -> Ending:
    """Return how an attempt ended, as its outcome says."""
    return Ending(
        status=facts.status,
        phase=facts.phase,
        executed=facts.executed,
        error=facts.error,
        kind=facts.error_kind,
        retry=facts.retry,
    )


def kind_of_status(status: int) -> ErrorKind | None:
    """Return what an HTTP status says went wrong; `None` below 400."""
    if status < 400:
        return None
    other = ErrorKind.INVALID_REQUEST if status < 500 else ErrorKind.UPSTREAM_INTERNAL
    return _STATUSES.get(status, other)


def kind_of_redirect(status: int, *, elsewhere: bool = False) -> ErrorKind | None:
    """Return what a redirect in place of an answer says; `None` outside of 3xx.

    307 and 308 ask for the same request at another place, so nothing ran here. The others may follow
    finished work, and so may any that leads `elsewhere`, to another origin: what runs there is not
    seen (semantics, section 13).
    """
    if not 300 <= status < 400:
        return None
    unsent = status == _NOT_MODIFIED or (status in _SAME_AGAIN and not elsewhere)
    return ErrorKind.INVALID_REQUEST if unsent else ErrorKind.MALFORMED_RESULT


def is_method_preserving_redirect(status: int) -> bool:
    """Return whether a status asks for the same request, unchanged, at another place."""
    return status in _SAME_AGAIN


def is_transport_status(status: int) -> bool:
    """Tell whether a status comes from the way to the tool, so that no body says more."""
    return status in _OF_TRANSPORT


def kind_of_code(code: int | None) -> ErrorKind:
    """Return what a JSON-RPC error code says went wrong."""
    return _CODES.get(code, ErrorKind.UPSTREAM_INTERNAL)


def kind_of_error(code: int | None, status: int) -> ErrorKind:
    """Return what a JSON-RPC error says that came under an HTTP status."""
    if status in _OF_TRANSPORT:
        return _STATUSES[status]
    if code not in _CODES and 400 <= status < 500:
        # A code of the server's own under a status that blames the request.
        return ErrorKind.CONFLICT if status in _CONFLICTS else ErrorKind.INVALID_REQUEST
    return kind_of_code(code)
