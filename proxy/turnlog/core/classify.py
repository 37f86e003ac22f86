"""Say how an attempt ended: status, whether the tool's work may have happened, what caused it.

One pure table. Kinds are named only for what turnlog itself saw happen (no connection, a lost
one, a caller that left, a store that is full); the kinds of upstream answers are not told apart.
"""

from msgspec import Struct

from .kinds import Effect, ErrorKind, Executed, Phase, Status


class Ending(Struct, frozen=True, kw_only=True):
    """How an attempt ended. `error`, `kind` and `retry` are empty for success."""

    status: Status
    phase: Phase
    executed: Executed
    error: str = ""
    kind: str = ""
    retry: str = ""


_REFUSED_CODES = frozenset({-32700, -32600, -32601, -32602})
"""JSON-RPC errors that are answered before any tool runs (JSON-RPC 2.0 section 5.1)."""
_NOT_TRIED_STATUSES = frozenset({400, 401, 403, 404, 405, 406, 410, 413, 415, 421, 422, 429})


def without_answer(kind: ErrorKind, phase: Phase, effect: Effect) -> Ending:
    """Return the ending of an attempt that got no whole answer.

    Before the request was sent nothing can have happened; after that it may have.
    """
    sent = phase not in {Phase.QUEUED, Phase.CONNECTING}
    executed = Executed.MAYBE if sent else Executed.NO
    return Ending(
        status=Status.UNKNOWN if sent and effect is not Effect.READ else Status.ERROR,
        phase=phase,
        executed=executed,
        error=kind.family,
        kind=kind,
        retry=_retry(executed, effect),
    )


def http_answer(status: int) -> Ending:
    """Return the ending of a call that an HTTP status alone answers (RFC 9110 section 15)."""
    if status < 400:
        return _done(Status.OK, Executed.YES)
    executed = Executed.NO if status in _NOT_TRIED_STATUSES else Executed.MAYBE
    return _done(Status.ERROR, executed)


def rpc_answer(status: Status, code: int | None) -> Ending:
    """Return the ending of a call that a JSON-RPC message answers; `code` is its error's."""
    if status is Status.OK:
        return _done(status, Executed.YES)
    if code in _REFUSED_CODES:
        return _done(status, Executed.NO)
    return _done(status, Executed.MAYBE)


def malformed_answer() -> Ending:
    """Return the ending of a call whose answer arrived whole and is no answer to it."""
    return _done(Status.ERROR, Executed.MAYBE)


def void_answer() -> Ending:
    """Return the ending of a call whose answer has a shape that the protocol forbids for it:
    `result: null`, `{}`, no content, or no body where a response is due."""
    return _done(Status.ERROR, Executed.YES)


def _done(status: Status, executed: Executed) -> Ending:
    return Ending(status=status, phase=Phase.DONE, executed=executed)


def _retry(executed: Executed, effect: Effect) -> str:
    if executed is Executed.NO or effect is Effect.READ:
        return "safe"
    return "if_idempotent" if effect is Effect.IDEMPOTENT_WRITE else "unsafe"
