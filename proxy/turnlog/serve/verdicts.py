"""What the text of an answer says of a call: how it ended, and what to record. Pure."""

from typing import Final

import msgspec
from msgspec import Struct

from turnlog.core.classify import (
    Ending,
    http_answer,
    malformed_answer,
    rpc_answer,
    void_answer,
)
from turnlog.core.kinds import Executed, Flag, Status
from turnlog.wire import mcp
from turnlog.wire.jsonrpc import Kind, Malformed, Message, Reason, outline_kind
from turnlog.wire.message import MessageReader
from turnlog.wire.rawjson import Shape, shape
from turnlog.wire.skim import Outline

from .attempt import Reply

JSON: Final = "application/json"
_HTML: Final = "text/html"
_NO_ID: Final = (b"", b"null")
_NS_PER_MS: Final = 1_000_000
_REASON_FLAGS: Final = {
    Reason.EMPTY: (),
    Reason.CUT: (Flag.MALFORMED,),
    Reason.NOT_JSON: (Flag.NOT_JSON,),
    Reason.NOT_JSONRPC: (Flag.MALFORMED,),
}


class Text(Struct, frozen=True):
    """One JSON text of an answer: a body, or the data of an event."""

    body: MessageReader
    media: str
    size: int
    """Bytes on the wire."""


def is_answer(message: Message | Outline) -> bool:
    """Tell whether a message answers a request: a result or an error, and JSON-RPC at all.

    A bare `{"error": ...}` without version and id is some other server's page.
    """
    if isinstance(message, Outline):
        return outline_kind(message) in {Kind.RESPONSE, Kind.ERROR}
    answers = message.kind in {Kind.RESPONSE, Kind.ERROR}
    return answers and (message.jsonrpc or message.id not in _NO_ID)


def raw_id(message: Message | Outline) -> bytes:
    """Return the id of a message as text."""
    return message.id if isinstance(message, Message) else message.raw("id")


def nameless_error(message: Message | Outline) -> bool:
    """Tell whether a message is an error that names no request (JSON-RPC 2.0 section 5.1)."""
    kind = message.kind if isinstance(message, Message) else outline_kind(message)
    return kind is Kind.ERROR and raw_id(message) in _NO_ID


def answered(
    said: mcp.Answer, message: Message | Outline, text: Text, status: int
) -> tuple[Ending, Reply]:
    """Return how a call ended that got this answer, under HTTP `status`."""
    reply = Reply(
        http_status=status,
        code=said.code,
        content=_content(message, text),
        complete=not text.body.truncated,
        digest=text.body.digest if text.body.truncated else b"",
        media_type=JSON,
        is_mcp=True,
        size=text.size,
        flags=_flags(message, text, status),
        ttl=_ttl(said),
        null_result=said.null_shape,
        detail=said.message,
    )
    return _ending(said, message, status), reply


def unanswered(text: Text, status: int) -> tuple[Ending, Reply]:
    """Return how a call ended whose answer came whole and does not answer it."""
    content = text.body.content
    flags: tuple[Flag, ...] = (Flag.NOT_JSON,) if text.media == _HTML else ()
    if status >= 400:
        ending = http_answer(status)
    elif isinstance(content, Malformed):
        flags = (*content.flags, *_REASON_FLAGS[content.reason])
        ending = void_answer() if content.reason is Reason.EMPTY else malformed_answer()
    else:
        foreign = isinstance(content, Message) and not content.jsonrpc
        flags = (Flag.MALFORMED if foreign else Flag.ID_MISMATCH,)
        ending = malformed_answer()
    reply = Reply(
        http_status=status,
        content=text.body.finish(),
        complete=not text.body.truncated,
        digest=text.body.digest if text.body.truncated else b"",
        media_type=text.media,
        size=text.size,
        flags=flags,
        null_result=not text.body.size,
    )
    return ending, reply


def unreadable_flags(content: Malformed) -> tuple[Flag, ...]:
    """Return the flags of a request that is no JSON-RPC."""
    return (*content.flags, *_REASON_FLAGS[content.reason])


def _ending(said: mcp.Answer, message: Message | Outline, status: int) -> Ending:
    if said.status is Status.OK and _is_void(message):
        return void_answer()
    ending = rpc_answer(said.status, said.code)
    if status >= 400 and http_answer(status).executed is Executed.NO:
        return msgspec.structs.replace(ending, executed=Executed.NO)
    return ending


def _is_void(message: Message | Outline) -> bool:
    """Tell whether a result is `null` or `{}`, which the protocol forbids."""
    result = message.shape("result") if isinstance(message, Outline) else shape(message.result)
    return result in {Shape.NULL, Shape.EMPTY}


def _flags(message: Message | Outline, text: Text, status: int) -> tuple[Flag, ...]:
    flags = message.flags if isinstance(message, Message) else ()
    if text.media != JSON:
        flags = (*flags, Flag.CONTENT_TYPE_MISMATCH)
    if nameless_error(message) and status < 400:
        flags = (*flags, Flag.ID_MISMATCH)
    return flags


def _content(message: Message | Outline, text: Text) -> bytes:
    if isinstance(message, Outline):
        return text.body.finish()
    if message.kind is Kind.RESPONSE:
        return bytes(message.result)
    error = {"code": message.error_code, "message": message.error_message}
    if message.error_data:
        return msgspec.json.encode({**error, "data": message.error_data})
    return msgspec.json.encode(error)


def _ttl(said: mcp.Answer) -> int | None:
    if said.task_ttl_ms is msgspec.UNSET:
        return None
    return -1 if said.task_ttl_ms is None else said.task_ttl_ms * _NS_PER_MS
