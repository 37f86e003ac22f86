"""The body of an answer as turnlog reads it: its codings undone, and without `turnlog/outcome`.

Under that name turnlog says how a call ended. A server that says it must not be believed, unless it
`is_trusted`, so the member is taken out of what the agent gets. Where that cannot be done the answer is
forged. Nothing here waits or writes.
"""

from typing import Final

from msgspec import Struct, structs

from turnlog.core.kinds import Flag

from .http.content_coding import ContentDecoder, decoder_for
from .http.response_head import ResponseHead
from .message import MessageReader
from .outcome_key import (
    MASK,
    EitherMask,
    OtherReadings,
    OutcomeMask,
    has_hint,
    holds_json,
    is_wide,
    mask_for,
    without_mask,
    without_outcome,
)
from .sse import SseEvent

_EVENTS: Final = "text/event-stream"
_USUAL: Final = b'{"'
"""What most answers begin with; none of several bytes to a letter does."""
_DECODED: Final = 16 << 20
"""bytes: an encoded answer that grows beyond this is not read any further (it is relayed)."""
_FORGED: Final = (Flag.FORGED_OUTCOME,)
_UNSEARCHED: Final = (Flag.NOT_SEARCHED,)


class CleanText(Struct, frozen=True):
    """A text without forged outcomes."""

    text: bytes
    is_changed: bool = False
    """Whether something was taken out."""
    notes: tuple[Flag, ...] = ()
    """What is to be recorded of that."""


