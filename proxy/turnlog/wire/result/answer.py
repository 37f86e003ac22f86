"""Tell how a call ended, or what it waits for, by the MCP answer to it.

Every reader is tolerant, as those in `mcp`. Answers too large to hold come as a skimmed `Outline`
and give the same, but for blank texts (`null_shape`).
"""

from hashlib import sha256
from typing import Final, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from turnlog.core.kinds import Status
from turnlog.wire.json.rawjson import decode_string, integer_of, load, pick, string_end, text_of
from turnlog.wire.json.skim import Outline
from turnlog.wire.jsonrpc import Kind, Message, outline_kind
from turnlog.wire.revision import is_stateless

from .blank import is_spoken, look_at

URL_ELICITATION_REQUIRED = -32042
INVALID_PARAMS = -32602
RESOURCE_NOT_FOUND = -32002
"""MCP up to 2025-11-25, server/resources, "Error Handling"."""
MESSAGE_LIMIT = 200
"""Characters of an error message that are kept."""
_TRUE = (Raw(b"true"), Raw(b'"true"'), Raw(b"1"))
"""What lenient clients take for true."""
_OBJECT_OR_NULL = (b"{", b"n")
_OK: Final = Status.OK
_ERROR: Final = Status.ERROR
_INPUT_REQUIRED: Final = Status.INPUT_REQUIRED
_FAILED: Final = Kind.ERROR
_OF_THE_QUESTION: Final = frozenset({INVALID_PARAMS, URL_ELICITATION_REQUIRED})
_TERMINAL = frozenset({"completed", "failed", "cancelled"})

_T = TypeVar("_T", bound=Struct)


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
    harmless: bool = False
    """Whether the text of its result is known not to begin like an error."""


class TaskPoll(Struct, frozen=True, kw_only=True):
    """What an answer about a task says of the call that began it."""

    task_id: str
    terminal: bool
    answer: Answer
    """How the call ended, or stands."""


class _TaskParams(Struct, rename="camel", gc=False):
    task_id: Raw = Raw()


class _Task(Struct, rename="camel", gc=False):
    task_id: Raw = Raw()
    status: Raw = Raw()
    ttl: Raw = Raw()
    ttl_ms: Raw = Raw()


class _Result(Struct, rename="camel", gc=False):
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


class _Error(Struct, gc=False):
    code: Raw = Raw()
    message: Raw = Raw()


_NO_TASK: Final = _Task()
_SPOKEN: Final = Answer(status=_OK, harmless=True)
"""What most answers come to."""


def read_answer(message: Message | Outline, *, revision: str) -> Answer:
    """Read the answer to a `tools/call`, a response or an error.

    `resultType` counts from 2026-07-28 on, and where the revision is not known (empty).
    """
    if isinstance(message, Message):
        if message.kind is _FAILED:
            return _error(message.error_code, message.error_message)
        if message.plain is not None and is_spoken(message.plain.get("result")):
            return _SPOKEN
        result = load(_Result, message.result)
        task = load(_Task, result.task) if result.task else _NO_TASK
        return _ended(message.result, result, task, revision)
    if outline_kind(message) is _FAILED:
        return _failed(message.raw("error"), _skimmed(message, "error", _Error))
    result = _skimmed(message, "result", _Result)
    task = _skimmed(message, "result.task", _Task)
    return _ended(message.raw("result"), result, task, revision)


def read_lookup_answer(message: Message | Outline, *, revision: str) -> Answer:
    """Read the answer to a `resources/read` or `prompts/get`, a response or an error.

    Only the results of tools have content that can be empty, errors of their own and tasks.
    """
    said = read_answer(message, revision=revision)
    failed = said.status is _ERROR and not said.is_error
    if failed or said.foreign or said.status is _INPUT_REQUIRED:
        return said
    return Answer(status=_OK)


def read_task_poll(
    method: str, params: Raw, message: Message | Outline, *, revision: str
) -> TaskPoll | None:
    """Read the answer to a request about a task; `None` for other methods.

    `tasks/result` (2025-11-25) answers what the call itself would have. `tasks/get` and
    `tasks/cancel` answer the task: 2026-07-28 with the result or error inside, 2025-11-25 without.
    An error to these two, or -32602 or -32042 to any, is about the question, not about the call.
    """
    if method not in ("tasks/get", "tasks/result", "tasks/cancel"):
        return None
    task_id = text_of(load(_TaskParams, params).task_id)
    answer = read_answer(message, revision=revision)
    failed = answer.code is not None or (answer.status is Status.ERROR and not answer.is_error)
    if failed and (method != "tasks/result" or answer.code in _OF_THE_QUESTION):
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
    match text_of(task.status):
        case "completed" if not whole:
            ended = Answer(status=Status.OK)
        case "completed":
            ended = _ended(whole, inner, _NO_TASK, revision)
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
        task_id=text_of(task.task_id),
        task_status=text_of(task.status),
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
    message = text_of(error.message, MESSAGE_LIMIT) or text_of(whole, MESSAGE_LIMIT)
    return _error(integer_of(bytes(error.code)), message)


def _error(code: int | None, message: str) -> Answer:
    return Answer(status=_ERROR, code=code, message=message[:MESSAGE_LIMIT])


def _ended(whole: bytes, result: _Result, task: _Task, revision: str) -> Answer:
    """Return what a result says: `whole` as text, and what was read out of it."""
    # What has content is an object.
    if not result.content and not bytes(whole).startswith(_OBJECT_OR_NULL):
        return Answer(status=_OK, foreign=True)
    counts = result.result_type and (not revision or is_stateless(revision))
    result_type = text_of(result.result_type) if counts else ""
    is_error = bool(result.is_error) and result.is_error in _TRUE
    if is_error:
        status = _ERROR
    elif result_type == "input_required":
        status = _INPUT_REQUIRED
    elif result_type == "task" or (task.task_id and text_of(task.task_id)):
        return _accepted(result, task, result_type)
    else:
        status = _OK
    state = result.request_state
    look = look_at(whole, result.content, result.structured_content)
    return Answer(
        status=status,
        is_error=is_error,
        result_type=result_type,
        request_state=state_digest(state) if state else b"",
        null_shape=look.nothing and status is not _INPUT_REQUIRED,
        void=look.void and status is _OK,
        empty=look.empty and status is _OK,
        harmless=look.harmless,
    )


def _accepted(result: _Result, task: _Task, result_type: str) -> Answer:
    """Return what a task handle says: flat since 2026-07-28, under `task` before."""
    flat = not task.task_id
    return Answer(
        status=Status.ACCEPTED,
        result_type=result_type,
        task_id=text_of(result.task_id if flat else task.task_id),
        task_status=text_of(result.status if flat else task.status),
        task_ttl_ms=_ttl((result.ttl_ms or result.ttl) if flat else (task.ttl_ms or task.ttl)),
        request_state=state_digest(result.request_state),
    )


def _ttl(raw: Raw) -> int | UnsetType | None:
    if bytes(raw) == b"null":
        return None
    number = integer_of(bytes(raw))
    return UNSET if number is None else number


def state_digest(raw: Raw) -> bytes:
    """Return sha256 of a `requestState`; empty for none."""
    if not raw:
        return b""
    token = bytes(raw)
    if not token.startswith(b'"') or string_end(token, 1)[0] != len(token):
        return b""
    return sha256(decode_string(token).encode()).digest()
