"""The path of a value back through the calls of a session, to where it entered."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from turnlog.core import ids
from turnlog.core.commit import Commit, Lineage
from turnlog.core.hints import Hint
from turnlog.core.kinds import CommitKind, MatchEvidence, ValueOrigin
from turnlog.core.text.terminal import preview
from turnlog.provenance.values import SessionValues, ValueSource
from turnlog.sessions.errors import NotFoundError
from turnlog.sessions.payloads import PayloadState, read_input, read_output
from turnlog.sessions.rows import outcome_of
from turnlog.store.read.view import View

from .inputs import InputOrigin, InputOrigins, input_origins, origin_of, recorded
from .recorded_taint import attempt_of

DEEPEST: Final = 16
"""Calls that are followed one behind the other."""
_MOST: Final = 16
"""Values that are followed from one call."""
_MOST_STEPS: Final = 256
"""Values that are followed in all: ways may part again and again."""
_SHOWN: Final = 80
"""Bytes of a value that are shown."""
_SOURCE: Final = ValueSource(b"", 1)
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class TrailEnd(StrEnum):
    """Why a value is not followed further."""

    ENTERED = "entered"
    """It is in the output of this call, and in none of its inputs."""
    DECLARED = "declared"
    """The runtime declared it."""
    UNVERIFIED = "unverified"
    """It was not seen before in the session."""
    GONE = "gone"
    """What is needed to follow it is no longer kept, or not in this store."""
    TOO_DEEP = "too_deep"
    """It goes on, but only so many calls are followed."""


class TrailStep(Struct, frozen=True, kw_only=True):
    """A value in the input of a call, and where that came from."""

    session: str
    seq: int
    """Of the call's last commit."""
    tool: str
    """`server/tool`."""
    origin: InputOrigin
    source: str | None = None
    """`server/tool` of the call whose output had the value."""
    end: TrailEnd | None = None
    """Why there are no `earlier` steps; `None` if there are."""
    earlier: tuple["TrailStep", ...] = ()
    """The same value in the inputs of the call whose output had it."""


class Trail(Struct, frozen=True, kw_only=True):
    """The paths of all values at one place of an input."""

    session: str
    seq: int
    """Of the call's last commit."""
    pointer: str
    value: str | None
    """The value as recorded, at most 80 bytes; `None` if it is gone."""
    partial: str
    """Why there may be more; empty if there is not."""
    steps: tuple[TrailStep, ...]


class InputPlaces(Struct, frozen=True, kw_only=True):
    """The places of a call's input whose origin is recorded."""

    session: str
    seq: int
    """Of the call's last commit."""
    tool: str
    """`server/tool`."""
    origins: tuple[InputOrigin, ...]
    partial: str
    """Why there may be more; empty if there are not."""


def input_places(view: View, session: bytes, seq: int) -> InputPlaces:
    """Return the places that can be followed in the input of the call with this commit. Raises `NotFoundError`."""
    attempt = _attempt_at(view, session, seq)
    found = input_origins(view, attempt)
    if not found.origins:
        raise NotFoundError(_nothing(_name(attempt), "", attempt, found, _value(view, attempt, "")))
    return InputPlaces(
        session=ids.to_text(attempt[-1].link.session),
        seq=attempt[-1].link.seq,
        tool=_tool(attempt[-1]),
        origins=found.origins,
        partial=found.partial,
    )


def trail(view: View, session: bytes, seq: int, pointer: str) -> Trail:
    """Return where the value at `pointer` in the input of the call with this commit came from.

    Raises `NotFoundError`, which says what to do.
    """
    attempt = _attempt_at(view, session, seq)
    found = input_origins(view, attempt)
    value = _value(view, attempt, pointer)
    chosen = [each for each in found.origins if _is_below(each.pointer, pointer)]
    if not chosen:
        raise NotFoundError(_nothing(_name(attempt), pointer, attempt, found, value))
    lineage, _ = recorded(attempt)
    follower, steps = _Follower(view), list[TrailStep]()
    for below in dict.fromkeys(each.pointer for each in chosen):
        entries = [entry for entry in lineage if entry.pointer == below]
        steps += follower.steps(attempt, entries, _value(view, attempt, below), DEEPEST)
    return Trail(
        session=ids.to_text(session),
        seq=attempt[-1].link.seq,
        pointer=pointer,
        value=None if value is None else preview(_encode(value), _SHOWN),
        partial=found.partial,
        steps=tuple(steps),
    )


def _attempt_at(view: View, session: bytes, seq: int) -> list[Commit]:
    """Return the commits of the attempt that a commit belongs to. Raises `NotFoundError`."""
    commit = view.get(session, seq)
    if commit is None or not commit.facts.call:
        name = f"{ids.to_text(session)}:{seq}"
        said = f"no call has commit {name}" + ("" if commit is None else f" ({commit.facts.kind})")
        raise NotFoundError(said, Hint.CALLS_OF_SESSION, ids.to_text(session))
    return _attempt(view, commit)


def _name(attempt: Sequence[Commit]) -> str:
    link = attempt[-1].link
    return f"{ids.to_text(link.session)}:{link.seq}"


