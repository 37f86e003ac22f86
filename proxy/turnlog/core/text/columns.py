"""How many columns of a terminal a text takes, and the part of it that fits."""

import unicodedata
from typing import Final

_WIDE: Final = frozenset({"W", "F"})


def display_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def fit_columns(text: str, columns: int) -> str:
    """Return the beginning of `text` that fits in so many columns, ending in an ellipsis if cut."""
    if display_width(text) <= columns:
        return text
    if columns < 1:
        return ""
    kept: list[str] = []
    used = 1
    for character in text:
        used += _columns(character)
        if used > columns:
            break
        kept.append(character)
    return "".join(kept) + "…"


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1
