"""`turnlog rules`: check, explain and test files of rules, without a proxy."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import Struct

from turnlog.cli.failures import FAILED, FINE
from turnlog.cli.options import json_option
from turnlog.cli.render import counted, json_line
from turnlog.core.text.terminal import escape_unprintable
from turnlog.packs.errors import ConfigError, SettingError

if TYPE_CHECKING:
    from turnlog.packs.explain import ExplainedCall
    from turnlog.packs.sources import RuleSource, RuleSources

_config_option = click.option(
    "--config", metavar="FILE", help="A YAML file of settings.  [env: TURNLOG_CONFIG]"
)


class _Problem(Struct, frozen=True, kw_only=True):
    """One line of `--json`."""

    file: str
    line: int
    column: int
    message: str


@click.group("rules")
def command() -> None:
    """Check, explain and test rules.

    Rules are read from files and packs in the order in which `turnlog serve` reads them.
    """


@command.command("check")
@click.argument("files", nargs=-1, metavar="[PACK_OR_FILE]...")
@_config_option
@json_option
def check(files: tuple[str, ...], config: str | None, as_json: bool) -> int:
    """Tell all that is wrong with files of rules, and with the examples beside them.

    That includes what a proxy takes although it can match no call or decide nothing.

    Without files: those that the configuration names, and the pack `default`. Each problem is one
    line, FILE:LINE:COLUMN first; then the exit code is 1.

    \b
    turnlog rules check mine.yaml
    turnlog rules check --config turnlog.yaml
    """
    from turnlog.packs.examples import check_both

    sources = _named(files) or _sources(config, ()).each()
    problems = [problem for source in sources for problem in check_both(source)]
    _tell(problems, as_json)
    if not problems and not as_json:
        for source in sources:
            click.echo(escape_unprintable(f"{source.shown}: fine"))
    return FAILED if problems else FINE


@command.command("test")
@click.argument("files", nargs=-1, metavar="[PACK_OR_FILE]...")
@_config_option
@json_option
def test(files: tuple[str, ...], config: str | None, as_json: bool) -> int:
    """Run the examples that stand beside files of rules: NAME.examples.yaml beside NAME.yaml.

    Without files: those that the configuration names, and the pack `default`. Each rule needs an
    example for which it fires and one for which it is silent. Exit code 1 when something fails.

    \b
    turnlog rules test mine.yaml
    turnlog rules test default
    """
    from turnlog.app.trial import tried
    from turnlog.packs.examples import run_examples

    tested = [
        run_examples(source, tried) for source in _named(files) or _sources(config, ()).each()
    ]
    problems = [problem for each in tested for problem in each.problems]
    _tell(problems, as_json)
    for each in tested:
        if not each.problems and not as_json:
            hold = "holds" if each.samples == 1 else "hold"
            held = f"{counted(each.samples, 'example')} of {counted(each.rules, 'rule')} {hold}"
            summary = f"{each.source.shown}: {held}"
            click.echo(escape_unprintable(summary))
    return FAILED if problems else FINE


@command.command("explain")
@click.argument("server")
@click.argument("tool", required=False, default="")
@click.option("--args", "text", metavar="JSON", default="{}", help="The call's input, an object.")
@click.option("--method", metavar="METHOD", help="HTTP method of a plain HTTP tool's call.")
@click.option("--path", metavar="PATH", default="", help="Its path, which then names the tool.")
@_config_option
@click.option("--rules", multiple=True, metavar="PACK_OR_FILE", help="As in `turnlog serve`.")
@json_option
def explain(
    server: str,
    text: str,
    config: str | None,
    rules: tuple[str, ...],
    as_json: bool,
    **asked: Any,
) -> None:
    """Tell what the rules come to for a call: which rule decided what, and what is retried.

    \b
    turnlog rules explain files write_file --args '{"path": "/srv/a.txt"}' --config turnlog.yaml
    turnlog rules explain web --method GET --path /users/17 --rules mine.yaml
    """
    from turnlog.cli.explaining import lines
    from turnlog.packs.explain import explain_call
    from turnlog.packs.rulebook import read_rules

    if not asked["tool"] and not asked["path"]:
        raise click.UsageError("no tool is named, write TOOL or --path PATH")
    sources = _sources(config, rules)
    _refuse_stranger(server, sources)
    call = _asked(server, _input(text), **asked)
    placed = [one for source in sources.order(server) for one in read_rules(source)]
    try:
        explanation = explain_call(placed, call)
    except RecursionError:
        raise _too_deep() from None
    for line in [json_line(explanation)] if as_json else lines(explanation):
        click.echo(line)


@command.command("schema")
def schema() -> None:
    """Print the JSON Schema of a file of rules, for editors.

    An editor that knows the YAML language server checks and completes a file that begins with

    \b
    # yaml-language-server: $schema=rules.schema.json

    once `turnlog rules schema > rules.schema.json` has written that file beside it.
    """
    from turnlog.packs.find import packs_folder

    click.echo((packs_folder() / "schema.json").read_text("utf-8"), nl=False)


def _named(files: Sequence[str]) -> list["RuleSource"]:
    from turnlog.packs.sources import pack_or_file

    try:
        return [pack_or_file(text, Path.cwd()) for text in files]
    except ValueError as error:
        raise SettingError("PACK_OR_FILE", str(error)) from None


def _sources(config: str | None, rules: tuple[str, ...]) -> "RuleSources":
    from turnlog.settings.layers import Flags, read_store_settings

    return read_store_settings(Flags(config=config, rules=rules)).sources()


def _refuse_stranger(server: str, sources: "RuleSources") -> None:
    from turnlog.packs.shape import suggest

    if sources.packs and server not in sources.packs:
        advice = suggest(server, sources.packs)
        raise click.UsageError(f"no upstream is called {server!r}, {advice}")


def _input(text: str) -> dict[str, Any]:
    from turnlog.packs.shape import UNREADABLE, describe_json_error

    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except UNREADABLE as error:
        said = describe_json_error(error, text, dict[str, Any], "--args")
        unquoted = not isinstance(error, (msgspec.ValidationError, RecursionError))
        quoting = ", and quote it for the shell" if unquoted else ""
        raise click.UsageError(f"{said}{quoting}") from None


def _too_deep() -> click.UsageError:
    return click.UsageError("--args is nested too deeply, use fewer levels")


def _asked(
    server: str, given: dict[str, Any], *, tool: str, method: str | None, path: str
) -> "ExplainedCall":
    from turnlog.packs.explain import ExplainedCall
    from turnlog.packs.subject import MCP, call_arguments

    method = method or ("GET" if path else MCP)
    return ExplainedCall(
        server=server,
        tool=tool,
        method=method,
        path=path,
        arguments=call_arguments(method, path, given),
    )


def _tell(problems: Iterable[ConfigError], as_json: bool) -> None:
    for error in problems:
        problem = _Problem(
            file=error.path, line=error.line, column=error.column, message=error.message
        )
        click.echo(json_line(problem) if as_json else escape_unprintable(str(error)))
