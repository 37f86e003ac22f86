"""What MCP messages mean for a call."""

from hashlib import sha256

import pytest
from msgspec import UNSET, Raw, UnsetType

from turnlog.core.kinds import Flag, Status
from turnlog.wire.json_stream import Outline, OutlineReader
from turnlog.wire.jsonrpc import DUPLICATES_LIMIT, Kind, Message, parse
from turnlog.wire.mcp import (
    SUBSCRIPTION_KEY,
    agreed_revision,
    cancellation,
    cancelled_id,
    dated,
    is_request,
    is_stateless,
    progress_token,
    read_call,
    read_lookup,
    requested_revision,
    start_of,
    subscription,
    wanted_progress,
)
from turnlog.wire.tool_result import (
    CallAnswer,
    TaskPoll,
    read_answer,
    read_lookup_answer,
    read_task_poll,
)


def message(text: bytes) -> Message:
    found = parse(text)
    assert isinstance(found, Message)
    return found


def outline(text: bytes) -> Outline:
    skimmer = OutlineReader()
    skimmer.feed(text)
    return skimmer.finish()


def answer(result: bytes, revision: str = "") -> CallAnswer:
    return read_answer(message(b'{"id":1,"result":' + result + b"}"), revision=revision)


def digest(text: str) -> bytes:
    return sha256(text.encode()).digest()


@pytest.mark.parametrize(
    ("revision", "expected"),
    [
        ("2026-07-28", True),
        ("2027-01-01", True),
        ("2025-11-25", False),
        ("", False),
        ("draft", False),
        ("2026-07-28x", False),
    ],
)
def test_revisions_are_stateless_from_2026_07_28_on(revision: str, expected: bool) -> None:
    assert is_stateless(revision) is expected


@pytest.mark.parametrize(
    ("text", "header", "expected"),
    [
        (b'{"id":1,"method":"tools/call"}', "2025-06-18", "2025-06-18"),
        (b'{"id":1,"method":"tools/call"}', "", ""),
        (
            b'{"id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}',
            "2025-06-18",
            "2025-11-25",
        ),
        (b'{"id":1,"method":"initialize","params":{"protocolVersion":5}}', "x", "x"),
        (
            (
                b'{"id":1,"method":"tools/call","params":{"_meta":'
                b'{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}'
            ),
            "2025-06-18",
            "2026-07-28",
        ),
        (b'{"id":1,"method":"tools/call","params":{"_meta":{}}}', "2025-06-18", "2025-06-18"),
        (b'{"id":1,"method":"tools/call","params":{}}', "2025-06-18", "2025-06-18"),
    ],
)
def test_the_body_tells_the_revision_and_the_header_where_it_is_silent(
    text: bytes, header: str, expected: str
) -> None:
    assert requested_revision(message(text), header) == expected


@pytest.mark.parametrize(
    ("result", "expected"),
    [(b'{"protocolVersion":"2025-06-18"}', "2025-06-18"), (b"{}", ""), (b"null", ""), (b"", "")],
)
def test_an_initialize_result_names_the_revision(result: bytes, expected: str) -> None:
    assert agreed_revision(Raw(result)) == expected


def test_a_call_is_read_with_all_it_brings() -> None:
    call = read_call(
        Raw(
            b'{"name":"w\\u0072ite","arguments":{"n": 1.0},"_meta":{"progressToken":"p",'
            b'"turnlog/turn":3},"task":{"ttl":60000},"inputResponses":{},"requestState":"s\\u003d"}'
        )
    )
    assert call.name == "write"
    assert bytes(call.arguments) == b'{"n": 1.0}'
    assert {name: bytes(raw) for name, raw in call.meta.items()} == {
        "progressToken": b'"p"',
        "turnlog/turn": b"3",
    }
    assert call.has_input_responses
    assert call.request_state == digest("s=")


@pytest.mark.parametrize(
    "params",
    [
        b"",
        b"null",
        b"[]",
        b'{"name":5,"_meta":null,"task":null,"inputResponses":null,"requestState":7}',
    ],
)
def test_a_call_that_brings_nothing_is_read_as_that(params: bytes) -> None:
    call = read_call(Raw(params))
    assert (call.name, bytes(call.arguments), call.meta) == ("", b"{}", {})
    assert (call.has_input_responses, call.request_state) == (False, b"")