class _Follower:
    """Follows values back from call to call, in all at most `_MOST_STEPS`."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._left = _MOST_STEPS

    def steps(
        self, attempt: Sequence[Commit], entries: Sequence[Lineage], value: object, depth: int
    ) -> Iterator[TrailStep]:
        """Yield where a value came from, by the recorded origins of its place."""
        session, last = attempt[0].link.session, attempt[-1]
        # One value may be found in several ways at once.
        found = {(e.pointer, e.origin, e.call, e.attempt, e.place): e for e in reversed(entries)}
        for entry in list(reversed(found.values()))[:_MOST]:
            self._left -= 1
            step = partial(
                TrailStep,
                session=ids.to_text(last.link.session),
                seq=last.link.seq,
                tool=_tool(last),
                origin=origin_of(self._view, session, entry),
            )
            if entry.origin is not ValueOrigin.SOURCED:
                is_declared = entry.origin is ValueOrigin.DECLARED
                yield step(end=TrailEnd.DECLARED if is_declared else TrailEnd.UNVERIFIED)
                continue
            outcome = outcome_of(self._view, entry.call, entry.attempt)
            if outcome is None:
                yield step(end=TrailEnd.GONE)
                continue
            end, earlier = self._before(outcome, value, depth)
            yield step(source=_tool(outcome), end=end, earlier=earlier)

    def _before(
        self, outcome: Commit, value: object, depth: int
    ) -> tuple[TrailEnd | None, tuple[TrailStep, ...]]:
        """Return the steps before a value in the output of an outcome's call, or why there are none."""
        attempt = _attempt(self._view, outcome)
        given = read_input(self._view, attempt)
        if value is None or given.kept.is_gone or given.kept is PayloadState.NONE:
            return TrailEnd.GONE, ()
        places = _places(given.text.encode(), value)
        if not places:
            return TrailEnd.ENTERED, ()
        if depth == 0 or self._left <= 0:
            return TrailEnd.TOO_DEEP, ()
        entries = [entry for entry in recorded(attempt)[0] if entry.pointer in places]
        # The same text may hold other values, of other outputs.
        of_value = [entry for entry in entries if _had(self._view, entry, value)]
        entries = of_value or [e for e in entries if e.origin is not ValueOrigin.SOURCED]
        earlier = tuple(self.steps(attempt, entries, value, depth - 1))
        return (None, earlier) if earlier else (TrailEnd.GONE, ())


def _had(view: View, entry: Lineage, value: object) -> bool:
    """Return whether the output that an entry names had a value, or may have had it and is gone."""
    if entry.origin is not ValueOrigin.SOURCED:
        return False
    outcome = outcome_of(view, entry.call, entry.attempt)
    if outcome is None:
        return True
    returned = read_output(view, _attempt(view, outcome))
    return returned.kept.is_gone or bool(_places(returned.text.encode(), value))


def _places(content: bytes, value: object) -> set[str]:
    """Return the JSON Pointers at which a content has a value, or what is in it."""
    values = SessionValues()
    values.add(_SOURCE, content)
    found = values.look_up(_encode(value)).lineage
    return {
        e.place
        for e in found
        if e.origin is ValueOrigin.SOURCED and e.evidence is not MatchEvidence.WEAK
    }


def _attempt(view: View, commit: Commit) -> list[Commit]:
    """Return the intent and the outcomes of the attempt that a commit belongs to."""
    facts = commit.facts
    found = attempt_of(view, (facts.call, facts.attempt))
    return [each for each in found if each.facts.leg == facts.leg]


def _tool(commit: Commit) -> str:
    return f"{commit.facts.server}/{commit.facts.tool}"


def _is_below(pointer: str, above: str) -> bool:
    return pointer == above or pointer.startswith(f"{above}/")


def _value(view: View, attempt: Sequence[Commit], pointer: str) -> object:
    """Return the recorded value at a place of an input; `None` if there is none, or it is gone."""
    if pointer and not pointer.startswith("/"):
        return None  # no JSON Pointer
    try:
        value: Any = _decode(read_input(view, attempt).text)
    except (ValueError, RecursionError):
        return None
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get(name)
        elif isinstance(value, list) and name.isascii() and name.isdigit():
            items = cast("Sequence[Any]", value)
            value = items[int(name)] if int(name) < len(items) else None
        else:
            return None
    return value


def _nothing(
    name: str, pointer: str, attempt: Sequence[Commit], found: InputOrigins, value: object
) -> str:
    """Return why nothing is known of a value, and what to do."""
    gone = next((commit.gone for commit in attempt if commit.gone), None)
    if gone is not None:
        return f"the content of {name} is {gone}, and with it where its values came from"
    if attempt[-1].facts.kind is CommitKind.INTENT:
        return (
            f"{name} has no outcome yet, with which that is recorded; ask again when it has ended"
        )
    known = ", ".join(dict.fromkeys(repr(each.pointer) for each in found.origins))
    if value is None:
        has = f"; values are known at {known}" if known else ""
        return f"the recorded input of {name} has nothing at {pointer!r}{has}; write a JSON Pointer, as /path"
    if known:
        return (
            f"the value at {pointer!r} of {name} is too short or too common to be looked for; values are known "
            f"at {known}"
        )
    if found.partial:
        return f"nothing is known of the values of {name}: {found.partial}"
    return (
        f"{name} has no value that is looked for: they are like identifiers, paths, URLs or larger numbers; an "
        "older turnlog, and one with `provenance: {inputs: off}`, records none"
    )
