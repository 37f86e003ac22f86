"""Tell what MCP messages mean for a call: which tool, how it ended, what it waits for.

Every reader is tolerant: a wrong type is an absent value. Nothing here raises. Answers too large
to hold come as a skimmed `Outline` and give the same, but for blank texts (`null_shape`).
"""

import re
from hashlib import sha256
from typing import TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.structs import replace

from turnlog.core.kinds import Status

from .blank import is_empty, says_nothing
from .jsonrpc import Kind, Message, id_key, outline_kind
from .rawjson import (
    Shape,
    decode_string,
    integer_of,
    load,
    members,
    pick,
    shape,
    string_end,
    text_of,
)
from .skim import Outline, Skimmer
from .tools import Definition, ToolPage, read_tools_list

__all__ = [
    "START",
    "STATELESS_SINCE",
    "SUBSCRIPTION_KEY",
    "Answer",
    "Definition",
    "TaskPoll",
    "ToolCall",
    "ToolPage",
    "agreed_revision",
    "cancellation",
    "cancelled_id",
    "is_request",
    "is_stateless",
    "progress_token",
    "read_answer",
    "read_call",
    "read_task_poll",
    "read_tools_list",
    "requested_revision",
    "start_of",
    "subscription",
    "wanted_progress",
]

STATELESS_SINCE = "2026-07-28"
"""From this revision on: no handshake, no sessions, and closing the stream is the cancel."""
URL_ELICITATION_REQUIRED = -32042
INVALID_PARAMS = -32602
_REVISION_WORD = b"protocolVersion"
_REVISION_KEY = "io.modelcontextprotocol/protocolVersion"
START = 64 << 10
"""Bytes that are looked at of a message that is too large to hold."""
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
MESSAGE_LIMIT = 200
"""Characters of an error message that are kept."""
_TRUE = (b"true", b'"true"', b"1")
"""What lenient clients take for true."""
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NOTHING = frozenset({Shape.ABSENT, Shape.NULL})
_TERMINAL = frozenset({"completed", "failed", "cancelled"})

_T = TypeVar("_T", bound=Struct)


class ToolCall(Struct, frozen=True, kw_only=True):
    """The params of a `tools/call`."""

    name: str
    arguments: Raw
    """As they came; `{}` where absent."""
    meta: dict[str, Raw]
    """The members of `_meta`."""
    has_input_responses: bool
    request_state: bytes
    """sha256 of the `requestState`, which is no one's to keep; empty for none."""


class Answer(Struct, frozen=True, kw_only=True, gc=False):
    """How a request ended, as its answer says."""

    status: Status
    code: int | None = None
    """JSON-RPC error code."""
    message: str = ""
    """JSON-RPC error message."""
    is_error: bool = False
    result_type: str = ""
    task_id: str = ""
    task_status: str = ""
    task_ttl_ms: int | UnsetType | None = UNSET
    """How long the server keeps the task; `None` is for ever, `UNSET` not said."""
    request_state: bytes = b""
    """sha256 of the `requestState` to bring back; empty for none."""
    null_shape: bool = False
    """Whether the result has a shape that says nothing (semantics, section 3)."""
    void: bool = False
    """Whether it has one that the protocol forbids: `null`, `{}`, no content of any kind."""
    foreign: bool = False
    """Whether it is a value that no result may be: a number, a string, an array."""
    empty: bool = False
    """Whether its structured content is a value that holds nothing, such as `[]`."""


class TaskPoll(Struct, frozen=True, kw_only=True):
    """What an answer about a task says of the call that began it."""

    task_id: str
    terminal: bool
    answer: Answer
    """How the call ended, or stands."""


class _Params(Struct, rename="camel"):
    name: Raw = Raw()
    arguments: Raw = Raw()
    meta: Raw = field(name="_meta", default=Raw())
    input_responses: Raw = Raw()
    request_state: Raw = Raw()
    task_id: Raw = Raw()
    protocol_version: Raw = Raw()


