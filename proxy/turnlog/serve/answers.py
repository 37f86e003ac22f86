"""Answers that turnlog makes itself, where there is no upstream answer to relay.

Which one a request gets depends on what it is (semantics, section 2): a `tools/call` gets a
result with `isError`, because a JSON-RPC error ends whole agent runs; `initialize` and
`server/discover` never get an invented JSON-RPC error, because it would decide the protocol era.
"""

from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, structs

from turnlog.core import ids
from turnlog.core.classify import Ending, succeeded
from turnlog.core.commit import Facts
from turnlog.core.kinds import ErrorKind, Status
from turnlog.core.rules import Surface
from turnlog.wire.http import Headers
from turnlog.wire.jsonrpc import Message
from turnlog.wire.splice import with_id, with_meta

from .attempt import Ask, Attempt

KEY = "turnlog/outcome"
"""Where an answer says how its call ended."""
CANCELLED = "the call was cancelled before another attempt was made"
NOT_RECORDED = "the call was not forwarded, because it cannot be recorded now"
"""What an agent is told; the reason is for the operator, in the log."""
INTERNAL_ERROR = -32603
JSON: Headers = [(b"Content-Type", b"application/json")]
_JSON_STARTS: Final = (b"{", b"[")
_OF_TOOLS: Final = frozenset({ErrorKind.TOOL_FAILED, ErrorKind.NULL_RESULT})
"""Errors that a whole result of a tool may be."""
_PROBLEM: Headers = [(b"Content-Type", b"application/problem+json")]
_HANDSHAKES = frozenset({"initialize", "server/discover"})
_encode = msgspec.json.Encoder().encode
_ENDINGS: Final = 1024


class Made(Struct, frozen=True):
    """A whole answer: status, reason, headers without length, body."""

    status: int
    reason: bytes
    headers: Headers
    body: bytes


def envelope(ask: Ask | None, ending: Ending, retry_after: float | None = None) -> dict[str, Any]:
    """Return what `_meta["turnlog/outcome"]` and its kin say; a subset of a log row.

    `ask` is `None` for a request that is no call.
    """
    session = ask.session.id if ask is not None else None
    return {
        "session": ids.to_text(session) if session is not None else None,
        "call": ids.to_text(ask.call) if ask is not None else "",
        "tool": ask.tool if ask is not None else "",
        "attempt": ask.number if ask is not None else 1,
        "status": ending.status,
        "error": ending.error or None,
        "kind": ending.kind or None,
        "retry": ending.retry or None,
        "retry_after_ms": None if retry_after is None else round(retry_after * 1000),
        "executed": ending.executed,
        "phase": ending.phase,
    }


def told(attempt: Attempt, *, whole: bool) -> bytes:
    """Return the lines of an answer's head that tell of its call, each with CRLF before it.

    How it ended is told where that is known before the head leaves (`whole`).
    """
    ask, ending = attempt.ask, attempt.overall
    head = f"\r\nTurnlog-Call: {ids.to_text(ask.call)}"
    if ask.session.id is not None:
        head += f"\r\nTurnlog-Session: {ids.to_text(ask.session.id)}"
    if not whole or ending is None:
        return head.encode()
    if attempt.waits and (commit := _commit(attempt)):
        head += f"\r\nTurnlog-Commit: {commit}"
    head += _ended(ending) if ending is not _SUCCESS else _SUCCEEDED
    if attempt.flags:
        head += f"\r\nTurnlog-Flags: {','.join(attempt.flags)}"
    made = max(ask.number, attempt.past.attempts) if attempt.past is not None else ask.number
    if made > 1:
        head += f"\r\nTurnlog-Attempts: {made}"
    return head.encode()


def retold(head: bytes, attempt: Attempt) -> bytes:
    """Return the lines of a held answer's head with what is known of its call by now."""
    kept = [line for line in head.split(b"\r\n") if not line.startswith(b"Turnlog-")]
    return b"\r\n".join(kept) + told(attempt, whole=True)


@lru_cache(maxsize=_ENDINGS)
def _ended(ending: Ending) -> str:
    said = {
        "Status": ending.status,
        "Error": ending.error,
        "Kind": ending.kind,
        "Retry": ending.retry,
        "Executed": ending.executed,
    }
    return "".join(f"\r\nTurnlog-{name}: {value}" for name, value in said.items() if value)


_SUCCESS: Final = succeeded()
_SUCCEEDED: Final = _ended(_SUCCESS)
"""Of most calls: an ending is found among others by all of its fields."""


def _commit(attempt: Attempt) -> str:
    """Return where the outcome stands, once it is on disk."""
    placed = attempt.outcome.placed if attempt.outcome is not None else None
    if placed is None:
        return ""
    return f"{ids.to_text(placed.link.session)}:{placed.link.seq}"


