"""The meaning of an answer: how the attempt ended and what to record, by the protocol, then by the rules."""

import re
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import msgspec
from msgspec import Struct, structs

from turnlog.core.classify import (
    Ending,
    is_method_preserving_redirect,
    is_transport_status,
    kind_of_error,
    kind_of_redirect,
    kind_of_status,
    refused,
    succeeded,
)
from turnlog.core.kinds import Effect, ErrorKind, Flag, Status
from turnlog.provenance.verdict import unmet_result
from turnlog.rules.expression import MAX_SEARCHED_BYTES, UNREADABLE, ExpressionInput
from turnlog.rules.model import Unmet
from turnlog.rules.policy import Policy
from turnlog.rules.result_rules import ReceivedAnswer, judge_answer, without_searches
from turnlog.wire.error_text import LOOKED_AT, looks_like_error
from turnlog.wire.http.head import Headers, fields, retry_after
from turnlog.wire.json_stream import Outline
from turnlog.wire.json_text import members, read_value
from turnlog.wire.jsonrpc import Defect, Kind, Malformed, Message, outline_kind
from turnlog.wire.mcp import INVALID_PARAMS, RESOURCE_NOT_FOUND
from turnlog.wire.message import JSON, NO_CHECKS, MessageReader, ResultChecks
from turnlog.wire.sse import EventReader
from turnlog.wire.tool_result import (
    CallAnswer,
    has_error_member,
    is_structured,
    start_of_result,
    text_of_body,
    text_of_error,
    text_of_result,
)

_HTML: Final = "text/html"
_EVENTS: Final = "text/event-stream"
_EVENT_STARTS: Final = (b"event:", b"data:", b"id:", b"retry:", b":")
_ANSWERS: Final = frozenset({Kind.RESPONSE, Kind.ERROR})
_NO_ID: Final = (b"", b"null")
_NS_PER_MS: Final = 1_000_000
_GONE: Final = frozenset({404, 410})
_PLAIN_SUCCESS: Final = 200
_PLAIN: Final = frozenset({0, _PLAIN_SUCCESS})
"""Statuses that say nothing beside the body; 0 where there is none, on pipes."""
_NOT_MODIFIED: Final = 304
_REFUSALS: Final = 400
"""From this status on one says that something went wrong."""
_SESSION_LOST: Final = 404
_WITH_BODY: Final = frozenset({200, 202})
"""Statuses of a plain HTTP answer that promise a body."""
_METHOD_NOT_FOUND: Final = -32601
_GONE_WORDS: Final = (
    "unknown|invalid|expired|missing|no such|no valid|no active|not found|not exist"
)
_SESSION_GONE: Final = re.compile(
    rf"({_GONE_WORDS})( mcp)? session|\bsession( ?id)?\b[^.,;\n]{{0,80}}\b({_GONE_WORDS}|terminated)",
    re.IGNORECASE,
)
_SEARCHED: Final = 1024
"""Characters of an error that are looked at for what it says of the session."""
_NULL: Final = frozenset({Flag.NULL_RESULT, Flag.EMPTY})
_CONTAINERS: Final = (b"{", b"[")
SAYS_WHEN: Final = frozenset({429, 503})
"""Statuses of refusals that may say when to come back."""
_START: Final = 4 * LOOKED_AT
"""Bytes that hold as many characters as are looked at."""
_REASON_FLAGS: Final = {
    Defect.EMPTY: (Flag.NULL_RESULT, Flag.VOID),
    Defect.CUT: (Flag.MALFORMED,),
    Defect.NOT_JSON: (Flag.NOT_JSON,),
    Defect.NOT_JSONRPC: (Flag.MALFORMED,),
}


