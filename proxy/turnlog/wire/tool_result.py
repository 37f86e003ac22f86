"""Answers to `tools/call`: how the call ended or what it waits for, and the content of its result.

Every reader is tolerant, like those in `mcp`. Answers too large to hold are an `Outline` and give the
same results, except for blank texts (`null_shape`).
"""

import re
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from turnlog.core.kinds import Flag, Status

from .error_text import looks_like_error
from .json_stream import Outline
from .json_text import (
    ValueShape,
    integer_of,
    items,
    load,
    members,
    pick,
    shape,
    text_of,
)
from .jsonrpc import DUPLICATES_LIMIT, Kind, Message, outline_kind, read_large, read_whole
from .mcp import INVALID_PARAMS, URL_ELICITATION_REQUIRED, is_stateless, state_digest

MESSAGE_LIMIT: Final = 200
"""Characters of an error message that are kept."""
TEXT_LIMIT: Final = 64 * 1024
"""Characters of an answer's text that rules search."""
# Values that lenient clients accept as true.
_TRUE: Final = (Raw(b"true"), Raw(b'"true"'), Raw(b"1"))
_OBJECT_OR_NULL: Final = (b"{", b"n")
_OK: Final = Status.OK
_ERROR: Final = Status.ERROR
_INPUT_REQUIRED: Final = Status.INPUT_REQUIRED
_FAILED: Final = Kind.ERROR
_OF_THE_QUESTION: Final = frozenset({INVALID_PARAMS, URL_ELICITATION_REQUIRED})
_TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})
_NO_VALUES: Final = frozenset({b"0", b"false", b'""'})
_NULL_TEXTS: Final = frozenset({"null", "None", "undefined", "NaN", "[object Object]"})
_LONGEST_NULL_TEXT: Final = 15
# Members of a result that consists of texts.
_OF_TEXTS: Final = frozenset({"content", "isError", "_meta"})
# The least members of a text block: type and text.
_MEMBERS_OF_TEXT: Final = 2
# Bytes of the largest `content`, and structured content, that is read.
_NULL_LIMIT: Final = 4096
_EMPTY: Final = ValueShape.EMPTY
_FULL: Final = ValueShape.FULL
_SCALAR: Final = ValueShape.SCALAR
_ABSENT: Final = ValueShape.ABSENT
_UNSAID: Final = frozenset({ValueShape.ABSENT, ValueShape.NULL})
_TEXT: Final = Raw(b'"text"')
# Bytes at the start of a result in which its first text must begin.
_HEAD: Final = 2048
_FIRST_TEXT: Final = re.compile(
    rb'"content"\s*:\s*\[\s*\{[^{}\[\]]*?"text"\s*:\s*("[^"\\]*+(?:\\.[^"\\]*+)*+)', re.DOTALL
)
_ERROR_MEMBER: Final = b'"error"'
_NO_ERRORS: Final = frozenset({b"", b"null", b"false", b"0", b'""', b"[]", b"{}"})

_T = TypeVar("_T", bound=Struct)


class CallAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """How a request ended, according to its answer."""

    status: Status
    code: int | None = None
    """JSON-RPC error code."""
    message: str = ""
    """JSON-RPC error message."""
    is_error: bool = False
    task_id: str = ""
    task_ttl_ms: int | UnsetType | None = UNSET
    """How long the server keeps the task; `None` for ever, `UNSET` if it does not say."""
    request_state: bytes = b""
    """sha256 of the `requestState` that the next leg must carry; empty for none."""
    null_shape: bool = False
    """Whether the result has an empty shape."""
    void: bool = False
    """Whether it has a shape that the protocol forbids: `null`, `{}`, no content of any kind."""
    foreign: bool = False
    """Whether the result has a type that no result may have: number, string, array."""
    empty: bool = False
    """Whether its structured content is an empty value such as `[]`."""
    harmless: bool = False
    """Whether the text of its result is known not to begin like an error."""
    text: str = ""
    """The only text of its result, if that is one harmless text in one block."""
    flags: tuple[Flag, ...] = ()
    """Peculiarities of the answer's text."""


class TaskPoll(Struct, frozen=True, kw_only=True):
    """The state of a call that became a task, according to an answer about the task."""

    task_id: str
    terminal: bool
    answer: CallAnswer
    """How the call ended, or its state."""