def test_arguments_stay_the_bytes_they_were_whatever_they_are() -> None:
    for text in (b"null", b"[1]", b'{"a":NaN,"a":"\\ud800"}', b'{"big":1e999}'):
        assert bytes(read_call(Raw(b'{"arguments":' + text + b"}")).arguments) == text


@pytest.mark.parametrize(
    ("result", "status", "is_error"),
    [
        (b'{"content":[{"type":"text","text":"hi"}]}', Status.OK, False),
        (b'{"content":[],"isError":true}', Status.ERROR, True),
        (b'{"content":[],"isError":"true"}', Status.ERROR, True),
        (b'{"content":[],"isError":null}', Status.OK, False),
        (b'{"resultType":"complete","content":[]}', Status.OK, False),
        (b'{"resultType":"input_required","inputRequests":{}}', Status.INPUT_REQUIRED, False),
        (b'{"resultType":"input_required","isError":true}', Status.ERROR, True),
        (b'{"resultType":"task","taskId":"t"}', Status.ACCEPTED, False),
        (b'{"task":{"taskId":"t","status":"working"}}', Status.ACCEPTED, False),
        (b'{"task":{"name":"no handle"},"content":[]}', Status.OK, False),
        (b'{"resultType":"com.example/new"}', Status.OK, False),
        (b"null", Status.OK, False),
        (b"[]", Status.OK, False),
    ],
)
def test_a_result_tells_how_a_call_ended(result: bytes, status: Status, is_error: bool) -> None:
    found = answer(result)
    assert (found.status, found.is_error) == (status, is_error)
    skimmed = read_answer(outline(b'{"id":1,"result":' + result + b"}"), revision="")
    assert (skimmed.status, skimmed.is_error) == (status, is_error)


def test_a_large_answer_tells_how_a_call_ended() -> None:
    blank = b" " * DUPLICATES_LIMIT
    found = answer(b'{"isError":true,' + blank + b'"content":[{"type":"text","text":"no"}]}')
    assert (found.status, found.is_error, found.flags) == (Status.ERROR, True, ())
    found = answer(b'{"isError":true,' + blank + b'"isError":false}')
    assert (found.status, found.flags) == (Status.OK, (Flag.DUPLICATE_KEYS,))


def test_result_types_mean_something_since_2026_07_28_only() -> None:
    text = b'{"resultType":"input_required"}'
    assert answer(text, "2026-07-28").status is Status.INPUT_REQUIRED
    assert answer(text, "2025-11-25").status is Status.OK
    assert answer(b'{"resultType":"x/y"}', "2026-07-28").status is Status.OK


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            b'{"code":-32602,"message":"no such tool"}',
            CallAnswer(status=Status.ERROR, code=-32602, message="no such tool"),
        ),
        (
            b'{"code":-32042,"message":"open this"}',
            CallAnswer(status=Status.ERROR, code=-32042, message="open this"),
        ),
        (b'"broken"', CallAnswer(status=Status.ERROR, message="broken")),
        (b"{}", CallAnswer(status=Status.ERROR)),
    ],
)
def test_an_error_tells_how_a_call_ended(error: bytes, expected: CallAnswer) -> None:
    text = b'{"id":1,"error":' + error + b"}"
    assert read_answer(message(text), revision="") == expected
    assert read_answer(outline(text), revision="") == expected


def test_a_long_error_message_is_cut() -> None:
    text = b'{"id":1,"error":{"code":1,"message":"' + b"\\u00e9" * 900 + b'"}}'
    assert read_answer(message(text), revision="").message == "é" * 200
    assert read_answer(outline(text), revision="").message == "é" * 200