class AnswerFacts(Struct, frozen=True, kw_only=True, gc=False):
    """The facts of an answer. `content` is the result as received, truncated if not `complete`."""

    http_status: int = 0
    code: int | None = None
    content: bytes = b""
    complete: bool = True
    digest: bytes = b""
    """sha256 of the whole content; empty if `content` and `rest` are all of it."""
    rest: bytes = b""
    """The part truncated from `content`, as far as it is still in memory."""
    media_type: str = ""
    is_mcp: bool = False
    is_result: bool = False
    """Whether `content` is the tool's result, and not an error or another answer."""
    size: int = 0
    flags: tuple[Flag, ...] = ()
    links: tuple[bytes, ...] = ()
    ttl: int | None = None
    """Lifetime of the task in ns; `None` if not stated, -1 for unlimited."""
    detail: str = ""
    retry_after: float | None = None
    """Seconds from the server's `Retry-After`."""
    said: str = ""
    """The text of turnlog's own answer to the caller, in place of the server's."""
    text: str = ""
    """All that `content` holds, if that is one text; else empty."""
    checks: ResultChecks = NO_CHECKS
    """What the answer's digests and signatures say."""


class Asked(Protocol):
    """The request that an answer belongs to, as far as rules look at it."""

    @property
    def effect(self) -> Effect:
        """Its effect."""
        ...

    @property
    def policy(self) -> Policy:
        """The decisions of the rules for it."""
        ...

    @property
    def arguments(self) -> bytes:
        """Its arguments as JSON, truncated if not `complete`."""
        ...

    @property
    def complete(self) -> bool:
        """Whether all arguments are here."""
        ...

    @property
    def shortfall(self) -> str:
        """Why its success is an error, by its tool or its inputs; empty for nothing."""
        ...


def is_answer(message: Message | Outline) -> bool:
    """Return whether a message answers a request: a result or an error, and JSON-RPC at all.

    A bare `{"error": ...}` without version and id is some other server's page.
    """
    if isinstance(message, Message):
        answers = message.kind is Kind.RESPONSE or message.kind is Kind.ERROR
        return answers and (message.jsonrpc or message.id not in _NO_ID)
    return outline_kind(message) in _ANSWERS


def nameless_error(message: Message | Outline) -> bool:
    """Return whether a message is an error that names no request (JSON-RPC 2.0 section 5.1)."""
    kind = message.kind if isinstance(message, Message) else outline_kind(message)
    return kind is Kind.ERROR and message.id in _NO_ID


def mislabelled(body: MessageReader, keep: int) -> list[MessageReader]:
    """Return the events of a stream that came under another media type; none of other bodies."""
    start = body.finish()
    if not isinstance(body.content, Malformed) or not start.lstrip().startswith(_EVENT_STARTS):
        return []
    events = [piece.event for piece in EventReader(keep).feed(start)]
    bodies = [event.body for event in events if event is not None and event.body is not None]
    for each in bodies:
        each.media = _EVENTS
    return bodies


class Circumstances(Struct, frozen=True):
    """The circumstances on which the meaning of an answer depends."""

    status: int
    """HTTP status."""
    effect: Effect
    in_session: bool
    """Whether the request named a protocol session (handshake revisions)."""
    elsewhere: bool = False
    """Whether the answer leads to another origin."""
    is_unlisted: bool = False
    """Whether the latest whole list of tools lacks the tool that is called."""
    is_cancelled: bool = False
    """Whether the caller has cancelled the call, which must not happen twice."""


def answered_by_text(
    said: CallAnswer, message: Message | Outline, body: MessageReader, status: int
) -> AnswerFacts | None:
    """Return what to record of a success that holds one text and nothing else, as most do; `None` for any
    other answer."""
    is_plain = said.text and status in _PLAIN and body.media == JSON
    if not is_plain or not isinstance(message, Message):
        return None
    return AnswerFacts(
        http_status=status,
        content=b"" + message.result,  # `bytes` takes twice as long
        media_type=JSON,
        is_mcp=True,
        is_result=True,
        size=body.wire_size,
        flags=body.notes,
        text=said.text,
        checks=body.checks,
    )


