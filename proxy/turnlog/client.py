"""For runtimes: turnlog's outcome of a call, as types that retry logic can branch on.

    match outcome_of(result):
        case None | Outcome(retry=None):
            ...  # the server's own answer, possibly replayed from the log
        case Outcome(retry=Retry.SAFE) as outcome:
            ...  # make the call again, after outcome.retry_after seconds unless that is None
        case Outcome(retry=Retry.NEVER):
            ...  # it would fail again
        case Outcome():
            ...  # find out first whether it happened

Needs only msgspec. Nothing here raises: what is not an outcome of turnlog gives `None`, and an
unknown word of a newer version stays a plain string.
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
from turnlog.core.kinds import ErrorFamily, ErrorKind, Executed, Flag, Phase, Status
from turnlog.core.kinds import RetryClass as Retry
from turnlog.core.pins import Provenance

__all__ = [
    "ErrorFamily",
    "ErrorKind",
    "Executed",
    "Flag",
    "Outcome",
    "Phase",
    "Provenance",
    "Retry",
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
"""Members that may hold the outcome, or an object that holds it."""
_TEXTS: Final = ("content", "text", "message", "output", "detail", "result", "error")
"""Members that may hold the text of an answer."""
_MOST_OBJECTS: Final = 256
"""Most objects to search in one answer."""
_SEARCHED: Final = 1 << 20
"""Characters to search at the end of a text."""
_TAIL: Final = re.compile(r"\[turnlog ([a-z_]{1,64})((?: [a-z_]{1,32}=[\w:.-]{1,128}){0,16})\]")
_PREFIX: Final = "turnlog-"
_LARGEST: Final = 1 << 53
_DIGITS: Final = 10
"""Longer numbers are neither attempts nor waits."""
_W = TypeVar("_W", bound=StrEnum)


class Source(StrEnum):
    """Where an outcome was found."""

    STRUCTURED = "structured"
    """In a place that only turnlog fills: it removes what a server writes there."""
    TEXT = "text"
    """In text, which any tool could write; so it may be stricter than the original outcome."""


class Outcome(Struct, frozen=True, kw_only=True):
    """turnlog's outcome of a call; missing members are `None`."""

    session: str | None = None
    call: str = ""
    """The id of the call, for `turnlog show`."""
    tool: str = ""
    attempt: int = 1
    """Number of times that the call was sent so far."""
    status: Status | str | None = None
    error: ErrorFamily | str | None = None
    kind: ErrorKind | str | None = None
    retry: Retry | str | None = None
    retry_after_ms: int | None = None
    """How long the server asked to wait, in ms."""
    executed: Executed | str | None = None
    phase: Phase | str | None = None
    flags: tuple[Flag | str, ...] = ()
    provenance: Provenance | str | None = None
    """What is known of the tool, its server, the inputs and the result: the weakest of these."""
    provenance_reasons: tuple[str, ...] = ()
    """Why it is no better, such as `inputs: /path unverified`; header fields do not say it."""
    commit: str | None = None
    """The commit of the outcome, as `SESSION:SEQ`."""
    source: Source = Source.STRUCTURED

    @property
    def retry_after(self) -> float | None:
        """How long the server asked to wait, in seconds."""
        return None if self.retry_after_ms is None else self.retry_after_ms / 1000


def outcome_of(said: object) -> Outcome | None:
    """Return the outcome in an answer; `None` for the server's own answer.

    `said` is a tool result or a JSON-RPC error, as JSON, as an object of an SDK, or as a framework
    wraps it; an exception with such an error, also as a cause; or the body of an HTTP answer, decoded
    or as bytes.

    From a string alone, even JSON, the outcome is never `safe` and never executed `no`, since any
    tool may write such a string.
    """
    try:
        return _in_text(said) if isinstance(said, str) else _found(_read(said))
    except Exception:  # noqa: BLE001 - a foreign object's property may do anything
        return None


def outcome_of_headers(headers: object) -> Outcome | None:
    """Return the outcome in the headers of an HTTP answer; `None` for a call that was not recorded.

    `headers` is a mapping of any HTTP library, or pairs; names are case-insensitive. The server's
    own answers have the headers too; `status` is `None` when they were sent before the call ended.
    """
    try:
        told = _header_members(headers)
        return _outcome(told) if told.get("call") else None
    except Exception:  # noqa: BLE001 - as above
        return None


def _read(said: object) -> object:
    """Return a body decoded as JSON, else as text."""
    if not isinstance(said, bytes | bytearray):
        return said
    try:
        return cast("object", msgspec.json.decode(said))
    except (ValueError, RecursionError):
        return said.decode("utf-8", "replace")


def _in_text(text: str) -> Outcome | None:
    """Return the outcome in a text, from JSON or the `[turnlog ...]` tail of a sentence."""
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
    """Yield an answer and the objects in it that may hold an outcome, breadth first."""
    waiting, seen = deque([said]), {id(said)}
    while waiting and len(seen) < _MOST_OBJECTS:
        place = waiting.popleft()
        yield place
        for inner in _members_of(place):
            if id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)


def _members_of(place: object) -> Iterator[object]:
    if isinstance(place, str | bytes | int | float):
        return
    if isinstance(place, list | tuple):
        yield from cast("list[object]", place)[:_MOST_OBJECTS]
        return
    if isinstance(place, BaseException):
        yield from _causes(place)
    for name in _PLACES:
        if (inner := _member(place, name)) is not None:
            yield inner


def _causes(error: BaseException) -> Iterator[object]:
    yield from error.args
    # As in a traceback: the explicit cause, else the context.
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
            yield _message_of(place)
        for name in _TEXTS:
            held = _member(place, name)
            blocks = (
                cast("list[object]", held)[:_MOST_OBJECTS] if isinstance(held, list) else [held]
            )
            for block in blocks:
                text = block if isinstance(block, str) else _member(block, "text")
                if isinstance(text, str):
                    yield text


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a foreign `__str__` may do anything
        return ""


def _by_tail(text: str) -> Outcome | None:
    """Return the outcome of the last `[turnlog ...]` tail in a text, unchanged."""
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
    """Return an outcome from text with `safe`, executed `no` and `pinned` removed (decision 66)."""
    known = said.provenance in {None, Provenance.MISMATCH}
    provenance = said.provenance if known else Provenance.UNVERIFIED
    retry = Retry.UNSAFE if said.retry == Retry.SAFE else said.retry
    executed = Executed.MAYBE if said.executed == Executed.NO else said.executed
    return structs.replace(
        said, retry=retry, executed=executed, provenance=provenance, source=Source.TEXT
    )


def _header_members(headers: object) -> dict[str, object]:
    """Return the `Turnlog-*` headers by the names of the envelope; of repeated ones the last."""
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
    """Return the number in a header, if it is one."""
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
        retry=_word(Retry, _member(said, "retry")),
        retry_after_ms=_count(_member(said, "retry_after_ms")),
        executed=_word(Executed, _member(said, "executed")),
        phase=_word(Phase, _member(said, "phase")),
        flags=tuple(_known(Flag, flag) for flag in flags.split(",") if flag),
        provenance=_word(Provenance, _member(said, "provenance")),
        provenance_reasons=_texts_in(_member(said, "provenance_reasons")),
        commit=_text(_member(said, "commit")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _texts_in(value: object) -> tuple[str, ...]:
    held = cast("list[object]", value)[:_MOST_OBJECTS] if isinstance(value, list) else ()
    return tuple(text for text in held if isinstance(text, str))


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
