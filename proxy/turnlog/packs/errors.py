"""Errors in a configuration, and hints for misspelled words."""

# Not in the loader, so that catching an error does not import the YAML parser.

from collections.abc import Iterable
from difflib import get_close_matches


class ConfigError(Exception):
    """A mistake in a file. `line` and `column` count from 1; 0 for a file that cannot be read."""

    def __init__(self, path: str, line: int, column: int, message: str) -> None:
        place = f"{path}:{line}:{column}" if line else path
        super().__init__(f"{place}: {message}")
        self.path = path
        self.line = line
        self.column = column
        self.message = message


class SettingError(Exception):
    """A mistake in a variable or flag. `source` is its name."""

    def __init__(self, source: str, message: str) -> None:
        super().__init__(f"{source}: {message}")
        self.source = source
        self.message = message


def suggest(word: str, known: Iterable[str]) -> str:
    """Return advice what to write instead of `word`: a similar known word, else all known ones."""
    known = sorted(known)
    use = f"use one of: {', '.join(known)}" if known else "remove it"
    return did_you_mean(word, known) or use


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return `did you mean ...?` with the closest word; empty when none is close."""
    close = get_close_matches(word, list(map(str, words)), n=1)
    return f"did you mean {close[0]!r}?" if close else ""
