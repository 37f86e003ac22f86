"""All mistakes in a file, where a reader stops at the first, and rules that have no effect."""

from collections.abc import Iterator
from typing import Any, Final

from turnlog.core.classify import MEANINGS
from turnlog.core.kinds import RetryClass
from turnlog.rules.compensation import expressions_of
from turnlog.rules.expression import root_member
from turnlog.rules.model import ASPECTS, Match, ProvenanceDemand, Rule, Unmet

from . import shape
from .errors import ConfigError
from .load import Document, read
from .shape import MismatchError, Plain, Step, is_list, is_mapping
from .sources import RuleSource

_METHODS: Final = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}
)

_EMPTY_DEMANDS: Final = tuple(ProvenanceDemand(then=then) for then in (Unmet.SURFACE, Unmet.BLOCK))


class _Numbered(list[Plain]):
    """A list from which items are removed, with the index of each item in the file."""

    def __init__(self, items: list[Plain]) -> None:
        super().__init__(items)
        self.places = list(range(len(items)))

    def drop(self, number: int) -> None:
        """Remove the item that is now at `number`."""
        del self[number], self.places[number]


def file_problems(source: RuleSource, kind: type[Any], wanted: str) -> list[ConfigError]:
    """Return the mistakes in a file of `wanted` that should be a `kind`, from top to bottom."""
    try:
        document = read(source.path, shown=source.shown, wanted=wanted)
    except ConfigError as error:
        return [error]
    return sorted(_mismatches(document, kind), key=lambda error: (error.line, error.column))


def _mismatches(document: Document, kind: type[Any]) -> Iterator[ConfigError]:
    """Yield the first mistake, remove it from the data, and repeat until there is none."""
    data = _numbered(document.data)
    gone: set[tuple[Step, ...]] = set()
    while True:
        try:
            shape.convert(data, kind)
        except MismatchError as error:
            steps = _existing_steps(data, error.steps)
            place = _steps_in_file(data, steps)
            # An entry that is missing because it was removed has been reported.
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


def _existing_steps(data: Plain, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return steps without those into a text, which its reader has made a list of one."""
    for count in range(len(steps)):
        here = shape.value_at(data, steps[:count])
        if not is_mapping(here) and not is_list(here):
            return steps[:count]
    return steps


def _steps_in_file(data: Plain, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return the steps to a value in the file from those in the remaining data."""
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


def unused_rules(document: Document, rules: tuple[Rule, ...]) -> Iterator[ConfigError]:
    """Yield what in the rules of a file can never have an effect. A proxy accepts it."""
    for number, rule in enumerate(rules):
        place: tuple[Step, ...] = ("rules", number)
        yield from _never_matching(document, place, rule.match)
        # A path pattern still names the tool.
        if not rule.match.path and all(getattr(rule, aspect) is None for aspect in ASPECTS):
            message = "this rule decides nothing, add what it is to decide, such as effect: read"
            yield document.error(place, message)
        if rule.why is not None and rule.access is None:
            message = "why says nothing without access, add access: deny or leave it out"
            yield document.error((*place, "why"), message)
        if rule.provenance in _EMPTY_DEMANDS:
            message = "then says nothing without tool, inputs or result, add one or leave it out"
            yield document.error((*place, "provenance", "then"), message)
        yield from _unfilled(document, place, rule)
        for at, cause in enumerate(rule.retry.on if rule.retry else ()):
            if _is_final(cause):
                message = f"{cause!r} is never tried again, whatever the effect: leave it out"
                yield document.error(_item_steps(document, (*place, "retry", "on"), at), message)


def _never_matching(
    document: Document, place: tuple[Step, ...], match: Match
) -> Iterator[ConfigError]:
    for key, texts, complaint in (
        ("when", match.when, _of_when),
        ("path", match.path, _of_path),
        ("method", match.method, _of_method),
    ):
        for at, text in enumerate(texts):
            if message := complaint(text):
                yield document.error(_item_steps(document, (*place, "match", key), at), message)


def _unfilled(document: Document, place: tuple[Step, ...], rule: Rule) -> Iterator[ConfigError]:
    """Yield the expressions of a compensation that have nothing to select from."""
    made = rule.compensate
    templates = (made, made.look) if made else ()
    for text in (text for template in templates if template for text in expressions_of(template)):
        if root_member(text) not in ("", "args", "result"):
            message = f"{text!r} selects from nothing that is recorded: write $.args.NAME or $.result.NAME"
            yield document.error((*place, "compensate"), message)


def _of_when(text: str) -> str:
    if root_member(text) in ("", "args"):
        return ""
    return f"{text!r} does not look at args, all there is before a call is sent: write $.args.NAME"


def _of_path(text: str) -> str:
    return "" if text[0] in "/*" else f"no path is like {text!r}, paths begin with /"


def _of_method(text: str) -> str:
    if text in _METHODS or text.upper() not in _METHODS:
        return ""
    return f"no call has the method {text!r}, write {text.upper()!r}"


def _is_final(cause: str) -> bool:
    """Return whether no error of a family or kind may be retried."""
    of_cause = (m for kind, m in MEANINGS.items() if cause in (kind, m.family))
    return all(meaning.base is RetryClass.NEVER for meaning in of_cause)


def _item_steps(document: Document, steps: tuple[Step, ...], at: int) -> tuple[Step, ...]:
    """Return the steps to an item; a single item may stand in place of its list."""
    return (*steps, at) if is_list(shape.value_at(document.data, steps)) else steps
