import json
from collections.abc import Sequence

import pytest
from msgspec import structs

from kit.attempts import ask, session
from turnlog.core import classify, ids
from turnlog.core.classify import Ending
from turnlog.core.kinds import Effect, ErrorKind, Phase
from turnlog.record.own_answers import OwnAnswer, Unanswered, envelope, problem, with_tail
from turnlog.wire.jsonrpc import Kind, Message, id_key

SESSION, CALL = bytes(range(16)), bytes(range(16, 32))
REF = session()
REF.id = SESSION
ASK = ask(REF, CALL)
LOST = classify.failed(ErrorKind.CONNECTION_LOST, Phase.SENT, Effect.UNKNOWN)


def outcome() -> dict[str, object]:
    return envelope(ASK, LOST)


def unanswered(*methods: str, raw_id: bytes = b"", stateless: bool = False) -> Unanswered:
    """Requests without an answer; each one's id is its place, unless there is a `raw_id`."""
    requests = [
        Message(kind=Kind.REQUEST, id=raw_id or b"%d" % at, method=method, jsonrpc=True)
        for at, method in enumerate(methods)
    ]
    return Unanswered(
        requests=requests,
        asks={id_key(each.id): ASK for each in requests if each.method == "tools/call"},
        ending=LOST,
        said="the call broke",
        said_without_call="it broke",
        stateless=stateless,
    )


def failed(method: str, raw_id: bytes = b"1", *, stateless: bool = False) -> OwnAnswer:
    return unanswered(method, raw_id=raw_id, stateless=stateless).as_answer(as_batch=False)


def test_the_envelope_says_what_a_row_says() -> None:
    assert outcome() == {
        "session": ids.to_text(SESSION),
        "call": ids.to_text(CALL),
        "tool": "write",
        "attempt": 1,
        "status": "unknown",
        "error": "connection",
        "kind": "connection_lost",
        "retry": "unsafe",
        "retry_after_ms": None,
        "executed": "maybe",
        "phase": "sent",
        "provenance": "unverified",
        "provenance_reasons": ["tool: unverified"],
    }


TOLD = (
    "the call broke. Find out whether it happened before making it again. "
    "[turnlog connection_lost executed=maybe retry=unsafe call=10111213-1415-1617-1819-1a1b1c1d1e1f]"
)


TWICE = (
    "Make it again only if doing it twice does no harm. "
    "[turnlog response_timeout executed=maybe retry=if_idempotent call="
)


@pytest.mark.promise("OUT-12")
@pytest.mark.parametrize(
    ("kind", "phase", "effect", "end"),
    [
        (
            ErrorKind.CONNECT_FAILED,
            Phase.CONNECTING,
            Effect.WRITE,
            "It can be made again. [turnlog connect_failed executed=no retry=safe call=",
        ),
        (
            ErrorKind.RESPONSE_TIMEOUT,
            Phase.SENT,
            Effect.IDEMPOTENT_WRITE,
            TWICE,
        ),
        (
            ErrorKind.POLICY_BLOCKED,
            Phase.QUEUED,
            Effect.WRITE,
            "Do not make it again unchanged. [turnlog policy_blocked executed=no retry=never call=",
        ),
    ],
)
def test_a_sentence_says_what_to_do_and_ends_in_what_programs_read(
    kind: ErrorKind, phase: Phase, effect: Effect, end: str
) -> None:
    said = with_tail("why", envelope(ASK, classify.failed(kind, phase, effect)))
    assert said.startswith(f"why. {end}")
    assert said.endswith("]")


def test_unknown_values_are_null() -> None:
    said = envelope(None, Ending(status=LOST.status, phase=LOST.phase, executed=LOST.executed))
    assert (said["session"], said["error"], said["kind"], said["retry"]) == (None,) * 4


