"""The types of the API's parameters, and their conversion to queries of the log."""

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta, Struct

from turnlog.core.kinds import ErrorFamily, ErrorKind, Flag
from turnlog.core.live_view import AfterDivergence, ForkMode
from turnlog.core.note import LONGEST_WHY, TEXT_CHARS, EffectChoice
from turnlog.core.state.state_view import StateField
from turnlog.core.text.units import parse_moment
from turnlog.rules.model import TaintAction
from turnlog.sessions.log import Query, TurnRange, only_session, parse_turns
from turnlog.sessions.pages import Order
from turnlog.sessions.transfer.resume import LAST
from turnlog.store.base import Filter
from turnlog.store.read.view import View

T = TypeVar("T")

_MOST: Final = 10**18
_LONGEST: Final = 1000
_TEXTS: Final = ("tool", "server", "error", "kind", "flag", "input", "trace", "field", "path")
"""Parameters of a log that narrow it by a text; as in `Filter`."""
_TIME: Final = "write 10m, 2026-11-27 or 2026-11-27T12:00:00Z"


def _text(description: str, most: int = _LONGEST) -> Meta:
    """Return the constraints of a text that is not empty."""
    return Meta(min_length=1, max_length=most, description=description)


def _seq(description: str) -> Meta:
    """Return the constraints of a commit's number."""
    return Meta(ge=0, le=_MOST, description=description)


Limit = Annotated[int, Meta(ge=1, le=1000, description="How many at most.")]
Cursor = Annotated[int, _seq("`next` of the page before.")]
After = Annotated[int, _seq("Attempts after this commit.")]
Before = Annotated[int, _seq("Attempts before this commit.")]
Around = Annotated[int, _seq("What surrounds this commit.")]
CommitSeq = Annotated[int, _seq("A commit of the call whose input has the value.")]
Pointer = Annotated[
    str, Meta(max_length=_LONGEST, description="JSON Pointer of the value in that input: `/path`.")
]
Range = Annotated[str, _text("`3..7`, `-5..` (the last five) or `4`.", 40)]
Tool = Annotated[str, _text("A glob; with a `/` or a `.` in it also SERVER/TOOL or SERVER.TOOL.")]
Server = Annotated[str, _text("One upstream, or a glob.")]
Path = Annotated[str, _text("A glob: attempts that changed a file whose name matches.")]
FieldName = Annotated[StateField, Meta(description="A field of the state, or what changed it.")]
At = Annotated[int, _seq("After this commit; else the newest state.")]
Turn = Annotated[
    int, Meta(ge=-_MOST, le=_MOST, description="At the end of this turn; -1 is the newest.")
]
Seqs = Annotated[str, _text("From the state after commit A to B: `A..B`.", 40)]
Other = Annotated[str, _text("Against this session's newest state.")]
NoteId = Annotated[str, _text("A note with this id is written once.", 512)]
Head = Annotated[
    int, _seq("The newest commit that you have seen: needed where a fact is known already.")
]
Asking = Annotated[str, _text("Attempts whose recorded input holds this text, in any case.")]
Trace = Annotated[str, _text("Attempts of this trace.")]
All = Annotated[bool, Meta(description="Also what rewinds have discarded.")]
Payloads = Annotated[bool, Meta(description="With what went in and came out, as text.")]
Family = Annotated[ErrorFamily, Meta(description="Attempts that failed like this.")]
Kind = Annotated[ErrorKind, Meta(description="Attempts of this error kind.")]
Mark = Annotated[Flag, Meta(description="Attempts that carry the flag.")]
Since = Annotated[str, _text("From: `10m` ago, a date, or RFC 3339.", 40)]
Until = Annotated[str, _text("Up to and including: as `since`.", 40)]
Fence = Annotated[int, _seq("Number of the lease you hold.")]
Reason = Annotated[str, Meta(max_length=LONGEST_WHY, description="The reason; kept.")]
Why = Annotated[str, Meta(max_length=LONGEST_WHY, description="What the verdict rests on.")]


class BadParameterError(Exception):
    """A parameter cannot be used. The message says what to write."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class NoQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class ListQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of lists."""

    limit: Limit = 50
    cursor: Cursor | None = None


