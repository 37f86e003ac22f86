"""`turnlog rules`, as a command in a process of its own."""

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from e2e.stores import process
from turnlog.packs.sources import packs_folder

RULES = """\
rules:
  - name: reads
    match: {tool: "read_*"}
    effect: read
    retry: {on: timeout, base_interval: 100ms}
"""
EXAMPLES = """\
examples:
  - rule: reads
    fires: [{tool: read_file}]
    silent: [{tool: write_file}]
"""
WRONG = "rules:\n  - {name: one, effect: reed}\n  - {name: two, efect: read}\n"
URL = "http://127.0.0.1:9/mcp"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(RULES)
    return file


@pytest.fixture
def config(rules: Path) -> Path:
    file = rules.with_name("turnlog.yaml")
    file.write_text(f'rules: [mine.yaml]\nupstreams: {{files: {{url: "{URL}"}}}}\n')
    return file


@pytest.mark.promise("CLI-8")
def test_check_lists_every_problem_of_every_file(rules: Path) -> None:
    wrong = rules.with_name("wrong.yaml")
    wrong.write_text(WRONG)

    done = process("rules", "check", str(rules), str(wrong))

    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        f"{wrong}:2:25: 'rules.0.effect' cannot be 'reed', did you mean 'read'?",
        f"{wrong}:3:17: unknown key 'efect', did you mean 'effect'?",
    ]


def test_check_prints_problems_as_json(rules: Path) -> None:
    rules.write_text(WRONG)

    done = process("rules", "check", "--json", str(rules))

    first, second = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 1
    assert first == {
        "file": str(rules),
        "line": 2,
        "column": 25,
        "message": "'rules.0.effect' cannot be 'reed', did you mean 'read'?",
    }
    assert (second["line"], second["column"]) == (3, 17)


def test_check_without_files_reads_those_of_the_configuration(config: Path) -> None:
    by_flag = process("rules", "check", "--config", str(config))
    by_variable = process("rules", "check", environ={"TURNLOG_CONFIG": str(config)})

    assert by_flag == by_variable
    assert (by_flag.returncode, by_flag.stderr) == (0, "")
    assert [line.rpartition("/")[2] for line in by_flag.stdout.splitlines()] == [
        "mine.yaml: fine",
        "default.yaml: fine",
    ]


@pytest.mark.promise("CLI-8")
def test_explain_names_value_rule_and_place_of_each_aspect(config: Path) -> None:
    done = process("rules", "explain", "files", "read_file", "--config", str(config))

    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["files/read_file", "tools/call"]
    assert ["effect", "reads", f"{config.with_name('mine.yaml')}:2", "read"] in lines
    assert ["expects", "no", "rule", "-"] in lines
    assert ["timeout", "response_timeout", "safe", "yes"] in lines
    (timeout,) = [line for line in lines if line[:2] == ["timeout", "default"]]
    assert timeout[3:] == ["connect", "10m"]
    (retry,) = [line for line in lines if line[:1] == ["retry"]]
    assert "base_interval: 100ms, factor: 2, max_interval: 5s" in " ".join(retry)


def test_explain_says_the_same_as_json(rules: Path) -> None:
    done = process("rules", "explain", "any", "write_file", "--rules", str(rules), "--json")

    told = json.loads(done.stdout)
    assert (told["server"], told["tool"], told["effect"]) == ("any", "write_file", "unknown")
    assert told["aspects"]["effect"] == {"value": None, "rule": None, "file": None, "line": None}
    assert told["aspects"]["timeout"]["value"] == {"connect": 600}
    assert told["retries"] == []


def test_explain_says_that_tainted_arguments_are_refused(tmp_path: Path) -> None:
    rules = tmp_path / "gate.yaml"
    rules.write_text("rules: [{match: {tool: send_*}, block_if: tainted}]")
    gate = "refused if its arguments carry values of a tainted output, or may carry some that were missed"
    for tool, is_gated in (("send_mail", True), ("read_mail", False)):
        done = process("rules", "explain", "db", tool, "--rules", str(rules))
        assert (gate in done.stdout.splitlines()) is is_gated


def test_explain_says_of_a_denied_call_that_it_is_never_sent_and_why(tmp_path: Path) -> None:
    rules = tmp_path / "deny.yaml"
    rules.write_text(
        "rules:\n"
        "  - {match: {tool: drop_*}, access: deny, why: ask the owner}\n"
        "  - {match: {tool: send_*}, access: deny}\n"
    )
    for tool, said in (
        ("drop_table", "denied, never sent: ask the owner"),
        ("send_mail", "denied, never sent"),
    ):
        done = process("rules", "explain", "db", tool, "--rules", str(rules))
        assert done.stdout.splitlines()[-1] == said
        assert "tried again" not in done.stdout
    told = process("rules", "explain", "db", "drop_table", "--rules", str(rules), "--json").stdout
    assert json.loads(told)["why"] == "ask the owner"