class _TaskParams(Struct, rename="camel", gc=False):
    task_id: Raw = Raw()


class _Task(Struct, rename="camel", gc=False):
    task_id: Raw = Raw()
    ttl: Raw = Raw()
    ttl_ms: Raw = Raw()


class _ResultMembers(Struct, rename="camel", gc=False):
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


class _ErrorMembers(Struct, gc=False):
    code: Raw = Raw()
    message: Raw = Raw()
    data: Raw = Raw()


class _ContentBlock(Struct, gc=False):
    type: Raw = Raw()
    text: Raw = Raw()


class _TextBlock(Struct, gc=False):
    type: Raw = Raw()
    text: str = ""


_decode_texts = msgspec.json.Decoder(list[_TextBlock]).decode
_NO_TASK: Final = _Task()
_TEXTS: Final = CallAnswer(status=_OK, harmless=True)


# -- how a call ended --------------------------------------------------------------------------


def read_answer(message: Message | Outline, *, revision: str) -> CallAnswer:
    """Read the answer to a `tools/call`, a response or an error.

    `resultType` counts from 2026-07-28 on, and if the revision is unknown (empty).
    """
    if isinstance(message, Message):
        if message.result and len(message.unchecked) > DUPLICATES_LIMIT:
            found, flags = read_large(message)
            result = pick(_ResultMembers, found)
        else:
            plain, flags = read_whole(message)
            if message.kind is _FAILED:
                return _error(message.error_code, message.error_message, flags)
            if plain is not None and (said := read_texts(plain.get("result"))) is not None:
                return said
            result = load(_ResultMembers, message.result)
        task = load(_Task, result.task) if result.task else _NO_TASK
        return _ended(message.result, result, task, revision, flags)
    if outline_kind(message) is _FAILED:
        return _failed(message.raw("error"), _outlined(message, "error", _ErrorMembers))
    result = _outlined(message, "result", _ResultMembers)
    task = _outlined(message, "result.task", _Task)
    return _ended(message.raw("result"), result, task, revision)


def read_lookup_answer(message: Message | Outline, *, revision: str) -> CallAnswer:
    """Read the answer to a `resources/read` or `prompts/get`, a response or an error.

    Only results of tools can have empty content, `isError` and tasks.
    """
    said = read_answer(message, revision=revision)
    failed = said.status is _ERROR and not said.is_error
    if failed or said.foreign or said.status is _INPUT_REQUIRED:
        return said
    return CallAnswer(status=_OK, flags=said.flags)


