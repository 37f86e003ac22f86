"""How an attempt ended: status, kind of error, whether it was executed, whether to repeat it.

This is the table of `docs/reference/outcomes.md`. Each kind of error belongs to one family, so that
transport, protocol and tool failures stay apart; `executed` is independent of the kind.
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
    """The sum of the ended attempts of a call."""

    attempts: int
    executed: Executed
    """The highest of the attempts."""
    retry: RetryClass
    """The strictest of the attempts."""
    unknown: bool
    """Whether one of them has an unknown outcome."""


class KindMeaning(Struct, frozen=True):
    """Family, retry class and `executed` of a kind, once the request has been sent."""

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
"""Phases before the first byte of the request."""

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
"""Statuses of gateways and servers, which count more than the body under them."""
_SAME_AGAIN = frozenset({307, 308})
"""Redirects that preserve method and body (RFC 9110 sections 15.4.8 and 15.4.9)."""
_NOT_MODIFIED = 304
SUCCESS: Final = Ending(status=Status.OK, phase=Phase.DONE, executed=Executed.YES)
"""The ending of most calls."""


def failed(
    kind: ErrorKind,
    phase: Phase,
    effect: Effect,
    *,
    answered: bool = False,
    is_final: bool = False,
) -> Ending:
    """Return the ending of an attempt that failed in `phase`.

    `answered` is whether the upstream answered at all: then the status is never `unknown`.
    `is_final` is whether the same call would always fail so, whatever its kind says.
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
        retry=RetryClass.NEVER if is_final else retry_class(kind, phase, effect),
    )


def retry_class(kind: ErrorKind, phase: Phase, effect: Effect) -> RetryClass:
    """Return the retry class of a failure. An unknown effect counts as a write."""
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
    """Return the sum of a call's attempts with one more."""
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
    """Return the ending of a call from that of its last attempt and the sum of the earlier ones.

    Kind and phase are those of the last attempt; `executed` and `retry` cover all attempts, because
    a last attempt that was never sent does not undo an earlier one.
    """
    if past is None:
        return ending
    executed = more_executed(past.executed, ending.executed)
    retry = _strictest(past.retry, RetryClass(ending.retry)) if ending.retry else ""
    unknown = past.unknown and bool(ending.error) and ending.phase in UNSENT
    status = Status.UNKNOWN if unknown else ending.status
    return structs.replace(ending, status=status, executed=executed, retry=retry)


def more_executed(one: Executed, other: Executed) -> Executed:
    """Return the higher of two values of `executed`."""
    return max(one, other, key=_EXECUTED.index)


def _strictest(one: RetryClass, other: RetryClass) -> RetryClass:
    return max(one, other, key=_RETRIES.index)


def succeeded(status: Status = Status.OK) -> Ending:
    """Return the ending of an attempt without an error."""
    if status is Status.OK:
        return SUCCESS
    # What was accepted, or waits for input, may or may not have begun.
    return Ending(status=status, phase=Phase.DONE, executed=Executed.MAYBE)


def refused(kind: ErrorKind, effect: Effect) -> Ending:
    """Return the ending of an attempt whose complete answer is an error."""
    return failed(kind, Phase.DONE, effect, answered=True)


def ending_of(facts: Facts) -> Ending:
    """Return the ending that an outcome records."""
    return Ending(
        status=facts.status,
        phase=facts.phase,
        executed=facts.executed,
        error=facts.error,
        kind=facts.error_kind,
        retry=facts.retry,
    )


def kind_of_status(status: int) -> ErrorKind | None:
    """Return the kind of error of an HTTP status; `None` below 400."""
    if status < 400:
        return None
    other = ErrorKind.INVALID_REQUEST if status < 500 else ErrorKind.UPSTREAM_INTERNAL
    return _STATUSES.get(status, other)


def kind_of_redirect(status: int, *, elsewhere: bool = False) -> ErrorKind | None:
    """Return the kind of error of a redirect; `None` if the status is not 3xx.

    `elsewhere` is whether it leads to another origin.
    """
    # 307 and 308 ask for the same request at another place, so nothing ran here. The others may follow
    # finished work, and so may any to another origin, whose work is not seen.
    if not 300 <= status < 400:
        return None
    unsent = status == _NOT_MODIFIED or (status in _SAME_AGAIN and not elsewhere)
    return ErrorKind.INVALID_REQUEST if unsent else ErrorKind.MALFORMED_RESULT


def is_method_preserving_redirect(status: int) -> bool:
    """Return whether a status redirects the request with its method and body (307, 308)."""
    return status in _SAME_AGAIN


def is_transport_status(status: int) -> bool:
    """Return whether a status comes from a server or gateway before the tool."""
    return status in _OF_TRANSPORT


def kind_of_code(code: int | None) -> ErrorKind:
    """Return the kind of error of a JSON-RPC error code."""
    return _CODES.get(code, ErrorKind.UPSTREAM_INTERNAL)


def kind_of_error(code: int | None, status: int) -> ErrorKind:
    """Return the kind of a JSON-RPC error that came with an HTTP status."""
    if status in _OF_TRANSPORT:
        return _STATUSES[status]
    if code not in _CODES and 400 <= status < 500:
        # A server-defined code with a status that blames the request.
        return ErrorKind.CONFLICT if status in _CONFLICTS else ErrorKind.INVALID_REQUEST
    return kind_of_code(code)
