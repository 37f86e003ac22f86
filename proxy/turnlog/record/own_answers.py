"""Answers that turnlog makes itself, where there is no upstream answer to relay.

Which one a request gets depends on what it is: a `tools/call` gets a
result with `isError`, because a JSON-RPC error ends whole agent runs; anything else gets an HTTP
status, because clients reconnect after that alone, and a JSON-RPC error only where no status can be
told. `initialize` and `server/discover` never get one, because it would decide the protocol era.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, structs

from turnlog.core import ids
from turnlog.core.classify import SUCCESS, Ending
from turnlog.core.commit import Facts
from turnlog.core.kinds import ErrorFamily, ErrorKind, RetryClass, Status
from turnlog.provenance.verdict import ProvenanceVerdict
from turnlog.rules.model import Surface
from turnlog.wire.http.head import Headers
from turnlog.wire.jsonrpc import Message, id_key
from turnlog.wire.mcp import is_stateless
from turnlog.wire.splice import with_id, with_meta, with_result_type

from .attempt import Ask, Attempt

KEY = "turnlog/outcome"
"""The member of `_meta` with the outcome of a call."""
CANCELLED = "the call was cancelled before another attempt was made"
NOT_RECORDED = "the call was not forwarded, because it cannot be recorded now"
"""The text for a caller; the reason is for the operator, in the log."""
NOT_RECORDED_BESIDE = (
    "the request was not forwarded, because a call beside it cannot be recorded now"
)
"""The text for the other requests of that batch."""
INTERNAL_ERROR = -32603
JSON: Headers = [(b"Content-Type", b"application/json")]
EVENTS: Headers = [(b"Content-Type", b"text/event-stream"), (b"Cache-Control", b"no-store")]
_JSON_STARTS: Final = (b"{", b"[")
_OF_TOOLS: Final = frozenset({ErrorKind.TOOL_FAILED, ErrorKind.NULL_RESULT})
"""Errors that a whole result of a tool may be."""
_PROBLEM: Headers = [(b"Content-Type", b"application/problem+json")]
_ADVICE: Final = {
    RetryClass.SAFE: "It can be made again.",
    RetryClass.IF_IDEMPOTENT: "Make it again only if doing it twice does no harm.",
    RetryClass.UNSAFE: "Find out whether it happened before making it again.",
    RetryClass.NEVER: "Do not make it again unchanged.",
}
"""The advice to the caller of a tool, mostly a model."""
_HANDSHAKES = frozenset({"initialize", "server/discover"})
_encode = msgspec.json.Encoder().encode
_ENDINGS: Final = 1024


class OwnAnswer(Struct, frozen=True):
    """A whole answer: status, reason, headers without length, body."""

    status: int
    reason: bytes
    headers: Headers
    body: bytes


def envelope(
    ask: Ask | None,
    ending: Ending,
    retry_after: float | None = None,
    found: ProvenanceVerdict | None = None,
) -> dict[str, Any]:
    """Return the outcome that an answer carries as `turnlog/outcome`: a subset of a log row.

    `ask` is `None` for a request that is no call, `found` for a call without an attempt.
    """
    session = ask.session.id if ask is not None else None
    said: dict[str, Any] = {
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
    if ask is not None:
        found = found or ask.verdict()
        said["provenance"] = found.provenance
        if reasons := found.reasons:
            said["provenance_reasons"] = reasons
    return said


def call_lines(attempt: Attempt | None, *, whole: bool) -> bytes:
    """Return the lines of an answer's head that describe its call, each with CRLF before it.

    With `whole` they include how it ended: its outcome is known before the head is sent.
    """
    if attempt is None:
        return b""
    ask, ending = attempt.ask, attempt.ending if attempt.past is None else attempt.overall
    head = f"\r\nTurnlog-Call: {ids.to_text(ask.call)}"
    if ask.session.id is not None:
        head += f"\r\nTurnlog-Session: {ids.to_text(ask.session.id)}"
    if not whole or ending is None:
        return head.encode()
    if attempt.waits and (commit := _commit(attempt)):
        head += f"\r\nTurnlog-Commit: {commit}"
    head += _ended(ending) if ending is not SUCCESS else _SUCCEEDED
    if attempt.verdict is not None:
        head += f"\r\nTurnlog-Provenance: {attempt.verdict.provenance}"
    if attempt.flags:
        head += f"\r\nTurnlog-Flags: {','.join(attempt.flags)}"
    made = max(ask.number, attempt.past.attempts) if attempt.past is not None else ask.number
    if made > 1:
        head += f"\r\nTurnlog-Attempts: {made}"
    return head.encode()


def updated_call_lines(head: bytes, attempt: Attempt) -> bytes:
    """Return the lines of a held answer's head with the call's fields brought up to date."""
    kept = [line for line in head.split(b"\r\n") if not line.startswith(b"Turnlog-")]
    return b"\r\n".join(kept) + call_lines(attempt, whole=True)


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


_SUCCEEDED: Final = _ended(SUCCESS)
"""The lines of most calls, kept apart: a lookup by ending hashes all of its fields."""


def _commit(attempt: Attempt) -> str:
    """Return where the outcome stands, once it is on disk."""
    placed = attempt.outcome.placed if attempt.outcome is not None else None
    if placed is None:
        return ""
    return f"{ids.to_text(placed.link.session)}:{placed.link.seq}"


class Unanswered(Struct, frozen=True, kw_only=True):
    """MCP requests that got no answer from their upstream, and why."""

    requests: Sequence[Message]
    asks: Mapping[str, Ask]
    """The tool calls, by the key of their ids."""
    ending: Ending
    said: str
    """The text for the callers of tools."""
    said_without_call: str
    """The text for the others."""
    stateless: bool = False
    retry_after: float | None = None

    def as_answer(self, *, as_batch: bool) -> OwnAnswer:
        """Return a whole HTTP answer: JSON-RPC where a tool was called, else 502 or 504.

        Clients reconnect after a failed transport, not after a JSON-RPC error.
        """
        called = any(id_key(request.id) in self.asks for request in self.requests)
        return self.as_message(as_batch=as_batch) if called else self._as_status()

    def as_message(self, *, as_batch: bool) -> OwnAnswer:
        """Return JSON-RPC for all, where no HTTP status can say it: on pipes and begun streams.

        A handshake never gets an invented error, it would decide the protocol era: 502 for all.
        The answer to a batch is an array, however short (JSON-RPC 2.0 section 6).
        """
        answers = self.as_messages()
        if not answers:
            return self._as_status()
        body = b"[" + b",".join(answers) + b"]" if as_batch else answers[0]
        return OwnAnswer(200, b"OK", JSON, body)

    def as_messages(self) -> Sequence[bytes]:
        """Return one JSON-RPC message for each request; nothing where a handshake is among them."""
        if any(request.method in _HANDSHAKES for request in self.requests):
            return ()
        return [self._message(request) for request in self.requests]

    def _as_status(self) -> OwnAnswer:
        timed_out = self.ending.error is ErrorFamily.TIMEOUT
        status, reason = (504, "Gateway Timeout") if timed_out else (502, "Bad Gateway")
        outcome = envelope(None, self.ending, self.retry_after)
        return problem(status, reason, self.said_without_call, {KEY: outcome})

    def _message(self, request: Message) -> bytes:
        ask = self.asks.get(id_key(request.id))
        said = self.said_without_call if ask is None else self.said
        outcome = envelope(ask, self.ending, self.retry_after)
        if ask is not None and ask.policy.surface is Surface.RESULT:
            result = tool_failure(said, outcome, stateless=self.stateless)
            return _message(request.id, {"result": result})
        error = {
            "code": INTERNAL_ERROR,
            "message": with_tail(said, outcome),
            "data": {KEY: outcome},
        }
        return _message(request.id, {"error": error})


def amended(attempt: Attempt, message: bytes) -> bytes | None:
    """Return an answer that looks like success and is an error with the outcome in its `_meta`.

    `None` where there is nothing to say, or no place for it. Once said it is not said again.
    """
    if not attempt.amends or (ending := attempt.overall) is None:
        return None
    attempt.amends = False
    said = envelope(attempt.ask, ending, attempt.retry_after, attempt.verdict)
    return with_meta(message, KEY, _encode(said))


def repeated(message: Message, ask: Ask, ending: Ending, made: OwnAnswer) -> OwnAnswer | None:
    """Return an earlier answer as the answer to another request, with the outcome in its `_meta`."""
    body = with_id(made.body, message.id or b"null")
    if body is None:
        return None
    said = _encode(envelope(ask, ending))
    if is_stateless(ask.protocol):
        # The server may have given it to a client of an earlier revision, in which results have no type.
        body = with_result_type(body)
    return OwnAnswer(made.status, made.reason, JSON, with_meta(body, KEY, said) or body)


def as_status(made: OwnAnswer) -> OwnAnswer:
    """Return an answer for clients of 2024-11-05, which read the status of the answer to a post alone."""
    if made.status != 200:
        return made
    return structs.replace(made, status=502, reason=b"Bad Gateway")


def with_tail(sentence: str, outcome: Mapping[str, Any]) -> str:
    """Return a sentence with advice, and a tail that programs can read.

    For a request that is no call it is the sentence alone.
    """
    # Many frameworks hand on nothing but the text of an answer (docs/reference/frameworks.md).
    call, retry, executed = outcome["call"], outcome["retry"], outcome["executed"]
    if not call or not retry:
        return sentence
    word = outcome["kind"] or outcome["status"]
    tail = f"[turnlog {word} executed={executed} retry={retry} call={call}]"
    return f"{sentence}. {_ADVICE[retry]} {tail}"


def tool_failure(sentence: str, outcome: dict[str, Any], *, stateless: bool) -> dict[str, Any]:
    """Return a tool result that is an error with this text; `resultType` belongs to the stateless era alone."""
    result: dict[str, Any] = {
        "content": [{"type": "text", "text": with_tail(sentence, outcome)}],
        "isError": True,
        "_meta": {KEY: outcome},
    }
    return {"resultType": "complete", **result} if stateless else result


def problem(status: int, reason: str, detail: str, members: dict[str, Any]) -> OwnAnswer:
    """Return an RFC 9457 problem; `members` are its extension members."""
    body = {"type": "about:blank", "title": reason, "status": status, "detail": detail, **members}
    return OwnAnswer(status, reason.encode(), _PROBLEM, _encode(body))


def retold_answer(facts: Facts, content: bytes) -> OwnAnswer | None:
    """Return the answer whose recorded content is whole; `None` where that was no answer of a tool.

    A message of MCP has no id yet. Of a plain tool's answer the headers are not recorded.
    """
    if facts.method != "tools/call":
        is_json = content.lstrip()[:1] in _JSON_STARTS
        media = b"application/json" if is_json else b"application/octet-stream"
        return OwnAnswer(facts.http_status, b"", ((b"Content-Type", media),), content)
    if facts.code is not None:
        return OwnAnswer(200, b"OK", JSON, _message(b"null", {"error": Raw(content)}))
    answered = facts.status is Status.OK or facts.error_kind in _OF_TOOLS
    if not answered:
        return None
    return OwnAnswer(200, b"OK", JSON, _message(b"null", {"result": Raw(content)}))


def _message(raw_id: bytes, rest: dict[str, Any]) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": Raw(raw_id or b"null"), **rest})
