"""Files of rules: reading them, and their order."""

from pathlib import Path

import pytest

from turnlog.core.kinds import Effect
from turnlog.packs.errors import ConfigError
from turnlog.packs.rulebook import read_each, read_rules, rulebook
from turnlog.packs.sources import RuleSource, RuleSources, rule_sources
from turnlog.rules.model import Timeouts
from turnlog.rules.policy import Subject


def source(folder: Path, name: str, text: str) -> RuleSource:
    (folder / name).write_text(text)
    return RuleSource(folder / name, name)


def one_rule(folder: Path, name: str, effect: Effect) -> RuleSource:
    return source(folder, f"{name}.yaml", f"rules:\n  - {{name: {name}, effect: {effect}}}\n")


@pytest.mark.promise("RULE-4", "RULE-33")
def test_the_users_rules_come_first_then_the_packs_of_the_server_then_the_last(
    tmp_path: Path,
) -> None:
    last = one_rule(tmp_path, "last", Effect.UNKNOWN)
    pack = one_rule(tmp_path, "pack", Effect.WRITE)
    own = one_rule(tmp_path, "own", Effect.READ)

    def decided_by(sources: RuleSources, server: str) -> str:
        book = rulebook(sources, read_each(sources))
        subject = Subject(server=server, tool="write_file", method="tools/call")
        return book.policy(subject, lambda: None).decided_by["effect"]

    packs = RuleSources(own=(), packs={"files": (pack,)}, last=last)
    everything = RuleSources(own=(own,), packs={"files": (pack,)}, last=last)
    assert decided_by(packs, "files") == "pack"
    assert decided_by(packs, "other") == "last"
    assert decided_by(everything, "files") == "own"
    assert everything.order("files") == (own, pack, last)
    assert everything.order("other") == (own, last)


@pytest.mark.promise("RULE-32")
def test_without_rules_only_the_wait_for_a_connection_is_limited_to_ten_minutes() -> None:
    sources = rule_sources((), {})
    subject = Subject(server="files", tool="read_file", method="tools/call")

    policy = rulebook(sources, read_each(sources)).policy(subject, lambda: None)

    assert policy.timeout == Timeouts(connect=600)


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    last = one_rule(tmp_path, "last", Effect.UNKNOWN)
    twice = RuleSources(own=(last,), packs={"a": (last,), "b": (last,)}, last=last)

    assert list(read_each(twice)) == [last]


def test_a_rule_without_a_name_is_named_by_file_and_line(tmp_path: Path) -> None:
    text = "rules:\n  - effect: read\n\n  - name: mine\n    effect: write\n  - expects: content\n"

    placed = read_rules(source(tmp_path, "mine.yaml", text))

    assert [(one.rule.name, one.line) for one in placed] == [
        ("mine.yaml:2", 2),
        ("mine", 4),
        ("mine.yaml:6", 6),
    ]


def test_two_rules_of_one_name_are_refused(tmp_path: Path) -> None:
    text = "rules:\n  - {name: one, effect: read}\n  - {name: one, effect: write}\n"

    with pytest.raises(ConfigError) as caught:
        read_rules(source(tmp_path, "mine.yaml", text))

    assert str(caught.value) == (
        "mine.yaml:3:12: two rules are called 'one', give each a name of its own"
    )


def test_any_error_in_a_file_becomes_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^no\.yaml:1:1: cannot be read \(ValueError: "):
        read_rules(RuleSource(tmp_path / "a\0b.yaml", "no.yaml"))


def test_an_expression_that_cannot_be_compiled_has_a_place(tmp_path: Path) -> None:
    text = 'rules:\n  - match: {when: "$[?@.a == 1e999999]"}\n    effect: read\n'
    with pytest.raises(ConfigError, match=r"^mine\.yaml:2:19: .*cannot be read \("):
        read_rules(source(tmp_path, "mine.yaml", text))
