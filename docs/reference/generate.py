"""Write the generated parts of the reference: `python docs/reference/generate.py`.

A part stands between `<!-- generated: WHAT -->` and `<!-- end -->`; WHAT is a command, and the part
its `--help`, one of the tables of the API and of the agent's tools, or the stages of a session. `rules/schema.json` is made of the types of the rule language, with the docstrings of
their fields. `tests/unit/test_reference.py` fails when any of it is out of date.
"""

import ast
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from turnlog.api.agent_tools import TOOLS
from turnlog.api.endpoints import ENDPOINTS
from turnlog.api.openapi import parameters
from turnlog.cli.main import turnlog
from turnlog.core.lifecycle import TRANSITIONS, SessionStage
from turnlog.core.state.state_view import StateField
from turnlog.core.text.units import READ
from turnlog.rules import model

PAGES = ("agent.md", "api.md", "cli.md", "configuration.md", "sessions.md")
_PART = re.compile(r"(<!-- generated: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WIDTH = 88
SCHEMA = Path(__file__).parents[2] / "rules" / "schema.json"


def refreshed(page: str) -> str:
    """Return a page with its generated parts as they ought to be."""
    return _PART.sub(lambda part: f"{part[1]}{_part(part[2])}{part[3]}", page)


def documented(page: str) -> set[str]:
    """Return the commands whose help a page shows."""
    return {part[2] for part in _PART.finditer(page)}


def _part(what: str) -> str:
    match what:
        case "endpoints":
            return _endpoints()
        case "parameters":
            return _parameters()
        case "tools":
            return _tools()
        case "stages":
            return _stages()
        case _:
            return f"```\n{_help(what)}\n```\n"


def _endpoints() -> str:
    """Return the table of the API's endpoints."""
    lines = ["| endpoint, below `/turnlog/api/v1` | what |", "|---|---|"]
    lines += [f"| `{e.method} {e.path}` | {e.title} |" for e in ENDPOINTS]
    return "\n".join(lines) + "\n"


def _tools() -> str:
    """Return the table of the agent's own tools."""
    lines = ["| tool | arguments | what |", "|---|---|---|"]
    for tool in TOOLS:
        names = ", ".join(f"`{name}`" for name in tool.arguments.__struct_fields__)
        lines.append(f"| `{tool.name}` | {names} | {tool.description} |")
    return "\n".join(lines) + "\n"


def _stages() -> str:
    """Return the diagram of a session's stages, and the table of what changes no stage."""
    moves: dict[tuple[str, str], list[str]] = {}
    stays: dict[str, list[str]] = {}
    for (before, action), after in TRANSITIONS.items():
        if before is after:
            stays.setdefault(before, []).append(action.value)
        else:
            moves.setdefault((before, after), []).append(action.value)
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> open"]
    lines += [f"    {a} --> {b}: {', '.join(names)}" for (a, b), names in moves.items()]
    lines += ["```", "", "| stage | what it also allows |", "|---|---|"]
    lines += [f"| `{stage}` | {', '.join(stays[stage])} |" for stage in SessionStage]
    return "\n".join(lines) + "\n"


def _parameters() -> str:
    """Return the table of the parameters of all endpoints."""
    found: dict[str, list[str]] = {}
    for endpoint in ENDPOINTS:
        for one in parameters(endpoint.query):
            line = f"`{one['name']}` | {_takes(one['schema'])} | {one['description']}"
            found.setdefault(line, []).append(f"`{endpoint.path}`")
    lines = ["| parameter | takes | meaning | of |", "|---|---|---|---|"]
    lines += [f"| {line} | {', '.join(of)} |" for line, of in found.items()]
    return "\n".join(lines) + "\n"


def _takes(schema: dict[str, Any]) -> str:
    """Return in words what a parameter may be, with its default."""
    match schema:
        case {"enum": list(words)} if set(words) == set(StateField):
            takes = "a field of the [state](cli.md#turnlog-state)"
        case {"enum": list(words)} if len(words) > 5:
            takes = "a word of [outcomes](outcomes.md)"
        case {"enum": list(words)}:
            takes = " or ".join(f"`{word}`" for word in words)
        case {"type": "integer", "minimum": least, "maximum": 1000}:
            takes = f"{least} to 1000"
        case {"type": "integer"}:
            takes = "a number"
        case {"type": "boolean"}:
            takes = "`true` or `false`"
        case _:
            takes = "a text"
    default = schema.get("default")
    shown = default if isinstance(default, str) else json.dumps(default)
    return takes if default is None else f"{takes}; `{shown}`"


def _help(command_line: str) -> str:
    """Return what `command_line --help` prints on a terminal of fixed width."""
    command: click.Command = turnlog
    for name in command_line.split()[1:]:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None, f"no command {command_line!r}"
        command = found
    context = click.Context(
        command,
        info_name=command_line,
        terminal_width=_WIDTH,
        help_option_names=["-h", "--help"],
    )
    return command.get_help(context)


def schema() -> str:
    """Return the JSON Schema of a file of rules."""
    made = _as_read(msgspec.json.schema(model.RuleFile))
    texts = dict(_field_texts(ast.parse(Path(model.__file__).read_text("utf-8"))))
    for name, kind in made["$defs"].items():
        properties: dict[str, Any] = kind.get("properties", {})
        for key, value in properties.items():
            text = texts.get((name, key))
            properties[key] = {"description": text, **value} if text else value
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "turnlog rules"}
    return json.dumps(head | made, indent=2) + "\n"


def _as_read(made: Any) -> Any:
    """Return a schema of what readers take, and leave out what helps nobody who writes a file."""
    if isinstance(made, list):
        return [_as_read(item) for item in made if item != {"type": "null"}]
    if not isinstance(made, dict):
        return made
    merged = made | made.get(READ, {})
    kept = {k: _as_read(v) for k, v in merged.items() if k != READ and not _is_noise(k, v)}
    if kept.get("type") == ["string", "array"]:
        many = {"type": "array", **{k: kept.pop(k) for k in ("items", "minItems") if k in kept}}
        del kept["type"]
        return {"anyOf": [many["items"], many], **kept}
    if len(kept.get("anyOf", ())) == 1:
        (only,) = kept.pop("anyOf")
        return kept | only
    return kept


def _is_noise(key: str, value: Any) -> bool:
    nothing = isinstance(value, dict) or value in (None, math.inf, (), [], "")
    return key in ("default", "required") and nothing


def _field_texts(module: ast.Module) -> Iterator[tuple[tuple[str, str], str]]:
    """Return the docstring below each field, by class and field."""
    for kind in module.body:
        if isinstance(kind, ast.ClassDef):
            for field, below in zip(kind.body, kind.body[1:], strict=False):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(text))):
                        yield (kind.name, name), " ".join(text.split())


def main() -> None:
    """Rewrite the pages beside this file, and the schema."""
    SCHEMA.write_text(schema(), "utf-8")
    for name in PAGES:
        path = Path(__file__).with_name(name)
        path.write_text(refreshed(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