class _Task(Struct, rename="camel"):
    task_id: Raw = Raw()
    status: Raw = Raw()
    ttl: Raw = Raw()
    ttl_ms: Raw = Raw()


class _Result(Struct, rename="camel"):
    is_error: Raw = Raw()
    result_type: Raw = Raw()
    content: Raw = Raw()
    structured_content: Raw = Raw()
    request_state: Raw = Raw()
    task: Raw = Raw()
    task_id: Raw = Raw()
    status: Raw = Raw()
    ttl: Raw = Raw()
    ttl_ms: Raw = Raw()
    result: Raw = Raw()
    error: Raw = Raw()
    protocol_version: Raw = Raw()


class _Error(Struct):
    code: Raw = Raw()
    message: Raw = Raw()


def is_stateless(revision: str) -> bool:
    """Tell whether a revision is 2026-07-28 or later."""
    return _DATE.fullmatch(revision) is not None and revision >= STATELESS_SINCE


def requested_revision(message: Message, header: bytes) -> str:
    """Return the revision that a request speaks; empty where it does not say.

    The body is the truth (`_meta`, or the params of `initialize`), `header` its mirror: the value
    of `MCP-Protocol-Version`, which is all that the handshake revisions send.
    """
    # Most requests of the handshake revisions do not say; a look for the word costs next to nothing.
    if _REVISION_WORD in bytes(message.params):
        params = load(_Params, message.params)
        named = members(params.meta).get(_REVISION_KEY, Raw()) if params.meta else Raw()
        if message.method == "initialize":
            named = params.protocol_version
        if text := text_of(bytes(named)):
            return text
    return header.decode("latin-1")


def agreed_revision(result: Raw) -> str:
    """Return the revision that an `initialize` result names; empty for none."""
    return text_of(bytes(load(_Result, result).protocol_version))


def is_request(message: object) -> bool:
    """Tell whether a message asks for an answer: from a server, sampling, elicitation, roots."""
    if isinstance(message, Outline):
        return outline_kind(message) is Kind.REQUEST
    return isinstance(message, Message) and message.kind is Kind.REQUEST


def cancelled_id(message: Message | Outline) -> str | None:
    """Return the `id_key` of the request that a `notifications/cancelled` names."""
    if isinstance(message, Outline):
        method, raw = text_of(message.raw("method")), message.raw("params.requestId")
    else:
        if message.method != "notifications/cancelled":
            return None
        method, raw = message.method, bytes(members(message.params).get("requestId", b""))
    return id_key(raw) if raw and method == "notifications/cancelled" else None


def cancellation(raw_id: bytes, reason: str = "a time limit was reached") -> bytes:
    """Return the notification that takes a request back (handshake revisions)."""
    params = b'{"requestId":%b,"reason":"%b"}' % (raw_id, reason.encode())
    return b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":%b}' % params


def start_of(body: bytes) -> Message | None:
    """Return what the start of a large message says, if that is JSON-RPC.

    Its version and its id may come last: then they are not known.
    """
    skimmer = Skimmer()
    skimmer.feed(body[:START])
    outline = skimmer.finish()
    if text_of(outline.raw("jsonrpc")) != "2.0" and not outline.raw("method"):
        return None
    kind = outline_kind(outline)
    if kind is Kind.RESPONSE or kind is Kind.ERROR:
        return Message(kind=kind, id=outline.raw("id"), jsonrpc=True)
    name = outline.raw("params.name")
    params = Raw(b'{"name":' + name + b"}") if name else Raw(b"{}")
    method = text_of(outline.raw("method")) or "tools/call"
    return Message(
        kind=Kind.REQUEST, id=outline.raw("id"), method=method, params=params, jsonrpc=True
    )


