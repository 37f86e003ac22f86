"""Write the generated parts of the reference: `python docs/reference/generate.py`.

A part stands between `<!-- generated: WHAT -->` and `<!-- end -->`; WHAT is a command, and the part
its `--help`. `tests/unit/test_reference.py` fails when a part is out of date.
"""

import re
from pathlib import Path

import click

from turnlog.cli.main import turnlog

PAGES = ("cli.md", "configuration.md")
_PART = re.compile(r"(<!-- generated: (turnlog[a-z ]*) -->\n).*?(<!-- end -->)", re.DOTALL)
_WIDTH = 88


def refreshed(page: str) -> str:
    """Return a page with its generated parts as they ought to be."""
    return _PART.sub(lambda part: f"{part[1]}```\n{_help(part[2])}\n```\n{part[3]}", page)


def documented(page: str) -> set[str]:
    """Return the commands whose help a page shows."""
    return {part[2] for part in _PART.finditer(page)}


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


def main() -> None:
    """Rewrite the pages beside this file."""
    for name in PAGES:
        path = Path(__file__).with_name(name)
        path.write_text(refreshed(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
