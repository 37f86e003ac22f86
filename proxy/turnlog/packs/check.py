"""Find everything that is wrong with a file, where a reader stops at the first thing."""

from collections.abc import Iterator
from typing import Any

from . import shape
from .errors import ConfigError
from .load import Document, read
from .plain import Plain
from .shape import MismatchError, Step, is_list, is_mapping
from .sources import RuleSource


class _Numbered(list[Plain]):
    """A list that loses items, with the place that each one had in the file."""

    def __init__(self, items: list[Plain]) -> None:
        super().__init__(items)
        self.places = list(range(len(items)))

    def drop(self, number: int) -> None:
        """Take out what now is at `number`."""
        del self[number], self.places[number]


def file_problems(source: RuleSource, kind: type[Any], wanted: str) -> list[ConfigError]:
    """Return what is wrong with a file of `wanted` that should be a `kind`, from top to bottom."""
    try:
        document = read(source.path, shown=source.shown, wanted=wanted)
    except ConfigError as error:
        return [error]
    return sorted(_mismatches(document, kind), key=lambda error: (error.line, error.column))


def _mismatches(document: Document, kind: type[Any]) -> Iterator[ConfigError]:
    """Say what the first mismatch is, take it out, and look again until there is none."""
    data = _numbered(document.data)
    gone: set[tuple[Step, ...]] = set()
    while True:
        try:
            shape.convert(data, kind)
        except MismatchError as error:
            steps = _there(data, error.steps)
            place = _in_file(data, steps)
            # What is missing because it was wrong, and so was taken out, has been said.
            if error.missing is None or (*place, error.missing) not in gone:
                message = error.message.replace(
                    shape.dotted_path(error.steps), shape.dotted_path(place), 1
                )
                yield document.error(place, message, error.key)
            key = () if error.key is None else (error.key,)
            if not (wrong := (*steps, *key)):
                return
            gone.add((*place, *key))
            _drop(data, wrong)
        else:
            return


def _numbered(data: Plain) -> Plain:
    if is_mapping(data):
        return {key: _numbered(value) for key, value in data.items()}
    return _Numbered([_numbered(item) for item in data]) if is_list(data) else data


def _there(data: Plain, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Cut steps that lead into a text: where one stands for a list of one, its reader made that."""
    for count in range(len(steps)):
        here = shape.value_at(data, steps[:count])
        if not is_mapping(here) and not is_list(here):
            return steps[:count]
    return steps


def _in_file(data: Plain, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return the steps to a value in the file, of those to it in what is left."""
    found: tuple[Step, ...] = ()
    for step in steps:
        here = data.places[step] if isinstance(data, _Numbered) and isinstance(step, int) else step
        found = (*found, here)
        data = shape.value_at(data, (step,))
    return found


def _drop(data: Plain, steps: tuple[Step, ...]) -> None:
    *way, last = steps
    holder = shape.value_at(data, tuple(way))
    if is_mapping(holder):
        del holder[last]
    elif isinstance(holder, _Numbered) and isinstance(last, int):
        holder.drop(last)