def answered(
    said: CallAnswer, message: Message | Outline, body: MessageReader, around: Circumstances
) -> tuple[Ending, AnswerFacts]:
    """Return how a call ended that got this answer."""
    result = (
        message.result if isinstance(message, Message) and message.kind is Kind.RESPONSE else None
    )
    ttl = said.task_ttl_ms
    reply = AnswerFacts(
        http_status=around.status,
        code=said.code,
        content=bytes(result) if result is not None else _error_content(message, body),
        complete=not body.truncated,
        digest=body.digest,
        rest=body.rest,
        media_type=JSON,
        is_mcp=True,
        is_result=result is not None,
        size=body.wire_size,
        flags=_flags(said, message, body, around),
        ttl=None if ttl is msgspec.UNSET else -1 if ttl is None else ttl * _NS_PER_MS,
        detail=said.message,
        checks=body.checks,
    )
    kind = _kind(said, around)
    return succeeded(said.status) if kind is None else refused(kind, around.effect), reply


def call_answered(
    asked: Asked,
    said: CallAnswer,
    message: Message | Outline,
    body: MessageReader,
    around: Circumstances,
) -> tuple[Ending, AnswerFacts]:
    """Return how a tool call ended that got this answer, as its rules see it."""
    ending, reply = answered(said, message, body, around)
    # MCP uses the code of invalid parameters for an unknown tool.
    is_wrong = said.code == INVALID_PARAMS and ending.kind == ErrorKind.INVALID_REQUEST
    if around.is_unlisted and is_wrong:
        ending = refused(ErrorKind.TOOL_NOT_FOUND, asked.effect)
    ending, reply = judged(asked, ending, reply, harmless=said.harmless)
    # Many servers answer a cancelled call with an error code of their own.
    is_own = said.code is not None and ending.kind == ErrorKind.UPSTREAM_INTERNAL
    if around.is_cancelled and is_own:
        ending = refused(ErrorKind.CANCELLED_BY_CALLER, asked.effect)
    return ending, reply


def lookup_answered(
    said: CallAnswer, message: Message | Outline, body: MessageReader, around: Circumstances
) -> tuple[Ending, AnswerFacts]:
    """Return how a lookup ended that got this answer."""
    ending, reply = answered(said, message, body, around)
    if said.code == RESOURCE_NOT_FOUND:
        ending = refused(ErrorKind.NOT_FOUND, around.effect)
    return ending, reply


def looks_like_success(said: CallAnswer, reply: AnswerFacts) -> bool:
    """Return whether an answer looks like success to a client, however rules judge it."""
    return reply.is_result and reply.http_status < _REFUSALS and not said.is_error


def answered_plainly(
    method: str, status: int, body: MessageReader, effect: Effect, *, elsewhere: bool = False
) -> tuple[Ending, AnswerFacts]:
    """Return how the call of a plain HTTP tool ended that got this answer.

    `elsewhere` tells whether the answer leads to another origin.
    """
    content = body.finish()
    # JSON says `null`, or a body is missing where the status promises one.
    promised = not body.wire_size and status in _WITH_BODY and method != "HEAD"
    flags = redirects(status) if status != _PLAIN_SUCCESS else ()
    if promised or content.strip() == b"null":
        flags = (Flag.NULL_RESULT, *flags)
    flags = (*flags, *body.notes)
    reply = _as_it_came(body, status, flags, is_result=True)
    kind = kind_of_status(status)
    if is_method_preserving_redirect(status):
        kind = kind_of_redirect(status, elsewhere=elsewhere)
    return succeeded() if kind is None else refused(kind, effect), reply


def _as_it_came(
    body: MessageReader, status: int, flags: tuple[Flag, ...], *, is_result: bool
) -> AnswerFacts:
    """Return what to record of a body that is recorded whole, and not as a message."""
    return AnswerFacts(
        http_status=status,
        content=body.finish(),
        complete=not body.truncated,
        digest=body.digest,
        rest=body.rest,
        media_type=body.media,
        is_result=is_result,
        size=body.wire_size,
        flags=flags,
        checks=body.checks,
    )


