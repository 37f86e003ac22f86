"""`exchange.outcome`: what an answer says of a call, from its text and its HTTP status."""

import json

import pytest
from msgspec import Struct, structs

from turnlog.core.classify import SUCCESS, Ending
from turnlog.core.kinds import Effect, Flag, Status
from turnlog.exchange.outcome import (
    AnswerFacts,
    Circumstances,
    acknowledged,
    answered,
    answered_by_text,
    answered_plainly,
    call_answered,
    instead,
    is_answer,
    is_unfit,
    looks_like_success,
    lookup_answered,
    mislabelled,
    notification_answered,
    unanswered,
)
from turnlog.rules.model import Expects
from turnlog.rules.policy import Policy
from turnlog.wire.json_stream import Outline
from turnlog.wire.jsonrpc import Batch, Message
from turnlog.wire.message import MessageReader
from turnlog.wire.tool_result import read_answer, read_lookup_answer

JSON = "application/json"
DONE: dict[str, object] = {"content": [{"type": "text", "text": "done"}]}
FAILED: dict[str, object] = {**DONE, "isError": True}
WANTS_MORE: dict[str, object] = {"resultType": "input_required", "requestState": "s"}
TASK: dict[str, object] = {"task": {"taskId": "t", "status": "working"}}
ELICITS = {"code": -32042, "message": "visit"}


def text_of(*pieces: bytes, limit: int = 1 << 20, media: str = JSON) -> MessageReader:
    body = MessageReader(limit)
    for piece in pieces:
        body.feed(piece)
    body.finish()
    body.media = media
    return body


def around(status: int, *, in_session: bool = False) -> Circumstances:
    return Circumstances(status, Effect.WRITE, in_session)


def ended(
    status: int, said: dict[str, object], *, in_session: bool = False
) -> tuple[Ending, AnswerFacts]:
    """Return what an answer with these members comes to."""
    text = text_of(json.dumps({"jsonrpc": "2.0", "id": 1, **said}).encode())
    message = text.content
    assert isinstance(message, Message)
    answer = read_answer(message, revision="")
    return answered(answer, message, text, around(status, in_session=in_session))


OF_TRANSPORT = {
    401: ("unauthenticated", "no"),
    403: ("permission_denied", "no"),
    408: ("response_timeout", "maybe"),
    429: ("rate_limited", "no"),
    502: ("upstream_unavailable", "maybe"),
    503: ("upstream_unavailable", "maybe"),
    504: ("response_timeout", "maybe"),
}
BODIES: list[dict[str, object]] = [
    {"result": None},
    {"result": {}},
    {"result": DONE},
    {"result": FAILED},
    {"result": WANTS_MORE},
    {"result": TASK},
    {"error": ELICITS},
    {"error": {"code": -32603, "message": "internal"}},
]


@pytest.mark.parametrize("status", OF_TRANSPORT)
@pytest.mark.parametrize("said", BODIES, ids=str)
def test_a_status_of_the_way_there_counts_before_any_body(
    status: int, said: dict[str, object]
) -> None:
    ending, _ = ended(status, said)
    assert (ending.kind, ending.executed) == OF_TRANSPORT[status]
    assert ending.status is Status.ERROR


@pytest.mark.parametrize("said", [None, {}, {"content": None}, DONE], ids=str)
@pytest.mark.parametrize(
    ("status", "kind", "executed"),
    [
        (400, "invalid_request", "no"),
        (404, "invalid_request", "no"),
        (409, "conflict", "maybe"),
        (500, "upstream_internal", "maybe"),
    ],
)
def test_a_result_that_says_nothing_of_an_end_is_what_its_status_says(
    status: int, kind: str, executed: str, said: object
) -> None:
    ending, _ = ended(status, {"result": said})
    assert (ending.kind, ending.executed) == (kind, executed)


@pytest.mark.parametrize("status", [200, 302, 400, 404, 500])
def test_a_tool_that_says_it_failed_has_failed_under_any_other_status(status: int) -> None:
    ending, _ = ended(status, {"result": FAILED}, in_session=True)
    assert (ending.kind, ending.executed, ending.retry) == ("tool_failed", "maybe", "never")