def failed_request(
    request: Message,
    ask: Ask | None,
    sentence: str,
    ending: Ending,
    *,
    stateless: bool,
    retry_after: float | None = None,
) -> Made:
    """Return the answer to an MCP request that could not be answered by its upstream.

    `ask` is what a call asks, `None` for any other request.
    """
    if request.method in _HANDSHAKES:
        return problem(502, "Bad Gateway", sentence, {})
    outcome = envelope(ask, ending, retry_after)
    if ask is not None and ask.policy.surface is Surface.RESULT:
        result = tool_failure(sentence, outcome, stateless=stateless)
        return _message(request.id, {"result": result})
    error = {"code": INTERNAL_ERROR, "message": sentence, "data": {KEY: outcome}}
    return _message(request.id, {"error": error})


def amended(attempt: Attempt, message: bytes) -> bytes | None:
    """Return an answer that looks like success and is an error with the outcome in its `_meta`.

    `None` where there is nothing to say, or no place for it. Once said it is not said again.
    """
    if not attempt.amends or (ending := attempt.overall) is None:
        return None
    attempt.amends = False
    said = envelope(attempt.ask, ending, attempt.retry_after)
    return with_meta(message, KEY, _encode(said))


def repeated(message: Message, ask: Ask, ending: Ending, made: Made) -> Made | None:
    """Return an earlier answer as the answer to another request, with the outcome in its `_meta`."""
    body = with_id(made.body, message.id or b"null")
    if body is None:
        return None
    said = _encode(envelope(ask, ending))
    return Made(made.status, made.reason, JSON, with_meta(body, KEY, said) or body)


def as_status(made: Made) -> Made:
    """Return an answer for clients of 2024-11-05, which look at the status of what answers a post, and
    not into it."""
    return structs.replace(made, status=502, reason=b"Bad Gateway")


def together(answers: list[Made], sentence: str, *, as_batch: bool) -> Made:
    """Return several answers as one; of none, a problem that says `sentence`.

    The answer to a batch is an array, however short (JSON-RPC 2.0 section 6).
    """
    if not answers:
        return problem(502, "Bad Gateway", sentence, {})
    if not as_batch or answers[0].status != 200:
        return answers[0]
    body = b"[" + b",".join(answer.body for answer in answers) + b"]"
    return Made(200, b"OK", JSON, body)


def tool_failure(sentence: str, outcome: dict[str, Any], *, stateless: bool) -> dict[str, Any]:
    """Return a tool result that says so; `resultType` belongs to the stateless era alone."""
    result: dict[str, Any] = {
        "content": [{"type": "text", "text": sentence}],
        "isError": True,
        "_meta": {KEY: outcome},
    }
    return {"resultType": "complete", **result} if stateless else result


def problem(status: int, reason: str, detail: str, members: dict[str, Any]) -> Made:
    """Return an RFC 9457 problem; `members` are its extension members."""
    body = {"type": "about:blank", "title": reason, "status": status, "detail": detail, **members}
    return Made(status, reason.encode(), _PROBLEM, _encode(body))


def retold_answer(facts: Facts, content: bytes) -> Made | None:
    """Return the answer whose recorded content is whole; `None` where that was no answer of a tool.

    A message of MCP has no id yet. Of a plain tool's answer the headers are not recorded.
    """
    if facts.method != "tools/call":
        is_json = content.lstrip()[:1] in _JSON_STARTS
        media = b"application/json" if is_json else b"application/octet-stream"
        return Made(facts.http_status, b"", ((b"Content-Type", media),), content)
    if facts.code is not None:
        return _message(b"null", {"error": Raw(content)})
    answered = facts.status is Status.OK or facts.error_kind in _OF_TOOLS
    return _message(b"null", {"result": Raw(content)}) if answered else None


def not_allowed(path: str, allowed: tuple[str, ...]) -> Made:
    """Return the answer to a method that a page of turnlog's own does not take."""
    made = problem(405, "Method Not Allowed", f"{path} takes {' and '.join(allowed)}", {})
    return with_headers(made, [(b"Allow", ", ".join(allowed).encode())])


def with_headers(made: Made, headers: Headers) -> Made:
    """Return an answer with more fields in its head."""
    return structs.replace(made, headers=(*made.headers, *headers))


def document(value: object) -> Made:
    """Return a JSON document of turnlog's own."""
    return Made(200, b"OK", JSON, _encode(value))


def _message(raw_id: bytes, rest: dict[str, Any]) -> Made:
    return Made(200, b"OK", JSON, _encode({"jsonrpc": "2.0", "id": Raw(raw_id or b"null"), **rest}))
