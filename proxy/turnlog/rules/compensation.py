"""The call that a rule names to undo an effect, made from the call that had it.

turnlog only proposes it, in the plan of a rewind.
"""

from collections.abc import Iterator
from typing import Any, cast

from .expression import ExpressionInput, select
from .model import CallTemplate


class UnfilledError(Exception):
    """An expression selects nothing in the recorded call. The message says which."""


def filled(template: CallTemplate, values: ExpressionInput) -> dict[str, Any]:
    """Return the arguments of a template's call. Raises `UnfilledError`."""
    return {name: _value(item, values) for name, item in template.args.items()}


def expected_text(expression: str, values: ExpressionInput) -> str:
    """Return the text that a look must give for a compensation to fit. Raises `UnfilledError`."""
    found = _value(expression, values)
    return found if isinstance(found, str) else str(found)


def expressions_of(template: CallTemplate) -> Iterator[str]:
    """Yield the expressions in the arguments of a template."""
    yield from _expressions(template.args)


def _expressions(item: object) -> Iterator[str]:
    match item:
        case str() if item.startswith("$"):
            yield item
        case dict():
            for value in cast("dict[str, object]", item).values():
                yield from _expressions(value)
        case list():
            for value in cast("list[object]", item):
                yield from _expressions(value)
        case _:
            pass


def _value(item: object, values: ExpressionInput) -> Any:
    match item:
        case str() if item.startswith("$"):
            found = select(item, values)
            if not found:
                raise UnfilledError(f"{item} selects nothing in the recorded call")
            return found[0]
        case dict():
            entries = cast("dict[str, object]", item)
            return {name: _value(value, values) for name, value in entries.items()}
        case list():
            return [_value(value, values) for value in cast("list[object]", item)]
        case _:
            return item
