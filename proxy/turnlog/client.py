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

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Final, TypeVar, cast

import msgspec
from msgspec import Struct, structs

from turnlog.core.classify import MEANINGS
from turnlog.core.kinds import ErrorFamily, ErrorKind, Executed, Flag, Phase, RetryClass, Status

__all__ = [
    "ErrorFamily",
    "ErrorKind",
    "Executed",
    "Flag",
    "Outcome",
    "Phase",
    "RetryClass",
    "Source",
    "Status",
    "outcome_of",
    "outcome_of_headers",
]

KEY: Final = "turnlog/outcome"
_PLACES: Final = (
    *("_meta", "meta"),  # a result, as JSON or as an SDK has it
    *("error", "data", "result"),  # a JSON-RPC error; a whole message; what an SDK raises
    *("metadata", "raw_output", "artifact", "additional_properties"),  # what frameworks wrap it in
)
"""Members that may hold the outcome, or something that does."""
_TEXTS: Final = ("content", "text", "message", "output", "detail", "result", "error")
"""Members that may hold the text of an answer."""
_MOST: Final = 256
"""Objects that are looked at in one answer."""
_SEARCHED: Final = 1 << 20
"""Characters of a text that are looked at, from its end."""
_TAIL: Final = re.compile(r"\[turnlog ([a-z_]{1,64})((?: [a-z_]{1,32}=[\w:.-]{1,128}){0,16})\]")
_PREFIX: Final = "turnlog-"
_LARGEST: Final = 1 << 53
_DIGITS: Final = 10
"""Larger numbers are nobody's attempts or waits, and some of them are no float."""
_W = TypeVar("_W", bound=StrEnum)


class Source(StrEnum):
    """Where an outcome was read."""

    STRUCTURED = "structured"
    """In a place that only turnlog fills, behind a turnlog: what a server writes there is taken out."""
    TEXT = "text"
    """In text, which any tool's output can hold as well: so it may be stricter than what turnlog said."""


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
    retry: RetryClass | str | None = None
    retry_after_ms: int | None = None
    """How long the server asked to wait."""
    executed: Executed | str | None = None
    phase: Phase | str | None = None
    flags: tuple[Flag | str, ...] = ()
    commit: str | None = None
    """Where the outcome stands, as `SESSION:SEQ`."""
    source: Source = Source.STRUCTURED

    @property
    def retry_after(self) -> float | None:
        """How long the server asked to wait, in seconds."""
        return None if self.retry_after_ms is None else self.retry_after_ms / 1000


def outcome_of(said: object) -> Outcome | None:
    """Return the outcome that an answer carries, `None` for the server's own answer.

    `said` is a tool result or a JSON-RPC error, as JSON or as the objects of either SDK, what a
    framework makes of one, an exception that holds such an error or comes from one that does, or
    the body of an HTTP answer: read, or as bytes.

    From a string alone, be it JSON, it is never `safe` and never executed `no`: any tool may write one.
    """
    try:
        return _in_text(said) if isinstance(said, str) else _found(_read(said))
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


def _read(said: object) -> object:
    """Return what a body says: as JSON, else as text."""
    if not isinstance(said, bytes | bytearray):
        return said
    try:
        return cast("object", msgspec.json.decode(said))
    except (ValueError, RecursionError):
        return said.decode("utf-8", "replace")


def _in_text(text: str) -> Outcome | None:
    """Return what a text says, as JSON or by the tail of one of turnlog's sentences."""
    found: Outcome | None = None
    if text.lstrip().startswith(("{", "[{")):
        with suppress(ValueError, RecursionError):
            found = _found(cast("object", msgspec.json.decode(text)))
    found = found or _by_tail(text)
    return _cautious(found) if found is not None else None


def _found(said: object) -> Outcome | None:
    places = list(_places(said))
    for place in places:
        envelope = _member(place, KEY)
        if isinstance(envelope, Mapping):
            return _outcome(cast("object", envelope))
    for text in _texts(places):
        if (found := _in_text(text)) is not None:
            return found
    return None


def _places(said: object) -> Iterator[object]:
    """Yield an answer and what it holds where an outcome may be, what is near first."""
    waiting, seen = deque([said]), {id(said)}
    while waiting and len(seen) < _MOST:
        place = waiting.popleft()
        yield place
        for inner in _within(place):
            if id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)


def _within(place: object) -> Iterator[object]:
    if isinstance(place, str | bytes | int | float):
        return
    if isinstance(place, list | tuple):
        yield from cast("list[object]", place)[:_MOST]
        return
    if isinstance(place, BaseException):
        yield from _behind(place)
    for name in _PLACES:
        if (inner := _member(place, name)) is not None:
            yield inner


def _behind(error: BaseException) -> Iterator[object]:
    yield from error.args
    # As Python tells it: what it was raised from, else what was handled meanwhile.
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        yield before
    if isinstance(error, BaseExceptionGroup):
        yield from cast("BaseExceptionGroup[BaseException]", error).exceptions


def _texts(places: Iterable[object]) -> Iterator[str]:
    for place in places:
        if isinstance(place, str):
            yield place
        elif isinstance(place, BaseException):
            yield _said_by(place)
        for name in _TEXTS:
            held = _member(place, name)
            blocks = cast("list[object]", held)[:_MOST] if isinstance(held, list) else [held]
            for block in blocks:
                text = block if isinstance(block, str) else _member(block, "text")
                if isinstance(text, str):
                    yield text


def _said_by(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a foreign `__str__` may do anything
        return ""


def _by_tail(text: str) -> Outcome | None:
    """Return what the last tail in a text says (docs/reference/outcomes.md), as it says it."""
    tails = list(_TAIL.finditer(text, max(len(text) - _SEARCHED, 0)))
    if not tails:
        return None
    word, members = tails[-1].groups()
    said: dict[str, object] = {**dict(pair.split("=", 1) for pair in members.split())}
    status = _word(Status, word)
    if isinstance(status, Status):
        said["status"] = word
    else:
        said["kind"], said["error"] = word, _family(word)
    return _outcome(said)


def _family(kind: str) -> str | None:
    known = _word(ErrorKind, kind)
    return MEANINGS[known].family if isinstance(known, ErrorKind) else None


def _cautious(said: Outcome) -> Outcome:
    """Return an outcome as far as text can be believed: it never makes a call safe to repeat."""
    retry = RetryClass.UNSAFE if said.retry == RetryClass.SAFE else said.retry
    executed = Executed.MAYBE if said.executed == Executed.NO else said.executed
    return structs.replace(said, retry=retry, executed=executed, source=Source.TEXT)


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
    try:
        if isinstance(of, Mapping):
            return cast("Mapping[str, object]", of).get(name)
        return getattr(of, name, None)
    except Exception:  # noqa: BLE001 - a foreign object's property may do anything
        return None


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
        retry=_word(RetryClass, _member(said, "retry")),
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
