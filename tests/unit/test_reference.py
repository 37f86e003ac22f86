"""The reference matches the program: generated parts are fresh, tables are complete."""

import math
import re
import runpy
import tomllib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import cast

import click
import msgspec
import pytest
from msgspec import structs

from turnlog.api.endpoints import ENDPOINTS
from turnlog.app.trial import run_sample
from turnlog.cli.commands.rules.rules import command as rules_command
from turnlog.cli.commands.session.taint import command as taint_command
from turnlog.cli.main import COMMANDS, turnlog
from turnlog.core.classify import MEANINGS
from turnlog.core.kinds import Flag, RetryClass
from turnlog.core.text.units import duration_text
from turnlog.exchange.principal import DEFAULT_NAMES
from turnlog.packs.examples import Sample, check_both, run_examples
from turnlog.packs.load import load
from turnlog.packs.sources import RuleSource
from turnlog.rules.model import ASPECTS, ErrorMap, Extractor, Match, Rule, Timeouts
from turnlog.rules.model import Retry as RetryRule
from turnlog.rules.policy import Policy
from turnlog.sessions.call_detail import AttemptDetail, CommitEntry
from turnlog.sessions.rows import Row
from turnlog.settings.layers import LATER, VARIABLES, Flags
from turnlog.settings.model import Settings, UpstreamSettings

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
GENERATOR = runpy.run_path(str(REFERENCE / "generate.py"))


def _page(name: str) -> str:
    return (REFERENCE / name).read_text("utf-8")


