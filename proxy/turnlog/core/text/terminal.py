"""Text made safe for a terminal: escaped, folded to one line, cut to columns."""

import re
import unicodedata
from itertools import accumulate
from typing import Final

_WIDE: Final = frozenset({"W", "F"})
# Control and format characters, surrogates, private and unassigned code points, line separators:
# they steer a terminal, or hide in a review.
_UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# CSI, OSC (with its end) and the other escape sequences of terminals.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*+[ -/]*+[@-~]?|\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)?|\x1b[ -/]*+[0-~]?"
)
_VISIBLE = bytes(byte if 0x20 <= byte < 0x7F else ord("?") for byte in range(256))
"""Translation of ASCII that keeps printable characters alone."""


def display_width(text: str) -> int:
    """Return how many columns of a terminal `text` takes."""
    return len(text) if text.isascii() else sum(map(_width, text))


def fit_columns(text: str, columns: int) -> str:
    """Return `text` cut to a number of columns, with an ellipsis if anything was cut."""
    if display_width(text) <= columns:
        return text
    if columns < 1:
        return ""
    widths = accumulate(map(_width, text), initial=1)  # with that of the ellipsis
    count = next(number for number, used in enumerate(widths) if used > columns)
    return text[: count - 1] + "…"


def escape_unprintable(text: str) -> str:
    """Return `text` with every character that is not printable as a `\\u` escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c) if unicodedata.category(c) in _UNPRINTABLE else c for c in text)


def one_line(text: str) -> str:
    """Return `text` on one line, whitespace folded, without terminal escapes."""
    if "  " not in text and _is_printable(text):
        return text.strip()
    folded = " ".join(text.split())
    if _is_printable(folded):
        return folded
    text = "".join(c if c.isprintable() or c.isspace() else "" for c in _ESCAPES.sub("", text))
    return " ".join(text.split())


def _is_printable(text: str) -> bool:
    if not text.isascii():
        return text.isprintable()
    # The same answer for ASCII in a fifth of the time.
    data = text.encode()
    return data.translate(_VISIBLE) == data


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1


def _escaped(character: str) -> str:
    utf16 = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{utf16[at : at + 4]}" for at in range(0, len(utf16), 4))
