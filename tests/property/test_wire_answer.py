"""Laws of reading results: a quick look at an answer says what a slow one by Python's reader does."""

import json
from collections.abc import Callable
from typing import Any, cast

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from turnlog.core.kinds import Status
from turnlog.wire.content import LOOKED_AT, looks_like_error, only_text, text_of_result
from turnlog.wire.jsonrpc import Kind, Message, parse
from turnlog.wire.mcp import Answer, read_answer
from turnlog.wire.rawjson import shape, text_of

WORDS = ["null", "None", "NaN", "undefined", "[object Object]", "error", "Error: x", "TRACEBACK"]
texts = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(WORDS).map(lambda word: f" \n{word}\t"),
    st.text(st.sampled_from(" \n\t\u2003"), max_size=4),
    st.integers(0, 220).map(lambda size: " " * size + "Error: late"),
    st.text(st.sampled_from('ab "\\é𝄞'), max_size=20),
)
scalars = st.sampled_from([None, True, False, 0, 1, 1.0, 7, "", "x", "true"])
held = st.one_of(scalars, st.sampled_from([[], {}, [0], {"a": 1}]))
structured = st.one_of(held, held.map(lambda v: {"result": v}), st.just({"result": None, "n": 1}))
blocks = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "image", 7])}, optional={"text": scalars}
    ),
)
contents = st.one_of(st.lists(blocks, max_size=3), held)
results = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "content": contents,
            "structuredContent": structured,
            "isError": st.one_of(scalars, st.booleans()),
            "other": held,
        },
    ),
    held,
)


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def bare(value: object) -> str:
    """Return JSON that no strict decoder takes: one value in it is not a number."""
    return compact(value).replace('"other":', '"other":NaN,"more":', 1)


writers = st.sampled_from([compact, json.dumps, lambda value: json.dumps(value, indent=1), bare])


def is_blank(content: list[Any]) -> bool:
    said = [block.get("text") if isinstance(block, dict) else None for block in content]
    words = [text.strip() for text in said if isinstance(text, str) and text.strip()]
    known = {"null", "None", "undefined", "NaN", "[object Object]"}
    return not words or (len(content) == 1 and words[0] in known)


def all_texts(content: object) -> bool:
    blocks = cast("list[object]", content) if isinstance(content, list) else []
    kinds = [block.get("type") for block in map(as_dict, blocks)]
    return bool(kinds) and all(kind == "text" for kind in kinds)


def as_dict(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def inner(value: object) -> object:
    """Return what structured content comes to."""
    whole = as_dict(value)
    return whole["result"] if whole.keys() == {"result"} else value


def says_nothing(result: dict[str, Any]) -> bool:
    if inner(result.get("structuredContent")) is not None:
        return False
    content = result.get("content")
    if all_texts(content):
        return is_blank(cast("list[Any]", content))
    return content is None or content in ([], {})


def is_empty(value: object) -> bool:
    return value in ([], {}, "") or value is False or (value == 0 and isinstance(value, int))


def expected(result: object) -> Answer:
    """Return what a result without marks of its own says, read value by value."""
    if result is not None and not isinstance(result, dict):
        return Answer(status=Status.OK, foreign=True)
    members = as_dict(result)
    flag = members.get("isError")
    failed = flag is True or flag == "true" or (flag == 1 and isinstance(flag, int))
    said = [members.get("content"), members.get("structuredContent")]
    return Answer(
        status=Status.ERROR if failed else Status.OK,
        is_error=failed,
        null_shape=says_nothing(members),
        void=not failed and said == [None, None],
        empty=not failed and is_empty(inner(said[1])),
    )


def told(answer: Answer) -> tuple[object, ...]:
    return (
        answer.status,
        answer.is_error,
        answer.null_shape,
        answer.void,
        answer.empty,
        answer.foreign,
    )


@given(results, writers)
@example({"content": [{"type": "text", "text": " " * 20 + "null"}]}, compact)
@example({"content": [], "isError": 1.0, "structuredContent": {"result": None}}, compact)
@example({"content": [{"type": "text", "text": None}, {"type": "text"}]}, compact)
def test_a_result_says_what_its_values_say_however_it_is_written(
    result: object, write: Callable[[object], str]
) -> None:
    message = parse(f'{{"jsonrpc":"2.0","id":1,"result":{write(result)}}}'.encode())
    assert isinstance(message, Message)
    assert told(read_answer(message, revision="")) == told(expected(result))


@given(results, writers)
@example({"content": [{"type": "text", "text": " " * 199}, {"type": "text", "text": "x"}]}, compact)
@example(
    {"content": [{"type": "text", "text": "\n"}, {"type": "text", "text": "Error: x"}]}, compact
)
def test_a_text_known_to_be_harmless_does_not_look_like_an_error(
    result: object, write: Callable[[object], str]
) -> None:
    data = write(result).encode()
    said = read_answer(Message(kind=Kind.RESPONSE, result=Raw(data)), revision="")
    text = text_of_result(data, LOOKED_AT)
    if only_text(data) is not None:
        assert said.harmless is not looks_like_error(text)
    assert not (said.harmless and looks_like_error(text))


@given(st.text(max_size=30), st.integers(0, 40), st.booleans())
@example("\x00\x1f", 9, False)
@example("\ud800x", 9, True)
def test_a_text_is_what_the_standard_library_reads(text: str, limit: int, escape: bool) -> None:
    token = json.dumps(text, ensure_ascii=escape).encode("utf-8", "replace")
    read = json.loads(token.decode())
    wanted = read.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    for raw in (token, Raw(token)):
        assert text_of(raw, limit) == wanted[:limit]
        assert shape(raw) == "scalar"
