"""For runtimes: what turnlog says of a call, as types that retry logic can branch on.

    match outcome_of(result):
        case None | Outcome(retry=None):
            ...  # the server's own answer, maybe one that came before and is given again
        case Outcome(retry=Retry.SAFE) as outcome:
            ...  # make the call again, after outcome.retry_after seconds where it is not None
        case Outcome(retry=Retry.NEVER):
            ...  # it would fail again
        case Outcome():
            ...  # find out first whether it happened

Needs msgspec alone. Nothing here raises: what is no word of turnlog's is no outcome, and a word of a
newer version stays a plain string.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, TypeVar, cast

import msgspec
from msgspec import Struct

from turnlog.core.kinds import ErrorFamily, ErrorKind, Executed, Flag, Phase, Retry, Status

__all__ = [
    "ErrorFamily",
    "ErrorKind",
    "Executed",
    "Flag",
    "Outcome",
    "Phase",
    "Retry",
    "Status",
    "outcome_of",
    "outcome_of_headers",
]

KEY: Final = "turnlog/outcome"
_WHERE: Final = ("_meta", "meta", "data")
"""Members that may hold the outcome: of a result as JSON or as an SDK has it, of a JSON-RPC error."""
_WITHIN: Final = (("error", "data"), ("result", "_meta"))
"""Members of members that may: of a whole message."""
_PREFIX: Final = "turnlog-"
_LARGEST: Final = 1 << 53
_DIGITS: Final = 10
"""Larger numbers are nobody's attempts or waits, and some of them are no float."""
_W = TypeVar("_W", bound=StrEnum)


class Outcome(Struct, frozen=True, kw_only=True):
    """What turnlog says of a call; what it did not say is `None`. See docs/reference/outcomes.md."""

    session: str | None = None
    call: str = ""
    """Id under which `turnlog show` finds the call."""
    tool: str = ""
    attempt: int = 1
    """How many times the call was sent, so far."""
    status: Status | str | None = None
    error: ErrorFamily | str | None = None
    kind: ErrorKind | str | None = None
    retry: Retry | str | None = None
    retry_after_ms: int | None = None
    """How long the server asked to wait."""
    executed: Executed | str | None = None
    phase: Phase | str | None = None
    flags: tuple[Flag | str, ...] = ()
    commit: str | None = None
    """Where the outcome stands, as `SESSION:SEQ`."""

    @property
    def retry_after(self) -> float | None:
        """How long the server asked to wait, in seconds."""
        return None if self.retry_after_ms is None else self.retry_after_ms / 1000


def outcome_of(said: object) -> Outcome | None:
    """Return the outcome that an answer carries, `None` for the server's own answer.

    `said` is a tool result or a JSON-RPC error, as JSON or as the objects of either SDK, an
    exception that holds such an error, or the body of an HTTP answer, read or not.
    """
    try:
        found = _envelope(said)
        return _outcome(found) if found is not None else None
    except Exception:  # noqa: BLE001 - a foreign object's property may do anything
        return None


def outcome_of_headers(headers: object) -> Outcome | None:
    """Return what the fields of an HTTP answer tell, `None` where it is no answer to a recorded call.

    `headers` is a mapping of any HTTP library, or pairs; the case of names does not matter. The
    server's own answers have them, too: `status` is `None` where the head left before the end.
    """
    try:
        told = _told(headers)
        return _outcome(told) if told.get("call") else None
    except Exception:  # noqa: BLE001 - as above
        return None


def _envelope(said: object) -> object:
    if isinstance(said, bytes | bytearray | str):
        try:
            said = msgspec.json.decode(said)
        except (ValueError, RecursionError):
            return None
    places = [said, *(_member(said, name) for name in _WHERE)]
    places += [_member(_member(said, outer), name) for outer, name in _WITHIN]
    for place in places:
        found = _member(place, KEY)
        if isinstance(found, Mapping):
            return cast("object", found)
    return None


def _told(headers: object) -> dict[str, object]:
    """Return what the fields say, named as in an envelope; of a repeated one the last counts."""
    items = getattr(headers, "items", None)
    said: dict[str, object] = {}
    for name, value in cast("Iterable[tuple[object, object]]", items() if items else headers):
        field, content = _field(name).lower(), _field(value).strip()
        if field.startswith(_PREFIX):
            said[field.removeprefix(_PREFIX)] = content
        elif field == "retry-after" and (seconds := _number(content)) is not None:
            said["retry_after_ms"] = seconds * 1000
    said["attempt"] = _number(_field(said.get("attempts")))
    return said


def _field(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""


def _number(text: str) -> int | None:
    """Return the number that a field holds, if it is one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else None


def _member(of: object, name: str) -> object:
    if isinstance(of, Mapping):
        return cast("Mapping[str, object]", of).get(name)
    return getattr(of, name, None)


def _outcome(said: object) -> Outcome:
    flags = _text(_member(said, "flags")) or ""
    return Outcome(
        session=_text(_member(said, "session")),
        call=_text(_member(said, "call")) or "",
        tool=_text(_member(said, "tool")) or "",
        attempt=_count(_member(said, "attempt")) or 1,
        status=_word(Status, _member(said, "status")),
        error=_word(ErrorFamily, _member(said, "error")),
        kind=_word(ErrorKind, _member(said, "kind")),
        retry=_word(Retry, _member(said, "retry")),
        retry_after_ms=_count(_member(said, "retry_after_ms")),
        executed=_word(Executed, _member(said, "executed")),
        phase=_word(Phase, _member(said, "phase")),
        flags=tuple(_known(Flag, flag) for flag in flags.split(",") if flag),
        commit=_text(_member(said, "commit")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < _LARGEST else None


def _word(words: type[_W], value: object) -> _W | str | None:
    return _known(words, value) if isinstance(value, str) else None


def _known(words: type[_W], value: str) -> _W | str:
    try:
        return words(value)
    except ValueError:
        return value
