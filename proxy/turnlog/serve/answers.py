"""Answers that turnlog makes itself, where there is no upstream answer to relay.

Which one a request gets depends on what it is (semantics, section 2): a `tools/call` gets a
result with `isError`, because a JSON-RPC error ends whole agent runs; `initialize` and
`server/discover` never get an invented JSON-RPC error, because it would decide the protocol era.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from turnlog.core.classify import Ending
from turnlog.wire.http import Headers

NOT_RECORDED = "the call was not forwarded, because it cannot be recorded now"
"""What an agent is told; the reason is for the operator, in the log."""
INTERNAL_ERROR = -32603
_JSON: Headers = [(b"Content-Type", b"application/json")]
_PROBLEM: Headers = [(b"Content-Type", b"application/problem+json")]
_HANDSHAKES = frozenset({"initialize", "server/discover"})
_encode = msgspec.json.Encoder().encode


class Made(Struct, frozen=True):
    """A whole answer: status, reason, headers without length, body."""

    status: int
    reason: bytes
    headers: Headers
    body: bytes


def envelope(ending: Ending, *, session: str, call: str, tool: str) -> dict[str, Any]:
    """Return what `_meta["turnlog/outcome"]` and its kin say; a subset of a log row."""
    return {
        "session": session or None,
        "call": call,
        "tool": tool,
        "attempt": 1,
        "status": ending.status,
        "error": ending.error or None,
        "kind": ending.kind or None,
        "retry": ending.retry or None,
        "executed": ending.executed,
        "phase": ending.phase,
    }


def failed_request(
    method: str, raw_id: Raw, sentence: str, outcome: dict[str, Any], *, stateless: bool
) -> Made:
    """Return the answer to an MCP request that could not be answered by its upstream."""
    if method in _HANDSHAKES:
        return problem(502, "Bad Gateway", sentence, {})
    if method == "tools/call":
        return _message(raw_id, {"result": tool_failure(sentence, outcome, stateless=stateless)})
    error = {"code": INTERNAL_ERROR, "message": sentence, "data": {"turnlog/outcome": outcome}}
    return _message(raw_id, {"error": error})


def together(answers: list[Made], sentence: str, *, as_batch: bool) -> Made:
    """Return several answers as one; of none, a problem that says `sentence`.

    The answer to a batch is an array, however short (JSON-RPC 2.0 section 6).
    """
    if not answers:
        return problem(502, "Bad Gateway", sentence, {})
    if not as_batch or answers[0].status != 200:
        return answers[0]
    body = b"[" + b",".join(answer.body for answer in answers) + b"]"
    return Made(200, b"OK", _JSON, body)


def tool_failure(sentence: str, outcome: dict[str, Any], *, stateless: bool) -> dict[str, Any]:
    """Return a tool result that says so; `resultType` belongs to the stateless era alone."""
    result: dict[str, Any] = {
        "content": [{"type": "text", "text": sentence}],
        "isError": True,
        "_meta": {"turnlog/outcome": outcome},
    }
    return {"resultType": "complete", **result} if stateless else result


def problem(status: int, reason: str, detail: str, members: dict[str, Any]) -> Made:
    """Return an RFC 9457 problem; `members` are its extension members."""
    body = {"type": "about:blank", "title": reason, "status": status, "detail": detail, **members}
    return Made(status, reason.encode(), _PROBLEM, _encode(body))


def document(value: object) -> Made:
    """Return a JSON document of turnlog's own."""
    return Made(200, b"OK", _JSON, _encode(value))


def _message(raw_id: Raw, rest: dict[str, Any]) -> Made:
    return Made(200, b"OK", _JSON, _encode({"jsonrpc": "2.0", "id": raw_id, **rest}))
