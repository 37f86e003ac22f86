"""A look at the start of an answer whose coding has to be undone before it goes on."""

from typing import Final

from turnlog.wire.http.content_coding import decoder_for

from .http_client import Answer, Failure

DECODED: Final = 16 << 20
"""bytes: an encoded answer that grows beyond this is not read any further (it is relayed)."""


class Peeked:
    """An answer whose first piece was looked at."""

    def __init__(self, answer: Answer, first: bytes | Failure) -> None:
        self.status = answer.status
        self.reason = answer.reason
        self.headers = answer.headers
        self.raw = answer.raw
        self.framing = answer.framing
        self.heard = answer.heard
        self.close = answer.close
        self.is_reachable = answer.is_reachable
        self._answer = answer
        self._first = first

    @property
    def at_end(self) -> bool:
        """Whether the whole answer has come and been read."""
        return not self._first and self._answer.at_end

    async def read(self) -> bytes:
        """Return that piece, then the others. Raises `Failure`, be it the one that was met."""
        first, self._first = self._first, b""
        if isinstance(first, Failure):
            raise first
        return first or await self._answer.read()


async def peeked(answer: Answer, codings: str) -> tuple[Peeked, bool]:
    """Return an answer that is read from its beginning, and whether that is coded so."""
    try:
        first = await answer.read()
    except Failure as failure:
        return Peeked(answer, failure), True
    trial = decoder_for(codings, DECODED)
    if trial is None:
        return Peeked(answer, first), False
    trial.feed(first)
    return Peeked(answer, first), not trial.failed
