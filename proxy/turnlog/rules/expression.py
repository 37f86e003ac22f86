"""Expressions in rules: JSONPath (RFC 9535) over `{args, result, status}`."""

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
"""Bytes of JSON that an expression may search while a call waits; more takes too long."""
_ENVIRONMENT: Final = jsonpath.JSONPathEnvironment(strict=True)


UNREADABLE: Final[object] = object()
"""Stands for arguments that turnlog cannot read, although the server may."""
_LIBRARY_ERRORS: Final = (
    jsonpath.JSONPathError,
    RecursionError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
)
"""Errors of the library for values that it cannot process."""


class ExpressionInput(Struct, frozen=True, kw_only=True):
    """The JSON values that an expression selects from; `None` for none."""

    args: object = None
    result: object = None
    status: int | None = None
    """HTTP status of the answer."""


def read_expression(value: object) -> str:
    """Return an expression from a configuration. Raises `ValueError` if it is not JSONPath."""
    if not isinstance(value, str) or not value.startswith("$"):
        raise ValueError(f"{str(value)!r} is no JSONPath, {_ADVICE}")
    try:
        _compiled(value)
    except jsonpath.JSONPathError as error:
        # Only the first argument: printing the error fails if it has no position.
        raise ValueError(f"{value!r} is no JSONPath ({error.args[0]}), {_ADVICE}") from None
    except Exception as error:  # noqa: BLE001 - the library raises others, as for huge numbers
        raise ValueError(f"{value!r} cannot be read ({error}), {_ADVICE}") from None
    return value


ValuePath = tuple[int | str, ...]
"""Member names and item indexes from the root down; the first is `args`, `result` or `status`."""
PATTERN: Final = {"pattern": r"^\$"}
Expression = Annotated[str, reads(read_expression, {**PATTERN})]
"""A text that `read_expression` has accepted."""


def select(expression: str, values: ExpressionInput) -> list[object]:
    """Return the values that an expression selects; none if it cannot be applied."""
    return [value for _, value in locate(expression, values) or ()]


def locate(expression: str, values: ExpressionInput) -> list[tuple[ValuePath, object]] | None:
    """Return path and value of each match; `None` if the expression cannot be applied.

    That happens with values that nest too deeply, for example.
    """
    try:
        return [(match.parts, match.obj) for match in _matches(expression, values)]
    except _LIBRARY_ERRORS:
        return None


def selects_any(expression: str, values: ExpressionInput) -> bool | None:
    """Return whether an expression selects anything; `None` if it cannot be applied."""
    try:
        return next(_matches(expression, values), None) is not None
    except _LIBRARY_ERRORS:
        return None


def _matches(expression: str, values: ExpressionInput) -> Iterator[jsonpath.JSONPathMatch]:
    whole = {"args": values.args, "result": values.result, "status": values.status}
    return iter(_compiled(expression).finditer(whole))


def is_search(expression: str) -> bool:
    """Return whether an expression may visit every value, instead of one place."""
    compiled = _compiled(expression)
    return not (isinstance(compiled, jsonpath.JSONPath) and compiled.singular_query())


def root_member(expression: str) -> str:
    """Return the member of `{args, result, status}` that an expression begins with; else ''."""
    compiled = _compiled(expression)
    first = next(iter(compiled.segments), None) if isinstance(compiled, jsonpath.JSONPath) else None
    if not isinstance(first, JSONPathChildSegment) or len(first.selectors) != 1:
        return ""
    selector = first.selectors[0]
    return selector.name if isinstance(selector, NameSelector) else ""


@lru_cache(maxsize=_CACHE_SIZE)
def _compiled(text: str) -> jsonpath.JSONPath | jsonpath.CompoundJSONPath:
    return _ENVIRONMENT.compile(text)
