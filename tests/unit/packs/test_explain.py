"""The policy of a call by its rules, and the rule that decided each aspect."""

from pathlib import Path
from typing import Any

from turnlog.core.kinds import Effect
from turnlog.packs.explain import Aspect, Explanation, explain_call
from turnlog.packs.rulebook import read_rules
from turnlog.packs.sources import RuleSource
from turnlog.rules.policy import Subject

RULES = """\
rules:
  - name: reads
    match: {tool: read_*}
    effect: read
  - match: {tool: write_*, when: $.args.path}
    effect: idempotent_write
    delta: [{field: files_modified, op: modified, key: $.args.path}]
  - name: again
    match: {tool: "*_file"}
    retry: {on: [connection, conflict], budget: 90s}
    timeout: {response: 30s}
"""
AS_WITHOUT = Aspect(value=None, rule=None, file=None, line=None)


def explained(folder: Path, tool: str, text: str = RULES, **more: Any) -> Explanation:
    (folder / "mine.yaml").write_text(text)
    rules = read_rules(RuleSource(folder / "mine.yaml", "mine.yaml"))
    arguments: dict[str, Any] = more.pop("arguments", {})
    given: dict[str, Any] = {"method": "tools/call", **more}
    call = Subject(server="files", tool=tool, **given)
    return explain_call(rules, call, arguments)


def retried(explanation: Explanation) -> dict[str, tuple[str, bool]]:
    return {each.kind: (each.retry, each.retried) for each in explanation.retries}


def test_each_aspect_has_its_value_and_the_rule_that_decided_it(tmp_path: Path) -> None:
    told = explained(tmp_path, "read_file")

    assert told.effect is Effect.READ
    assert told.aspects["effect"] == Aspect(value="read", rule="reads", file="mine.yaml", line=2)
    assert told.aspects["timeout"] == Aspect(
        value={"response": 30.0}, rule="again", file="mine.yaml", line=8
    )
    assert told.aspects["expects"] == AS_WITHOUT


def test_arguments_count_if_a_rule_looks_at_them(tmp_path: Path) -> None:
    without = explained(tmp_path, "write_file")
    told = explained(tmp_path, "write_file", arguments={"path": "/a"})

    assert without.aspects["effect"] == AS_WITHOUT
    assert told.aspects["delta"] == Aspect(
        value=[{"field": "files_modified", "op": "modified", "key": "$.args.path"}],
        rule="mine.yaml:5",
        file="mine.yaml",
        line=5,
    )


def test_the_effect_decides_what_is_retried(tmp_path: Path) -> None:
    read = explained(tmp_path, "read_file")
    write = explained(tmp_path, "write_file", arguments={"path": "/a"})
    unknown = explained(tmp_path, "delete_file")

    kinds = (
        "connect_failed",
        "connection_lost",
        "upstream_unavailable",
        "circuit_open",
        "conflict",
    )
    assert retried(read) == dict.fromkeys(kinds, ("safe", True))
    assert retried(write) == {
        "connect_failed": ("safe", True),
        "circuit_open": ("safe", True),
        "connection_lost": ("if_idempotent", True),
        "upstream_unavailable": ("if_idempotent", True),
        "conflict": ("if_idempotent", True),
    }
    assert unknown.effect is Effect.UNKNOWN
    assert retried(unknown) == {
        "connect_failed": ("safe", True),
        "circuit_open": ("safe", True),
        "connection_lost": ("unsafe", False),
        "upstream_unavailable": ("unsafe", False),
        "conflict": ("if_idempotent", False),
    }


def test_kinds_of_a_finished_call_are_retried_only_if_mapped(tmp_path: Path) -> None:
    text = """\
rules:
  - match: {tool: mapped}
    map_error: [{kind: deadline_exhausted, text: late}]
  - effect: read
    retry: {on: [timeout, cancelled, unknown]}
"""

    plain = retried(explained(tmp_path, "plain", text))
    mapped = retried(explained(tmp_path, "mapped", text))

    over = ("deadline_exhausted", "cancelled_by_caller", "outcome_unknown")
    assert {kind: plain[kind] for kind in over} == dict.fromkeys(over, ("safe", False))
    assert plain["response_timeout"] == ("safe", True)
    assert mapped["deadline_exhausted"] == ("safe", True)


def test_without_a_rule_nothing_is_retried(tmp_path: Path) -> None:
    assert explained(tmp_path, "list").retries == []


def test_path_and_method_of_a_plain_call_give_tool_and_effect(tmp_path: Path) -> None:
    text = "rules:\n  - match: {path: /users/*/posts}\n    expects: content\n"

    named = explained(tmp_path, "", text, method="PUT", path="/users/me/posts")
    other = explained(tmp_path, "", text, method="GET", path="/users/17")

    assert (named.tool, named.effect) == ("PUT /users/*/posts", Effect.IDEMPOTENT_WRITE)
    assert named.aspects["expects"].rule == "mine.yaml:2"
    assert (other.tool, other.effect) == ("GET /users/*", Effect.READ)
    assert other.aspects["expects"] == AS_WITHOUT


def test_rules_of_the_same_name_in_two_files_are_distinguished(tmp_path: Path) -> None:
    one = "rules:\n  - {name: mine, match: {tool: other}, effect: read}\n"
    two = "\nrules:\n  - {name: mine, effect: write}\n"
    sources = [RuleSource(tmp_path / name, name) for name in ("one.yaml", "two.yaml")]
    for source, text in zip(sources, (one, two), strict=True):
        source.path.write_text(text)
    rules = [placed for source in sources for placed in read_rules(source)]

    call = Subject(server="s", tool="t", method="tools/call")
    told = explain_call(rules, call, {}).aspects["effect"]

    assert told == Aspect(value="write", rule="mine", file="two.yaml", line=3)


def test_the_call_that_would_undo_an_effect_is_explained(tmp_path: Path) -> None:
    rules = """\
rules:
  - {name: undo, effect: write, compensate: {tool: remove, args: {path: $.args.path, force: true}}}
"""
    told = explained(tmp_path, "create", rules).aspects["compensate"]

    assert told.value == {"tool": "remove", "args": {"path": "$.args.path", "force": True}}
    assert told.rule == "undo"


def test_with_an_honoured_idempotency_key_every_effect_is_retried(tmp_path: Path) -> None:
    rules = """\
rules:
  - {name: pay, effect: irreversible, idempotency: header, concurrency: 2, effect_key: $.args.order}
  - {retry: {on: [connection_lost, unauthenticated]}}
"""
    told = explained(tmp_path, "pay", rules)

    assert retried(told) == {
        "connection_lost": ("unsafe", True),
        "unauthenticated": ("never", False),
    }
    decided = {
        name: told.aspects[name].value for name in ("idempotency", "concurrency", "effect_key")
    }
    assert decided == {"idempotency": "header", "concurrency": 2, "effect_key": ["$.args.order"]}


def test_a_demand_of_provenance_is_shown_as_it_is_written(tmp_path: Path) -> None:
    def shown(text: str) -> object:
        rules = f"rules: [{{provenance: {text}}}]"
        return explained(tmp_path, "add", rules).aspects["provenance"].value

    assert (shown("any"), shown("pinned")) == ("any", "pinned")
    assert shown("{inputs: sourced, then: surface}") == {
        "tool": "any",
        "inputs": "sourced",
        "result": "any",
        "then": "surface",
    }
