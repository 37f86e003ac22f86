"""The rule language: what a file may contain, and what is refused."""

from math import inf
from pathlib import Path

import pytest

from turnlog.core.kinds import Effect, ErrorKind
from turnlog.packs.errors import ConfigError
from turnlog.packs.load import load
from turnlog.rules.model import (
    Jitter,
    Match,
    ProvenanceDemand,
    RequiredInputs,
    RequiredProvenance,
    RequiredResult,
    Retry,
    RuleFile,
    Timeouts,
    Unmet,
)
from turnlog.rules.pattern import compile_pattern


def read(folder: Path, rule: str) -> RuleFile:
    path = folder / "rules.yaml"
    path.write_text(f"rules:\n  - name: one\n    {rule}\n")
    return load(path, RuleFile)


def test_a_rule_decides_only_the_aspects_it_names(tmp_path: Path) -> None:
    (rule,) = read(tmp_path, "retry: {on: timeout, max_attempts: 5, base_interval: 100ms}").rules
    assert rule.retry == Retry(on=("timeout",), max_attempts=5, base_interval=0.1)
    assert Retry(on=("timeout",)).jitter is Jitter.FULL
    assert (rule.effect, rule.timeout, rule.expects, rule.delta) == (None, None, None, None)


def test_one_text_is_read_as_a_list_of_one(tmp_path: Path) -> None:
    (rule,) = read(tmp_path, "match: {tool: read_*, effect: read, when: $.args.x}").rules
    assert rule.match == Match(tool=("read_*",), effect=(Effect.READ,), when=("$.args.x",))


@pytest.mark.parametrize(
    ("text", "demand"),
    [
        ("pinned", ProvenanceDemand(tool=RequiredProvenance.PINNED, then=Unmet.BLOCK)),
        ("any", ProvenanceDemand()),
        (
            "{tool: pinned, inputs: sourced, result: verified, then: surface}",
            ProvenanceDemand(
                tool=RequiredProvenance.PINNED,
                inputs=RequiredInputs.SOURCED,
                result=RequiredResult.VERIFIED,
                then=Unmet.SURFACE,
            ),
        ),
        ("{inputs: sourced}", ProvenanceDemand(inputs=RequiredInputs.SOURCED, then=Unmet.FLAG)),
    ],
)
def test_a_provenance_is_a_word_or_a_mapping(
    tmp_path: Path, text: str, demand: ProvenanceDemand
) -> None:
    (rule,) = read(tmp_path, f"provenance: {text}").rules
    assert rule.provenance == demand


def test_an_omitted_limit_is_no_limit(tmp_path: Path) -> None:
    (rule,) = read(tmp_path, "timeout: {response: 30s}").rules
    assert rule.timeout == Timeouts(response=30)
    assert Timeouts().total == inf


def test_an_error_map_has_a_kind_and_a_pattern(tmp_path: Path) -> None:
    (rule,) = read(tmp_path, 'map_error: [{text: "(?i)rate limit", kind: rate_limited}]').rules
    assert rule.map_error is not None
    (mapped,) = rule.map_error
    assert mapped.kind is ErrorKind.RATE_LIMITED
    assert compile_pattern(mapped.text).is_in("Rate limit exceeded")
    assert not compile_pattern(mapped.text).is_in("all is well")


@pytest.mark.parametrize(
    ("rule", "column", "says"),
    [
        ("retry: {on: timout}", 17, "'timout' is no error, did you mean 'timeout'?"),
        ("retry: {on: xyz}", 17, "'xyz' is no error, write a kind or one of the families auth"),
        ("retry: {}", 12, "'on' is missing"),
        ("retry: {on: timeout, max_attempts: 0}", 40, "0 is no number of attempts"),
        ("retry: {on: timeout, factor: 0.5}", 34, "0.5 is no factor"),
        ("retry: {on: timeout, jitter: half}", 34, "cannot be 'half', use one of: full, none"),
        ("map_error: [{kind: conflict, text: 5}]", 40, "5 is no regular expression, quote it"),
        ("effect: reed", 13, "did you mean 'read'?"),
        ("provenance: pined", 17, "'pined' is no provenance, write pinned or any, or a mapping"),
        (
            "provenance: 5",
            17,
            "'rules.0.provenance' must be a mapping or nothing, not a whole number",
        ),
        ("provenance: {inputs: source}", 26, "did you mean 'sourced'?"),
        ("provenance: {input: sourced}", 18, "unknown key 'input', did you mean 'inputs'?"),
        ("provenance: {tool: pinned, then: stop}", 38, "cannot be 'stop', use one of: block"),
        ("block_if: taint", 15, "cannot be 'taint', did you mean 'tainted'?"),
        ("taint: endorsed", 12, "did you mean 'endorse'?"),
        ("timeout: {response: 0}", 25, "0 leaves no time at all, write a duration like 30s"),
        ("timeout: {total: 0ms}", 22, "'0ms' leaves no time at all, write a duration like 30s"),
        ("timeout: {respons: 3}", 15, "unknown key 'respons', did you mean 'response'?"),
        ("timeout: {response: soon}", 25, "'soon' is no amount"),
        ("null_when: x", 16, "'x' is no JSONPath"),
        ('map_error: [{kind: conflict, text: "(("}]', 40, "no RE2 pattern (missing ): (()"),
        ("match: {tool: []}", 19, "is no text and no list of texts"),
        ("retry: {on: []}", 17, "[] is no text and no list of texts, write one like timeout"),
        ('match: {path: ""}', 19, "'' is no text and no list of texts, write one like /users/*"),
        ("match: {effect: reading}", 21, "did you mean 'read'?"),
        ("delta: [{field: files, op: modified, key: $.args.path}]", 21, "cannot be 'files'"),
        ("concurrency: 0", 18, "0 is no number of calls, write one from 1 to 10000"),
        ("concurrency: true", 18, "True is no number of calls"),
        ("refuse_if: $.args.x", 5, "unknown key 'refuse_if'"),
    ],
)
def test_a_mistake_is_reported_with_its_place(
    tmp_path: Path, rule: str, column: int, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, rule)
    assert (caught.value.line, caught.value.column) == (3, column)
    assert says in caught.value.message


def test_numbers_of_a_rule_are_read(tmp_path: Path) -> None:
    (rule,) = read(tmp_path, "concurrency: 3\n    retry: {on: timeout, factor: 1.5}").rules
    assert rule.concurrency == 3
    assert rule.retry is not None
    assert rule.retry.factor == 1.5
