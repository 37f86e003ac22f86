"""Comparison of the answers of two attempts: the class of the difference, and where it is.

Items of arrays are matched by an identifying member if they have one, else by content; texts are
compared by line. The work is bounded: of large answers only the digests are compared.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import zip_longest
from typing import Final, cast

import msgspec
from msgspec import Struct, field

MAX_BYTES: Final = 256 * 1024  # of larger answers only digests are compared
MAX_CHANGES: Final = 50  # listed; further ones are counted
SHOWN_CHARS: Final = 80  # of a value
_MAX_DEPTH: Final = 64
_NAMES: Final = ("id", "key", "name", "path", "uri")
"""Members that identify an item of an array."""
_ABSENT: Final = object()
_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder().decode


class DifferenceClass(StrEnum):
    """The class of a difference between two answers."""

    SAME = "same"
    SAME_MODULO_VOLATILE = "same_modulo_volatile"
    """For a later version."""
    VALUE_CHANGED = "value_changed"
    SHAPE_CHANGED = "shape_changed"
    NULL_TO_VALUE = "null_to_value"
    VALUE_TO_NULL = "value_to_null"
    ERROR_TO_OK = "error_to_ok"
    OK_TO_ERROR = "ok_to_error"
    TRUNCATED = "truncated"
    """Not enough of the answers was recorded to compare them."""


class DifferenceKind(StrEnum):
    """The kind of one difference."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    MOVED = "moved"
    """The same items in another order."""


class ComparedAnswer(Struct, frozen=True, kw_only=True):
    """The recorded answer of an attempt."""

    kind: str = ""
    """Kind of error; empty for none."""
    null: bool = False
    data: bytes = b""
    """Recorded bytes."""
    whole: bool = True
    """Whether `data` is the whole answer."""
    digest: str = ""
    """Digest of the answer as it came; empty for none."""


class AnswerDifference(Struct, frozen=True, kw_only=True):
    """One difference. `path` is a JSON Pointer (RFC 6901)."""

    path: str
    change: DifferenceKind
    before: str = ""
    """The beginning of the earlier value as JSON; of a text the lines that differ."""
    after: str = ""
    line: int | None = None
    """First line that differs in a text of several lines, from 1."""


class Comparison(Struct, frozen=True, kw_only=True):
    """The differences between two answers. `more` is the number of those that are not listed."""

    kind: DifferenceClass = field(name="class")
    changes: tuple[AnswerDifference, ...] = ()
    more: int = 0


class _Step(Struct, frozen=True, kw_only=True):
    """A difference, and whether members or types differ (`shape`)."""

    difference: AnswerDifference
    shape: bool = False


def compare(before: ComparedAnswer, after: ComparedAnswer) -> Comparison:
    """Return the differences between two answers."""
    if kind := _class_of_endings(before, after):
        return Comparison(kind=kind)
    if before.kind != after.kind:
        difference = AnswerDifference(
            path="", change=DifferenceKind.CHANGED, before=before.kind, after=after.kind
        )
        return Comparison(kind=DifferenceClass.VALUE_CHANGED, changes=(difference,))
    if before.digest and before.digest == after.digest:
        return Comparison(kind=DifferenceClass.SAME)
    if not (before.whole and after.whole):
        return Comparison(kind=DifferenceClass.TRUNCATED)
    if before.data == after.data:
        # Only a part that was redacted differs.
        cut = before.digest and after.digest
        return Comparison(kind=DifferenceClass.VALUE_CHANGED if cut else DifferenceClass.SAME)
    if max(len(before.data), len(after.data)) > MAX_BYTES:
        return Comparison(kind=DifferenceClass.VALUE_CHANGED)
    try:
        return _compare_values(_value(before.data), _value(after.data))
    except RecursionError:
        return Comparison(kind=DifferenceClass.VALUE_CHANGED)


def _class_of_endings(before: ComparedAnswer, after: ComparedAnswer) -> DifferenceClass | None:
    """Return the class if an error or a null result already decides it."""
    if bool(before.kind) is not bool(after.kind):
        return DifferenceClass.ERROR_TO_OK if before.kind else DifferenceClass.OK_TO_ERROR
    if before.null is not after.null:
        return DifferenceClass.NULL_TO_VALUE if before.null else DifferenceClass.VALUE_TO_NULL
    return None


def _value(data: bytes) -> object:
    """Return an answer's JSON value, or its text if it is not JSON."""
    try:
        return _decode(data)
    except ValueError:
        return data.decode("utf-8", "replace")


def _compare_values(before: object, after: object) -> Comparison:
    steps = list(_steps("", before, after, 0))
    if not steps:
        return Comparison(kind=DifferenceClass.SAME)
    shape = any(step.shape for step in steps)
    return Comparison(
        kind=DifferenceClass.SHAPE_CHANGED if shape else DifferenceClass.VALUE_CHANGED,
        changes=tuple(step.difference for step in steps[:MAX_CHANGES]),
        more=max(0, len(steps) - MAX_CHANGES),
    )