def unanswered(body: MessageReader, around: Circumstances) -> tuple[Ending, AnswerFacts]:
    """Return how a call ended whose answer came whole and does not answer it."""
    flags: tuple[Flag, ...] = (Flag.NOT_JSON,) if body.media == _HTML else ()
    kind = _kind_of_answer(around)
    if kind is None:
        kind, flags = _unfit(body)
    if Flag.NOT_JSON not in flags or Flag.FORGED_OUTCOME in body.notes:
        flags = (*flags, *body.notes)
    start = body.finish()[:_SEARCHED].decode("utf-8", "replace")
    flags = (*flags, *redirects(around.status), *suspicion(start, around))
    reply = _as_it_came(body, around.status, flags, is_result=False)
    return refused(kind, around.effect), reply


def instead(
    unfit: MessageReader | None, around: Circumstances
) -> tuple[Ending, AnswerFacts] | None:
    """Return how a call ended whose stream ended without the response; `None` for broken off.

    `unfit` is what stood in the place of the response.
    """
    if unfit is not None:
        return unanswered(unfit, around)
    kind = _kind_of_answer(around)
    if kind is None:
        return None
    reply = AnswerFacts(http_status=around.status, flags=redirects(around.status))
    return refused(kind, around.effect), reply


def is_unfit(body: MessageReader, content: Message | Outline | Malformed) -> bool:
    """Return whether what answered nothing stands in the place of a response.

    Blanks do not, nor events of a type that no message has; a request stands for itself.
    """
    if body.event != "message":
        return False
    if isinstance(content, Malformed):
        return content.reason is not Defect.EMPTY
    if isinstance(content, Outline):
        return outline_kind(content) in _ANSWERS
    return content.kind in _ANSWERS


def notification_answered(body: MessageReader, around: Circumstances) -> tuple[Ending, AnswerFacts]:
    """Return how a notification ended that got this answer."""
    _, reply = unanswered(body, around)
    # It has no id, so an id in the answer is no mismatch.
    flags = tuple(flag for flag in reply.flags if flag is not Flag.ID_MISMATCH)
    return acknowledged(around), structs.replace(reply, flags=flags)


def acknowledged(around: Circumstances) -> Ending:
    """Return how a notification ended: it has no response, but the status may refuse it."""
    kind = _kind_of_answer(around)
    return succeeded() if kind is None else refused(kind, around.effect)


def suspicion(error: str, around: Circumstances) -> tuple[Flag, ...]:
    """Return the flag of an error that speaks of a lost session under a status that does not say so."""
    if not error or not around.in_session or around.status == _SESSION_LOST:
        return ()
    found = _SESSION_GONE.search(error, 0, _SEARCHED)
    return (Flag.SESSION_SUSPECT,) if found is not None else ()


def redirects(status: int) -> tuple[Flag, ...]:
    """Return the flag of a status that leads elsewhere."""
    leads = kind_of_redirect(status) is not None and status != _NOT_MODIFIED
    return (Flag.REDIRECTED,) if leads else ()


def judged(
    asked: Asked, ending: Ending, reply: AnswerFacts, *, harmless: bool = False
) -> tuple[Ending, AnswerFacts]:
    """Return how an attempt ended, as the rules of its call see it, and what to record of it.

    `harmless` is of an answer whose text is known not to read like an error.
    """
    if ending.status.parked:
        return ending, reply
    if asked.policy.judges_answers:
        kind = ErrorKind(ending.kind) if ending.kind else None
        policy, reply = _searched(asked, reply)
        found = judge_answer(policy, _said(asked, kind, reply))
        if found.kind is None and (shortfall := _shortfall(asked, reply)):
            found = structs.replace(found, kind=ErrorKind.UNVERIFIED_PROVENANCE)
            reply = structs.replace(reply, detail=shortfall)
        if found.kind is not kind:
            ending = refused(found.kind, asked.effect) if found.kind is not None else succeeded()
        if found.flags != reply.flags or found.retry_after is not None:
            reply = structs.replace(reply, flags=found.flags, retry_after=found.retry_after)
    if not ending.kind and not harmless and _speaks_of_error(reply):
        reply = structs.replace(reply, flags=(*reply.flags, Flag.ERROR_LIKE_TEXT))
    return ending, reply


