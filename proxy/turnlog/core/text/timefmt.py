"""Points in time as people write them: `10m` ago, `2026-11-27`, `2026-11-27T12:00:00Z`."""

import re
from datetime import UTC, datetime, timedelta

from .units import duration

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_AGO = re.compile(r"\d+(\.\d+)?\s*[a-z]+", re.ASCII)
_NS = 1_000_000_000


def parse_moment(text: str, now: datetime, *, end: bool = False) -> int:
    """Return ns UTC; a duration is that long ago, and with `end` a date is the end of its day.

    A time without a zone is UTC. Raises `ValueError` and `OverflowError`.
    """
    if _AGO.fullmatch(text):
        return _nanoseconds(now - timedelta(seconds=duration(text)))
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if end and _DATE.fullmatch(text):
        return _nanoseconds(moment) + 86_400 * _NS - 1
    return _nanoseconds(moment)


def _nanoseconds(moment: datetime) -> int:
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * _NS + since.microseconds * 1000
