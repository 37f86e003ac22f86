"""`wire.mcp`: calls and answers read the same in the usual way and in the tolerant one."""

import json

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw, structs

from turnlog.core.kinds import Flag
from turnlog.core.text.terminal import result_summary, text_summary
from turnlog.wire.json_text import ValueShape, members, shape, text_of
from turnlog.wire.jsonrpc import Message, parse, read_whole
from turnlog.wire.mcp import ToolCall, read_call, state_digest
from turnlog.wire.tool_result import read_answer, read_texts

texts = st.text(st.sampled_from('ab"\\é😀 \ud83d\x01'), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    ("name", "arguments", "_meta", "meta", "inputResponses", "requestState", "na\\u006de", "x")
)
written = values.map(json.dumps) | st.sampled_from(
    ('"w"', '"w\x01"', '"\\ud83d"', "NaN", '{"a":1,"a":2}', "{", "", " {} ", '"' + "x" * 5000 + '"')
)


def slowly(params: bytes) -> ToolCall:
    found = {name: bytes(raw) for name, raw in members(params).items()}
    answers = shape(found.get("inputResponses", b""))
    return ToolCall(
        name=text_of(found.get("name", b"")),
        arguments=Raw(found.get("arguments", b"{}")),
        meta=members(found.get("_meta", b"null")),
        has_input_responses=answers not in (ValueShape.ABSENT, ValueShape.NULL),
        request_state=state_digest(Raw(found.get("requestState", b""))),
    )


@given(st.lists(st.tuples(names, written), max_size=6))
@example([("name", '"w"'), ("name", "null")])
@example([("name", '"w"'), ("arguments", "1e999"), ("_meta", '{"k":"\\ud800"}')])
def test_a_call_is_read_as_its_members_say(pairs: list[tuple[str, str]]) -> None:
    params = ("{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}").encode()
    assert read_call(Raw(params)) == slowly(params)


said = st.sampled_from(
    ("", " ", "ok", "null", " None ", "Error: no", " traceback (most recent call last)", "x" * 5000)
) | texts.filter(str.isascii)
blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(("text", "text", "text", "image")), "text": said | st.none()}
)
results = st.fixed_dictionaries(
    {},
    optional={
        "content": st.lists(blocks, max_size=3) | values,
        "isError": st.booleans() | st.sampled_from(("true", "false", 0, 1, 1.0, None)),
        "_meta": values,
        "structuredContent": values,
        "resultType": st.sampled_from(("complete", "task", "input_required")),
        "task": st.just({"taskId": "t"}),
    },
)


@given(results)
@example({"content": [{"type": "text", "text": "ok"}], "isError": False})
@example({"content": [{"type": "text", "text": "ok"}, {"type": "text", "text": "null"}]})
@example({"content": [{"type": "text", "text": "null"}]})
@example({"content": [{"type": "text", "text": "ok"}], "isError": 1})
@example({"content": [{"type": "text", "text": "x" * 5000}]})
@example({"content": [{"type": "text", "text": "Error: no"}]})
def test_an_answer_is_read_as_its_text_says(result: dict[str, object]) -> None:
    text = json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}, separators=(",", ":"))
    message = parse(text.encode())
    assert isinstance(message, Message)
    read = read_answer(message, revision="")
    slowly = read_answer(structs.replace(message, unchecked=b""), revision="")
    # What is known to be harmless of a long text is seen later of one that was not looked at.
    plain, _ = read_whole(message)
    long = len(message.result) > 4096 and plain and read_texts(plain["result"]) is not None
    slowly = structs.replace(slowly, text=read.text)
    assert read == (structs.replace(slowly, harmless=True) if long else slowly)


@given(results)
@example({"content": [{"type": "text", "text": " one\tline\u0007 "}]})
@example({"content": [{"type": "text", "text": "one"}], "isError": 0})
@example({"content": [{"type": "text", "text": "one", "mimeType": 1}]})
@example({"content": [{"type": "text", "text": "\u0007\u200b"}]})
@example({"content": [{"type": "text", "text": "x" * 5000}]})
def test_the_summary_of_the_only_text_of_a_result_is_that_of_the_result(
    result: dict[str, object],
) -> None:
    text = json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}, separators=(",", ":"))
    message = parse(text.encode())
    assert isinstance(message, Message)
    if said := read_answer(message, revision="").text:
        assert text_summary(said) == result_summary(bytes(message.result), size=len(text))


def test_a_text_that_repeats_a_key_or_is_no_utf8_is_flagged() -> None:
    start = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"a'
    plain = parse(start + b'"}]}}')
    assert isinstance(plain, Message)
    values, flags = read_whole(plain)
    assert values is not None
    assert read_texts(values["result"]) is not None
    assert flags == ()
    for end, flag in ((b'","text":""}]}}', Flag.DUPLICATE_KEYS), (b'\xff"}]}}', Flag.INVALID_UTF8)):
        other = parse(start + end)
        assert isinstance(other, Message)
        assert read_whole(other)[1] == (flag,)
        assert read_answer(other, revision="").flags == (flag,)