def _shortfall(asked: Asked, reply: AnswerFacts) -> str:
    """Return why the provenance of a success makes it an error; empty for nothing."""
    demand = asked.policy.provenance
    if demand.then is Unmet.FLAG:
        return ""
    return asked.shortfall or unmet_result(demand, reply.checks)


def waiting(reply: AnswerFacts, headers: Headers, now: Callable[[], int]) -> AnswerFacts:
    """Return what to record of an answer, which may say when to come back; `now` gives ns UTC."""
    if reply.http_status not in SAYS_WHEN:
        return reply
    asked = fields(headers, b"retry-after")
    seconds = retry_after(asked[0], now()) if asked else None
    return reply if seconds is None else structs.replace(reply, retry_after=seconds)


def unwrapped(reply: AnswerFacts) -> AnswerFacts:
    """Return what is recorded of the state of a task: the result of its call, where it is inside."""
    inner = members(reply.content).get("result") if reply.is_result and reply.complete else None
    if inner is None:
        return structs.replace(reply, is_result=False)
    return structs.replace(reply, content=bytes(inner))


def seen(asked: Asked, reply: AnswerFacts, unreadable: object = None) -> ExpressionInput:
    """Return what expressions look at: what is cut or no JSON is not there. `unreadable` stands for
    what is whole and cannot be read."""
    readable = reply.is_result and reply.complete
    return ExpressionInput(
        args=read_value(asked.arguments, unreadable) if asked.complete else None,
        result=read_value(reply.content, unreadable) if readable else None,
        status=reply.http_status or None,
    )


def _unfit(body: MessageReader) -> tuple[ErrorKind, tuple[Flag, ...]]:
    """Return what a body is that comes with a success and answers nothing, and its flags."""
    match body.content:
        case Malformed(reason=Defect.EMPTY) if body.wire_size and not body.size:
            # Something came, in a coding that could not be undone.
            return ErrorKind.MALFORMED_RESULT, (Flag.NOT_JSON,)
        case Malformed(reason, flags):
            if body.finish().strip() == b"null":
                reason = Defect.EMPTY
            void = reason is Defect.EMPTY
            kind = ErrorKind.NULL_RESULT if void else ErrorKind.MALFORMED_RESULT
            return kind, (*flags, *_REASON_FLAGS[reason])
        case Outline() as outline if not outline.complete or outline.raw("").startswith(b"["):
            # Too large to be read to its end, or item by item.
            return ErrorKind.MALFORMED_RESULT, ()
        case Message(jsonrpc=False):
            return ErrorKind.MALFORMED_RESULT, (Flag.MALFORMED,)
        case _:
            return ErrorKind.MALFORMED_RESULT, (Flag.ID_MISMATCH,)


def _kind(said: CallAnswer, around: Circumstances) -> ErrorKind | None:
    """Return what went wrong; `None` for nothing.

    A status of the way there counts first, then how the body says that the call ended, then any
    other status: a result that says nothing of an end is no success under 400 or 500.
    """
    refuses = around.status >= _REFUSALS
    if refuses and is_transport_status(around.status):
        return kind_of_status(around.status)
    if said.status is Status.OK:
        refused_as = _kind_of_status(None, around) if refuses else None
        shape = ErrorKind.MALFORMED_RESULT if said.foreign else ErrorKind.NULL_RESULT
        return refused_as or (shape if said.foreign or said.void else None)
    if said.is_error:
        return ErrorKind.TOOL_FAILED
    if said.status is Status.ERROR or said.code is not None:
        return _kind_of_code(said, around)
    return None


def _kind_of_code(said: CallAnswer, around: Circumstances) -> ErrorKind | None:
    """Return what a JSON-RPC error says; `None` where it asks for more input."""
    lost = _kind_of_status(said.code, around)
    if lost is ErrorKind.SESSION_LOST:
        return lost
    return None if said.status.parked else kind_of_error(said.code, around.status)


def _kind_of_answer(around: Circumstances) -> ErrorKind | None:
    """Return what the HTTP status says where no body answers."""
    return kind_of_redirect(around.status, elsewhere=around.elsewhere) or _kind_of_status(
        None, around
    )