@pytest.mark.parametrize(
    ("result", "task_id", "ttl"),
    [
        (b'{"resultType":"task","taskId":"t1","status":"working","ttlMs":5000}', "t1", 5000),
        (b'{"resultType":"task","taskId":"t1","ttlMs":null}', "t1", None),
        (b'{"resultType":"task","taskId":"t1"}', "t1", UNSET),
        (b'{"resultType":"task"}', "", UNSET),
        (b'{"task":{"taskId":"t2","status":"working","ttl":60000},"taskId":"x"}', "t2", 60_000),
        (b'{"task":{"taskId":"t2","ttl":null}}', "t2", None),
        (b'{"task":{"taskId":"t2","ttl":"soon"}}', "t2", UNSET),
    ],
)
def test_a_task_handle_says_which_task_and_how_long(
    result: bytes, task_id: str, ttl: int | UnsetType | None
) -> None:
    text = b'{"id":1,"result":' + result + b"}"
    for found in (
        read_answer(message(text), revision=""),
        read_answer(outline(text), revision=""),
    ):
        assert found.status is Status.ACCEPTED
        assert (found.task_id, found.task_ttl_ms) == (task_id, ttl)


def test_a_finished_call_names_no_task() -> None:
    found = answer(b'{"content":[],"taskId":"t","ttlMs":5,"status":"working"}')
    assert (found.task_id, found.task_ttl_ms) == ("", UNSET)


def test_a_request_state_is_known_by_its_digest_however_it_is_escaped() -> None:
    start = b'{"resultType":"input_required","requestState":'
    assert answer(start + b'"a=b"}').request_state == digest("a=b")
    assert answer(start + b'"a\\u003db"}').request_state == digest("a=b")
    assert answer(start + b"5}").request_state == b""
    assert answer(b"{}").request_state == b""
    large = start + b'"' + b"s" * 100_000 + b'"}'
    assert answer(large).request_state == digest("s" * 100_000)
    skimmed = read_answer(outline(b'{"id":1,"result":' + large + b"}"), revision="")
    assert skimmed.request_state == b""


@pytest.mark.promise("OUT-17")
@pytest.mark.parametrize(
    "result",
    [
        b"null",
        b"{}",
        b'{"content":null}',
        b'{"content":[]}',
        b'{"content":[],"isError":true}',
        b'{"isError":false}',
        b'{"content":[],"structuredContent":null}',
        b'{"content":[],"structuredContent":{"result":null}}',
        b'{"content":[{"type":"text","text":"null"}],"structuredContent":{"result":null}}',
        b'{"content":[{"type":"text","text":""}]}',
        b'{"content":[{"type":"text","text":" \\n\\t"},{"type":"text","text":"  "}]}',
        b'{"content":[{"type":"text","text":"                                  "}]}',
        b'{"content":[{"type":"text","text":"null"}]}',
        b'{"content":[{"type":"text","text":"None"}]}',
        b'{"content":[{"type":"text","text":"undefined\\n"}]}',
        b'{"content":[{"type":"text","text":"NaN"}]}',
        b'{"content":[{"type":"text","text":"[object Object]"}]}',
        b'{"content":[{"type":"text"}],"x":NaN}',
        b'{"content":[{"type":"text","text":"","x":NaN}]}',
    ],
)
def test_a_result_that_says_nothing_has_the_null_shape(result: bytes) -> None:
    assert answer(result).null_shape


@pytest.mark.promise("OUT-17")
@pytest.mark.parametrize(
    "result",
    [
        b"5",
        b'{"content":[{"type":"text","text":"0"}]}',
        b'{"content":[{"type":"text","text":"[]"}]}',
        b'{"content":[{"type":"text","text":"{}"}]}',
        b'{"content":[{"type":"text","text":"no matches found"}]}',
        b'{"content":[{"type":"text","text":"null"},{"type":"text","text":"None"}]}',
        b'{"content":[{"type":"image","data":""}]}',
        b'{"content":"text"}',
        b'{"content":[],"structuredContent":{"result":[]}}',
        b'{"content":[],"structuredContent":{"result":null,"more":1}}',
        b'{"content":[],"structuredContent":{}}',
        b'{"content":[],"structuredContent":0}',
        b'{"content":null,"structuredContent":{"rows":[1]}}',
        b'{"resultType":"input_required"}',
        b'{"resultType":"task","taskId":"t"}',
        b'{"content":[{"type":"text","text":"' + b" " * 5000 + b'"}]}',
        b'{"content":[],"structuredContent":{"result":"' + b"x" * 5000 + b'"}}',
    ],
)
def test_a_value_is_not_of_the_null_shape(result: bytes) -> None:
    assert not answer(result).null_shape


