"""Contamination: what is a source, what carries it on, and what ends it."""

import json

import pytest
from msgspec import structs

from turnlog.core.commit import Facts, Lineage
from turnlog.core.kinds import CommitKind, Flag, MatchEvidence, NoteKind, ValueOrigin
from turnlog.core.pins import Provenance
from turnlog.provenance.outputs import doubts, output_taint
from turnlog.provenance.taint import (
    GIVEN,
    INPUT_GONE,
    OUTPUT_GONE,
    TaintedAttempt,
    TaintFold,
    TaintMark,
    taint_flags,
)
from turnlog.provenance.values import CUT, LOOKED_AT, NOT_YET, carried

OK = Facts(kind=CommitKind.OUTCOME, at=0, clock=0, bytes_out=100)
MARKED = structs.replace(OK, flags=(Flag.TAINT_MARKED,))
ENDORSED = structs.replace(OK, flags=(Flag.TAINT_ENDORSED,))
TOKEN, OTHER = "deploy-7f3a9c21", "build-55d01e77"


def given(**arguments: object) -> bytes:
    return json.dumps(arguments).encode()


def told(text: str) -> bytes:
    return json.dumps({"content": [{"type": "text", "text": text}]}).encode()


class Session:
    """A session whose calls are made one after the other."""

    def __init__(self, marks: dict[str, TaintMark] | None = None) -> None:
        self.fold = TaintFold({(name.encode(), 1): mark for name, mark in (marks or {}).items()})

    def call(
        self,
        name: str,
        value: str,
        output: str,
        facts: Facts = OK,
        recorded: tuple[Lineage, ...] = (),
        *,
        is_source_tainted: bool | None = None,
    ) -> TaintedAttempt:
        """Make a call with one argument; without a value its input is gone, without a text its output."""
        key = name.encode(), 1
        arguments = given(a=value) if value else b""
        self.fold.on_input(key, lambda: (arguments, False))
        content = told(output) if output else b""
        return self.fold.on_output(
            key,
            facts,
            content,
            recorded,
            own_input=lambda: arguments,
            is_source_tainted=is_source_tainted,
        )


def sources(made: TaintedAttempt) -> list[str]:
    return [entry.call.decode() for entry in made.carried]


def entry(name: str, **changes: object) -> Lineage:
    made = Lineage(
        pointer="/a",
        origin=ValueOrigin.SOURCED,
        call=name.encode(),
        place="/content/0/text",
        tainted=True,
    )
    return structs.replace(made, **changes)


@pytest.mark.promise("TAINT-1")
@pytest.mark.parametrize(
    ("facts", "reasons"),
    [
        (OK, ()),
        (structs.replace(OK, flags=(Flag.BOM, Flag.CONTENT_TYPE_MISMATCH, Flag.ID_MISMATCH)), ()),
        (MARKED, ("marked by a rule",)),
        (
            structs.replace(OK, error="tool_error", error_kind="tool_failed"),
            ("error: tool_failed",),
        ),
        (structs.replace(OK, error="later_family"), ("error: later_family",)),
        (structs.replace(OK, error="timeout", bytes_out=0), ()),
        (
            structs.replace(OK, flags=(Flag.ERROR_LIKE_TEXT, Flag.NOT_JSON)),
            ("not_json", "error_like_text"),
        ),
        (structs.replace(OK, provenance=Provenance.MISMATCH), ("provenance: mismatch",)),
    ],
)
def test_an_output_is_tainted_in_itself_by_error_flag_mismatch_or_mark(
    facts: Facts, reasons: tuple[str, ...]
) -> None:
    assert doubts(facts) == reasons


@pytest.mark.parametrize(
    ("facts", "lineage", "flags"),
    [
        (OK, (), ()),
        (OK, (entry("a"),), (Flag.TAINTED_IN, Flag.TAINTED_OUT)),
        (structs.replace(OK, bytes_out=0), (entry("a"),), (Flag.TAINTED_IN,)),
        (OK, (entry("a", evidence=MatchEvidence.WEAK), entry("b", tainted=False)), ()),
        (MARKED, (), (Flag.TAINTED_OUT,)),
        (structs.replace(OK, flags=(Flag.BOM,)), (), ()),
        (ENDORSED, (entry("a"),), (Flag.TAINTED_IN,)),
        (structs.replace(OK, provenance=Provenance.MISMATCH, error="tool_error"), (), ()),
    ],
)
def test_an_outcome_has_the_flags_of_its_input_and_of_its_output(
    facts: Facts, lineage: tuple[Lineage, ...], flags: tuple[Flag, ...]
) -> None:
    assert taint_flags(facts, lineage) == flags


