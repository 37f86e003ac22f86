"""Points in time as text. Pure."""

from datetime import UTC, datetime


def timestamp(at: int) -> str:
    """Return nanoseconds UTC as RFC 3339 with microseconds."""
    whole = datetime.fromtimestamp(at // 1_000_000_000, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{at // 1000 % 1_000_000:06d}Z"
