import json

import pytest

from kit.attempts import ask, session
from turnlog.core import classify, ids
from turnlog.core.classify import Ending
from turnlog.core.kinds import Effect, ErrorKind, Phase
from turnlog.serve.answers import (
    Made,
    document,
    envelope,
    failed_request,
    problem,
    together,
)
from turnlog.wire.jsonrpc import Kind, Message

SESSION, CALL = bytes(range(16)), bytes(range(16, 32))
REF = session()
REF.id = SESSION
ASK = ask(REF, CALL)
LOST = classify.failed(ErrorKind.CONNECTION_LOST, Phase.SENT, Effect.UNKNOWN)


def outcome() -> dict[str, object]:
    return envelope(ASK, LOST)


def failed(method: str, raw_id: bytes = b"1", *, stateless: bool = False) -> Made:
    request = Message(kind=Kind.REQUEST, id=raw_id, method=method, jsonrpc=True)
    asked = ASK if method == "tools/call" else None
    return failed_request(request, asked, "it broke", LOST, stateless=stateless)


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
    }


def test_what_is_not_known_is_null() -> None:
    said = envelope(None, Ending(status=LOST.status, phase=LOST.phase, executed=LOST.executed))
    assert (said["session"], said["error"], said["kind"], said["retry"]) == (None,) * 4


@pytest.mark.parametrize("stateless", [False, True])
def test_a_tool_call_gets_a_result_that_says_so(stateless: bool) -> None:
    made = failed("tools/call", stateless=stateless)
    assert (made.status, made.headers) == (200, [(b"Content-Type", b"application/json")])
    result = json.loads(made.body)["result"]
    assert result["content"] == [{"type": "text", "text": "it broke"}]
    assert result["isError"] is True
    assert result["_meta"] == {"turnlog/outcome": outcome()}
    assert "structuredContent" not in result
    assert ("resultType" in result) is stateless


@pytest.mark.parametrize("method", ["initialize", "server/discover"])
def test_a_handshake_gets_no_json_rpc(method: str) -> None:
    made = failed(method)
    assert (made.status, made.headers) == (502, [(b"Content-Type", b"application/problem+json")])
    assert "jsonrpc" not in json.loads(made.body)


def test_any_other_request_gets_an_error_with_the_envelope() -> None:
    said = json.loads(failed("resources/read").body)
    assert said["error"] == {
        "code": -32603,
        "message": "it broke",
        "data": {"turnlog/outcome": envelope(None, LOST)},
    }


@pytest.mark.parametrize(
    "raw_id", [b"0", b'"a\\u00e9"', b"1.0", b"123456789012345678901234567890", b"null"]
)
def test_an_id_comes_back_byte_by_byte(raw_id: bytes) -> None:
    assert b'"id":' + raw_id + b"," in failed("tools/call", raw_id).body


def test_one_answer_is_itself() -> None:
    made = failed("ping")
    assert together([made], "x", as_batch=False) is made


def test_the_answer_to_a_batch_is_an_array_however_short() -> None:
    made = together([failed("ping", b"7")], "x", as_batch=True)
    assert [each["id"] for each in json.loads(made.body)] == [7]
    several = together([failed("ping", b"1"), failed("tools/call", b"2")], "x", as_batch=True)
    assert [each["id"] for each in json.loads(several.body)] == [1, 2]


def test_a_handshake_in_a_batch_is_answered_as_one() -> None:
    assert together([failed("initialize"), failed("ping")], "x", as_batch=True).status == 502


@pytest.mark.parametrize("as_batch", [False, True])
def test_no_answer_at_all_is_a_problem(as_batch: bool) -> None:
    made = together([], "it broke", as_batch=as_batch)
    assert (made.status, json.loads(made.body)["detail"]) == (502, "it broke")


def test_a_problem_has_the_members_of_rfc_9457() -> None:
    made = problem(503, "Service Unavailable", "why", {"more": 1})
    assert json.loads(made.body) == {
        "type": "about:blank",
        "title": "Service Unavailable",
        "status": 503,
        "detail": "why",
        "more": 1,
    }


def test_a_document_is_json() -> None:
    assert (document({"a": 1}).status, document({"a": 1}).body) == (200, b'{"a":1}')