def _rows(name: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading, without its head."""
    section = _page(name).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines]


def _leaves(kind: type[msgspec.Struct], prefix: str = "") -> dict[str, object]:
    """Return every setting by its dotted path, with its default."""
    leaves: dict[str, object] = {}
    for field in structs.fields(kind):
        default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        if isinstance(default, msgspec.Struct) and not hasattr(default, "port"):
            leaves |= _leaves(type(default), f"{prefix}{field.name}.")
        else:
            leaves[prefix + field.name] = default
    return leaves


@pytest.mark.promise("CLI-11")
@pytest.mark.parametrize("name", GENERATOR["PAGES"])
def test_generated_parts_are_fresh(name: str) -> None:
    refreshed: Callable[[str], str] = GENERATOR["refreshed"]

    assert _page(name) == refreshed(_page(name)), "run `python docs/reference/generate.py`"


def test_every_command_has_its_help_in_the_reference() -> None:
    assert GENERATOR["documented"](_page("cli.md")) == {
        "turnlog", *(f"turnlog {name}" for name in COMMANDS),
        *(f"turnlog rules {name}" for name in rules_command.commands),
        *(f"turnlog taint {name}" for name in taint_command.commands),
        "turnlog sessions hold", "turnlog sessions release",
    }  # fmt: skip


def test_the_schema_of_rules_is_fresh() -> None:
    schema: Callable[[], str] = GENERATOR["schema"]

    assert GENERATOR["SCHEMA"].read_text("utf-8") == schema(), (
        "run `python docs/reference/generate.py`"
    )


@pytest.mark.promise("CLI-11")
def test_every_setting_is_in_the_table_with_its_default() -> None:
    described = {row[0]: row[1] for row in _rows("configuration.md", "Settings")}
    shown = {"1048576": "1MiB", "10737418240": "10GiB", ".": "the user's state folder"}
    shown |= {
        "604800.0": "7d",
        "7776000.0": "90d",
        "5.0": "5s",
        "600.0": "10m",
        str(DEFAULT_NAMES): "[who calls](#who-calls)",
    }

    defaults = {path: str(value) if value else "none" for path, value in _leaves(Settings).items()}

    assert described == {path: shown.get(text, text) for path, text in defaults.items()}


def test_every_variable_and_flag_is_in_the_table() -> None:
    rows = _rows("configuration.md", "Settings")

    named = {row[2]: row[0] for row in rows if row[2]}
    assert named == {v: ".".join(path) for v, path in VARIABLES.items()}
    flags = {"--" + name.replace("_", "-") for name in Flags.__struct_fields__}
    assert {row[3] for row in rows if row[3]} == flags - {"--config", "--upstreams"} | {
        "--upstream"
    }


def test_every_key_of_an_upstream_is_in_the_table() -> None:
    assert [row[0] for row in _rows("configuration.md", "Upstreams")] == [
        field.name for field in structs.fields(UpstreamSettings)
    ]


@pytest.mark.promise("CLI-13")
def test_unsupported_settings_are_listed() -> None:
    listed = _page("configuration.md").partition("Settings that are planned")[2]

    for path in LATER:
        name = path.rpartition(".")[2].replace("=", ": ")
        assert f"`{name}`" in listed


@pytest.mark.promise("CLI-14")
def test_the_example_file_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "turnlog.yaml").write_text(_example("A file"))
    (tmp_path / "mine.yaml").write_text("rules: []\n")

    assert set(load(tmp_path / "turnlog.yaml", Settings).upstreams) == {"files", "git", "web"}


@pytest.mark.promise("CLI-11")
def test_every_field_of_a_log_line_is_described_in_order() -> None:
    names = [name for row in _rows("cli.md", "turnlog log") for name in row[0].split(", ")]

    assert names == list(Row.__struct_fields__)


def test_every_field_of_what_show_prints_is_described_in_order() -> None:
    names = [name for row in _rows("cli.md", "turnlog show")[:13] for name in row[0].split(", ")]

    assert names == list(AttemptDetail.__struct_fields__)
    text = _page("cli.md").partition("\nA commit has ")[2].partition("\n\n")[0]
    places = [text.index(f"`{name}`") for name in CommitEntry.__struct_fields__]
    assert places == sorted(places)


@pytest.mark.promise("OUT-2")
def test_the_table_of_outcomes_is_the_one_that_counts() -> None:
    letters = {
        RetryClass.SAFE: "S",
        RetryClass.IF_IDEMPOTENT: "I",
        RetryClass.UNSAFE: "U",
        RetryClass.NEVER: "N",
    }
    assert [row[:4] for row in _rows("outcomes.md", "Kinds")] == [
        [meaning.family, kind, letters[meaning.base], meaning.executed]
        for kind, meaning in MEANINGS.items()
    ]


@pytest.mark.promise("CLI-11")
def test_every_flag_that_is_set_anywhere_is_documented() -> None:
    sources = (ROOT / "proxy" / "turnlog").rglob("*.py")
    used = {
        name for file in sources for name in re.findall(r"Flag\.([A-Z_0-9]+)", file.read_text())
    }
    listed = " ".join(row[0] for row in _rows("outcomes.md", "Flags")).replace(",", "").split()
    assert {Flag[name] for name in used} == {Flag(word) for word in listed}


def _default(value: object) -> str:
    """Return a default as the tables of the rule language have it."""
    if isinstance(value, float):
        return "none" if value in (0, math.inf) else duration_text(value)
    texts = cast("tuple[str, ...]", value) if isinstance(value, tuple) else (value,)
    return " ".join(str(text) for text in texts if text not in (None, "")) or "none"


LANGUAGE: list[tuple[str, type[msgspec.Struct], dict[str, str]]] = [
    ("match", Match, {"path": "any", "effect": "any"}),
    ("timeout", Timeouts, {"startup": "10m"}),
    ("retry", RetryRule, {"factor": "2"}),
    ("map_error", ErrorMap, {"text": "any", "code": "any", "status": "any"}),
    ("delta", Extractor, {}),
    ("A rule", Rule, {"name": "file and line", "match": "every call", "provenance": "any"}),
    ("Examples", Sample, {"args": "{}", "result": "a text ok", "gives": "anything"}),
]


@pytest.mark.promise("CLI-11")
@pytest.mark.parametrize(("heading", "kind", "words"), LANGUAGE)
def test_every_key_of_the_rule_language_is_in_its_table_with_its_default(
    heading: str, kind: type[msgspec.Struct], words: dict[str, str]
) -> None:
    defaults = {
        field.name: "required" if field.required else _default(field.default)
        for field in structs.fields(kind)
    }
    if kind is Rule:
        defaults |= {
            name: str(value)
            for name in ASPECTS
            if isinstance(value := getattr(Policy(), name), StrEnum)
        }

    described = {row[0]: row[1] for row in _rows("rules.md", heading)}

    assert described == defaults | words


@pytest.mark.promise("CLI-14")
def test_every_rule_on_the_page_is_one_and_every_example_holds(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", _page("rules.md"), re.DOTALL)
    rules = [text for text in blocks if "\nexamples:" not in f"\n{text}"]
    examples = [text for text in blocks if text not in rules]
    for number, text in enumerate(rules):
        (tmp_path / f"{number}.yaml").write_text(text)
    sources = [RuleSource(tmp_path / f"{n}.yaml", f"{n}.yaml") for n in range(len(rules))]

    assert [problem for source in sources for problem in check_both(source)] == []
    assert len(examples) == 2
    for text in examples:
        name = text.partition("- rule: ")[2].partition("\n")[0]
        number = next(n for n, rule in enumerate(rules) if f"- name: {name}\n" in rule)
        (tmp_path / f"{number}.examples.yaml").write_text(text)
        assert run_examples(sources[number], run_sample).problems == ()


@pytest.mark.promise("CLI-2")
def test_help_names_every_exit_code() -> None:
    table = _page("cli.md").partition("| exit code | meaning |")[2].partition("\n\n")[0]
    codes = re.findall(r"\d+", " ".join(line.split("|")[1] for line in table.splitlines()[2:]))
    said = " ".join(turnlog.get_help(click.Context(turnlog)).split()).partition("Exit codes: ")[2]

    assert codes == ["0", "1", "2", "3", "74", "130", "141"]
    assert all(re.search(rf"\b{code} ", said) for code in codes)


def test_every_decision_is_listed_under_its_title() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = [line for line in (folder / "README.md").read_text().splitlines() if ". [" in line]
    decisions = sorted(folder.glob("0*.md"))
    titles = [path.read_text().partition("\n")[0].removeprefix("# ") for path in decisions]
    wanted = [
        f"{number}. [{title}]({path.name})"
        for path, text in zip(decisions, titles, strict=True)
        for number, _, title in [text.partition(". ")]
    ]
    assert [line.partition(";")[0] for line in listed] == wanted


@pytest.mark.promise("CLI-14")
def test_the_rules_of_the_readme_stand_its_examples(tmp_path: Path) -> None:
    blocks = re.findall(
        r"```yaml\n# (mine\S*);?.*\n((?:.*\n)*?)```", (ROOT / "README.md").read_text("utf-8")
    )
    for name, text in blocks:
        (tmp_path / name.rstrip(";")).write_text(text)

    report = run_examples(RuleSource(tmp_path / "mine.yaml", "mine.yaml"), run_sample)

    assert (report.rules, report.samples, report.problems) == (2, 4, ())


def test_the_parameters_of_every_endpoint_are_listed() -> None:
    page = _page("api.md")
    for endpoint in ENDPOINTS:
        for name in endpoint.query.__struct_fields__:
            lines = re.findall(rf"^\| `{name}` \|.*$", page, re.MULTILINE)
            assert [f"`{endpoint.path}`" in line for line in lines].count(True) == 1


def test_the_names_of_credentials_are_the_built_in_ones(tmp_path: Path) -> None:
    (tmp_path / "turnlog.yaml").write_text(_example("Who calls"))

    assert load(tmp_path / "turnlog.yaml", Settings).identity.principal == DEFAULT_NAMES


def _example(chapter: str) -> str:
    """Return the only file in a chapter of the page on configuration."""
    text = _page("configuration.md").partition(f"\n## {chapter}\n")[2].partition("\n## ")[0]
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    return str(example)


def test_each_fragment_of_the_changelog_has_a_type_that_gets_into_it() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]
    types = {each["directory"] for each in settings["type"]}
    fragments = [path.name for path in (ROOT / "changelog.d").glob("*.md")]
    assert [name for name in fragments if name.split(".")[-2] not in types] == ["README.md"]