def read_task_poll(
    method: str, params: Raw, message: Message | Outline, *, revision: str
) -> TaskPoll | None:
    """Read the answer to a request about a task; `None` for other methods.

    `tasks/result` (2025-11-25) returns the answer of the call itself. `tasks/get` and `tasks/cancel`
    return the task: in 2026-07-28 with the result or error inside, in 2025-11-25 without. An error to
    these two, or -32602 or -32042 to any, is about the request itself, not about the call.
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
    return _standing(message, revision, task_id, answer.flags)


def _standing(
    message: Message | Outline, revision: str, task_id: str, flags: tuple[Flag, ...]
) -> TaskPoll:
    """Return the state of a call by its task."""
    if isinstance(message, Outline):
        task = _outlined(message, "result", _ResultMembers)
        inner = _outlined(message, "result.result", _ResultMembers)
        error = _outlined(message, "result.error", _ErrorMembers)
        whole = message.raw("result.result")
    else:
        task = load(_ResultMembers, message.result)
        inner, error = load(_ResultMembers, task.result), load(_ErrorMembers, task.error)
        whole = bytes(task.result)
    word = text_of(task.status)
    match word:
        case "completed" if not whole:
            ended = CallAnswer(status=Status.OK)
        case "completed":
            ended = _ended(whole, inner, _NO_TASK, revision)
        case "failed":
            ended = _failed(bytes(task.error), error)
        case "cancelled":
            ended = CallAnswer(status=Status.ERROR)
        case "input_required":
            ended = CallAnswer(status=Status.INPUT_REQUIRED)
        case _:
            ended = CallAnswer(status=Status.ACCEPTED)
    answer = replace(ended, task_ttl_ms=_ttl(task.ttl_ms or task.ttl), flags=flags)
    named = task_id or text_of(task.task_id)
    return TaskPoll(task_id=named, terminal=word in _TERMINAL, answer=answer)


def _outlined(outline: Outline, path: str, kind: type[_T]) -> _T:
    start = f"{path}."
    found = {
        name.removeprefix(start): Raw(token)
        for name, token in outline.tokens.items()
        if name.startswith(start)
    }
    return pick(kind, found)


def _failed(whole: bytes, error: _ErrorMembers) -> CallAnswer:
    # An error that is only a string is its own message.
    message = text_of(error.message, MESSAGE_LIMIT) or text_of(whole, MESSAGE_LIMIT)
    return _error(integer_of(bytes(error.code)), message)


def _error(code: int | None, message: str, flags: tuple[Flag, ...] = ()) -> CallAnswer:
    return CallAnswer(status=_ERROR, code=code, message=message[:MESSAGE_LIMIT], flags=flags)


def _ended(
    whole: bytes,
    result: _ResultMembers,
    task: _Task,
    revision: str,
    flags: tuple[Flag, ...] = (),
) -> CallAnswer:
    """Return the ending by a result: `whole` is its text."""
    # A result with content is an object.
    if not result.content and not bytes(whole).startswith(_OBJECT_OR_NULL):
        return CallAnswer(status=_OK, foreign=True, flags=flags)
    counts = result.result_type and (not revision or is_stateless(revision))
    result_type = text_of(result.result_type) if counts else ""
    is_error = bool(result.is_error) and result.is_error in _TRUE
    if is_error:
        status = _ERROR
    elif result_type == "input_required":
        status = _INPUT_REQUIRED
    elif result_type == "task" or (task.task_id and text_of(task.task_id)):
        return _accepted(result, task, flags)
    else:
        status = _OK
    state = result.request_state
    look = _look_at(whole, result.content, result.structured_content)
    if status is _OK and not (state or flags):
        return look
    return replace(
        look,
        status=status,
        is_error=is_error,
        request_state=state_digest(state) if state else b"",
        null_shape=look.null_shape and status is not _INPUT_REQUIRED,
        void=look.void and status is _OK,
        empty=look.empty and status is _OK,
        flags=flags,
    )


def _accepted(result: _ResultMembers, task: _Task, flags: tuple[Flag, ...]) -> CallAnswer:
    """Return the fields of a task handle: flat since 2026-07-28, under `task` before."""
    flat = not task.task_id
    return CallAnswer(
        status=Status.ACCEPTED,
        task_id=text_of(result.task_id if flat else task.task_id),
        task_ttl_ms=_ttl((result.ttl_ms or result.ttl) if flat else (task.ttl_ms or task.ttl)),
        request_state=state_digest(result.request_state),
        flags=flags,
    )


def _ttl(raw: Raw) -> int | UnsetType | None:
    if bytes(raw) == b"null":
        return None
    number = integer_of(bytes(raw))
    return UNSET if number is None else number


# -- whether a result is empty -----------------------------------------------------------------


_VOID: Final = CallAnswer(status=_OK, null_shape=True, void=True)


def _look_at(whole: bytes, content: Raw, structured: Raw) -> CallAnswer:
    """Return how a call ended, by the content of its result, which is an object or null."""
    if not content and not structured and shape(whole) is not _FULL:
        return _VOID
    texts = _only_texts(content) if content and len(content) <= _NULL_LIMIT else None
    value = _unwrapped(structured) if structured else structured
    held = shape(value) if value else _ABSENT
    empty = held is _EMPTY or (held is _SCALAR and bytes(value) in _NO_VALUES)
    if texts is not None:
        text = "\n".join(texts)
        return CallAnswer(
            status=_OK,
            null_shape=held in _UNSAID and _is_blank(text.strip(), alone=len(texts) == 1),
            empty=empty,
            harmless=not looks_like_error(text),
        )
    found = shape(content)
    return CallAnswer(
        status=_OK,
        null_shape=held in _UNSAID and found is not _SCALAR and found is not _FULL,
        void=found in _UNSAID and shape(structured) in _UNSAID,
        empty=empty,
    )


def read_texts(result: Any) -> CallAnswer | None:
    """Return how a call ended whose result, as plain values, is nothing but texts that say something and do
    not begin like an error; `None` for any other."""
    # Most results are like this, and there is nothing more to find in them.
    texts: list[str] = []
    try:
        if not result.keys() <= _OF_TEXTS or result.get("isError", False) is not False:
            return None
        content = result["content"]
        for block in content:
            if block["type"] != "text":
                return None
            texts.append(block["text"])
        whole = "\n".join(texts)
    except (AttributeError, KeyError, TypeError):  # some value has another type, or is absent
        return None
    word, is_alone = whole.strip(), len(texts) == 1
    is_blank = len(word) <= _LONGEST_NULL_TEXT and _is_blank(word, alone=is_alone)
    if is_blank or looks_like_error(whole):
        return None
    if is_alone and len(content[0]) == _MEMBERS_OF_TEXT:
        return CallAnswer(status=_OK, harmless=True, text=whole)
    return _TEXTS


def is_structured(result: bytes) -> bool:
    """Return whether a `tools/call` result has structured content that is not empty."""
    found = load(_ResultMembers, result).structured_content
    return bool(found) and shape(_unwrapped(found)) is not ValueShape.NULL


def _unwrapped(structured: Raw) -> Raw:
    """Return the value of structured content: servers wrap other values than objects as `{"result": value}`."""
    if len(structured) > _NULL_LIMIT or shape(structured) is not _FULL:
        return structured
    inner = members(structured)
    return inner.get("result", structured) if len(inner) == 1 else structured


def _is_blank(word: str, *, alone: bool) -> bool:
    """Return whether the whole text, without blanks around it, is a word for nothing."""
    return not word or (alone and len(word) <= _LONGEST_NULL_TEXT and word in _NULL_TEXTS)


# -- the texts of answers ----------------------------------------------------------------------


def text_of_result(result: bytes, limit: int = TEXT_LIMIT) -> str:
    """Return the texts of a `tools/call` result, joined by line feeds, cut to `limit` characters."""
    found: list[str] = []
    room = limit
    for raw in blocks_of_result(result):
        block = load(_ContentBlock, raw)
        if room > 0 and block.type == _TEXT:
            found.append(text_of(block.text, room))
            room -= len(found[-1])
    return "\n".join(found)[:limit]


def blocks_of_result(result: bytes) -> list[Raw]:
    """Return the blocks of a `tools/call` result's content."""
    return items(load(_ResultMembers, result).content)