@pytest.mark.parametrize("value", ["[]", "{}", "0", "false", '""'])
def test_a_structured_value_may_hold_nothing(value: str) -> None:
    for structured in (value, f'{{"result":{value}}}'):
        said = answer(f'{{"structuredContent":{structured}}}'.encode())
        assert said.empty
        assert not said.void


@pytest.mark.parametrize(
    "value",
    ["[0]", '{"a":[]}', "1", "true", '"x"', "null", '{"result":[],"n":0}', '{"result":null}'],
)
def test_other_structured_values_hold_something_or_are_none(value: str) -> None:
    assert not answer(f'{{"structuredContent":{value}}}'.encode()).empty


@pytest.mark.promise("OUT-17")
@pytest.mark.parametrize(
    "result", ["null", "{}", '{"_meta":{}}', '{"content":null,"isError":false}']
)
def test_a_shape_that_the_protocol_forbids_is_void(result: str) -> None:
    assert answer(result.encode()).void


@pytest.mark.parametrize(
    "result",
    [
        '{"content":[]}',
        '{"structuredContent":{}}',
        '{"isError":true}',
        '{"resultType":"input_required"}',
    ],
)
def test_other_shapes_are_not_void(result: str) -> None:
    assert not answer(result.encode()).void


@pytest.mark.parametrize("result", [b"5", b"0", b"false", b'"x"', b'""', b"[]", b"[{}]", b"NaN"])
def test_a_value_that_no_result_may_be_is_foreign_and_not_null(result: bytes) -> None:
    said = answer(result)
    assert (said.status, said.foreign) == (Status.OK, True)
    assert not said.void
    assert not said.null_shape


@pytest.mark.parametrize("result", [b"null", b"{}", b'{"content":5}', b'{"structuredContent":5}'])
def test_an_object_and_null_are_not_foreign(result: bytes) -> None:
    assert not answer(result).foreign


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"method":"notifications/cancelled","params":{"requestId":5}}', "5"),
        (b'{"method":"notifications/cancelled","params":{"requestId":"a"}}', '"a'),
        (b'{"method":"notifications/cancelled","params":{}}', None),
        (b'{"method":"notifications/cancelled"}', None),
        (b'{"method":"notifications/progress","params":{"requestId":5}}', None),
    ],
)
def test_a_cancellation_names_a_request(text: bytes, expected: str | None) -> None:
    assert cancelled_id(message(text)) == expected
    assert cancelled_id(outline(text)) == expected


def test_only_a_request_asks_for_an_answer() -> None:
    for text, expected in (
        (b'{"id":1,"method":"sampling/createMessage"}', True),
        (b'{"method":"notifications/progress"}', False),
        (b'{"id":1,"result":{}}', False),
        (b"[]", False),
    ):
        assert is_request(parse(text)) is expected
        assert is_request(outline(text)) is expected


def poll(method: str, text: bytes, revision: str = "") -> TaskPoll:
    """Read the answer to a poll for the task `t`, in both of its forms."""
    params = Raw(b'{"taskId":"t"}')
    found = read_task_poll(method, params, message(text), revision=revision)
    skimmed = read_task_poll(method, params, outline(text), revision=revision)
    assert found is not None
    assert found == skimmed
    return found


