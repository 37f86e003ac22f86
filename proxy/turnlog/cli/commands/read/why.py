"""`turnlog why`: the way of a value in an input back to where it entered the session."""

from collections.abc import Iterator
from pathlib import Path

import click

from turnlog.cli.attempts import named_commit
from turnlog.cli.options import data_option, json_option, reading
from turnlog.cli.render import json_line
from turnlog.core.text.terminal import escape_unprintable
from turnlog.sessions.lineage.why import (
    InputPlaces,
    Trail,
    TrailEnd,
    TrailStep,
    input_places,
    trail,
)

from .show import origin_texts

_ENDS = {
    TrailEnd.ENTERED: "it entered here: no input of this call has it",
    TrailEnd.GONE: "that call's input, or where its values came from, is no longer kept",
    TrailEnd.TOO_DEEP: "it goes on; ask again from here",
}
"""What is said of an end that the line before does not say itself."""


@click.command("why")
@click.argument("commit", metavar="SESSION:SEQ")
@click.argument("pointer", required=False)
@data_option
@json_option
def command(commit: str, pointer: str | None, data: Path, as_json: bool) -> None:
    """Show which calls a value in an input came from.

    SEQ is any commit of the call. POINTER is the JSON Pointer of the value in its input, like /path or
    /edits/0/text; without it, the pointers that are known are listed. The value is followed from call to
    call, through their outputs and inputs, to where it entered the session: an output of a tool,
    a text that the runtime declared, or this call itself (unverified).
    """
    with reading(data) as (view, write):
        named = named_commit(view, commit)
        found = input_places(view, *named) if pointer is None else trail(view, *named, pointer)
        lines = _listed(found) if isinstance(found, InputPlaces) else _text(found)
        write(json_line(found) if as_json else "\n".join(lines))


def _listed(found: InputPlaces) -> Iterator[str]:
    yield escape_unprintable(f"{found.session}:{found.seq} {found.tool}")
    yield from map(escape_unprintable, origin_texts(found.origins))
    if found.partial:
        yield escape_unprintable(f"partial: {found.partial}")


def _text(found: Trail) -> Iterator[str]:
    value = "" if found.value is None else f" {found.value}"
    yield escape_unprintable(f"{found.session}:{found.seq} {found.pointer}{value}")
    yield from _steps(found.steps, "")
    if found.partial:
        yield escape_unprintable(f"partial: {found.partial}")


def _steps(steps: tuple[TrailStep, ...], indent: str) -> Iterator[str]:
    texts = origin_texts([step.origin for step in steps])
    for number, (step, text) in enumerate(zip(steps, texts, strict=True), 1):
        is_last = number == len(steps)
        tool = f", output of {step.source}" if step.source else ""
        yield escape_unprintable(f"{indent}{'└─' if is_last else '├─'} {text}{tool}")
        below = indent + ("   " if is_last else "│  ")
        if step.end is not None and step.end in _ENDS:
            yield f"{below}└─ {_ENDS[step.end]}"
        yield from _steps(step.earlier, below)