@pytest.mark.parametrize(
    ("facts", "partial", "is_tainted"),
    [
        (OK, "", False),
        (OK, CUT, False),
        (structs.replace(OK, flags=(Flag.BOM,)), "", False),
        (structs.replace(OK, flags=(Flag.TAINTED_IN, Flag.TAINTED_OUT)), NOT_YET, True),
        (structs.replace(OK, provenance=Provenance.MISMATCH), "", True),
        (structs.replace(OK, error="tool_error"), "", True),
        (structs.replace(ENDORSED, error="tool_error"), "", False),
        (OK, NOT_YET, None),
        (structs.replace(OK, bytes_in=LOOKED_AT + 1), "", None),
        (structs.replace(ENDORSED, bytes_in=LOOKED_AT + 1), NOT_YET, False),
    ],
)
def test_an_outcome_says_whether_its_output_is_tainted_or_its_input_decides(
    facts: Facts, partial: str, is_tainted: bool | None
) -> None:
    assert output_taint(facts, partial) is is_tainted


def test_only_evidence_above_weak_counts() -> None:
    weak = entry("a", evidence=MatchEvidence.WEAK)
    assert carried((weak, entry("b"), entry("c", tainted=False))) == (entry("b"),)


@pytest.mark.promise("TAINT-2")
def test_taint_follows_values_through_results() -> None:
    session = Session()
    assert session.call("read", "/srv/notes.txt", f"use {TOKEN}", MARKED).is_tainted
    used = session.call("deploy", TOKEN, f"started {OTHER}")
    assert (sources(used), used.reasons, used.is_tainted) == (["read"], (), True)
    assert used.carried[0].evidence is MatchEvidence.EXACT
    assert sources(session.call("watch", f"--build {OTHER}", "done")) == ["deploy"]
    assert not session.call("list", "/srv/other.txt", "nothing-55 new-66").is_tainted


@pytest.mark.promise("TAINT-3")
def test_a_value_that_also_stood_in_an_untainted_output_does_not_count() -> None:
    session = Session()
    session.call("read", "/srv/notes.txt", f"use {TOKEN}", MARKED)
    session.call("list", "/srv", f"{TOKEN} is fine")
    assert session.call("deploy", TOKEN, "x").carried == ()


@pytest.mark.promise("TAINT-3")
def test_a_value_that_an_error_repeats_from_its_own_call_does_not_count() -> None:
    session = Session()
    missing = structs.replace(OK, error="tool_error", error_kind="tool_failed")
    session.call("read", "/srv/new-file-1.txt", "no such file: /srv/new-file-1.txt", missing)
    assert session.call("write", "/srv/new-file-1.txt", "written").carried == ()


def test_a_declared_value_is_not_tainted() -> None:
    session = Session()
    session.fold.declare(TOKEN, "1")
    session.call("read", "/srv/notes.txt", TOKEN, MARKED)
    assert session.call("deploy", TOKEN, "x").carried == ()


@pytest.mark.promise("TAINT-4")
@pytest.mark.parametrize("by_hand", [True, False])
def test_an_endorsed_output_ends_the_taint_of_its_values(by_hand: bool) -> None:
    mark = TaintMark(kind=NoteKind.ENDORSE, seq=9, why="checked")
    session = Session({"check": mark} if by_hand else None)
    session.call("read", "/srv/notes.txt", TOKEN, MARKED)
    checked = session.call("check", TOKEN, f"{TOKEN} is known", OK if by_hand else ENDORSED)
    assert (sources(checked), checked.is_tainted) == (["read"], False)
    assert checked.endorsed == ("checked" if by_hand else "by a rule")
    assert session.call("deploy", TOKEN, "x").carried == ()


@pytest.mark.promise("TAINT-4")
def test_a_mark_by_hand_counts_for_earlier_calls_and_more_than_a_rule() -> None:
    mark = TaintMark(kind=NoteKind.TAINT, seq=9, why="forged")
    session = Session({"read": mark})
    assert session.call("read", "/srv/notes.txt", TOKEN, ENDORSED).reasons == ("marked: forged",)
    assert sources(session.call("deploy", TOKEN, "x")) == ["read"]


def test_weak_evidence_is_counted_and_carries_nothing() -> None:
    session = Session()
    session.call("read", "/srv/notes.txt", "port 4711", MARKED)
    used = session.call("connect", "4711", "x")
    assert (used.carried, used.weak, used.is_tainted) == ((), 1, False)


@pytest.mark.promise("TAINT-6")
def test_where_content_is_gone_the_recorded_lineage_counts() -> None:
    session = Session()
    session.call("read", "/srv/notes.txt", "", MARKED)
    assert list(session.fold.partial) == [OUTPUT_GONE]
    by_input = session.call("deploy", TOKEN, "ran-1234", recorded=(entry("read"),))
    assert sources(by_input) == ["read"]
    without = session.call("watch", "", "ran-1", recorded=(entry("deploy", tainted=False),))
    assert sources(without) == ["deploy"]
    assert session.call("list", "", "ls-12", recorded=(entry("other"),)).carried == ()
    assert not session.call("other", "x", "", OK).is_tainted
    assert set(session.fold.partial) == {OUTPUT_GONE, INPUT_GONE}