@pytest.mark.promise("OUT-9")
@pytest.mark.parametrize("stateless", [False, True])
def test_a_tool_call_gets_a_result_that_says_so(stateless: bool) -> None:
    made = failed("tools/call", stateless=stateless)
    assert (made.status, made.headers) == (200, [(b"Content-Type", b"application/json")])
    result = json.loads(made.body)["result"]
    assert result["content"] == [{"type": "text", "text": TOLD}]
    assert result["isError"] is True
    assert result["_meta"] == {"turnlog/outcome": outcome()}
    assert "structuredContent" not in result
    assert ("resultType" in result) is stateless


@pytest.mark.parametrize("method", ["initialize", "server/discover", "tools/list", "ping"])
def test_a_request_that_is_not_a_call_gets_a_status_and_no_json_rpc(method: str) -> None:
    made = failed(method)
    said = json.loads(made.body)
    assert (made.status, made.headers) == (502, [(b"Content-Type", b"application/problem+json")])
    assert "jsonrpc" not in said
    assert (said["detail"], said["turnlog/outcome"]) == ("it broke", envelope(None, LOST))


@pytest.mark.promise("OUT-10")
def test_a_request_that_is_not_a_call_gets_504_on_a_timeout() -> None:
    late = classify.failed(ErrorKind.CONNECT_TIMEOUT, Phase.CONNECTING, Effect.UNKNOWN)
    made = structs.replace(unanswered("tools/list"), ending=late).as_answer(as_batch=False)
    assert (made.status, made.reason) == (504, b"Gateway Timeout")


def test_a_request_that_is_not_a_call_gets_a_json_rpc_error_if_no_status_can_be_sent() -> None:
    made = unanswered("resources/read").as_message(as_batch=False)
    assert (made.status, json.loads(made.body)["error"]) == (
        200,
        {
            "code": -32603,
            "message": "it broke",
            "data": {"turnlog/outcome": envelope(None, LOST)},
        },
    )


@pytest.mark.parametrize("method", ["initialize", "server/discover"])
def test_a_handshake_gets_no_json_rpc_wherever_it_is_told(method: str) -> None:
    assert unanswered(method).as_messages() == ()
    assert unanswered(method).as_message(as_batch=False).status == 502


@pytest.mark.parametrize(
    "raw_id", [b"0", b'"a\\u00e9"', b"1.0", b"123456789012345678901234567890", b"null"]
)
def test_an_id_comes_back_byte_by_byte(raw_id: bytes) -> None:
    assert b'"id":' + raw_id + b"," in failed("tools/call", raw_id).body


def test_the_answer_to_a_batch_is_an_array_however_short() -> None:
    made = unanswered("tools/call").as_answer(as_batch=True)
    assert [each["id"] for each in json.loads(made.body)] == [0]


def test_a_batch_with_a_call_is_answered_one_by_one() -> None:
    made = unanswered("ping", "tools/call").as_answer(as_batch=True)
    ping, call = json.loads(made.body)
    assert (made.status, ping["id"], call["id"]) == (200, 0, 1)
    assert ping["error"]["message"] == "it broke"
    assert call["result"]["content"][0]["text"] == TOLD


@pytest.mark.parametrize("methods", [("ping", "tools/list"), ("initialize", "tools/call")])
def test_a_batch_without_a_call_or_with_a_handshake_gets_a_status(methods: Sequence[str]) -> None:
    assert unanswered(*methods).as_answer(as_batch=True).status == 502


@pytest.mark.parametrize("as_batch", [False, True])
def test_no_answer_at_all_is_a_problem(as_batch: bool) -> None:
    made = unanswered().as_answer(as_batch=as_batch)
    assert (made.status, json.loads(made.body)["detail"]) == (502, "it broke")


@pytest.mark.promise("OUT-11")
def test_a_problem_has_the_members_of_rfc_9457() -> None:
    made = problem(503, "Service Unavailable", "why", {"more": 1})
    assert json.loads(made.body) == {
        "type": "about:blank",
        "title": "Service Unavailable",
        "status": 503,
        "detail": "why",
        "more": 1,
    }