@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"result": WANTS_MORE}, Status.INPUT_REQUIRED),
        ({"result": TASK}, Status.ACCEPTED),
    ],
)
def test_a_call_that_goes_on_goes_on_under_any_other_status(
    status: int, said: dict[str, object], wanted: Status
) -> None:
    ending, _ = ended(status, said)
    assert (ending.status, ending.kind) == (wanted, "")


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_call_that_needs_a_url_opened_first_did_not_run(status: int) -> None:
    ending, _ = ended(status, {"error": ELICITS})
    assert (ending.kind, ending.executed, ending.retry) == ("invalid_request", "no", "never")


@pytest.mark.parametrize("said", [None, {}, DONE], ids=str)
def test_a_lost_session_counts_before_a_result(said: object) -> None:
    ending, _ = ended(404, {"result": said}, in_session=True)
    assert (ending.kind, ending.executed) == ("session_lost", "no")


SUSPECT = [
    "Session not found",
    "Bad Request: No valid session ID provided",
    "unknown session",
    "Invalid session ID",
    "Mcp-Session-Id 7 does not exist",
    "session has been terminated",
]
UNSUSPECTED = [
    "no such file",
    "the obsession is invalid",
    "session 7 is open. The file was not found",
    "Bad Request: no session" + " " * 1024 + "session not found",
]


@pytest.mark.parametrize("words", SUSPECT)
@pytest.mark.parametrize("status", [200, 400, 503])
def test_an_error_that_speaks_of_a_lost_session_is_marked_and_keeps_its_kind(
    status: int, words: str
) -> None:
    said: dict[str, object] = {"error": {"code": -32000, "message": words}}
    page = text_of(json.dumps({"error": words}).encode())
    for found in (
        ended(status, said, in_session=True),
        unanswered(page, around(status, in_session=True)),
    ):
        ending, reply = found
        assert "session_suspect" in reply.flags
        assert ending.kind != "session_lost"
    for found in (ended(status, said), unanswered(page, around(status))):
        assert "session_suspect" not in found[1].flags


@pytest.mark.parametrize("words", UNSUSPECTED)
def test_other_errors_raise_no_suspicion(words: str) -> None:
    said: dict[str, object] = {"error": {"code": -32000, "message": words}}
    assert "session_suspect" not in ended(400, said, in_session=True)[1].flags


def test_a_clear_status_is_not_flagged_as_a_suspicion() -> None:
    said: dict[str, object] = {"error": {"code": -32001, "message": SUSPECT[0]}}
    ending, reply = ended(404, said, in_session=True)
    assert (ending.kind, reply.flags) == ("session_lost", ())


REDIRECTS = [
    (300, "malformed_result", "maybe", ("redirected",)),
    (301, "malformed_result", "maybe", ("redirected",)),
    (302, "malformed_result", "maybe", ("redirected",)),
    (303, "malformed_result", "maybe", ("redirected",)),
    (304, "invalid_request", "no", ()),
    (307, "invalid_request", "no", ("redirected",)),
    (308, "invalid_request", "no", ("redirected",)),
]


@pytest.mark.promise("OUT-25")
@pytest.mark.parametrize(("status", "kind", "executed", "flags"), REDIRECTS)
def test_only_a_redirect_that_asks_for_the_same_request_ran_nothing(
    status: int, kind: str, executed: str, flags: tuple[str, ...]
) -> None:
    ending, reply = unanswered(text_of(), around(status))
    assert (ending.kind, ending.executed, reply.flags) == (kind, executed, flags)
    assert acknowledged(around(status)) == ending


@pytest.mark.parametrize("status", [301, 303, 307, 308])
def test_a_redirect_to_another_origin_leaves_it_unknown_what_ran(status: int) -> None:
    ending, reply = unanswered(text_of(), structs.replace(around(status), elsewhere=True))
    assert (ending.status, ending.kind, ending.executed, ending.retry, reply.flags) == (
        "error",
        "malformed_result",
        "maybe",
        "unsafe",
        ("redirected",),
    )


@pytest.mark.parametrize(
    ("status", "elsewhere", "said"),
    [
        (200, False, ("ok", "", "yes")),
        (302, False, ("ok", "", "yes")),
        (302, True, ("ok", "", "yes")),
        (303, False, ("ok", "", "yes")),
        (304, False, ("ok", "", "yes")),
        (307, False, ("error", "invalid_request", "no")),
        (308, False, ("error", "invalid_request", "no")),
        (307, True, ("error", "malformed_result", "maybe")),
    ],
)
def test_a_plain_tool_ran_nothing_where_it_asks_for_the_same_request_elsewhere(
    status: int, elsewhere: bool, said: tuple[str, str, str]
) -> None:
    ending, _ = answered_plainly("PUT", status, text_of(), Effect.WRITE, elsewhere=elsewhere)
    assert (ending.status, ending.kind, ending.executed) == said