def only_text(result: bytes) -> str | None:
    """Return the texts of a `tools/call` result, one below the other; `None` where it has other blocks,
    or none."""
    texts = _only_texts(load(_ResultMembers, result).content)
    return None if texts is None else "\n".join(texts)


def _only_texts(content: Raw) -> list[str] | None:
    """Return the texts of a result's content; `None` if it has other blocks, or none."""
    try:
        blocks = _decode_texts(content)
    except (ValueError, RecursionError):
        blocks = [_text_block(load(_ContentBlock, raw)) for raw in items(content)]
    texts: list[str] = []
    for block in blocks:
        if block.type != _TEXT:
            return None
        texts.append(block.text)
    return texts or None


def _text_block(block: _ContentBlock) -> _TextBlock:
    return _TextBlock(block.type, text_of(block.text, len(block.text)))


def text_of_error(error: bytes) -> str:
    """Return the message of a JSON-RPC error, with its data if that is a text."""
    found = load(_ErrorMembers, error)
    texts = (text_of(raw, TEXT_LIMIT) for raw in (found.message, found.data))
    return "\n".join(text for text in texts if text)


def text_of_body(body: bytes) -> str:
    """Return the start of a body as text."""
    return body[:TEXT_LIMIT].decode("utf-8", "replace")


def start_of_result(result: bytes, limit: int) -> str:
    """Return the beginning of the first text of a `tools/call` result, by its first bytes."""
    found = _FIRST_TEXT.search(result[:_HEAD])
    return text_of(Raw(found[1]), limit) if found is not None else ""


def has_error_member(body: bytes) -> bool:
    """Return whether a JSON object has a top-level member `error` that is not empty."""
    # `in` costs five times as much.
    if len(body) > TEXT_LIMIT or body.find(_ERROR_MEMBER) < 0:
        return False
    return bytes(members(body).get("error", b"")) not in _NO_ERRORS