def progress_token(message: Message | Outline) -> str:
    """Return the `id_key` of the token that a `notifications/progress` carries; empty for none."""
    if isinstance(message, Outline):
        method, raw = text_of(message.raw("method")), message.raw("params.progressToken")
    elif message.method == "notifications/progress":
        method, raw = message.method, bytes(members(message.params).get("progressToken", b""))
    else:
        return ""
    return id_key(raw) if raw and method == "notifications/progress" else ""


def wanted_progress(message: Message) -> bytes:
    """Return the token, as JSON, with which a request asks for its progress; empty for none."""
    meta = load(_Params, message.params).meta if message.params else Raw()
    return bytes(members(meta).get("progressToken", b"")) if meta else b""


def subscription(message: Message) -> str:
    """Return the `id_key` of the `subscriptions/listen` that a notification belongs to, or nothing."""
    meta = load(_Params, message.params).meta if message.params else Raw()
    raw = bytes(members(meta).get(SUBSCRIPTION_KEY, b"")) if meta else b""
    return id_key(raw) if raw else ""


def read_call(params: Raw) -> ToolCall:
    """Read the params of a `tools/call`."""
    found = load(_Params, params)
    return ToolCall(
        name=text_of(bytes(found.name)),
        arguments=found.arguments or Raw(b"{}"),
        meta=members(found.meta) if found.meta else {},
        has_input_responses=shape(found.input_responses) not in (Shape.ABSENT, Shape.NULL),
        request_state=_state(found.request_state),
    )


def read_answer(message: Message | Outline, *, revision: str) -> Answer:
    """Read the answer to a `tools/call`, a response or an error.

    `resultType` counts from 2026-07-28 on, and where the revision is not known (empty).
    """
    if isinstance(message, Outline):
        if outline_kind(message) is Kind.ERROR:
            return _failed(message.raw("error"), _skimmed(message, "error", _Error))
        result = _skimmed(message, "result", _Result)
        task = _skimmed(message, "result.task", _Task)
        return _ended(message.raw("result"), result, task, revision)
    if message.kind is Kind.ERROR:
        return _error(message.error_code, message.error_message)
    result = load(_Result, message.result)
    return _ended(bytes(message.result), result, load(_Task, result.task), revision)


def read_task_poll(
    method: str, params: Raw, message: Message | Outline, *, revision: str
) -> TaskPoll | None:
    """Read the answer to a request about a task; `None` for other methods.

    `tasks/result` (2025-11-25) answers what the call itself would have. `tasks/get` and
    `tasks/cancel` answer the task: 2026-07-28 with the result or error inside, 2025-11-25 without.
    An error to these two, or -32602 to any, is about the question, not about the call.
    """
    if method not in ("tasks/get", "tasks/result", "tasks/cancel"):
        return None
    task_id = text_of(bytes(load(_Params, params).task_id))
    answer = read_answer(message, revision=revision)
    failed = answer.code is not None or (answer.status is Status.ERROR and not answer.is_error)
    if failed and (method != "tasks/result" or answer.code == INVALID_PARAMS):
        return TaskPoll(task_id=task_id, terminal=False, answer=answer)
    if method == "tasks/result":
        terminal = answer.status in (Status.OK, Status.ERROR)
        return TaskPoll(task_id=task_id, terminal=terminal, answer=answer)
    standing = _standing(message, revision)
    return TaskPoll(
        task_id=task_id or standing.task_id,
        terminal=standing.task_status in _TERMINAL,
        answer=standing,
    )


