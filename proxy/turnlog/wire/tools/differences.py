"""What differs between two definitions of a tool: which parts, and line by line."""

import json
from collections.abc import Iterator
from difflib import unified_diff
from enum import StrEnum
from typing import Final

from .definition import Json, encoded, is_object

_DIFFED: Final = 4_000_000
"""Lines of one side times lines of the other that are compared line by line."""
_CONTEXT: Final = 3


class Part(StrEnum):
    """What of a definition has changed."""

    NAME = "name"
    TITLE = "title"
    DESCRIPTION = "description"
    INPUT_SCHEMA = "inputSchema"
    OUTPUT_SCHEMA = "outputSchema"
    ANNOTATIONS = "annotations"
    OTHER = "other"
    """Members of other names, or all of it where one is no proper JSON."""
    HIDDEN = "hidden"
    """Something that is not kept: a secret, or a part that is too large."""


_PARTS: Final = tuple(part for part in Part if part not in (Part.OTHER, Part.HIDDEN))


def parts_changed(old: Json, new: Json) -> list[Part]:
    """Return which parts of two different definitions differ, as far as they are kept."""
    if not (is_object(old) and is_object(new)):
        return [Part.OTHER if encoded(old) != encoded(new) else Part.HIDDEN]
    names = {name for name in {*old, *new} if _member(old, name) != _member(new, name)}
    known = {str(part) for part in _PARTS}
    parts = [part for part in _PARTS if part in names]
    return parts + ([Part.OTHER] if names - known else []) or [Part.HIDDEN]


def _member(value: dict[str, Json], name: str) -> bytes | None:
    return encoded(value[name]) if name in value else None


def diff(old: Json | None, new: Json | None) -> list[str]:
    """Return a unified diff of two definitions, without heads; `None` for no definition."""
    before = [] if old is None else list(_lines(old))
    after = [] if new is None else list(_lines(new))
    if len(before) * len(after) > _DIFFED:
        # Line by line would take minutes, and a stranger chooses the lines.
        return [*(f"-{line}" for line in before), *(f"+{line}" for line in after)]
    return list(unified_diff(before, after, n=_CONTEXT, lineterm=""))[2:]


def _lines(value: Json) -> Iterator[str]:
    """Yield a definition for people, part by part."""
    if not is_object(value):
        yield from _text_lines(value if isinstance(value, str) else _pretty(value))
        return
    known = [str(part) for part in _PARTS if part in value]
    for name in (*known, *sorted(value.keys() - set(known))):
        part = value[name]
        if isinstance(part, str) and "\n" not in part:
            yield f"{name}: {part}"
        else:
            yield f"{name}:"
            text = part if isinstance(part, str) else _pretty(part)
            yield from (f"  {line}" for line in _text_lines(text))


def _text_lines(text: str) -> list[str]:
    # Not `splitlines`: only what a terminal shows as a line may end one.
    return text.split("\n")


def _pretty(value: Json) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