def test_an_answer_in_a_redirect_is_an_answer() -> None:
    ending, reply = ended(307, {"result": DONE})
    assert (ending.status, reply.flags) == (Status.OK, ("redirected",))


@pytest.mark.parametrize(
    ("status", "kind", "executed"),
    [
        (200, "null_result", "yes"),
        (202, "null_result", "yes"),
        (204, "null_result", "yes"),
        (400, "invalid_request", "no"),
        (401, "unauthenticated", "no"),
        (500, "upstream_internal", "maybe"),
    ],
)
def test_no_body_is_a_null_result_only_where_the_status_is_a_success(
    status: int, kind: str, executed: str
) -> None:
    ending, _ = unanswered(text_of(), around(status))
    assert (ending.kind, ending.executed) == (kind, executed)


@pytest.mark.parametrize("body", [b"null", b" null\r\n"])
def test_json_null_in_place_of_an_answer_says_as_much_as_no_body(body: bytes) -> None:
    ending, reply = unanswered(text_of(body), around(200))
    assert (ending.kind, ending.executed, reply.flags) == (
        "null_result",
        "yes",
        ("null_result", "void"),
    )
    assert instead(text_of(body), around(200)) == (ending, reply)


BIG = b"x" * 5000
RESULT = b'{"jsonrpc":"2.0","id":1,"result":{"content":["' + BIG + b'"]}}'
UNFIT = [
    (RESULT[:-1], ("malformed",)),
    (RESULT[:-10], ("malformed",)),
    (RESULT + b"x", ("not_json",)),
    (b"<html>" + BIG, ("not_json",)),
    (b'{"content":"' + BIG + b'"}', ("malformed",)),
    (RESULT, ("id_mismatch",)),
    (b"\0" + RESULT, ("not_json",)),
]


@pytest.mark.parametrize("limit", [100, 1 << 20])
@pytest.mark.parametrize(("body", "flags"), UNFIT, ids=[str(i) for i in range(len(UNFIT))])
def test_a_message_that_answers_nothing_is_malformed_whether_held_or_skimmed(
    body: bytes, flags: tuple[str, ...], limit: int
) -> None:
    ending, reply = unanswered(text_of(body, limit=limit), around(200))
    assert (ending.kind, ending.executed, reply.flags) == ("malformed_result", "maybe", flags)
    assert reply.content == body[:limit]
    assert reply.complete == (limit > len(body))


def test_an_answer_that_could_not_be_decoded_is_not_called_empty() -> None:
    body = MessageReader(coded_size=17)
    body.finish()
    ending, reply = unanswered(body, around(200))
    assert (ending.kind, ending.executed, reply.flags) == (
        "malformed_result",
        "maybe",
        ("not_json",),
    )


def test_a_large_batch_that_is_not_read_has_no_flag() -> None:
    ending, reply = unanswered(text_of(b"[" + RESULT + b"]", limit=100), around(200))
    assert (ending.kind, ending.executed, reply.flags) == ("malformed_result", "maybe", ())


@pytest.mark.parametrize("value", [5, 0, False, True, "x", "", [], [1]], ids=repr)
def test_a_result_that_is_no_object_is_malformed(value: object) -> None:
    ending, reply = ended(200, {"result": value})
    assert (ending.kind, ending.executed) == ("malformed_result", "maybe")
    assert reply.flags == ("malformed",)


@pytest.mark.parametrize(
    ("status", "kind", "executed"),
    [
        (302, "malformed_result", "maybe"),
        (307, "invalid_request", "no"),
        (401, "unauthenticated", "no"),
        (503, "upstream_unavailable", "maybe"),
    ],
)
def test_a_stream_without_response_is_what_its_status_says(
    status: int, kind: str, executed: str
) -> None:
    for unfit in (None, text_of(RESULT)):
        verdict = instead(unfit, around(status))
        assert verdict is not None
        assert (verdict[0].kind, verdict[0].executed) == (kind, executed)


def test_a_stream_that_held_nothing_like_a_response_has_broken_off() -> None:
    assert instead(None, around(200)) is None


