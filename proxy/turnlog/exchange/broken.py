"""The end of an answer that broke off, as the agent gets it (decision 50)."""

from enum import StrEnum

from msgspec import Struct

from turnlog.core.kinds import ErrorKind


class BrokenAnswer(Struct, frozen=True, kw_only=True):
    """An answer that broke off, and how much of it was passed on to the agent."""

    kind: ErrorKind
    untouched: bool
    """Whether nothing was passed on."""
    between_events: bool
    """Whether it is an event stream that was passed on up to the end of an event."""
    resumable: bool
    """Whether the stream can be resumed: an event had an id, the revision resumes streams, and the
    server accepts connections."""


class AfterBreak(StrEnum):
    """The end of an answer that broke off, as the agent gets it."""

    RESUMPTION = "resumption"
    """A closed connection: the agent resumes the stream, and the call stays open."""
    ANSWER = "answer"
    """turnlog's typed answer, as the end of the call."""
    CUT = "cut"
    """A closed connection after the bytes that came."""


def after_break(broken: BrokenAnswer, *, managed: bool, events_are_messages: bool) -> AfterBreak:
    """Return what the agent gets; `managed` is whether a rule made turnlog responsible.

    `events_are_messages` is true for MCP.
    """
    if broken.resumable and broken.kind is ErrorKind.CONNECTION_LOST:
        return AfterBreak.RESUMPTION
    if managed and (broken.untouched or broken.between_events):
        return AfterBreak.ANSWER
    # An MCP client waits for its response until its own timeout: the end of a stream does not tell it
    # that none will come. A client that reads too slowly is not sent more.
    is_slow = broken.kind is ErrorKind.CANCELLED_BY_CALLER
    answers = events_are_messages and broken.between_events and not is_slow
    return AfterBreak.ANSWER if answers else AfterBreak.CUT
