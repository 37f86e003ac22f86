"""The revisions of MCP, by what they change for a proxy."""

import re
from functools import lru_cache

STATELESS_SINCE = "2026-07-28"
"""From this revision on: no handshake, no sessions, and closing the stream is the cancel."""
_LENGTH = 10
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def is_stateless(revision: str) -> bool:
    """Tell whether a revision is 2026-07-28 or later."""
    # Compared first: most are older, and need no search.
    return revision >= STATELESS_SINCE and _DATE.fullmatch(revision) is not None


def dated(revision: str) -> str:
    """Return a revision as it is recorded: a date, as all are; empty for any other text."""
    return revision if len(revision) == _LENGTH and _is_date(revision) else ""


@lru_cache(maxsize=64)
def _is_date(text: str) -> bool:
    return _DATE.fullmatch(text) is not None
