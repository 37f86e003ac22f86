"""Values of outputs: whatever the bytes are, nothing raises, and what was seen is known."""

import json

from hypothesis import given
from hypothesis import strategies as st

from turnlog.core.commit import Lineage
from turnlog.core.kinds import ValueOrigin
from turnlog.provenance.values import SessionValues, ValueSource

SOURCE = ValueSource(b"call")
MARKED = st.text("aB7.-_:/@%,'\"\\ \n()=+0", min_size=4, max_size=40)
TEXTS = st.one_of(st.text(min_size=4, max_size=40), MARKED)  # a shorter one is no value
CONTENTS = st.recursive(
    st.one_of(TEXTS, st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=8,
)


@given(st.binary(max_size=300))
def test_any_bytes_can_be_remembered_and_looked_up(content: bytes) -> None:
    values = SessionValues()
    values.add(SOURCE, content)
    values.add(SOURCE, content, tainted=True, own_input=content)
    values.look_up(content)


@given(CONTENTS)
def test_nothing_in_an_output_is_unverified_in_the_arguments_of_the_next_call(
    content: object,
) -> None:
    assert not unseen(json.dumps(content).encode(), content)


@given(TEXTS)
def test_a_text_of_an_output_is_not_unverified_in_the_midst_of_other_words(text: str) -> None:
    assert not unseen(json.dumps({"text": text}).encode(), {"command": f"say {text} once"})


def unseen(output: bytes, arguments: object) -> list[Lineage]:
    values = SessionValues()
    values.add(SOURCE, output)
    lineage = values.look_up(json.dumps(arguments).encode()).lineage
    return [entry for entry in lineage if entry.origin is ValueOrigin.UNVERIFIED]
