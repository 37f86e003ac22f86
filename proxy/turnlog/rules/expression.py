"""Expressions of rules: JSONPath (RFC 9535) over `{args, result, status}`."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Final

import jsonpath
from jsonpath.segments import JSONPathChildSegment
from jsonpath.selectors import NameSelector
from msgspec import Struct

from turnlog.core.text.units import reads

_ADVICE: Final = "write one like $.args.path"
_CACHE_SIZE: Final = 1024
MAX_SEARCHED_BYTES: Final = 256 * 1024
"""bytes of JSON: in more an expression that searches takes too long while a call waits."""
_ENVIRONMENT: Final = jsonpath.JSONPathEnvironment(strict=True)


UNREADABLE: Final[object] = object()
"""Stands for arguments that nobody here can read, and that a server may read all the same."""
_LIBRARY_ERRORS: Final = (
    jsonpath.JSONPathError,
    RecursionError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
)
"""What the library meets in a value that it cannot deal with."""


class ExpressionInput(Struct, frozen=True, kw_only=True):
    """What an expression may look at: JSON values, `None` where there is none."""

    args: object = None
    result: object = None
    status: int | None = None
    """HTTP status of the answer."""


def read_expression(value: object) -> str:
    """Read an expression. Raises `ValueError` for what is none."""
    if not isinstance(value, str) or not value.startswith("$"):
        raise ValueError(f"{str(value)!r} is no JSONPath, {_ADVICE}")
    try:
        _compiled(value)
    except jsonpath.JSONPathError as error:
        # Only the first argument: to print the error looks for a place that may not be there.
        raise ValueError(f"{value!r} is no JSONPath ({error.args[0]}), {_ADVICE}") from None
    except Exception as error:  # noqa: BLE001 - as it does over numbers too large for it
        raise ValueError(f"{value!r} cannot be read ({error}), {_ADVICE}") from None
    return value


ValuePath = tuple[int | str, ...]
"""Members and places of items from the root down, the first one `args`, `result` or `status`."""
PATTERN: Final = {"pattern": r"^\$"}
Expression = Annotated[str, reads(read_expression, {**PATTERN})]
"""Text that `read_expression` accepted."""


def select(found: str, seen: ExpressionInput) -> list[object]:
    """Return the values that an expression selects; none where it cannot be applied."""
    return [value for _, value in locate(found, seen)]


def locate(found: str, seen: ExpressionInput) -> list[tuple[ValuePath, object]]:
    """Return where each selected value stands, and the value."""
    return try_locate(found, seen) or []


def try_locate(found: str, seen: ExpressionInput) -> list[tuple[ValuePath, object]] | None:
    """Return the same; `None` where the expression cannot be applied, as to what nests too deeply."""
    try:
        return [(match.parts, match.obj) for match in _matches(found, seen)]
    except _LIBRARY_ERRORS:
        return None


def selects_any(found: str, seen: ExpressionInput) -> bool | None:
    """Tell whether an expression selects something; `None` where nobody can tell."""
    try:
        return next(_matches(found, seen), None) is not None
    except _LIBRARY_ERRORS:
        return None


def _matches(found: str, seen: ExpressionInput) -> Iterator[jsonpath.JSONPathMatch]:
    whole = {"args": seen.args, "result": seen.result, "status": seen.status}
    return iter(_compiled(found).finditer(whole))


def is_search(found: str) -> bool:
    """Tell whether an expression may look at every value there is, and not at one place alone."""
    compiled = _compiled(found)
    return not (isinstance(compiled, jsonpath.JSONPath) and compiled.singular_query())


def root_member(found: str) -> str:
    """Return the only member of `{args, result, status}` that an expression begins at; else ''."""
    compiled = _compiled(found)
    first = next(iter(compiled.segments), None) if isinstance(compiled, jsonpath.JSONPath) else None
    if not isinstance(first, JSONPathChildSegment) or len(first.selectors) != 1:
        return ""
    selector = first.selectors[0]
    return selector.name if isinstance(selector, NameSelector) else ""


@lru_cache(maxsize=_CACHE_SIZE)
def _compiled(text: str) -> jsonpath.JSONPath | jsonpath.CompoundJSONPath:
    return _ENVIRONMENT.compile(text)
