"""Durations, sizes and times as people write them: `200ms`, `64KiB`, `10m` ago, `2026-11-27`.

A type can name the function that reads its values from plain data: `Annotated[int, reads(size)]`.
`packs.shape` calls it, and adds the place in the file to a `ValueError`.
"""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from typing import Annotated

from msgspec import Meta

Reader = Callable[[object], object]
READER = "read"
"""Key of the reading function in a type's `Meta.extra`."""
READ = "x-read"
"""Key of the JSON Schema of its input: msgspec does not let `extra` replace its own schema."""

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_BYTES = {
    "": 1.0,
    **{unit.replace("i", ""): 1000.0**power for power, unit in enumerate(_BINARY_UNITS)},
    **{unit.upper(): 1024.0**power for power, unit in enumerate(_BINARY_UNITS)},
}
_NUMBER = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)", re.ASCII)
_LARGEST = 2.0**53
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_AGO = re.compile(r"\d+(\.\d+)?\s*[a-z]+", re.ASCII)
_NS = 1_000_000_000
FOREVER = "forever"
"""The age of what is never deleted."""


def reads(reader: Reader, schema: dict[str, object] | None = None) -> Meta:
    """Return the annotation of a type whose values `reader` makes from plain data.

    `schema` describes the input of `reader` in the JSON Schema of the type.
    """
    return Meta(extra={READER: reader}, extra_json_schema={READ: schema} if schema else None)


def duration(value: object) -> float:
    """Return seconds. Raises `ValueError` if `value` is not a duration."""
    return _measure(value, _SECONDS, "write a duration like 200ms, 30s, 2m or 7d")


def age(value: object) -> float:
    """Return seconds, infinite for `forever`. Raises `ValueError` if `value` is not an age."""
    if isinstance(value, str) and value.strip() == FOREVER:
        return math.inf
    try:
        return duration(value)
    except ValueError as error:
        raise ValueError(f"{error}, or {FOREVER}") from None


def size(value: object) -> int:
    """Return bytes. Raises `ValueError` if `value` is not a size."""
    return int(_measure(value, _BYTES, "write a size like 64KiB, 10MiB or 2GiB"))


Duration = Annotated[float, reads(duration, {"type": ["number", "string"]})]
"""Seconds."""
Age = Annotated[float, reads(age, {"type": ["number", "string"]})]
"""Seconds; infinite for `forever`."""
Size = Annotated[int, reads(size, {"type": ["integer", "string"]})]
"""Bytes."""


def duration_text(seconds: float) -> str:
    """Return a duration in the form that `duration` reads: `200ms`, `30s`, `2m`."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    units = [unit for unit in ("d", "h", "m") if seconds % _SECONDS[unit] == 0]
    unit = units[0] if units else "s"
    return f"{seconds / _SECONDS[unit]:g}{unit}"


def human_size(size: int) -> str:
    """Return a size as `512 B` or `12.3 MiB`."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_BINARY_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    number = f"{value:.1f}".removesuffix(".0") if unit else str(size)
    return f"{number} {_BINARY_UNITS[unit]}"


def as_utc(moment: datetime) -> datetime:
    """Return a time without a zone as one in UTC."""
    return moment.replace(tzinfo=UTC)


def parse_moment(
    text: str,
    now: datetime,
    *,
    end: bool = False,
    assume: Callable[[datetime], datetime] = as_utc,
) -> int:
    """Return a point in time as nanoseconds UTC; a duration means that long before `now`.

    With `end`, a date means the end of its day. `assume` gives a zone to a time without one. Raises
    `ValueError` and `OverflowError`.
    """
    if _AGO.fullmatch(text):
        return _nanoseconds(now - timedelta(seconds=duration(text)))
    moment = datetime.fromisoformat(text)
    if end and _DATE.fullmatch(text):
        # Not the beginning and 24 hours: local days may have 23 or 25.
        return _nanoseconds(assume(datetime.combine(moment, time.max))) + 999
    return _nanoseconds(assume(moment) if moment.tzinfo is None else moment)


def timestamp(at: int) -> str:
    """Return nanoseconds UTC in RFC 3339 form with microseconds."""
    whole = datetime.fromtimestamp(at // _NS, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{at // 1000 % 1_000_000:06d}Z"


def _nanoseconds(moment: datetime) -> int:
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * _NS + since.microseconds * 1000


def _measure(value: object, units: dict[str, float], advice: str) -> float:
    # A bool is an int in Python, but not an amount.
    if isinstance(value, int | float) and not isinstance(value, bool):
        number, unit = value, ""
    else:
        number, unit = _split(value, advice)
    scale = units.get(unit, units.get(unit.upper()))
    if scale is None:
        raise ValueError(f"{value!r} has no known unit, {advice}")
    # Written so that NaN fails as well.
    if not 0 <= number <= _LARGEST / scale:
        raise ValueError(f"{value!r} is out of range, {advice}")
    return number * scale


def _split(value: object, advice: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        what = "no value is given" if value is None else f"{str(value)!r} is no amount"
        raise ValueError(f"{what}, {advice}")
    return float(match[1]), match[2]


def counted(number: int, what: str) -> str:
    """Return a number with its noun: `1 rule`, `2 rules`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
