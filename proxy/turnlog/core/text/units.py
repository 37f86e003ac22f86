"""Durations and sizes as people write them: `200ms`, `30s`, `2m`, `7d`; `64KiB`, `10MiB`.

A type may name the function that reads its values from plain data: `Annotated[int, reads(size)]`.
`packs.load` calls it, and gives the `ValueError` of a wrong value the place where it stands.
"""

import re
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta

Reader = Callable[[object], object]
READER = "read"
"""Where `reads` puts the function in a type's `Meta.extra`."""
READ = "x-read"
"""Where it puts what a schema says of what the function takes; msgspec lets none replace its own."""

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_BYTES = {
    "": 1.0,
    "B": 1.0,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KIB": 2.0**10,
    "MIB": 2.0**20,
    "GIB": 2.0**30,
    "TIB": 2.0**40,
}
_NUMBER = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)", re.ASCII)
_LARGEST = 2.0**53


def reads(reader: Reader, schema: dict[str, object] | None = None) -> Meta:
    """Return the annotation of a type whose values `reader` makes from plain data.

    `schema` is what a JSON Schema of the type says of what `reader` takes.
    """
    return Meta(extra={READER: reader}, extra_json_schema={READ: schema} if schema else None)


def duration(value: object) -> float:
    """Return seconds. Raises `ValueError` for what is no duration."""
    return _measure(value, _SECONDS, "write a duration like 200ms, 30s, 2m or 7d")


def size(value: object) -> int:
    """Return bytes. Raises `ValueError` for what is no size."""
    return int(_measure(value, _BYTES, "write a size like 64KiB, 10MiB or 2GiB"))


def duration_text(seconds: float) -> str:
    """Return a duration as `duration` reads it: `200ms`, `30s`, `2m`."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    units = [unit for unit in ("d", "h", "m") if seconds % _SECONDS[unit] == 0]
    unit = units[0] if units else "s"
    return f"{seconds / _SECONDS[unit]:g}{unit}"


Duration = Annotated[float, reads(duration, {"type": ["number", "string"]})]
"""Seconds."""
Size = Annotated[int, reads(size, {"type": ["integer", "string"]})]
"""Bytes."""


def _measure(value: object, units: dict[str, float], advice: str) -> float:
    # A bool is an int to Python, and no amount of anything to a person.
    if isinstance(value, int | float) and not isinstance(value, bool):
        number, unit = value, ""
    else:
        number, unit = _split(value, advice)
    scale = units.get(unit, units.get(unit.upper()))
    if scale is None:
        raise ValueError(f"{value!r} has no known unit, {advice}")
    # Written so that "not a number" fails, too.
    if not 0 <= number <= _LARGEST / scale:
        raise ValueError(f"{value!r} is out of range, {advice}")
    return number * scale


def _split(value: object, advice: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        what = "nothing stands here" if value is None else f"{str(value)!r} is no amount"
        raise ValueError(f"{what}, {advice}")
    return float(match[1]), match[2]
