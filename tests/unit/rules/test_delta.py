"""Changes by a call: the operations that rules extract, and when they count."""

from typing import Any

import pytest

from turnlog.core.classify import Ending, refused, succeeded
from turnlog.core.kinds import Effect, ErrorKind, Executed, Phase, Status
from turnlog.core.operation import ChangedField, Evidence, Operation, OperationType
from turnlog.rules.effects import (
    MAX_DELTA_BYTES,
    MAX_KEY_BYTES,
    MAX_OPERATIONS,
    Delta,
    extract_delta,
)
from turnlog.rules.expression import ExpressionInput
from turnlog.rules.model import Extractor

OK = succeeded()


def extractor(key: str, op: OperationType = OperationType.MODIFIED, **more: Any) -> Extractor:
    return Extractor(field=ChangedField.FILES_MODIFIED, op=op, key=key, **more)


def operation(key: str, evidence: Evidence, **more: Any) -> Operation:
    plain: dict[str, Any] = {"op": "modified"}
    return Operation(
        field="files_modified", key=key, evidence=evidence, **(plain | more)
    )  # fmt: skip


def same(text: str) -> str:
    return text


def found(*extractors: Extractor, ending: Ending = OK, **seen: Any) -> tuple[Operation, ...]:
    delta = extract_delta(extractors, ExpressionInput(**seen), ending, same)
    assert not delta.cut
    return delta.operations


def test_operations_from_arguments_are_declared_and_from_results_observed() -> None:
    rules = (extractor("$.args.path"), extractor("$.result.files[*]", OperationType.CREATED))
    assert found(*rules, args={"path": "/a"}, result={"files": ["/b", "/c"]}) == (
        operation("/a", Evidence.DECLARED),
        operation("/b", Evidence.OBSERVED, op="created"),
        operation("/c", Evidence.OBSERVED, op="created"),
    )


@pytest.mark.parametrize("first", ["$.args.path", "$.result.path"])
def test_an_operation_from_both_is_observed(first: str) -> None:
    second = {"$.args.path": "$.result.path"}.get(first, "$.args.path")
    rules = (extractor(first), extractor(second))
    assert found(*rules, args={"path": "/a"}, result={"path": "/a"}) == (
        operation("/a", Evidence.OBSERVED),
    )


@pytest.mark.parametrize("value", [None, 7, True, "", ["/a"], {"a": "/a"}])
def test_values_that_are_not_text_are_not_keys(value: object) -> None:
    assert found(extractor("$.args.path"), args={"path": value}) == ()


@pytest.mark.parametrize("new", [["/x"], ["/x", 7], ["/x", ""]])
def test_a_rename_without_a_new_name_is_dropped(new: list[object]) -> None:
    rule = extractor("$.args.old[*]", OperationType.RENAMED, to="$.args.new[*]")
    assert found(rule, args={"old": ["/a", "/b"], "new": new}) == (
        operation("/a", Evidence.DECLARED, op="renamed", to="/x"),
    )


@pytest.mark.parametrize(("mode", "count"), [("w", 1), ("r", 0)])
def test_an_extractor_may_have_a_condition(mode: str, count: int) -> None:
    rule = extractor("$.args.path", when=("$.args[?@.mode == 'w']", "$.args.file.path"))
    args = {"path": "/a", "file": {"mode": mode, "path": "/a"}}
    assert len(found(rule, args=args)) == count


@pytest.mark.parametrize(
    ("ending", "maybe"),
    [
        (OK, False),
        (succeeded(Status.ACCEPTED), True),
        (refused(ErrorKind.UPSTREAM_INTERNAL, Effect.WRITE), True),
        (refused(ErrorKind.NULL_RESULT, Effect.WRITE), False),
        (Ending(status=Status.UNKNOWN, phase=Phase.SENT, executed=Executed.MAYBE), True),
    ],
)
def test_operations_of_an_unknown_outcome_are_uncertain(ending: Ending, maybe: bool) -> None:
    assert found(extractor("$.args.path"), ending=ending, args={"path": "/a"}) == (
        operation("/a", Evidence.DECLARED, maybe=maybe),
    )


@pytest.mark.parametrize(
    "ending",
    [
        refused(ErrorKind.RATE_LIMITED, Effect.WRITE),
        refused(ErrorKind.TOOL_FAILED, Effect.WRITE),
        Ending(status=Status.REPLAYED, phase=Phase.QUEUED, executed=Executed.YES),
    ],
)
def test_a_call_that_was_not_executed_or_was_replayed_has_no_operations(ending: Ending) -> None:
    assert found(extractor("$.args.path"), ending=ending, args={"path": "/a"}) == ()


def test_secrets_are_cut_out_of_keys_and_new_names() -> None:
    rule = extractor("$.args.a", OperationType.RENAMED, to="$.args.b")
    seen = ExpressionInput(args={"a": "/secret/a", "b": "/secret/b"})
    delta = extract_delta([rule], seen, OK, lambda text: text.replace("secret", "*"))
    assert [(op.key, op.to) for op in delta.operations] == [("/*/a", "/*/b")]


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ([f"/{n}" for n in range(MAX_OPERATIONS + 1)], MAX_OPERATIONS),
        (["/a", "b" * (MAX_KEY_BYTES + 1), "/c"], 2),
        ([f"{n:{MAX_KEY_BYTES}}" for n in range(20)], MAX_DELTA_BYTES // MAX_KEY_BYTES),
    ],
)
def test_operations_are_bounded_in_number_and_size(keys: list[str], kept: int) -> None:
    delta = extract_delta([extractor("$.args[*]")], ExpressionInput(args=keys), OK, same)
    assert (len(delta.operations), delta.cut) == (kept, True)


def test_without_an_extractor_there_are_no_operations() -> None:
    assert extract_delta((), ExpressionInput(args={"path": "/a"}), OK, same) == Delta()
