"""How outputs are indexed: tainted, clean, or tainted where their own input was; and what is missed."""

import pytest
from msgspec import structs

from turnlog.core.commit import Facts
from turnlog.core.kinds import CommitKind, Flag, Gone, Phase, Status
from turnlog.provenance.outputs import INPUT_CUT, RecordedOutput, indexing, missing_content
from turnlog.provenance.values import SessionValues, ValueSource

MAIL, MADE = ValueSource(b"mail"), ValueSource(b"made")
TOKEN = b"deploy-7f3a9c21"
DONE = Facts(kind=CommitKind.OUTCOME, at=0, clock=0, bytes_out=100, phase=Phase.DONE)


def indexed(values: SessionValues, output: RecordedOutput) -> None:
    for _ in indexing(values, output):
        pass


def tainted_session() -> SessionValues:
    values = SessionValues()
    indexed(values, RecordedOutput(MAIL, b"please use " + TOKEN, is_tainted=True))
    return values


@pytest.mark.parametrize("is_tainted", [True, False])
def test_an_output_is_indexed_as_what_it_is(is_tainted: bool) -> None:
    values = SessionValues()
    output = RecordedOutput(MADE, b"build-55d01e77", is_tainted, missing="it was cut")
    indexed(values, output)
    (entry,) = values.look_up(b'"build-55d01e77"').lineage
    assert (entry.call, entry.tainted) == (b"made", is_tainted)
    assert values.missed == ({MADE: "it was cut"} if is_tainted else {})


@pytest.mark.parametrize(
    ("own_input", "is_tainted"), [(b'{"a":"%s"}' % TOKEN, True), (b'{"a":"other-112233"}', False)]
)
@pytest.mark.parametrize("before", [b"", b"lorem ipsum\n" * 20_000])
def test_an_output_is_tainted_where_its_input_has_tainted_values_anywhere(
    own_input: bytes, before: bytes, is_tainted: bool
) -> None:
    values = tainted_session()
    output = RecordedOutput(MADE, b"build-55d01e77", None, own_input=before + own_input)
    indexed(values, output)
    (entry,) = values.look_up(b'"build-55d01e77"').lineage
    assert entry.tainted is is_tainted
    assert values.missed == {}


def test_of_an_input_that_is_not_recorded_whole_it_is_not_known_whether_it_had_tainted_values() -> (
    None
):
    output = RecordedOutput(MADE, b"build-55d01e77", None, "", b'{"a":"x"}', is_input_cut=True)
    values, clean = tainted_session(), SessionValues()
    indexed(values, output)
    indexed(clean, output)
    assert (values.missed, clean.missed) == ({MADE: INPUT_CUT}, {})


@pytest.mark.parametrize(
    ("facts", "said", "why"),
    [
        (DONE, {"is_recorded": True}, ""),
        (DONE, {"is_recorded": True, "is_cut": True}, "it is not recorded whole"),
        (DONE, {"is_recorded": False}, "its content is not recorded"),
        (structs.replace(DONE, bytes_out=0), {"is_recorded": False}, ""),
        (structs.replace(DONE, status=Status.REPLAYED), {"is_recorded": False}, ""),
        (structs.replace(DONE, phase=Phase.BODY), {"is_recorded": False}, ""),
        (
            structs.replace(DONE, phase=Phase.BODY, flags=(Flag.TAINT_MARKED,)),
            {"is_recorded": False},
            "its content is not recorded",
        ),
        (DONE, {"is_recorded": False, "gone": Gone.EXPIRED}, "its content is gone (expired)"),
        (DONE, {"is_recorded": False, "gone": Gone.PURGED}, ""),
    ],
)
def test_what_the_record_lacks_is_said(facts: Facts, said: dict[str, Gone], why: str) -> None:
    assert missing_content(facts, **said) == why  # type: ignore[arg-type]