@pytest.mark.parametrize(
    ("data", "unfit"),
    [
        (b"", False),
        (b" \n", False),
        (b'{"method":"notifications/progress"}', False),
        (b'{"id":1,"method":"ping"}', False),
        (b'{"error":"Session not found"}', True),
        (b'{"jsonrpc":"2.0","id":7,"result":{}}', True),
        (b'{"jsonrpc":"2.0","id":7,"resu', True),
        (b"<html>", True),
        (b'{"event":"ready"}', True),
    ],
)
def test_what_may_stand_in_the_place_of_a_response(data: bytes, unfit: bool) -> None:
    for limit in (5, 1000):
        text = text_of(data, limit=limit)
        content = text.content
        assert not isinstance(content, Batch)
        assert is_unfit(text, content) is unfit
        text.event = "ping"
        assert not is_unfit(text, content)


@pytest.mark.parametrize(
    ("data", "answers"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{}}', True),
        (b'{"id":7,"result":{}}', True),
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":1}}', True),
        (b'{"error":{"code":1}}', False),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping"}', False),
        (b'{"jsonrpc":"2.0","method":"notifications/progress"}', False),
    ],
)
def test_a_result_or_an_error_with_a_version_or_an_id_is_an_answer(
    data: bytes, answers: bool
) -> None:
    content = text_of(data).content
    assert isinstance(content, Message)
    assert is_answer(content) is answers


def test_an_answer_too_large_to_hold_is_one_by_its_outline() -> None:
    for kind in (b"result", b"error"):
        content = text_of(b'{"jsonrpc":"2.0","id":7,"%b":{}}' % kind, limit=5).content
        assert isinstance(content, Outline)
        assert is_answer(content)


def test_the_error_of_an_answer_too_large_to_hold_is_recorded_as_it_begins() -> None:
    text = text_of(b'{"jsonrpc":"2.0","id":7,"error":{"code":-32603}}', limit=30)
    message = text.content
    assert isinstance(message, Outline)
    ending, reply = answered(read_answer(message, revision=""), message, text, around(200))
    assert (ending.kind, reply.code) == ("upstream_internal", -32603)
    assert (reply.content, reply.is_result) == (b'{"jsonrpc":"2.0","id":7,"error', False)


def test_the_data_of_an_error_is_recorded_with_it() -> None:
    error = {"code": -32603, "message": "no", "data": {"why": 1}}
    _, reply = ended(200, {"error": error})
    assert json.loads(reply.content) == error


def test_a_stream_under_another_media_type_is_read_as_events() -> None:
    events = mislabelled(text_of(b'data: {"id":1}\n\n: ping\n\ndata: x\n\n'), 1 << 20)
    assert [event.finish() for event in events] == [b'{"id":1}', b"x"]
    assert not mislabelled(text_of(b"<html>"), 1 << 20)
    assert not mislabelled(text_of(b'{"id":1,"result":{}}'), 1 << 20)


@pytest.mark.parametrize(
    ("said", "flags"),
    [
        ({"result": DONE}, ()),
        ({"result": None}, (Flag.NULL_RESULT, Flag.VOID)),
        ({"result": {"content": [{"type": "text", "text": " "}]}}, (Flag.NULL_RESULT,)),
        ({"result": [1]}, (Flag.MALFORMED,)),
        ({"result": {**DONE, "structuredContent": []}}, (Flag.EMPTY,)),
        ({"error": {"code": -32603, "message": "no"}, "id": None}, (Flag.ID_MISMATCH,)),
    ],
)
def test_what_is_odd_about_an_answer_is_flagged(
    said: dict[str, object], flags: tuple[Flag, ...]
) -> None:
    assert ended(200, said)[1].flags == flags


def test_an_answer_under_another_media_type_is_flagged_with_what_happened_to_its_text() -> None:
    data = json.dumps({"jsonrpc": "2.0", "id": 1, "result": DONE}).encode()
    body = MessageReader.of(data, notes=(Flag.FORGED_OUTCOME,))
    body.media = "text/plain"
    message = body.content
    assert isinstance(message, Message)
    said = read_answer(message, revision="")
    _, reply = answered(said, message, body, around(200))
    assert reply.flags == (Flag.CONTENT_TYPE_MISMATCH, Flag.FORGED_OUTCOME)


