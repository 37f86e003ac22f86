"""`turnlog rules`: check, test and explain rules without a proxy."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct

from turnlog.app.trial import run_sample
from turnlog.cli.failures import FAILED, FINE, SuggestingGroup
from turnlog.cli.options import config_option, json_option
from turnlog.cli.render import Cell, Column, Style, fitted_table, json_line
from turnlog.core.kinds import Effect
from turnlog.core.text.terminal import escape_unprintable
from turnlog.core.text.units import counted, duration_text
from turnlog.packs.errors import ConfigError, SettingError, suggest
from turnlog.packs.examples import check_both, run_examples
from turnlog.packs.explain import (
    MCP,
    Explanation,
    RetryForecast,
    call_arguments,
    explain_call,
)
from turnlog.packs.rulebook import read_rules
from turnlog.packs.shape import UNREADABLE, describe_json_error, is_list, is_mapping
from turnlog.packs.sources import RuleSource, RuleSources, pack_or_file, packs_folder
from turnlog.rules.model import Access, BlockIf
from turnlog.rules.policy import Subject
from turnlog.settings.layers import Flags, read_store_settings

_ASPECTS = tuple(map(Column, ("ASPECT", "RULE", "WHERE", "IN FORCE")))
_RETRIES = tuple(map(Column, ("ERROR", "KIND", "RETRY CLASS", "RETRIED")))
_GATED = (
    "refused if its arguments carry values of a tainted output, or may carry some that were missed"
)
_NEVER_TWICE = (
    "A repeat of a call is found in a session with a name (/s/NAME/..., Turnlog-Session, wrap --session,",
    "a client that names its conversations, Mcp-Session-Id), or by an idempotency key. It is not where",
    "the client has neither, or opens a session for each call: then the log says `session.uncovered`.",
    "",
)
_DURATIONS = frozenset({"base_interval", "max_interval", "budget", "retry_after"})


class ProblemLine(Struct, frozen=True, kw_only=True):
    """One line of `turnlog rules check --json` and `test --json`."""

    file: str
    line: int
    column: int
    message: str


@click.group("rules", cls=SuggestingGroup)
def command() -> None:
    """Check, explain and test rules.

    Rules are read from files and packs in the order in which `turnlog serve` reads them.
    """


@command.command("check")
@click.argument("files", nargs=-1, metavar="[PACK_OR_FILE]...")
@config_option()
@json_option
def check(files: tuple[str, ...], config: str | None, as_json: bool) -> int:
    """List all problems of rules files and of the examples beside them.

    That includes rules that a proxy accepts although they match no call or decide nothing.

    Without files, those of the configuration and the pack `default` are checked. Each problem is
    one line that begins with FILE:LINE:COLUMN; the exit code is 1 if there are any.

    \b
    turnlog rules check mine.yaml
    turnlog rules check --config turnlog.yaml
    """
    sources = _named_sources(files) or _sources(config, ()).each()
    problems = [problem for source in sources for problem in check_both(source)]
    _print_problems(problems, as_json)
    if not problems and not as_json:
        for source in sources:
            click.echo(escape_unprintable(f"{source.shown}: fine"))
    return FAILED if problems else FINE


@command.command("test")
@click.argument("files", nargs=-1, metavar="[PACK_OR_FILE]...")
@config_option()
@json_option
def test(files: tuple[str, ...], config: str | None, as_json: bool) -> int:
    """Run the examples of rules files, NAME.examples.yaml of NAME.yaml.

    Without files, those of the configuration and the pack `default` are tested. Each rule needs an
    example that it matches and one that it does not match. Exit code 1 when an example fails.

    \b
    turnlog rules test mine.yaml
    turnlog rules test default
    """
    tested = [
        run_examples(source, run_sample)
        for source in _named_sources(files) or _sources(config, ()).each()
    ]
    problems = [problem for each in tested for problem in each.problems]
    _print_problems(problems, as_json)
    for each in tested:
        if not each.problems and not as_json:
            hold = "holds" if each.samples == 1 else "hold"
            held = f"{counted(each.samples, 'example')} of {counted(each.rules, 'rule')} {hold}"
            click.echo(escape_unprintable(f"{each.source.shown}: {held}"))
    return FAILED if problems else FINE


@command.command("explain")
@click.argument("server")
@click.argument("tool", required=False, default="")
@click.option("--args", "text", metavar="JSON", default="{}", help="The call's input, an object.")
@click.option("--method", metavar="METHOD", help="HTTP method of a plain HTTP tool's call.")
@click.option("--path", metavar="PATH", default="", help="Its path, which then names the tool.")
@config_option()
@click.option("--rules", multiple=True, metavar="PACK_OR_FILE", help="As in `turnlog serve`.")
@json_option
def explain(
    server: str,
    tool: str,
    text: str,
    method: str | None,
    path: str,
    config: str | None,
    rules: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what the rules decide for a call, by which rule, and what is retried.

    \b
    turnlog rules explain files write_file --args '{"path": "/srv/a.txt"}' --config turnlog.yaml
    turnlog rules explain web --method GET --path /users/17 --rules mine.yaml
    """
    if not tool and not path:
        raise click.UsageError("no tool is named, write TOOL or --path PATH")
    sources = _sources(config, rules)
    _check_server(server, sources)
    method = method or ("GET" if path else MCP)
    call = Subject(server=server, tool=tool, method=method, path=path)
    arguments = call_arguments(method, path, _input(text))
    placed = [one for source in sources.order(server) for one in read_rules(source)]
    try:
        explanation = explain_call(placed, call, arguments)
    except RecursionError:
        raise click.UsageError("--args is nested too deeply, use fewer levels") from None
    for line in [json_line(explanation)] if as_json else _explanation_lines(explanation):
        click.echo(line)


