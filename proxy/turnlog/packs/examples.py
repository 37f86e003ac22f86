"""Examples for a file of rules: calls that a rule decides something for, and calls that it does not."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from turnlog.core.kinds import Effect, ErrorKind
from turnlog.core.operation import ChangedField, Evidence, Operation, OperationType
from turnlog.rules.model import Access, BlockIf, Match, Rule, RuleFile, TaintAction
from turnlog.rules.policy import Policy, Subject, decide_policy

from .check import file_problems, unused_rules
from .errors import ConfigError, suggest
from .explain import MCP, call_arguments, effect_in_force, with_tool_name
from .load import Document, convert, read
from .rulebook import duplicate_names, read_rules
from .shape import Step
from .sources import EXAMPLES, SUFFIX, RuleSource


class SampleError(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON-RPC error."""

    code: int
    message: str = ""


class ExpectedChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An expected operation; `evidence` and `maybe` are not compared if left out."""

    field: ChangedField
    op: OperationType
    key: str
    to: str = ""
    evidence: Evidence | None = None
    maybe: bool | None = None


class ExpectedOutcome(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The expected decisions for a sample; fields that are left out are not compared."""

    effect: Effect | None = None
    kind: ErrorKind | UnsetType | None = UNSET
    """`None` for no error."""
    null: bool | None = None
    delta: tuple[ExpectedChange, ...] | None = None
    access: Access | None = None
    block_if: BlockIf | None = None
    taint: TaintAction | None = None


