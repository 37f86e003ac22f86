"""What follows when an answer breaks off before its end. Pure."""

from enum import StrEnum

from msgspec import Struct

from turnlog.core.kinds import ErrorKind


class BrokenAnswer(Struct, frozen=True, kw_only=True):
    """An answer that broke off, and how much of it has left for the agent."""

    kind: ErrorKind
    """Why it broke off."""
    untouched: bool
    """Whether nothing of it has left."""
    between_events: bool
    """Whether it is an event stream, and what has left ends where an event does."""
    resumable: bool
    """Whether its stream can be resumed: an event carried an id, in a revision that resumes streams,
    and the server accepts connections."""


class AfterBreak(StrEnum):
    """What the agent gets behind an answer that broke off."""

    RESUMPTION = "resumption"
    """A broken connection as well: it resumes the stream, and the call stays open."""
    ANSWER = "answer"
    """The typed answer: nothing else can come any more."""
    CUT = "cut"
    """A broken connection: the bytes that came are all there is to say."""


def after_break(broken: BrokenAnswer, *, managed: bool, events_are_messages: bool) -> AfterBreak:
    """Return what follows; `managed` where a rule made turnlog answerable for the failure.

    `events_are_messages` is true of MCP: a client waits for the response until a time limit of its
    own, for the end of a stream does not tell it that nothing more will come.
    """
    if broken.resumable and broken.kind is ErrorKind.CONNECTION_LOST:
        return AfterBreak.RESUMPTION
    if managed and (broken.untouched or broken.between_events):
        return AfterBreak.ANSWER
    # Who reads too slowly is not sent more to read.
    unread = broken.kind is ErrorKind.CANCELLED_BY_CALLER
    tells = events_are_messages and broken.between_events and not unread
    return AfterBreak.ANSWER if tells else AfterBreak.CUT
