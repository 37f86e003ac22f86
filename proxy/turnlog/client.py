"""For runtimes: what turnlog says of a call, as types that retry logic can branch on.

    match outcome_of(result):
        case None:
            ...  # the server's own answer
        case Outcome(executed=Executed.NO) | Outcome(retry=Retry.SAFE):
            ...  # make the call again
        case Outcome(executed=Executed.MAYBE):
            ...  # find out first whether it happened

Needs msgspec alone. Nothing here raises: what is no word of turnlog's is no outcome, and a word of a
newer version stays a plain string.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar, cast

import msgspec
from msgspec import Struct

from turnlog.core.kinds import ErrorFamily, ErrorKind, Executed, Phase, Retry, Status

__all__ = [
    "ErrorFamily",
    "ErrorKind",
    "Executed",
    "Outcome",
    "Phase",
    "Retry",
    "Status",
    "outcome_of",
]

KEY: Final = "turnlog/outcome"
_WHERE: Final = ("_meta", "meta", "data")
"""Members that may hold the outcome: of a result as JSON or as an SDK has it, of a JSON-RPC error."""
_W = TypeVar("_W", bound=StrEnum)


class Outcome(Struct, frozen=True, kw_only=True):
    """What turnlog says of a call that it had to answer itself. See docs/reference/outcomes.md."""

    session: str | None
    call: str
    """Id under which `turnlog show` finds the call."""
    tool: str
    attempt: int
    status: Status | str
    error: ErrorFamily | str | None
    kind: ErrorKind | str | None
    retry: Retry | str | None
    retry_after_ms: int | None = None
    """How long the server asked to wait."""
    executed: Executed | str
    phase: Phase | str


def outcome_of(said: object) -> Outcome | None:
    """Return the outcome that an answer carries, `None` for the server's own answer.

    `said` is a tool result or a JSON-RPC error, as JSON or as the objects of either SDK, an
    exception that holds such an error, or the body of a problem (RFC 9457), read or not.
    """
    found = _envelope(said)
    return _outcome(found) if found is not None else None


def _envelope(said: object) -> object:
    if isinstance(said, bytes | bytearray | str):
        try:
            said = msgspec.json.decode(said)
        except (ValueError, RecursionError):
            return None
    inner = _member(said, "error")
    places = [said, *(_member(said, name) for name in _WHERE), _member(inner, "data")]
    for place in places:
        found = _member(place, KEY)
        if isinstance(found, Mapping):
            return cast("object", found)
    return None


def _member(of: object, name: str) -> object:
    try:
        if isinstance(of, Mapping):
            return cast("Mapping[str, object]", of).get(name)
        return getattr(of, name, None)
    except Exception:  # noqa: BLE001 - a foreign object's property may do anything
        return None


def _outcome(said: object) -> Outcome:
    attempt = _member(said, "attempt")
    retry_after = _member(said, "retry_after_ms")
    return Outcome(
        session=_text(_member(said, "session")),
        call=_text(_member(said, "call")) or "",
        tool=_text(_member(said, "tool")) or "",
        attempt=attempt if isinstance(attempt, int) else 1,
        status=_word(Status, _member(said, "status")) or Status.UNKNOWN,
        error=_word(ErrorFamily, _member(said, "error")),
        kind=_word(ErrorKind, _member(said, "kind")),
        retry=_word(Retry, _member(said, "retry")),
        retry_after_ms=retry_after if isinstance(retry_after, int) else None,
        executed=_word(Executed, _member(said, "executed")) or Executed.MAYBE,
        phase=_word(Phase, _member(said, "phase")) or Phase.SENT,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _word(words: type[_W], value: object) -> _W | str | None:
    if not isinstance(value, str):
        return None
    try:
        return words(value)
    except ValueError:
        return value