def _steps(path: str, before: object, after: object, depth: int) -> Iterator[_Step]:
    """Yield the differences between two values at `path`."""
    if before is after or _encode(before) == _encode(after):
        return
    match before, after:
        case dict(), dict() if depth < _MAX_DEPTH:
            left, right = cast("dict[str, object]", before), cast("dict[str, object]", after)
            yield from _members(path, left, right, depth)
        case list(), list() if depth < _MAX_DEPTH:
            yield from _items(
                path, cast("list[object]", before), cast("list[object]", after), depth
            )
        case str(), str():
            yield _Step(difference=_lines(path, before, after))
        case _:
            yield _step(path, before, after, shape=_type(before) != _type(after))


def _members(
    path: str, before: dict[str, object], after: dict[str, object], depth: int
) -> Iterator[_Step]:
    for name in {**before, **after}:
        place = f"{path}/{_token(name)}"
        if name in before and name in after:
            yield from _steps(place, before[name], after[name], depth + 1)
        else:
            old, new = before.get(name, _ABSENT), after.get(name, _ABSENT)
            yield _step(place, old, new, shape=True)


def _items(path: str, before: list[object], after: list[object], depth: int) -> Iterator[_Step]:
    """Yield the differences between two arrays; equal items at both ends are skipped."""
    left, right = list(map(_encode, before)), list(map(_encode, after))
    start = _common_prefix(left, right)
    end = _common_prefix(left[start:][::-1], right[start:][::-1])
    old = dict(enumerate(before[start : len(before) - end], start))
    new = dict(enumerate(after[start : len(after) - end], start))
    named = _pair_by_name(old, new)
    pairs = named if named is not None else _pair_by_content(old, new)
    if all(a is not None and b is not None and left[a] == right[b] for a, b in pairs):
        yield _Step(difference=AnswerDifference(path=path, change=DifferenceKind.MOVED))
    for a, b in pairs:
        if a is not None and b is not None:
            yield from _steps(f"{path}/{b}", old[a], new[b], depth + 1)
        elif b is None:
            yield _step(f"{path}/{a}", old[cast("int", a)], _ABSENT, shape=False)
        else:
            yield _step(f"{path}/{b}", _ABSENT, new[b], shape=False)


_Pairs = list[tuple[int | None, int | None]]


def _pair_by_name(old: dict[int, object], new: dict[int, object]) -> _Pairs | None:
    """Pair items by a member that identifies all of them; `None` if there is none."""
    for name in _NAMES:
        left, right = _index(old, name), _index(new, name)
        if left is not None and right is not None:
            return [(left.get(value), right.get(value)) for value in {**left, **right}]
    return None


def _index(items: dict[int, object], name: str) -> dict[str | int, int] | None:
    found: dict[str | int, int] = {}
    for place, item in items.items():
        value = cast("dict[str, object]", item).get(name) if isinstance(item, dict) else None
        if not isinstance(value, str | int) or value in found:
            return None
        found[value] = place
    return found


def _pair_by_content(old: dict[int, object], new: dict[int, object]) -> _Pairs:
    """Pair equal items first, wherever they are, then the others in order."""
    left, right = ({n: _encode(item) for n, item in items.items()} for items in (old, new))
    spare: dict[bytes, list[int]] = {}
    for place, data in reversed(right.items()):
        spare.setdefault(data, []).append(place)
    common = Counter(left.values()) & Counter(right.values())
    pairs: _Pairs = []
    alone: list[int] = []
    for place, data in left.items():
        if common[data]:
            common[data] -= 1
            pairs.append((place, spare[data].pop()))
        else:
            alone.append(place)
    others = sorted(place for places in spare.values() for place in places)
    return [*pairs, *zip_longest(alone, others)]


def _common_prefix(left: Sequence[object], right: Sequence[object]) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
        min(len(left), len(right)),
    )


def _lines(path: str, before: str, after: str) -> AnswerDifference:
    """Return the lines that differ, between those that are equal at both ends."""
    left, right = before.split("\n"), after.split("\n")
    start = _common_prefix(left, right)
    end = _common_prefix(left[start:][::-1], right[start:][::-1])
    old, new = left[start : len(left) - end], right[start : len(right) - end]
    return AnswerDifference(
        path=path,
        change=DifferenceKind.CHANGED,
        before=_shown("\n".join(old)),
        after=_shown("\n".join(new)),
        line=start + 1 if len(left) > 1 or len(right) > 1 else None,
    )


def _step(path: str, before: object, after: object, *, shape: bool) -> _Step:
    """Return the difference between two values, one of which may be `_ABSENT`."""
    change = DifferenceKind.CHANGED
    if before is _ABSENT or after is _ABSENT:
        change = DifferenceKind.ADDED if before is _ABSENT else DifferenceKind.REMOVED
    difference = AnswerDifference(
        path=path, change=change, before=_shown(before), after=_shown(after)
    )
    return _Step(difference=difference, shape=shape)


def _shown(value: object) -> str:
    text = "" if value is _ABSENT else _encode(value).decode()
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


def _type(value: object) -> str:
    """Return the JSON type of a value; integers and floats are both numbers."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return type(value).__name__


def _token(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
