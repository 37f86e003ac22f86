"""Examples beside a file of rules: which hold, which fail, and which are missing."""

from pathlib import Path

import pytest

from turnlog.app.trial import run_sample
from turnlog.packs.examples import Report, check_both, run_examples
from turnlog.packs.sources import RuleSource, find_rule_pack, packs_folder, rule_packs

RULES = """\
rules:
  - name: reads
    match: {tool: read_*}
    effect: read
  - name: writes
    match: {tool: "*_file", when: $.args.path}
    effect: write
"""
GOOD = """\
examples:
  - rule: reads
    fires:
      - {tool: read_file, gives: {effect: read}}
    silent:
      - {tool: write_file}
  - rule: writes
    fires:
      - {tool: write_file, args: {path: /a}, gives: {effect: write}}
    silent:
      - {tool: write_file}
"""


def report(folder: Path, rules: str, examples: str) -> Report:
    (folder / "mine.yaml").write_text(rules)
    (folder / "mine.examples.yaml").write_text(examples)
    return run_examples(RuleSource(folder / "mine.yaml", "etc/mine.yaml"), run_sample)


def complaints(folder: Path, rules: str, examples: str) -> list[str]:
    return [str(problem) for problem in report(folder, rules, examples).problems]


def test_passing_examples_are_counted(tmp_path: Path) -> None:
    done = report(tmp_path, RULES, GOOD)

    assert (done.rules, done.samples, done.problems) == (2, 4, ())


def test_a_failing_sample_is_reported_with_its_place(tmp_path: Path) -> None:
    examples = """\
examples:
  - rule: reads
    fires:
      - {tool: read_file, gives: {effect: write}}
      - {tool: list}
    silent:
      - {tool: read_file}
  - rule: writes
    fires:
      - {tool: read_file, args: {path: /a}}
      - {tool: write_file, args: {path: /a}}
    silent:
      - {tool: write_file, gives: {effect: read}}
"""
    assert complaints(tmp_path, RULES, examples) == [
        "etc/mine.examples.yaml:4:9: the effect is 'read', not 'write'",
        "etc/mine.examples.yaml:5:9: 'reads' decides nothing for this call, which has no rule",
        (
            "etc/mine.examples.yaml:7:9: 'reads' decides effect for this call and should decide "
            "nothing"
        ),
        (
            "etc/mine.examples.yaml:10:9: 'writes' decides nothing for this call, which has effect "
            "by 'reads'"
        ),
        "etc/mine.examples.yaml:13:9: the effect is 'unknown', not 'read'",
    ]


def test_a_rule_without_both_sorts_of_examples_is_reported(tmp_path: Path) -> None:
    examples = """\
examples:
  - rule: reads
    silent: [{tool: list}]
"""
    assert complaints(tmp_path, RULES, examples) == [
        "etc/mine.yaml:2:5: no example shows that 'reads' fires, add one",
        "etc/mine.yaml:5:5: no example shows that 'writes' fires, add one",
        "etc/mine.yaml:5:5: no example shows where 'writes' is silent, add one",
    ]


def test_a_rule_for_every_call_needs_no_silent_example(tmp_path: Path) -> None:
    rules = "rules:\n  - {name: all, expects: content}\n"

    assert complaints(tmp_path, rules, "examples: [{rule: all, fires: [{tool: x}]}]\n") == []


def test_an_example_of_an_unknown_rule_is_reported(tmp_path: Path) -> None:
    told = complaints(tmp_path, RULES, GOOD.replace("rule: writes", "rule: writs"))

    assert told[0] == (
        "etc/mine.examples.yaml:7:11: no rule is called 'writs', did you mean 'writes'?"
    )