@command.command("schema")
def schema() -> None:
    """Print the JSON Schema of rules files, for editors.

    Save it with `turnlog rules schema > rules.schema.json`. An editor with the YAML language server
    then checks and completes rules files beside it that begin with

    \b
    # yaml-language-server: $schema=rules.schema.json
    """
    click.echo((packs_folder() / "schema.json").read_text("utf-8"), nl=False)


def _named_sources(files: Sequence[str]) -> list[RuleSource]:
    try:
        return [pack_or_file(text, Path.cwd()) for text in files]
    except ValueError as error:
        raise SettingError("PACK_OR_FILE", str(error)) from None


def _sources(config: str | None, rules: tuple[str, ...]) -> RuleSources:
    return read_store_settings(Flags(config=config, rules=rules)).sources()


def _check_server(server: str, sources: RuleSources) -> None:
    if sources.packs and server not in sources.packs:
        advice = suggest(server, sources.packs)
        raise click.UsageError(f"no upstream is called {server!r}, {advice}")


def _input(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except UNREADABLE as error:
        said = describe_json_error(error, text, dict[str, Any], "--args")
        unquoted = not isinstance(error, (msgspec.ValidationError, RecursionError))
        quoting = ", and quote it for the shell" if unquoted else ""
        raise click.UsageError(f"{said}{quoting}") from None


def _print_problems(problems: Iterable[ConfigError], as_json: bool) -> None:
    for error in problems:
        problem = ProblemLine(
            file=error.path, line=error.line, column=error.column, message=error.message
        )
        click.echo(json_line(problem) if as_json else escape_unprintable(str(error)))


def _explanation_lines(explanation: Explanation) -> list[str]:
    """Return the lines that `explain` prints."""
    title = (f"{explanation.server}/{explanation.tool}", explanation.method, explanation.path)
    return [
        escape_unprintable(" ".join(filter(None, title))),
        "",
        *fitted_table(_ASPECTS, _aspects(explanation), width=None),
        "",
        *_outcome(explanation),
    ]


def _outcome(explanation: Explanation) -> list[str]:
    if explanation.aspects["access"].value == Access.DENY:
        # Effect and retries only matter for calls that are sent.
        return [escape_unprintable(f"denied, never sent: {explanation.why}".removesuffix(": "))]
    is_gated = explanation.aspects["block_if"].value == BlockIf.TAINTED
    gate = [_GATED] if is_gated else []
    return [*gate, *_effect(explanation), *_retries(explanation.retries)]


def _aspects(explanation: Explanation) -> list[list[Cell]]:
    return [
        [
            Cell(name),
            Cell(aspect.rule or "no rule", None if aspect.rule else Style.FAINT),
            Cell(f"{aspect.file}:{aspect.line}" if aspect.file else ""),
            Cell(_value_text(name, aspect.value)),
        ]
        for name, aspect in explanation.aspects.items()
    ]


def _effect(explanation: Explanation) -> list[str]:
    effect = explanation.effect
    if explanation.aspects["effect"].rule is not None:
        guarded = effect not in {Effect.READ, Effect.UNKNOWN}
        return [f"effect: {effect}", *(_NEVER_TWICE if guarded else ())]
    if explanation.path:
        return [f"effect: {effect}, by the HTTP method: no rule names it"]
    counts = " It counts as a write." if effect is Effect.UNKNOWN else ""
    return [f"effect: {effect}, unless annotations of a trusted server name one.{counts}"]


def _retries(retries: list[RetryForecast]) -> list[str]:
    if not retries:
        return ["nothing is tried again: no rule mentions retry"]
    rows = [
        [
            Cell(each.error),
            Cell(each.kind),
            Cell(each.retry),
            Cell("yes", Style.GOOD) if each.retried else Cell("no"),
        ]
        for each in retries
    ]
    return [
        "",
        *fitted_table(_RETRIES, rows, width=None),
        "",
        "Before the first byte was sent, each of these but `never` is safe. `unsafe` is retried",
        "only with an idempotency key that the server honours, over HTTP. Once the caller has seen part",
        "of the answer, nothing is retried.",
    ]


def _value_text(name: str, value: Any) -> str:
    """Return a value roughly as a rules file would write it."""
    if name == "timeout":
        limits: dict[str, float] = value
        return ", ".join(f"{key} {duration_text(limit)}" for key, limit in limits.items()) or "-"
    if is_mapping(value):
        return ", ".join(f"{key}: {_item(key, item)}" for key, item in value.items())
    if is_list(value):
        return "; ".join(_value_text("", item) for item in value) or "-"
    return "-" if value is None else str(value)


def _item(key: str, item: Any) -> str:
    if key in _DURATIONS:
        return duration_text(item)
    if is_list(item):
        return f"[{', '.join(map(str, item))}]"
    return f"{item:g}" if isinstance(item, float) else str(item)