@pytest.mark.parametrize(
    ("result", "terminal", "status"),
    [
        (b'{"taskId":"t","status":"working"}', False, Status.ACCEPTED),
        (b'{"taskId":"t","status":"input_required"}', False, Status.INPUT_REQUIRED),
        (b'{"taskId":"t","status":"completed"}', True, Status.OK),
        (
            b'{"taskId":"t","status":"completed","result":{"content":[{}],"isError":false}}',
            True,
            Status.OK,
        ),
        (b'{"taskId":"t","status":"completed","result":{"isError":true}}', True, Status.ERROR),
        (
            b'{"taskId":"t","status":"failed","error":{"code":-32603,"message":"m"}}',
            True,
            Status.ERROR,
        ),
        (b'{"taskId":"t","status":"failed"}', True, Status.ERROR),
        (b'{"taskId":"t","status":"cancelled"}', True, Status.ERROR),
        (b'{"resultType":"complete"}', False, Status.ACCEPTED),
    ],
)
def test_a_task_tells_how_its_call_stands(result: bytes, terminal: bool, status: Status) -> None:
    for method in ("tasks/get", "tasks/cancel"):
        found = poll(method, b'{"id":1,"result":' + result + b"}")
        assert (found.task_id, found.terminal, found.answer.status) == ("t", terminal, status)


def test_a_failed_task_brings_the_error_and_a_completed_one_the_result() -> None:
    failed = poll(
        "tasks/get",
        b'{"id":1,"result":{"status":"failed","error":{"code":-5,"message":"m"},"ttlMs":9}}',
    )
    assert (failed.answer.code, failed.answer.message) == (-5, "m")
    assert (failed.terminal, failed.answer.task_ttl_ms) == (True, 9)
    ended = poll("tasks/get", b'{"id":1,"result":{"status":"completed","result":{"content":[]}}}')
    assert ended.answer.null_shape
    assert not poll("tasks/get", b'{"id":1,"result":{"status":"completed"}}').answer.null_shape


def test_the_result_of_a_task_is_that_of_its_call() -> None:
    ok = poll("tasks/result", b'{"id":1,"result":{"content":[{}]}}', "2025-11-25")
    assert (ok.terminal, ok.answer.status) == (True, Status.OK)
    bad = poll("tasks/result", b'{"id":1,"result":{"content":[{}],"isError":true}}', "2025-11-25")
    assert (bad.terminal, bad.answer.status) == (True, Status.ERROR)
    error = poll("tasks/result", b'{"id":1,"error":{"code":-32603}}', "2025-11-25")
    assert (error.terminal, error.answer.code) == (True, -32603)
    more = poll("tasks/result", b'{"id":1,"error":{"code":-32042}}', "2025-11-25")
    assert (more.terminal, more.answer.status) == (False, Status.ERROR)


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("tasks/get", b'{"code":-32603,"message":"busy"}'),
        ("tasks/get", b"{}"),
        ("tasks/cancel", b'{"code":-32602}'),
        ("tasks/result", b'{"code":-32602,"message":"no such task"}'),
    ],
)
def test_an_error_about_the_question_says_nothing_of_the_call(method: str, error: bytes) -> None:
    assert not poll(method, b'{"id":1,"error":' + error + b"}").terminal


def test_a_task_that_the_question_did_not_name_is_named_by_the_answer() -> None:
    text = message(b'{"id":1,"result":{"taskId":"u","status":"working"}}')
    found = read_task_poll("tasks/get", Raw(b""), text, revision="")
    assert found is not None
    assert found.task_id == "u"


def test_other_methods_poll_no_task() -> None:
    text = message(b'{"id":1,"result":{"taskId":"u","status":"completed"}}')
    assert read_task_poll("tasks/list", Raw(b"{}"), text, revision="") is None


@pytest.mark.parametrize(
    ("raw", "key"), [(b'"a"', '"a'), (b"7", "7"), (b"7.0", "7"), (b"null", "null"), (b"", "")]
)
def test_progress_is_reported_with_the_token_that_was_given(raw: bytes, key: str) -> None:
    token = b'"progressToken":' + raw if raw else b'"x":1'
    asked = message(b'{"id":1,"method":"tools/call","params":{"_meta":{' + token + b"}}}")
    told = b'{"method":"notifications/progress","params":{' + token + b',"progress":1}}'
    assert wanted_progress(asked) == raw
    assert progress_token(message(told)) == key


