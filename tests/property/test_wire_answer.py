"""Laws of reading results: a quick look at an answer says what a slow one by Python's reader does."""

import json
from collections.abc import Callable
from typing import Any, cast

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from turnlog.core.kinds import Status
from turnlog.wire.error_text import LOOKED_AT, looks_like_error
from turnlog.wire.json_text import shape, text_of
from turnlog.wire.jsonrpc import Kind, Message, parse
from turnlog.wire.tool_result import CallAnswer, only_text, read_answer, text_of_result

WORDS = ["null", "None", "NaN", "undefined", "[object Object]", "error", "Error: x", "TRACEBACK"]
Values = st.SearchStrategy[Any]
texts: Values = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(WORDS).map(lambda word: f" \n{word}\t"),
    st.text(st.sampled_from(" \n\t\u2003"), max_size=4),
    st.integers(0, 220).map(lambda size: " " * size + "Error: late"),
    st.text(st.sampled_from('ab "\\é𝄞'), max_size=20),
)
scalars: Values = st.sampled_from([None, True, False, 0, 1, 1.0, 7, "", "x", "true"])
held: Values = st.one_of(scalars, st.sampled_from([[], {}, [0], {"a": 1}]))
structured: Values = st.one_of(
    held, held.map(lambda value: {"result": value}), st.just({"result": None, "n": 1})
)
kinds: Values = st.sampled_from(["text", "image", 7])
blocks: Values = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
    st.fixed_dictionaries({"type": kinds}, optional={"text": scalars}),
)
contents: Values = st.one_of(st.lists(blocks, max_size=3), held)
members: dict[str, Values] = {
    "content": contents,
    "structuredContent": structured,
    "isError": scalars,
    "other": held,
}
none: dict[str, Values] = {}
results: Values = st.one_of(st.fixed_dictionaries(none, optional=members), held)


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def bare(value: object) -> str:
    """Return JSON that no strict decoder takes: one value in it is not a number."""
    return compact(value).replace('"other":', '"other":NaN,"more":', 1)


writers = st.sampled_from([compact, json.dumps, lambda value: json.dumps(value, indent=1), bare])


def as_list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def as_dict(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def is_blank(content: list[object]) -> bool:
    said = [as_dict(block).get("text") for block in content]
    words = [text.strip() for text in said if isinstance(text, str) and text.strip()]
    known = {"null", "None", "undefined", "NaN", "[object Object]"}
    return not words or (len(content) == 1 and words[0] in known)


def inner(value: object) -> object:
    """Return what structured content comes to."""
    whole = as_dict(value)
    return whole["result"] if whole.keys() == {"result"} else value


def says_nothing(result: dict[str, object]) -> bool:
    if inner(result.get("structuredContent")) is not None:
        return False
    content = result.get("content")
    of_blocks = [as_dict(block).get("type") for block in as_list(content)]
    if of_blocks and all(kind == "text" for kind in of_blocks):
        return is_blank(as_list(content))
    return content is None or content in ([], {})


def is_integer(value: object, wanted: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value == wanted


def is_empty(value: object) -> bool:
    return value in ([], {}, "") or value is False or is_integer(value, 0)


def expected(result: object) -> CallAnswer:
    """Return what a result without marks of its own says, read value by value."""
    if result is not None and not isinstance(result, dict):
        return CallAnswer(status=Status.OK, foreign=True)
    given = as_dict(cast("object", result))
    flag = given.get("isError")
    failed = flag is True or flag == "true" or is_integer(flag, 1)
    said = [given.get("content"), given.get("structuredContent")]
    return CallAnswer(
        status=Status.ERROR if failed else Status.OK,
        is_error=failed,
        null_shape=says_nothing(given),
        void=not failed and said == [None, None],
        empty=not failed and is_empty(inner(said[1])),
    )


def told(answer: CallAnswer) -> tuple[object, ...]:
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
