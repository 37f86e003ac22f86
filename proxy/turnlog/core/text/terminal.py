"""Text made safe for a terminal and cut to its columns."""

import unicodedata
from typing import Final

_WIDE: Final = frozenset({"W", "F"})
# Control and format characters, surrogates, private and unassigned code points, line separators:
# they steer a terminal, or hide in a review.
_UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def display_width(text: str) -> int:
    """Return how many columns of a terminal `text` takes."""
    return len(text) if text.isascii() else sum(map(_width, text))


def fit_columns(text: str, columns: int) -> str:
    """Return `text` cut to a number of columns, with an ellipsis if anything was cut."""
    if display_width(text) <= columns:
        return text
    if columns < 1:
        return ""
    kept: list[str] = []
    used = 1
    for character in text:
        used += _width(character)
        if used > columns:
            break
        kept.append(character)
    return "".join(kept) + "…"


def escape_unprintable(text: str) -> str:
    """Return `text` with every character that is not printable as a `\\u` escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c) if unicodedata.category(c) in _UNPRINTABLE else c for c in text)


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1


def _escaped(character: str) -> str:
    utf16 = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{utf16[at : at + 4]}" for at in range(0, len(utf16), 4))
