"""Rules, or parts of them, that can never have an effect."""

from pathlib import Path

import pytest

from turnlog.packs.examples import check_both
from turnlog.packs.rulebook import read_rules
from turnlog.packs.sources import RuleSource


def found(folder: Path, rule: str) -> list[str]:
    (folder / "mine.yaml").write_text(f"rules:\n  - {rule}\n")
    return [str(error) for error in check_both(RuleSource(folder / "mine.yaml", "mine.yaml"))]


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ('{match: {when: "$.result.x"}, effect: read}', "2:20: '$.result.x' does not look at args"),
        (
            "{match: {when: [$.args.a, \"$['status']\"]}, effect: read}",
            "2:31: \"$['status']\" does not look at args",
        ),
        ("{match: {path: users/*}, effect: read}", "2:20: no path is like 'users/*', paths begin"),
        ("{match: {method: get}, effect: read}", "2:22: no call has the method 'get', write 'GET'"),
        ("{match: {method: [GET, post]}, effect: read}", "2:28: no call has the method 'post'"),
        ("{name: a}", "2:5: this rule decides nothing"),
        ("{name: a, match: {tool: x}}", "2:5: this rule decides nothing"),
        (
            "{effect: write, compensate: {tool: undo, args: {a: [$.status]}}}",
            "2:33: '$.status' selects from nothing that is recorded",
        ),
        (
            "{effect: write, compensate: {tool: undo, look: {tool: r, args: {a: $.x}, expect: $.args.b}}}",
            "2:33: '$.x' selects from nothing",
        ),
        ("{provenance: {then: block}}", "2:25: then says nothing without tool, inputs or result"),
        ("{retry: {on: tool_failed}}", "2:18: 'tool_failed' is never tried again"),
        ("{retry: {on: [timeout, auth]}}", "2:28: 'auth' is never tried again"),
    ],
)
def test_a_useless_part_of_a_rule_is_reported_with_its_place(
    tmp_path: Path, rule: str, problem: str
) -> None:
    (message,) = found(tmp_path, rule)
    assert message.startswith(f"mine.yaml:{problem}")


@pytest.mark.parametrize(
    "rule",
    [
        '{match: {when: ["$.args.x", "$..x", "$[?@.x]", "$"]}, effect: read}',
        "{match: {path: [/users/*, '**/users', '*/x']}, effect: read}",
        "{match: {method: [GET, 'g*', tools/call, QUERY]}, effect: read}",
        "{match: {path: /users/*}}",
        "{delta: []}",
        "{provenance: any}",
        "{provenance: {inputs: sourced}}",
        "{taint: mark, block_if: tainted}",
        '{effect: write, compensate: {tool: undo, args: {a: $.args.a, b: 1, c: ["$.result.id", "$"]}}}',
        "{retry: {on: [tool_error, malformed_result, connection, conflict]}}",
    ],
)
def test_useful_rules_are_not_reported(tmp_path: Path, rule: str) -> None:
    assert found(tmp_path, rule) == []


def test_a_proxy_accepts_useless_rules(tmp_path: Path) -> None:
    assert found(tmp_path, "{name: a}")
    (placed,) = read_rules(RuleSource(tmp_path / "mine.yaml", "mine.yaml"))
    assert placed.rule.name == "a"
