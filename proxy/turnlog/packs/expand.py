"""Expansion of `${VARIABLE}` and `${file:PATH}` in the configuration, for secrets kept elsewhere."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

LARGEST: Final = 64 << 10  # bytes of a file
# `$${` is a literal `${`.
_PLACE: Final = re.compile(r"\$(?P<literal>\$\{)|\$\{(?P<name>[^{}]*)(?P<end>\}?)")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Expanded(Struct, frozen=True):
    """An expanded text, and the parts of it that were inserted."""

    text: str
    values: tuple[tuple[int, int], ...] = ()
    """Start and end of each inserted part."""


def has_variables(text: str) -> bool:
    """Return whether a text has anything to expand."""
    return "${" in text


def expand(text: str, environ: Mapping[str, str], read: Callable[[str], bytes]) -> Expanded:
    """Return a text with variables and files inserted; `read` returns the content of a file.

    A line break at the end of a file is dropped. Raises `ValueError`, which names the variable or
    file but never its content.
    """
    made, done = "", 0
    values: list[tuple[int, int]] = []
    for match in _PLACE.finditer(text):
        made += text[done : match.start()]
        done = match.end()
        if match["literal"]:
            made += "${"
            continue
        value = _value(match, environ, read)
        values.append((len(made), len(made) + len(value)))
        made += value
    return Expanded(made + text[done:], tuple(values))


def _value(match: re.Match[str], environ: Mapping[str, str], read: Callable[[str], bytes]) -> str:
    name = match["name"]
    if not match["end"]:
        raise ValueError("'${' is not closed, write ${NAME}, or $${ for the text itself")
    if name.startswith("file:"):
        return _content(name.removeprefix("file:"), read)
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} is no variable, write ${{NAME}} or ${{file:PATH}}")
    if name not in environ:
        raise ValueError(f"the variable {name!r} is not set, set it or leave it out")
    return environ[name]


def _content(path: str, read: Callable[[str], bytes]) -> str:
    try:
        found = read(path)
        text = found.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or "is no text").lower()
        raise ValueError(
            f"the file {path!r} cannot be read ({reason}), name one that can"
        ) from None
    if len(found) > LARGEST:
        raise ValueError(f"the file {path!r} is larger than {LARGEST} bytes, name another one")
    return text.removesuffix("\n").removesuffix("\r")