# One is made for each answer, and a struct takes a third of the time of another class.
class AnswerBody(Struct, eq=False):
    """Reads the body of one answer, whole or in pieces."""

    _head: ResponseHead
    is_trusted: bool
    """Whether the server may send outcomes in turnlog's name."""
    is_sent_decoded: bool = False
    """Whether the agent gets the body decoded, because it may have to be changed."""
    is_forged: bool = False
    """Whether it holds a forged outcome that cannot be taken out."""
    _decoder: ContentDecoder | None = None
    """`None` if the body has no coding, or an unknown one."""
    _mask: OutcomeMask | EitherMask | None = None
    """Overwrites the outcomes in a body that is sent in pieces."""
    _readings: OtherReadings | None = None
    """Searches for them in other ways in which a client may decode the body."""

    def prepare(self, *, may_change: bool) -> None:
        """Set up how a body with codings or charsets is read; `may_change` is whether it may be changed."""
        head, in_events = self._head, self._head.media == _EVENTS
        if head.codings:
            self._decoder = decoder_for(head.codings, _DECODED)
            self.is_sent_decoded = may_change and self._decoder is not None
        if (head.codings or head.charsets) and not self.is_trusted:
            looks = not (head.is_json or in_events)
            self._readings = OtherReadings(
                head.charsets, is_coded=bool(head.codings), in_events=in_events, looks=looks
            )

    def begins_soundly(self, start: bytes) -> bool:
        """Return whether the first piece of a body is in the codings that its head names."""
        trial = decoder_for(self._head.codings, _DECODED)
        if trial is None:
            return False
        trial.feed(start)
        return not trial.failed

    # -- a body that is whole ------------------------------------------------------------------

    def whole(self, raw: bytes) -> CleanText:
        """Read a whole body; sets `is_forged`."""
        text = self._decoded(raw) if self._head.codings else raw
        clean = self.clean(text)
        if (readings := self._readings) is not None:
            is_changed = clean.is_changed
            self.is_forged = self.is_unread if is_changed else self._is_misread(readings, raw, text)
        return clean

    def clean(self, text: bytes) -> CleanText:
        """Return a whole text without forged outcomes."""
        is_clear = not self._head.codings and text.startswith(_USUAL) and not has_hint(text)
        if is_clear or self.is_trusted or not (self._head.is_json or holds_json(text)):
            return CleanText(text)
        clean = without_outcome(text)
        if clean is not None:
            return CleanText(clean, True, _FORGED)
        return CleanText(text, notes=_UNSEARCHED if self._is_unsearched(text) else ())

    # -- a body in pieces ----------------------------------------------------------------------

    def begin(self) -> None:
        """Get ready for a body in pieces of which the media type alone is known."""
        if not self.is_trusted:
            in_events = self._head.media == _EVENTS
            self._mask = mask_for(in_events=in_events, looks=not (self._head.is_json or in_events))

    def begin_events(self) -> None:
        """Get ready for a stream of events."""
        if not self.is_trusted:
            self._mask = OutcomeMask(in_events=True)

    def feed(self, chunk: bytes) -> bytes:
        """Return a piece decoded, with forged outcomes overwritten; sets `is_forged`."""
        text = self._decoded(chunk) if self._head.codings else chunk
        readings = self._readings
        is_misread = readings is not None and self._is_misread(readings, chunk, text)
        if self._mask is not None:
            text = self._mask.feed(text)
            # The body is sent in its coding, so the mask does not reach the agent.
            is_misread = is_misread or (self._mask.found and self.is_sent_coded)
        self.is_forged = is_misread
        return text

    def pass_on(self, chunk: bytes) -> bytes:
        """Return a piece that is not read any more, with forged outcomes overwritten."""
        return self._mask.feed(chunk) if self._mask is not None else chunk

    def finish(self) -> bytes:
        """Return what was held back, at the end of the body."""
        return self._mask.finish() if self._mask is not None else b""

    def notes(self, text: bytes) -> tuple[Flag, ...]:
        """Return what is to be recorded of a body that came in pieces; `text` is what was kept of it."""
        if self._mask is None or self._mask.passes:
            return ()
        if self._mask.found:
            return _FORGED
        return _UNSEARCHED if self._is_unsearched(text) else ()

    def unmasked(self, text: bytes) -> bytes:
        """Return a whole text without the outcomes that were overwritten, if there are any."""
        is_masked = self._mask is not None and self._mask.found
        return (without_mask(text) if is_masked else None) or text

    def unmasked_event(self, event: SseEvent, limit: int, *, may_change: bool) -> SseEvent:
        """Return an event without the outcomes that were overwritten, if it may be changed.

        `limit` is how much of its data is kept.
        """
        body = event.body
        if self._mask is None or not self._mask.found or body is None:
            return event
        if body.truncated or MASK in event.data:
            body.notes = _FORGED
        clean = without_mask(event.data) if may_change and not body.truncated else None
        if clean is None:
            return event
        return structs.replace(event, body=MessageReader.of(clean, limit, _FORGED))

    # -- codings -------------------------------------------------------------------------------

    @property
    def is_sent_coded(self) -> bool:
        """Whether the agent gets the body in its coding, and only a copy is decoded."""
        return bool(self._head.codings) and not self.is_sent_decoded

    @property
    def is_known(self) -> bool:
        """Whether it has codings that can be undone."""
        return self._decoder is not None

    @property
    def has_failed(self) -> bool:
        """Whether it is not in the codings that its head names."""
        return self._decoder is not None and self._decoder.failed

    @property
    def gave_up(self) -> bool:
        """Whether decoding stopped at its bound, or the coding is unknown."""
        if self._decoder is None:
            return bool(self._head.codings)
        return self._decoder.overflow

    @property
    def is_unread(self) -> bool:
        """Whether part of the body could not be decoded."""
        return self.gave_up or self.has_failed

    def _decoded(self, chunk: bytes) -> bytes:
        return self._decoder.feed(chunk) if self._decoder is not None else b""

    def _is_misread(self, readings: OtherReadings, raw: bytes, text: bytes) -> bool:
        """Return whether some client may decode a forged outcome from the body so far."""
        readings.feed(raw, text)
        return readings.found and not self.is_sent_decoded

    def _is_unsearched(self, text: bytes) -> bool:
        """Return whether a text could not be searched, because it could not be decoded."""
        return is_wide(text) or self.is_unread
