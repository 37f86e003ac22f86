"""Hold a recorded answer against the rules of its call: the last word on how an attempt ended."""

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import structs

from turnlog.core.classify import Ending, refused, succeeded
from turnlog.core.kinds import ErrorKind, Flag
from turnlog.rules.expression import MAX_SEARCHED_BYTES, UNREADABLE, ExpressionInput
from turnlog.rules.policy import Policy
from turnlog.rules.result_rules import (
    Judgement,
    ReceivedAnswer,
    judge_answer,
    without_searches,
)
from turnlog.wire.error_text import LOOKED_AT, looks_like_error
from turnlog.wire.http.head import Headers, fields, retry_after
from turnlog.wire.json_text import members, read_value
from turnlog.wire.tool_result import (
    has_error_member,
    is_structured,
    start_of_result,
    text_of_body,
    text_of_error,
    text_of_result,
)

from .attempt import AnswerFacts, Ask

_NULL: Final = frozenset({Flag.NULL_RESULT, Flag.EMPTY})
_CONTAINERS: Final = (b"{", b"[")
SAYS_WHEN: Final = frozenset({429, 503})
"""Statuses of refusals that may say when to come back."""
_START: Final = 4 * LOOKED_AT
"""Bytes that hold as many characters as are looked at."""


def judged(
    ask: Ask, ending: Ending, reply: AnswerFacts, *, harmless: bool = False
) -> tuple[Ending, AnswerFacts]:
    """Return how an attempt ended, as the rules of its call see it, and what to record of it.

    `harmless` is of an answer whose text is known not to read like an error.
    """
    if ending.status.parked:
        return ending, reply
    if ask.policy.judges_answers:
        kind = ErrorKind(ending.kind) if ending.kind else None
        policy, reply = _searched(ask, reply)
        found = judge_answer(policy, _said(ask, kind, reply))
        if found.kind is not kind:
            ending = refused(found.kind, ask.effect) if found.kind is not None else succeeded()
        reply = _told(reply, found)
    if not ending.kind and not harmless and _speaks_of_error(reply):
        reply = structs.replace(reply, flags=(*reply.flags, Flag.ERROR_LIKE_TEXT))
    return ending, reply


def _searched(ask: Ask, reply: AnswerFacts) -> tuple[Policy, AnswerFacts]:
    """Return the rules that an answer is held against: a large one is not searched."""
    policy = ask.policy
    if len(ask.arguments) + len(reply.content) <= MAX_SEARCHED_BYTES:
        return policy, reply
    bounded = without_searches(policy)
    if bounded is policy:
        return policy, reply
    return bounded, structs.replace(reply, flags=(*reply.flags, Flag.NOT_SEARCHED))


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


def seen(ask: Ask, reply: AnswerFacts, unreadable: object = None) -> ExpressionInput:
    """Return what expressions look at: what is cut or no JSON is not there. `unreadable` stands for
    what is whole and cannot be read."""
    readable = reply.is_result and reply.complete
    return ExpressionInput(
        args=read_value(ask.arguments, unreadable) if ask.complete else None,
        result=read_value(reply.content, unreadable) if readable else None,
        status=reply.http_status or None,
    )


def _said(ask: Ask, kind: ErrorKind | None, reply: AnswerFacts) -> ReceivedAnswer:
    looked: list[ExpressionInput] = []
    # A plain tool may answer with any text.
    json = reply.is_mcp or reply.content.lstrip()[:1] in _CONTAINERS
    unreadable = UNREADABLE if json else None

    def look() -> ExpressionInput:
        if not looked:
            looked.append(seen(ask, reply, unreadable))
        return looked[0]

    return ReceivedAnswer(
        kind=kind,
        flags=reply.flags,
        code=reply.code,
        status=reply.http_status,
        has_result=reply.is_result,
        is_structured=partial(_is_structured, reply),
        unstructured=_unstructured(reply),
        text=partial(_text, reply),
        values=look,
    )


def _unstructured(reply: AnswerFacts) -> ErrorKind:
    """Return what an answer without structure is: a page in place of JSON is no answer at all."""
    page = reply.content and not reply.is_mcp
    return ErrorKind.MALFORMED_RESULT if page else ErrorKind.NULL_RESULT


def _is_structured(reply: AnswerFacts) -> bool:
    """Tell whether there is structure; where only the start of an answer is held, suppose so."""
    if not (reply.is_result and reply.complete):
        return not reply.complete
    return is_structured(reply.content) if reply.is_mcp else read_value(reply.content) is not None


def _text(reply: AnswerFacts) -> str:
    if not reply.is_mcp:
        return text_of_body(reply.content)
    return text_of_result(reply.content) if reply.is_result else text_of_error(reply.content)


def _told(reply: AnswerFacts, found: Judgement) -> AnswerFacts:
    if found.flags == reply.flags and found.retry_after is None:
        return reply
    return structs.replace(reply, flags=found.flags, retry_after=found.retry_after)


def _speaks_of_error(reply: AnswerFacts) -> bool:
    """Tell whether an answer looks like success and reads like an error."""
    if not reply.is_result or not _NULL.isdisjoint(reply.flags):
        return False
    content = reply.content
    if reply.is_mcp:
        return looks_like_error(start_of_result(content, LOOKED_AT))
    return has_error_member(content) or _begins_like_error(content)


def _begins_like_error(body: bytes) -> bool:
    return not body.startswith(_CONTAINERS) and looks_like_error(text_of_body(body[:_START]))
