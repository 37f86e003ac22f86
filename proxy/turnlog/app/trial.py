"""Simulate a sample call of a rules example: what would be recorded of its answer."""

from typing import Any, Final

import msgspec

from turnlog.core.classify import Ending
from turnlog.core.kinds import Effect, Flag, Rung
from turnlog.exchange.outcome import (
    AnswerFacts,
    Circumstances,
    answered,
    answered_plainly,
    judged,
    seen,
)
from turnlog.packs.examples import Sample, SampleOutcome
from turnlog.packs.explain import MCP, call_arguments
from turnlog.record.attempt import Ask
from turnlog.rules.effects import extract_delta
from turnlog.rules.policy import Policy, Subject
from turnlog.store.base import SessionRef
from turnlog.wire.jsonrpc import Message
from turnlog.wire.message import MessageReader
from turnlog.wire.tool_result import read_answer

_REVISION: Final = "2025-11-25"
_FINE: Final = {"content": [{"type": "text", "text": "ok"}]}
"""The answer of an MCP sample that has none."""


def run_sample(call: Subject, policy: Policy, effect: Effect, sample: Sample) -> SampleOutcome:
    """Return the outcome that would be recorded for a sample."""
    ask = _ask(call, policy, effect, sample)
    ending, reply = judged(ask, *_answered(ask, sample))
    return SampleOutcome(
        kind=ending.kind,
        null=Flag.NULL_RESULT in reply.flags,
        delta=extract_delta(policy.delta, seen(ask, reply), ending, str).operations,
    )


def _ask(call: Subject, policy: Policy, effect: Effect, sample: Sample) -> Ask:
    given = msgspec.json.encode(call_arguments(sample.method, sample.path, sample.args))
    return Ask(
        session=SessionRef(candidate=bytes(16), rung=Rung.IMPLICIT),
        call=bytes(16),
        server=call.server,
        tool=call.tool,
        method=call.method,
        effect=effect,
        arguments=given,
        size=len(given),
        protocol=_REVISION if call.method == MCP else "",
        policy=policy,
    )


def _answered(ask: Ask, sample: Sample) -> tuple[Ending, AnswerFacts]:
    if ask.method != MCP:
        body = _read(None if sample.result is msgspec.UNSET else sample.result)
        return answered_plainly(ask.method, sample.status, body, ask.effect)
    result = _FINE if sample.result is msgspec.UNSET else sample.result
    content = {"result": result} if sample.error is None else {"error": sample.error}
    body = _read({"jsonrpc": "2.0", "id": 1, **content})
    message = body.content
    assert isinstance(message, Message)  # it was just made
    around = Circumstances(sample.status, ask.effect, in_session=False)
    parsed = read_answer(message, revision=_REVISION)
    return answered(parsed, message, body, around)


def _read(value: Any) -> MessageReader:
    body = MessageReader()
    body.feed(msgspec.json.encode(value))
    body.finish()
    return body
