"""Regular expressions of operators, run by RE2 in time linear in the text."""

# Python's `re` backtracks: 31 characters of tool output were enough for `(a+)+$` to stop the proxy.
# RE2 has no lookaround and no back-references (https://github.com/google/re2/wiki/WhyRE2).

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, cast

import re2  # type: ignore[import-untyped]
from msgspec import Struct

_engine: Final = cast("Any", re2)
_BadPattern: Final = cast("type[Exception]", _engine.error)
_CACHE_SIZE: Final = 1024  # patterns: the rules of a large configuration


class Pattern(Struct, frozen=True):
    """A compiled expression. Texts may hold lone surrogates, as JSON may."""

    _compiled: Any

    def is_in(self, text: str) -> bool:
        """Return whether the expression matches anywhere, also the empty text."""
        return self._compiled.search(to_bytes(text)) is not None

    def is_in_bytes(self, data: bytes) -> bool:
        """Return whether the expression matches anywhere in bytes, which need not be UTF-8."""
        return self._compiled.search(data) is not None

    def has_match(self, text: str) -> bool:
        """Return whether the expression matches at least one character anywhere."""
        return any(match[0] for match in self._compiled.finditer(to_bytes(text)))

    def replaced(self, text: str, by: str) -> str:
        """Return `text` with each match that is not empty replaced."""
        data, other = to_bytes(text), to_bytes(by)

        def replacement(match: Any) -> bytes:
            return other if match[0] else b""

        cut: bytes = self._compiled.sub(replacement, data)
        return text if cut == data else to_text(cut)


@lru_cache(maxsize=_CACHE_SIZE)
def compile_pattern(text: str) -> Pattern:
    """Return a compiled expression. Raises `ValueError` with the reason if it is invalid."""
    options = _engine.Options()
    options.log_errors = False
    try:
        return Pattern(_engine.compile(text, options=options))
    except _BadPattern as error:
        detail = error.args[0]
        said = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
        raise ValueError(said) from error


def to_bytes(text: str) -> bytes:
    """Return a text as UTF-8, with lone surrogates encoded as well."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """Return the text of `to_bytes`; bytes that are not UTF-8 become surrogates."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        # RE2's `\C` matches any byte, and can leave a part of a character.
        return data.decode("utf-8", "surrogateescape")


def any_of(patterns: Iterable[str]) -> Callable[[bytes], object]:
    """Return a search of bytes for any of `patterns`, in any case; its time does not depend on their
    number. It may find too much, never too little."""
    # A set of one pattern is searched faster than the pattern itself.
    together = _engine.Set.SearchSet(_options_for_bytes())
    try:
        together.Add("|".join(patterns).encode())
        together.Compile()
    except _engine.error:
        # Thousands of names: then every text is a candidate.
        return lambda _: True
    search: Callable[[bytes], object] = together.Match
    return search


def find_any(patterns: Iterable[str]) -> Callable[[bytes, int], Any]:
    """Return a search like that of `any_of` that begins at a position and returns a match."""
    try:
        found = _engine.compile("|".join(patterns).encode(), options=_options_for_bytes())
    except _BadPattern:
        return re.compile(b"").search  # thousands of names: anything may be one
    search: Callable[[bytes, int], Any] = found.search
    return search


def _options_for_bytes() -> Any:
    options = _engine.Options()
    options.encoding = options.Encoding.LATIN1
    options.dot_nl = True
    options.never_capture = True
    options.case_sensitive = False
    options.max_mem = 32 << 20
    options.log_errors = False
    return options