@pytest.mark.parametrize(
    "text",
    [
        b'{"id":1,"method":"tools/call"}',
        b'{"id":1,"method":"tools/call","params":[]}',
        b'{"id":1,"method":"tools/call","params":{"_meta":null}}',
        b'{"id":1,"method":"tools/call","params":{"_meta":[1]}}',
    ],
)
def test_a_request_may_want_no_progress(text: bytes) -> None:
    assert wanted_progress(message(text)) == b""
    assert progress_token(message(text)) == ""


START_PADDING = b'"' + b"x" * 100_000


@pytest.mark.parametrize(
    ("text", "kind", "method", "raw_id"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call"', Kind.REQUEST, "tools/call", b"1"),
        (b'{"method":"tools/call","params":{"arguments":' + START_PADDING, Kind.REQUEST, "tools/call", b""),
        (b'{"jsonrpc":"2.0","id":"a","params":' + START_PADDING, Kind.REQUEST, "tools/call", b'"a"'),
        (b'{"jsonrpc":"2.0","id":1,"result":{"x":' + START_PADDING, Kind.RESPONSE, "", b"1"),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"x":' + START_PADDING, Kind.ERROR, "", b"1"),
    ],
)  # fmt: skip
def test_the_start_of_a_large_message_says_what_it_is(
    text: bytes, kind: Kind, method: str, raw_id: bytes
) -> None:
    found = start_of(text)
    assert found is not None
    assert (found.kind, found.method, found.id) == (kind, method, raw_id)


@pytest.mark.parametrize("text", [b"{}", b"no json", b'{"result":' + START_PADDING, b"[1,2", b""])
def test_the_start_of_other_text_says_nothing(text: bytes) -> None:
    assert start_of(text) is None


def test_a_lookup_is_named_by_its_method_and_asks_for_what_it_names() -> None:
    said = read_lookup("resources/read", Raw(b'{"uri":"file:///a","_meta":{"k":1},"x":2}'))
    assert (said.name, bytes(said.arguments)) == ("resources/read", b'{"uri":"file:///a"}')
    assert {name: bytes(raw) for name, raw in said.meta.items()} == {"k": b"1"}
    assert bytes(read_lookup("prompts/get", Raw(b"[]")).arguments) == b"{}"


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (b"{}", Status.OK),
        (b"null", Status.OK),
        (b'{"contents":[]}', Status.OK),
        (b'{"isError":true}', Status.OK),
        (b'{"task":{"taskId":"t"}}', Status.OK),
        (b'{"resultType":"input_required"}', Status.INPUT_REQUIRED),
    ],
)
def test_the_result_of_a_lookup_is_not_judged_as_a_tools_result(
    result: bytes, status: Status
) -> None:
    found = message(b'{"jsonrpc":"2.0","id":1,"result":%b}' % result)
    said = read_lookup_answer(found, revision="2026-07-28")
    assert (said.status, said.void, said.null_shape, said.is_error) == (status, *[False] * 3)


def test_a_revision_is_recorded_only_if_it_is_a_date() -> None:
    assert [dated(text) for text in ("2025-11-25", "2025-1-1", "draft", "")] == [
        "2025-11-25",
        "",
        "",
        "",
    ]


def test_a_cancellation_names_the_request_and_says_why() -> None:
    assert cancelled_id(message(cancellation(b'"a"'))) == '"a'
    assert b'"reason":"gone"' in cancellation(b"1", "gone")


def test_a_notification_may_belong_to_a_subscription() -> None:
    meta = b'{"method":"n","params":{"_meta":{"%b":7}}}' % SUBSCRIPTION_KEY.encode()
    assert subscription(message(meta)) == "7"
    assert subscription(message(b'{"method":"n","params":{"_meta":{}}}')) == ""
    assert subscription(message(b'{"method":"n","params":{}}')) == ""
    assert subscription(message(b'{"method":"n"}')) == ""


def test_a_large_message_may_be_an_answer() -> None:
    found = start_of(b'{"jsonrpc":"2.0","id":5,"result":{"content":[')
    assert found is not None
    assert (found.kind, found.id) == (Kind.RESPONSE, b"5")
    assert start_of(b'{"some":"thing"') is None
