"""All mistakes in a file at once."""

from pathlib import Path

import pytest

from turnlog.packs.check import file_problems
from turnlog.packs.examples import check_both
from turnlog.packs.sources import RuleSource
from turnlog.rules.model import RuleFile


def found(folder: Path, text: str) -> list[str]:
    (folder / "mine.yaml").write_text(text)
    return [
        str(error)
        for error in file_problems(RuleSource(folder / "mine.yaml", "mine.yaml"), RuleFile, "rule")
    ]


def test_a_good_file_has_no_problems(tmp_path: Path) -> None:
    assert found(tmp_path, "rules:\n  - {name: one, effect: read}\n") == []


def test_every_problem_is_reported_once_from_top_to_bottom(tmp_path: Path) -> None:
    text = """\
rules:
  - 5
  - name: one
    efect: read
    match: {tool: [], server: files, effect: reed}
  - name: two
    retry: {on: timout, max_attempts: 0}
    delta:
      - {field: files, op: modified, key: $.args.path}
      - {field: files_modified, op: changed, key: path}
      - {field: files_modified}
  - name: three
    timeout: {total: soon}
"""
    assert found(tmp_path, text) == [
        "mine.yaml:2:5: 'rules.0' must be a mapping, not a whole number",
        "mine.yaml:4:5: unknown key 'efect', did you mean 'effect'?",
        "mine.yaml:5:19: [] is no text and no list of texts, write one like read_*",
        "mine.yaml:5:46: 'rules.1.match.effect' cannot be 'reed', did you mean 'read'?",
        "mine.yaml:7:17: 'timout' is no error, did you mean 'timeout'?",
        "mine.yaml:7:39: 0 is no number of attempts, write one from 1 to 100",
        "mine.yaml:9:17: 'rules.2.delta.0.field' cannot be 'files', use one of: files_modified",
        ("mine.yaml:10:37: 'rules.2.delta.1.op' cannot be 'changed', use one of: created, deleted, "
        "modified, renamed"),
        "mine.yaml:10:51: 'path' is no JSONPath, write one like $.args.path",
        "mine.yaml:11:9: 'op' is missing, add it",
        "mine.yaml:13:22: 'soon' is no amount, write a duration like 200ms, 30s, 2m or 7d",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rules: [\n", "mine.yaml:2:1: expected the node content"),
        ("- 1\n", "mine.yaml:1:1: the file must be a mapping, not a list"),
        ("{}\n", "mine.yaml:1:1: 'rules' is missing, add it"),
        ("rules: 5\n", "mine.yaml:1:8: 'rules' must be a list, not a whole number"),
    ],
)
def test_a_file_that_is_not_yaml_has_one_problem(tmp_path: Path, text: str, problem: str) -> None:
    (told,) = found(tmp_path, text)

    assert told.startswith(problem)


def test_a_missing_file_has_one_problem(tmp_path: Path) -> None:
    (told,) = file_problems(RuleSource(tmp_path / "absent.yaml", "absent.yaml"), RuleFile, "rule")

    assert str(told) == "absent.yaml: no such file or directory, name a readable file"


def test_an_empty_file_has_one_problem(tmp_path: Path) -> None:
    for name in ("mine.yaml", "mine.examples.yaml"):
        (tmp_path / name).write_text("# nothing\n")
    source = RuleSource(tmp_path / "mine.yaml", "mine.yaml")

    assert list(map(str, check_both(source))) == [
        "mine.yaml:1:1: the file is empty, write at least one rule",
        "mine.examples.yaml:1:1: the file is empty, write at least one example",
    ]
