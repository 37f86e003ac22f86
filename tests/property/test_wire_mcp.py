"""`wire.mcp`: the params of a call read the same in the usual way and in the tolerant one."""

import json

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from turnlog.wire.answer import state_digest
from turnlog.wire.mcp import ToolCall, read_call
from turnlog.wire.rawjson import Shape, members, shape, text_of

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
        has_input_responses=answers not in (Shape.ABSENT, Shape.NULL),
        request_state=state_digest(Raw(found.get("requestState", b""))),
    )


@given(st.lists(st.tuples(names, written), max_size=6))
@example([("name", '"w"'), ("name", "null")])
@example([("name", '"w"'), ("arguments", "1e999"), ("_meta", '{"k":"\\ud800"}')])
def test_a_call_is_read_as_its_members_say(pairs: list[tuple[str, str]]) -> None:
    params = ("{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}").encode()
    assert read_call(Raw(params)) == slowly(params)