def _standing(message: Message | Outline, revision: str) -> Answer:
    """Return how the call of a task stands, from the task."""
    if isinstance(message, Outline):
        task = _skimmed(message, "result", _Result)
        inner = _skimmed(message, "result.result", _Result)
        error = _skimmed(message, "result.error", _Error)
        whole = message.raw("result.result")
    else:
        task = load(_Result, message.result)
        inner, error = load(_Result, task.result), load(_Error, task.error)
        whole = bytes(task.result)
    match text_of(bytes(task.status)):
        case "completed" if not whole:
            ended = Answer(status=Status.OK)
        case "completed":
            ended = _ended(whole, inner, _Task(), revision)
        case "failed":
            ended = _failed(bytes(task.error), error)
        case "cancelled":
            ended = Answer(status=Status.ERROR)
        case "input_required":
            ended = Answer(status=Status.INPUT_REQUIRED)
        case _:
            ended = Answer(status=Status.ACCEPTED)
    return replace(
        ended,
        task_id=text_of(bytes(task.task_id)),
        task_status=text_of(bytes(task.status)),
        task_ttl_ms=_ttl(task.ttl_ms or task.ttl),
    )


def _skimmed(outline: Outline, path: str, kind: type[_T]) -> _T:
    start = f"{path}."
    found = {
        name.removeprefix(start): Raw(token)
        for name, token in outline.tokens.items()
        if name.startswith(start)
    }
    return pick(kind, found)


def _failed(whole: bytes, error: _Error) -> Answer:
    # An error that is a mere string is its own message.
    message = text_of(bytes(error.message), MESSAGE_LIMIT) or text_of(whole, MESSAGE_LIMIT)
    return _error(integer_of(bytes(error.code)), message)


def _error(code: int | None, message: str) -> Answer:
    status = Status.INPUT_REQUIRED if code == URL_ELICITATION_REQUIRED else Status.ERROR
    return Answer(status=status, code=code, message=message[:MESSAGE_LIMIT])


def _ended(whole: bytes, result: _Result, task: _Task, revision: str) -> Answer:
    """Return what a result says: `whole` as text, and what was read out of it."""
    if not whole.startswith((b"{", b"n")):
        return Answer(status=Status.OK, foreign=True)
    counts = result.result_type and (not revision or is_stateless(revision))
    result_type = _text(result.result_type) if counts else ""
    is_error = bytes(result.is_error) in _TRUE
    if is_error:
        status = Status.ERROR
    elif result_type == "input_required":
        status = Status.INPUT_REQUIRED
    elif result_type == "task" or _text(task.task_id):
        return _accepted(result, task, result_type)
    else:
        status = Status.OK
    outer = shape(whole)
    return Answer(
        status=status,
        is_error=is_error,
        result_type=result_type,
        request_state=_state(result.request_state),
        null_shape=status is not Status.INPUT_REQUIRED
        and says_nothing(outer, result.content, result.structured_content),
        void=status is Status.OK and _is_void(outer, result),
        empty=status is Status.OK and is_empty(result.structured_content),
    )


def _is_void(outer: Shape, result: _Result) -> bool:
    if outer is not Shape.FULL:
        return True
    return all(shape(part) in _NOTHING for part in (result.content, result.structured_content))


def _accepted(result: _Result, task: _Task, result_type: str) -> Answer:
    """Return what a task handle says: flat since 2026-07-28, under `task` before."""
    flat = not task.task_id
    return Answer(
        status=Status.ACCEPTED,
        result_type=result_type,
        task_id=_text(result.task_id if flat else task.task_id),
        task_status=_text(result.status if flat else task.status),
        task_ttl_ms=_ttl((result.ttl_ms or result.ttl) if flat else (task.ttl_ms or task.ttl)),
        request_state=_state(result.request_state),
    )


def _text(raw: Raw) -> str:
    return text_of(bytes(raw)) if raw else ""


def _ttl(raw: Raw) -> int | UnsetType | None:
    if bytes(raw) == b"null":
        return None
    number = integer_of(bytes(raw))
    return UNSET if number is None else number


def _state(raw: Raw) -> bytes:
    if not raw:
        return b""
    token = bytes(raw)
    if not token.startswith(b'"') or string_end(token, 1)[0] != len(token):
        return b""
    return sha256(decode_string(token).encode()).digest()