def test_explain_takes_the_call_of_a_plain_tool(rules: Path) -> None:
    rules.write_text(
        "rules:\n  - match: {path: /users/*, when: $.args.body.name}\n    effect: write\n"
    )
    call = ("--path", "/users/17", "--args", '{"body": {"name": "x"}}')

    done = process("rules", "explain", "web", "--method", "PUT", *call, "--rules", str(rules))
    read = process("rules", "explain", "web", "--path", "/users/17", "--rules", str(rules))

    assert done.stdout.startswith("web/PUT /users/* PUT /users/17\n")
    assert "\neffect: write\n" in done.stdout
    assert "\neffect: read, by the HTTP method: no rule names it\n" in read.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "files"), "no tool is named, write TOOL or --path PATH"),
        (("explain", "f", "t", "--args", "[1]"), "--args must be a mapping, not a list ("),
        (
            ("explain", "f", "t", "--args", "{a: 1}"),
            "--args is not JSON (object keys must be strings (byte 1)), write a JSON object, and quote it for the shell",
        ),
        (("explain", "f", "t", "--rules", "x.yaml"), "--rules: there is no file 'x.yaml'"),
        (("explain", "f", "t", "--config", "x.yaml"), "x.yaml: no such file"),
        (
            ("explain", "f", "t", "--args", '{"a":' * 1500 + "1" + "}" * 1500),
            "--args is nested too deeply, use fewer levels",
        ),
        (("check", "x.yaml"), "PACK_OR_FILE: there is no file 'x.yaml'"),
        (("test", "defalt"), "PACK_OR_FILE: no pack is called 'defalt', did you mean 'default'?"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    done = process("rules", *arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"turnlog: {message}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("depth", [200, 900, 960, 990])
def test_deep_arguments_are_explained_or_refused(rules: Path, depth: int) -> None:
    rules.write_text("rules: [{match: {when: $..x}, effect: read}]\n")
    deep = '{"a":' * depth + "1" + "}" * depth

    done = process("rules", "explain", "f", "t", "--rules", str(rules), "--args", deep)

    assert done.returncode == 0 or "nested too deeply" in done.stderr
    assert done.stderr.count("\n") <= 1


def test_explain_knows_the_servers_of_the_configuration(config: Path) -> None:
    done = process("rules", "explain", "flies", "x", "--config", str(config))

    assert done.returncode == 2
    assert done.stderr.startswith("turnlog: no upstream is called 'flies', did you mean 'files'?")


def test_test_runs_the_examples_beside_a_file(rules: Path) -> None:
    rules.with_name("mine.examples.yaml").write_text(EXAMPLES)

    done = process("rules", "test", str(rules), "default")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"{rules}: 2 examples of 1 rule hold"


@pytest.mark.promise("CLI-8")
def test_rules_test_reports_failing_and_missing_examples(rules: Path) -> None:
    examples = rules.with_name("mine.examples.yaml")
    examples.write_text("examples:\n  - rule: reads\n    fires: [{tool: list}]\n")

    done = process("rules", "test", str(rules))

    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        f"{examples}:3:13: 'reads' decides nothing for this call, which has no rule",
        f"{rules}:2:5: no example shows where 'reads' is silent, add one",
    ]


def test_rules_test_reports_every_problem_of_a_file_that_cannot_be_read(rules: Path) -> None:
    rules.write_text(
        "rules:\n  - {match: {tool: a}, effect: rite}\n  - {match: {tool: b}, acces: deny}\n"
    )
    tested = process("rules", "test", str(rules))
    assert (tested.returncode, tested.stdout.count("\n")) == (1, 2)
    assert tested.stdout == process("rules", "check", str(rules)).stdout


@pytest.fixture(scope="module")
def schema() -> Any:
    done = process("rules", "schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (packs_folder() / "schema.json").read_text("utf-8")
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("rule", "is_fine"),
    [
        ({"match": {"tool": "read_*", "effect": "read"}, "expects": "content"}, True),
        ({"match": {"tool": ["a", "b"], "when": "$.args.x"}, "effect": "write"}, True),
        ({"timeout": {"response": "30s", "total": 120}}, True),
        ({"timeout": {"response": 0}}, False),
        ({"retry": {"on": ["timeout", "conflict"], "base_interval": "200ms"}}, True),
        ({"retry": {"on": "timeout", "max_attempts": 0}}, False),
        ({"retry": {"on": "timout"}}, False),
        ({"retry": {}}, False),
        ({"effect": "reed"}, False),
        ({"match": {"tool": []}}, False),
        ({"null_when": "path"}, False),
        ({"expect": "content"}, False),
    ],
)
def test_the_schema_takes_what_turnlog_takes(
    schema: Any, rules: Path, rule: Any, is_fine: bool
) -> None:
    rules.write_text(json.dumps({"rules": [rule]}))

    validator: Any = jsonschema.Draft202012Validator(schema)
    by_schema = validator.is_valid({"rules": [rule]})

    assert by_schema is is_fine
    assert process("rules", "check", str(rules)).returncode == (0 if is_fine else 1)