def _kind_of_status(code: int | None, around: Circumstances) -> ErrorKind | None:
    """Return what the HTTP status of an MCP endpoint says; `code` is that of the JSON-RPC error."""
    status = around.status
    if around.in_session and status == _SESSION_LOST and code != _METHOD_NOT_FOUND:
        return ErrorKind.SESSION_LOST
    # There is one resource here: nothing else can be missing.
    return ErrorKind.INVALID_REQUEST if status in _GONE else kind_of_status(status)


def _flags(
    said: CallAnswer, message: Message | Outline, body: MessageReader, around: Circumstances
) -> tuple[Flag, ...]:
    flags = said.flags
    if said.null_shape:
        flags = (*flags, Flag.NULL_RESULT, Flag.VOID) if said.void else (*flags, Flag.NULL_RESULT)
    elif said.empty or said.foreign:
        flags = (*flags, Flag.MALFORMED if said.foreign else Flag.EMPTY)
    if body.media != JSON:
        flags = (*flags, Flag.CONTENT_TYPE_MISMATCH)
    if body.notes:
        flags = (*flags, *body.notes)
    if said.status is not Status.OK and around.status < _REFUSALS and nameless_error(message):
        flags = (*flags, Flag.ID_MISMATCH)
    if around.status == _PLAIN_SUCCESS and not said.message:
        return flags
    return (*flags, *redirects(around.status), *suspicion(said.message, around))


def _error_content(message: Message | Outline, body: MessageReader) -> bytes:
    if not isinstance(message, Message):
        return body.finish()
    error = {"code": message.error_code, "message": message.error_message}
    if message.error_data:
        return msgspec.json.encode({**error, "data": message.error_data})
    return msgspec.json.encode(error)


def _searched(asked: Asked, reply: AnswerFacts) -> tuple[Policy, AnswerFacts]:
    """Return the rules that an answer is held against: a large one is not searched."""
    policy = asked.policy
    if len(asked.arguments) + len(reply.content) <= MAX_SEARCHED_BYTES:
        return policy, reply
    bounded = without_searches(policy)
    if bounded is policy:
        return policy, reply
    return bounded, structs.replace(reply, flags=(*reply.flags, Flag.NOT_SEARCHED))


def _said(asked: Asked, kind: ErrorKind | None, reply: AnswerFacts) -> ReceivedAnswer:
    looked: list[ExpressionInput] = []
    # A plain tool may answer with any text.
    json = reply.is_mcp or reply.content.lstrip()[:1] in _CONTAINERS
    unreadable = UNREADABLE if json else None

    def look() -> ExpressionInput:
        if not looked:
            looked.append(seen(asked, reply, unreadable))
        return looked[0]

    return ReceivedAnswer(
        kind=kind,
        flags=reply.flags,
        code=reply.code,
        status=reply.http_status,
        has_result=reply.is_result,
        is_structured=partial(_is_structured, reply),
        # A page in place of JSON is no answer at all.
        unstructured=ErrorKind.MALFORMED_RESULT
        if reply.content and not reply.is_mcp
        else ErrorKind.NULL_RESULT,
        text=partial(_text, reply),
        values=look,
    )


def _is_structured(reply: AnswerFacts) -> bool:
    """Return whether there is structure; an answer of which only the start is held is taken to have it."""
    if not (reply.is_result and reply.complete):
        return not reply.complete
    return is_structured(reply.content) if reply.is_mcp else read_value(reply.content) is not None


def _text(reply: AnswerFacts) -> str:
    if not reply.is_mcp:
        return text_of_body(reply.content)
    return text_of_result(reply.content) if reply.is_result else text_of_error(reply.content)


def _speaks_of_error(reply: AnswerFacts) -> bool:
    """Return whether an answer looks like success and reads like an error."""
    if not reply.is_result or not _NULL.isdisjoint(reply.flags):
        return False
    content = reply.content
    if reply.is_mcp:
        return looks_like_error(start_of_result(content, LOOKED_AT))
    if has_error_member(content):
        return True
    return not content.startswith(_CONTAINERS) and looks_like_error(text_of_body(content[:_START]))