def test_a_result_that_is_one_text_is_recorded_with_that_text() -> None:
    text = text_of(json.dumps({"jsonrpc": "2.0", "id": 1, "result": DONE}).encode())
    message = text.content
    assert isinstance(message, Message)
    said = read_answer(message, revision="")
    ending, long = answered(said, message, text, around(200))
    short = answered_by_text(said, message, text, 200)
    assert ending is SUCCESS
    assert short == structs.replace(long, text="done")
    piped = answered_by_text(said, message, text, 0)
    assert piped == structs.replace(long, text="done", http_status=0)


def test_any_other_answer_is_not_recorded_by_its_text_alone() -> None:
    structured: dict[str, object] = {**DONE, "structuredContent": 1}
    for result, media, status in (
        (DONE, JSON, 201),
        (DONE, "text/plain", 200),
        (FAILED, JSON, 200),
        (structured, JSON, 200),
    ):
        data = json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()
        text = text_of(data, media=media)
        message = text.content
        assert isinstance(message, Message)
        said = read_answer(message, revision="")
        assert answered_by_text(said, message, text, status) is None


class Call(Struct, frozen=True):
    """A call as rules look at it."""

    effect: Effect = Effect.WRITE
    policy: Policy = Policy()
    arguments: bytes = b"{}"
    complete: bool = True
    shortfall: str = ""


def call_ended(
    said: dict[str, object], *, policy: Policy | None = None, **changes: bool
) -> tuple[Ending, AnswerFacts]:
    """Return what the answer to a tool call comes to."""
    text = text_of(json.dumps({"jsonrpc": "2.0", "id": 1, **said}).encode())
    message = text.content
    assert isinstance(message, Message)
    answer = read_answer(message, revision="")
    circumstances = structs.replace(around(200), **changes)
    return call_answered(Call(policy=policy or Policy()), answer, message, text, circumstances)


def test_invalid_parameters_of_a_tool_that_is_not_listed_mean_that_there_is_no_such_tool() -> None:
    wrong: dict[str, object] = {"error": {"code": -32602, "message": "no"}}
    assert call_ended(wrong)[0].kind == "invalid_request"
    assert call_ended(wrong, is_unlisted=True)[0].kind == "tool_not_found"
    assert call_ended({"result": DONE}, is_unlisted=True)[0] is SUCCESS


def test_an_error_of_the_servers_own_to_a_cancelled_call_is_its_cancellation() -> None:
    own: dict[str, object] = {"error": {"code": -32000, "message": "cancelled"}}
    assert call_ended(own)[0].kind == "upstream_internal"
    assert call_ended(own, is_cancelled=True)[0].kind == "cancelled_by_caller"
    assert call_ended({"result": FAILED}, is_cancelled=True)[0].kind == "tool_failed"


def test_the_answer_to_a_call_is_judged_by_its_rules() -> None:
    ending, _ = call_ended({"result": DONE}, policy=Policy(expects=Expects.STRUCTURED))
    assert ending.kind == "null_result"


def test_a_result_looks_like_success_whatever_rules_make_of_it() -> None:
    for said, status, fine in (
        ({"result": DONE}, 200, True),
        ({"result": DONE}, 500, False),
        ({"result": FAILED}, 200, False),
        ({"error": ELICITS}, 200, False),
    ):
        data = json.dumps({"jsonrpc": "2.0", "id": 1, **said}).encode()
        message = text_of(data).content
        assert isinstance(message, Message)
        _, reply = ended(status, {**said})
        assert looks_like_success(read_answer(message, revision=""), reply) is fine


def test_a_resource_that_is_not_there_is_not_found() -> None:
    for code, kind in ((-32002, "not_found"), (-32603, "upstream_internal")):
        error = {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "no"}}
        text = text_of(json.dumps(error).encode())
        message = text.content
        assert isinstance(message, Message)
        said = read_lookup_answer(message, revision="")
        assert lookup_answered(said, message, text, around(200))[0].kind == kind


def test_an_id_in_the_answer_to_a_notification_is_no_mismatch() -> None:
    text = text_of(b'{"jsonrpc":"2.0","id":7,"result":{}}')
    assert unanswered(text, around(200))[1].flags == (Flag.ID_MISMATCH,)
    ending, reply = notification_answered(text, around(200))
    assert (ending, reply.flags) == (SUCCESS, ())
    assert notification_answered(text, around(400))[0].kind == "invalid_request"