class Sample(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call, with its answer if that matters."""

    server: str = "server"
    tool: str = ""
    method: str = MCP
    path: str = ""
    args: dict[str, Any] = {}
    hint: Effect = Effect.UNKNOWN
    """Effect from earlier rules, or from annotations of a trusted server."""
    result: Any = UNSET
    error: SampleError | None = None
    status: int = 200
    gives: ExpectedOutcome = ExpectedOutcome()


class SampleOutcome(Struct, frozen=True, kw_only=True):
    """The recorded outcome of a sample. The kind is empty for success."""

    kind: str
    null: bool
    delta: tuple[Operation, ...]


Trial = Callable[[Subject, Policy, Effect, Sample], SampleOutcome]
"""Runs a sample through the whole program, which is above this package (`app.trial`)."""


class Example(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls that a rule decides something for (`fires`), and calls that it does not (`silent`)."""

    rule: str
    fires: tuple[Sample, ...] = ()
    silent: tuple[Sample, ...] = ()


class ExampleFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The examples for a file of rules."""

    examples: tuple[Example, ...]


class Report(Struct, frozen=True, kw_only=True):
    """The result of running the examples for a file of rules."""

    source: RuleSource
    rules: int = 0
    samples: int = 0
    problems: tuple[ConfigError, ...] = ()


def examples_of(source: RuleSource) -> RuleSource:
    """Return the file of examples for a file of rules, which may not exist."""
    name = source.path.stem + EXAMPLES + SUFFIX
    return RuleSource(source.path.with_name(name), str(Path(source.shown).with_name(name)))


def check_both(source: RuleSource) -> list[ConfigError]:
    """Return all mistakes in a file of rules, and in its examples if it has any."""
    found = file_problems(source, RuleFile, "rule")
    if not found:
        document = read(source.path, shown=source.shown)
        rules = convert(document, RuleFile).rules
        found = [
            *duplicate_names(document, [rule.name for rule in rules]),
            *unused_rules(document, rules),
        ]
        found.sort(key=lambda error: (error.line, error.column))
    file = examples_of(source)
    return [*found, *(file_problems(file, ExampleFile, "example") if file.path.is_file() else ())]


def run_examples(source: RuleSource, trial: Trial) -> Report:
    """Return the result of running the examples for a file of rules."""
    file = examples_of(source)
    try:
        rules = [placed.rule for placed in read_rules(source)]
        if not file.path.exists():
            return Report(source=source, problems=(_no_examples(source, file),))
        document = read(file.path, shown=file.shown, wanted="example")
        examples = convert(document, ExampleFile).examples
    except ConfigError as error:
        return Report(source=source, problems=tuple(check_both(source)) or (error,))
    return Report(
        source=source,
        rules=len(rules),
        samples=sum(len(each.fires) + len(each.silent) for each in examples),
        problems=(
            *_failures(rules, examples, document, trial),
            *_missing_examples(source, rules, examples),
        ),
    )


def _no_examples(source: RuleSource, file: RuleSource) -> ConfigError:
    message = (
        "there are no examples of these rules, write them to "
        f"{file.shown!r}: examples: [{{rule: NAME, fires: [CALL, ...], silent: [CALL, ...]}}]"
    )
    return ConfigError(source.shown, 1, 1, message)


def _failures(
    rules: Sequence[Rule], examples: Sequence[Example], document: Document, trial: Trial
) -> Iterator[ConfigError]:
    names = [rule.name for rule in rules]
    for number, example in enumerate(examples):
        place: tuple[Step, ...] = ("examples", number)
        if example.rule not in names:
            message = f"no rule is called {example.rule!r}, {suggest(example.rule, names)}"
            yield document.error((*place, "rule"), message)
            continue
        for group, samples in (("fires", example.fires), ("silent", example.silent)):
            for index, sample in enumerate(samples):
                call, policy = _call_and_policy(rules, sample)
                found = (
                    *_wrong_decisions(policy, example.rule, fires=group == "fires"),
                    *_differences(call, policy, sample, trial),
                )
                for message in found:
                    yield document.error((*place, group, index), message)


def _call_and_policy(rules: Sequence[Rule], sample: Sample) -> tuple[Subject, Policy]:
    call = Subject(
        server=sample.server,
        tool=sample.tool,
        method=sample.method,
        path=sample.path,
        hint=sample.hint,
    )
    call = with_tool_name(rules, call)
    given = call_arguments(sample.method, sample.path, sample.args)
    return call, decide_policy(rules, call, lambda: given)


def _wrong_decisions(policy: Policy, name: str, *, fires: bool) -> Iterator[str]:
    """Yield a message if a rule decides something where it should not, or nothing where it should."""
    aspects = [aspect for aspect, by in policy.decided_by.items() if by == name]
    if fires and not aspects:
        others = ", ".join(f"{aspect} by {by!r}" for aspect, by in policy.decided_by.items())
        yield f"{name!r} decides nothing for this call, which has {others or 'no rule'}"
    if not fires and aspects:
        yield f"{name!r} decides {', '.join(aspects)} for this call and should decide nothing"


def _differences(call: Subject, policy: Policy, sample: Sample, trial: Trial) -> Iterator[str]:
    """Yield the differences between what the rules decide and what they should."""
    wanted = sample.gives
    found = effect_in_force(policy, call)
    if wanted.effect not in (None, found):
        yield f"the effect is {found.value!r}, not {wanted.effect.value!r}"
    for aspect in ("access", "block_if", "taint"):
        due, said = getattr(wanted, aspect), getattr(policy, aspect)
        if due not in (None, said):
            yield f"{aspect} is {_named(said)}, not {_named(due)}"
    actual = trial(call, policy, found, sample)
    if wanted.kind is not UNSET and (wanted.kind or "") != actual.kind:
        yield f"the kind is {_named(actual.kind)}, not {_named(wanted.kind)}"
    if wanted.null not in (None, actual.null):
        yield f"the result counts as {'null' if actual.null else 'a value'} and should not"
    if wanted.delta is not None and not _same(wanted.delta, actual.delta):
        yield f"the delta is {msgspec.json.encode(actual.delta).decode()}, not as given"


def _named(kind: str | None) -> str:
    return repr(str(kind)) if kind else "none"


def _same(wanted: Sequence[ExpectedChange], actual: Sequence[Operation]) -> bool:
    return len(wanted) == len(actual) and all(map(_matches, wanted, actual))


def _matches(wanted: ExpectedChange, actual: Operation) -> bool:
    return (
        (wanted.field, wanted.op, wanted.key, wanted.to)
        == (actual.field, actual.op, actual.key, actual.to)
        and wanted.evidence in (None, actual.evidence)
        and wanted.maybe in (None, actual.maybe)
    )


def _missing_examples(
    source: RuleSource, rules: Sequence[Rule], examples: Sequence[Example]
) -> Iterator[ConfigError]:
    """Yield an error for each rule without an example that fires, or without one that is silent."""
    document = read(source.path, shown=source.shown)
    fires = {each.rule for each in examples if each.fires}
    silent = {each.rule for each in examples if each.silent}
    for number, rule in enumerate(rules):
        place = ("rules", number)
        if rule.name not in fires:
            yield document.error(place, f"no example shows that {rule.name!r} fires, add one")
        # A rule that matches every call has no silent example.
        if rule.name not in silent and rule.match != Match():
            yield document.error(place, f"no example shows where {rule.name!r} is silent, add one")