class DanglingQuery(ListQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of lists of calls without an answer."""

    since: Since | None = None
    all: All = False


class LogQuery(ListQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of logs."""

    order: Annotated[Order, Meta(description="Which end comes on the first page.")] = Order.NEWEST
    after: After | None = None
    before: Before | None = None
    around: Around | None = None
    turns: Range | None = None
    tool: Tool | None = None
    server: Server | None = None
    error: Family | None = None
    kind: Kind | None = None
    flag: Mark | None = None
    field: FieldName | None = None
    path: Path | None = None
    input: Asking | None = None
    trace: Trace | None = None
    since: Since | None = None
    until: Until | None = None
    all: All = False


class FullLogQuery(LogQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of logs that may include payloads."""

    payloads: Payloads = False


class CallQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of one call."""

    payloads: Payloads = False


class WhyQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of where a value came from."""

    seq: CommitSeq
    pointer: Pointer


class StateQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a state."""

    at: At | None = None
    turn: Turn | None = None
    field: FieldName | None = None
    all: All = False


class ResumeQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a resumption."""

    limit: Limit = LAST
    """Of its newest attempts."""


class DiffArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `diff`: at most one range; none means the whole session."""

    turns: Range | None = None
    seq: Seqs | None = None
    all: All = False


class DiffQuery(DiffArguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a difference: at most one range or session."""

    other: Other | None = None


class NoteQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a note."""

    id: NoteId | None = None
    head: Head | None = None


class Verdict(StrEnum):
    """Whether a call happened, according to an operator."""

    HAPPENED = "happened"
    DID_NOT = "did_not"


class Resolution(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operator's verdict on a call of unknown outcome."""

    verdict: Verdict
    why: Why = ""
    fence: Fence | None = None


class EffectRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A choice about the effect of a discarded call."""

    choice: EffectChoice
    session: Annotated[str, Meta(max_length=_LONGEST, description="The branch it is for.")] = ""
    why: Annotated[str, Meta(max_length=TEXT_CHARS, description="The reason; kept.")] = ""
    fence: Fence | None = None


class ForkRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fork of a session."""

    seq: Annotated[int, _seq("The commit to fork at; else the newest.")] | None = None
    name: Annotated[str, Meta(max_length=_LONGEST, description="A name for the fork.")] = ""
    mode: ForkMode = ForkMode.LIVE
    then: AfterDivergence = AfterDivergence.STOP
    fence: Fence | None = None


class RewindRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rewind: to a commit, or to the end of a turn. Without `expect` it is only planned."""

    seq: Annotated[int, _seq("The commit to go back to.")] | None = None
    turn: Turn | None = None
    keep: Annotated[list[Annotated[int, _seq("")]], Meta(max_length=1000)] = []
    """Commits of calls that are to stay in the view."""
    expect: Annotated[int, _seq("The head that the plan named.")] | None = None
    fence: Fence | None = None
    why: Why = ""


class HoldRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hold on a session's content, or the end of one."""

    why: Reason = ""
    fence: Fence | None = None


class TaintQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a contamination."""

    to: Annotated[int, _seq("Only what leads to the call of this commit.")] | None = None
    until: Annotated[int, _seq("The newest commit to look at.")] | None = None


class TaintRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mark or an endorsement of an output."""

    seq: Annotated[int, _seq("A commit of the call whose output it is.")]
    action: TaintAction
    why: Annotated[str, Meta(min_length=1, max_length=LONGEST_WHY, description="The reason; kept.")]


class PurgeRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A purge of a session. Without `yes` it is only planned."""

    yes: bool = False
    expect: Annotated[int, _seq("The head that the plan named.")] | None = None
    fence: Fence | None = None
    why: Reason = ""


class GcRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A deletion of what has outlived its retention. Without `yes` it is only listed."""

    yes: bool = False


def moment(name: str, text: str | None, now: int, *, end: bool = False) -> int | None:
    """Return ns UTC; `now` is in ns. Raises `BadParameterError`."""
    if text is None:
        return None
    try:
        return parse_moment(text, datetime.fromtimestamp(now / 1e9, UTC), end=end)
    except (ValueError, OverflowError):
        raise BadParameterError(name, f"{text!r} is no time, {_TIME}") from None


def log_query(view: View, session: bytes | None, query: LogQuery, now: int) -> Query:
    """Return the query of the log. Raises `BadParameterError`."""
    since, until = moment("since", query.since, now), moment("until", query.until, now, end=True)
    if since is not None and until is not None and since > until:
        raise BadParameterError("since", "it lies after until, exchange them")
    texts: dict[str, Any] = {name: getattr(query, name) or "" for name in _TEXTS}
    match = Filter(after=query.after, before=query.before, since=since, until=until, **texts)
    return Query(
        session=_session(view, session, query),
        last=query.limit,
        around=_around(query),
        turns=read_text("turns", parse_turns, query.turns) or TurnRange(),
        with_discarded=query.all,
        match=match,
    )


def _session(view: View, session: bytes | None, query: LogQuery) -> bytes | None:
    """Return the session of a query; if a parameter needs one, the only session in the store."""
    given = {
        "after": query.after, "before": query.before, "around": query.around, "turns": query.turns
    }  # fmt: skip
    needy = [name for name, value in given.items() if value is not None]
    if session is not None or not needy:
        return session
    session = only_session(view)
    if session is None:
        raise BadParameterError(needy[0], "it needs a session: /sessions/{session}/log")
    return session


def _around(query: LogQuery) -> int | None:
    others = (query.after, query.before, query.cursor)
    if query.around is not None and any(value is not None for value in others):
        raise BadParameterError("around", "it stands alone, leave out after, before and cursor")
    return query.around


def read_text(name: str, reader: Callable[[str], T], text: str | None) -> T | None:
    """Return the value that `reader` reads; `None` for `None`. Raises `BadParameterError`."""
    try:
        return None if text is None else reader(text)
    except ValueError as error:
        raise BadParameterError(name, str(error)) from None