def test_an_outcome_without_an_intent_and_without_an_answer_is_no_error() -> None:
    fold = TaintFold({})
    late = structs.replace(OK, bytes_out=0)
    assert not fold.on_output((b"x", 1), late, b"").is_tainted


def test_a_later_outcome_replaces_an_earlier_one() -> None:
    session = Session()
    assert session.call("read", "/a/b-1.txt", TOKEN, MARKED).is_tainted
    assert not session.fold.on_output((b"read", 1), OK, told(TOKEN)).is_tainted
    assert session.call("deploy", TOKEN, "x").carried == ()


def test_an_answer_from_another_session_is_tainted_as_it_is_there() -> None:
    session = Session()
    read = session.call("read", "mail-4711", f"use {TOKEN}", is_source_tainted=True)
    assert (read.reasons, read.is_tainted) == ((GIVEN,), True)
    assert sources(session.call("send", TOKEN, "sent")) == ["read"]


def test_an_answer_that_was_endorsed_in_another_session_is_endorsed() -> None:
    session = Session()
    session.call("read", "mail-4711", f"use {TOKEN}", MARKED)
    made = session.call("made", TOKEN, OTHER, is_source_tainted=False)
    assert made.endorsed == "in the session that it was answered from"
    assert not session.call("send", OTHER, "sent").carried


def test_a_note_counts_more_than_what_another_session_says_of_an_answer() -> None:
    session = Session({"read": TaintMark(kind=NoteKind.TAINT, seq=9, why="forged")})
    read = session.call("read", "mail-4711", f"use {TOKEN}", is_source_tainted=False)
    assert (read.reasons, read.is_tainted) == (("marked: forged",), True)


def test_tainted_outputs_of_which_the_record_lacks_something_are_missed() -> None:
    fold = TaintFold({})
    fold.on_input((b"a", 1), lambda: (given(a="x"), False))
    fold.on_output((b"a", 1), OK, told(TOKEN), missing="it was cut")
    fold.on_output((b"b", 1), MARKED, told(TOKEN), missing="it was cut")
    assert fold.missed == {(b"b", 1): "it was cut"}


def test_an_input_is_looked_up_to_its_end_for_tainted_values() -> None:
    session = Session()
    session.call("mail", "", TOKEN, MARKED)
    made = session.call("made", f"{'lorem ipsum ' * 10_000} {TOKEN}", OTHER)
    assert sources(made) == ["mail"]
    assert made.is_tainted


@pytest.mark.parametrize("facts", [OK, ENDORSED])
def test_an_output_may_be_tainted_if_its_input_is_not_recorded_whole(facts: Facts) -> None:
    session = Session()
    session.call("mail", "", TOKEN, MARKED)
    session.fold.on_input((b"made", 1), lambda: (given(a="x"), True))
    session.fold.on_output((b"made", 1), facts, told(OTHER))
    assert list(session.fold.missed) == ([(b"made", 1)] if facts is OK else [])


def test_an_output_is_not_tainted_by_an_input_where_nothing_is_tainted_before() -> None:
    session = Session()
    session.fold.on_input((b"made", 1), lambda: (given(a="x"), True))
    session.fold.on_output((b"made", 1), OK, told(OTHER))
    assert session.fold.missed == {}


def test_before_anything_is_tainted_no_input_is_read() -> None:
    read: list[str] = []

    def reading() -> tuple[bytes, bool]:
        read.append("read")
        return given(a=TOKEN), False

    def own_input() -> bytes:
        return reading()[0]

    fold = TaintFold({})
    fold.on_input((b"a", 1), reading)
    fold.on_output((b"a", 1), OK, told(TOKEN), own_input=own_input)
    assert read == []
    fold.on_output((b"b", 1), MARKED, told(OTHER), own_input=own_input)
    fold.on_input((b"c", 1), reading)
    assert read == ["read", "read"]


def test_a_fold_that_begins_later_takes_earlier_outputs_as_recorded() -> None:
    def is_earlier_tainted(entry: Lineage) -> bool:
        return entry.call == b"before"

    fold = TaintFold({}, is_earlier_tainted=is_earlier_tainted)
    recorded = (entry("before", tainted=False), entry("fine"))
    fold.on_input((b"use", 1), lambda: (given(a=TOKEN), False))
    made = fold.on_output((b"use", 1), OK, told(OTHER), recorded)
    assert (sources(made), made.is_tainted) == (["before"], True)
    fold.on_input((b"next", 1), lambda: (given(a=OTHER), False))
    assert sources(fold.on_output((b"next", 1), OK, b"")) == ["use"]


def test_a_later_outcome_keeps_what_the_input_carried() -> None:
    session = Session()
    session.call("read", "/srv/notes.txt", TOKEN, MARKED)
    assert sources(session.call("deploy", TOKEN, "started")) == ["read"]
    assert sources(session.fold.on_output((b"deploy", 1), OK, told("done"))) == ["read"]