def test_missing_examples_are_reported(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(RULES)

    (problem,) = run_examples(RuleSource(tmp_path / "mine.yaml", "mine.yaml"), run_sample).problems

    assert str(problem).startswith(
        "mine.yaml:1:1: there are no examples of these rules, write them to 'mine.examples.yaml': "
    )


ANSWERS = """\
rules:
  - name: busy
    match: {tool: search}
    map_error: [{kind: rate_limited, text: slow down}]
    expects: content
  - name: writes
    match: {tool: write}
    effect: write
    delta: [{field: files_modified, op: modified, key: "$.args.path"}]
"""


DELTA = (
    'the delta is [{"field":"files_modified","op":"modified","key":"/a","evidence":"declared"}], '
    "not as given"
)


def gives(folder: Path, rule: str, call: str, given: str) -> list[str]:
    """Return what is said of one sample for which the rule fires."""
    sample = f"examples:\n  - rule: {rule}\n    fires: [{{{call}, gives: {{{given}}}}}]\n"
    told = report(folder, ANSWERS, sample).problems
    return [problem.message for problem in told if "no example shows" not in problem.message]


@pytest.mark.parametrize(
    ("rule", "call", "right", "wrong", "message"),
    [
        ("busy", "tool: search", "kind: null", "kind: null_result",
         "the kind is none, not 'null_result'"),
        ("busy", "tool: search, result: {content: []}", "kind: null_result", "kind: null",
         "the kind is 'null_result', not none"),
        ("busy", "tool: search, result: {content: []}", '"null": true', '"null": false',
         "the result counts as null and should not"),
        ("busy", "tool: search", '"null": false', '"null": true',
         "the result counts as a value and should not"),
        ("busy", "tool: search, result: {isError: true, content: [{type: text, text: slow down}]}",
         "kind: rate_limited", "kind: tool_failed", "the kind is 'rate_limited', not 'tool_failed'"),
        ("busy", "tool: search, error: {code: -32601}", "kind: tool_not_found", "kind: null",
         "the kind is 'tool_not_found', not none"),
        ("busy", "tool: search, status: 503, result: {}", "kind: upstream_unavailable", "kind: null",
         "the kind is 'upstream_unavailable', not none"),
        ("busy", "tool: search, result: null", "kind: null_result", "kind: null",
         "the kind is 'null_result', not none"),
        ("writes", "tool: write, args: {path: /a}",
         "delta: [{field: files_modified, op: modified, key: /a, evidence: declared, maybe: false}]",
         "delta: []",
         DELTA),
        ("writes", "tool: write, args: {path: /a}",
         "delta: [{field: files_modified, op: modified, key: /a}]",
         "delta: [{field: files_modified, op: created, key: /a}]",
         DELTA),
        ("writes", "tool: write, args: {path: /a}, result: {isError: true, content: []}",
         "delta: []", "kind: null", "the kind is 'tool_failed', not none"),
    ],
)  # fmt: skip
def test_the_answer_of_a_sample_is_judged_as_a_proxy_would(
    tmp_path: Path, rule: str, call: str, right: str, wrong: str, message: str
) -> None:
    assert gives(tmp_path, rule, call, right) == []
    assert gives(tmp_path, rule, call, wrong) == [message]


def test_the_answer_of_a_plain_call_is_judged_as_one(tmp_path: Path) -> None:
    rules = "rules:\n  - {name: users, match: {path: /users/*}, expects: content}\n"
    call = "method: GET, path: /users/17"
    examples = f"""\
examples:
  - rule: users
    fires:
      - {{{call}, result: {{name: x}}, gives: {{kind: null, "null": false}}}}
      - {{{call}, gives: {{kind: null_result, "null": true}}}}
      - {{{call}, status: 404, result: {{}}, gives: {{kind: not_found}}}}
    silent: [{{method: GET, path: /users}}]
"""
    assert complaints(tmp_path, rules, examples) == []


def test_a_plain_call_is_a_sample_as_well(tmp_path: Path) -> None:
    rules = """\
rules:
  - name: users
    match: {path: /users/*, when: "$.args.path"}
    expects: content
"""
    examples = """\
examples:
  - rule: users
    fires:
      - {method: GET, path: /users/17, gives: {effect: read}}
      - {method: POST, path: /users/17, gives: {effect: unknown}}
    silent:
      - {method: GET, path: /users/17/posts}
"""
    assert complaints(tmp_path, rules, examples) == []


def test_a_check_reads_rules_and_examples(tmp_path: Path) -> None:
    twice = "rules:\n  - {name: one, effect: read}\n  - {name: one, effect: read}\n"
    (tmp_path / "mine.yaml").write_text(twice)
    (tmp_path / "mine.examples.yaml").write_text("examples:\n  - {rule: one, fire: []}\n")

    found = check_both(RuleSource(tmp_path / "mine.yaml", "mine.yaml"))

    assert [str(problem) for problem in found] == [
        "mine.yaml:3:12: two rules are called 'one', give each a name of its own",
        "mine.examples.yaml:2:17: unknown key 'fire', did you mean 'fires'?",
    ]


@pytest.mark.promise("RULE-29")
@pytest.mark.parametrize("name", rule_packs(packs_folder()))
def test_the_examples_of_every_pack_hold(name: str) -> None:
    done = run_examples(find_rule_pack(name), run_sample)

    assert [str(problem) for problem in done.problems] == []
    assert done.rules


def test_an_example_says_what_a_rule_makes_of_taint(tmp_path: Path) -> None:
    rules = """\
rules:
  - {name: mail, match: {tool: read_mail}, taint: mark, block_if: tainted}
"""
    examples = """\
examples:
  - rule: mail
    fires:
      - {tool: read_mail, gives: {taint: mark, block_if: tainted}}
      - {tool: read_mail, gives: {taint: endorse, block_if: never}}
    silent: [{tool: send_mail, gives: {block_if: never}}]
"""
    (wrong_gate, wrong_taint) = complaints(tmp_path, rules, examples)
    assert "block_if is 'tainted', not 'never'" in wrong_gate
    assert "taint is 'mark', not 'endorse'" in wrong_taint
