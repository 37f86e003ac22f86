"""An answer with digests of its content, which are checked as the content passes, or with signatures."""

from turnlog.transport.http_client import Answer
from turnlog.wire.http.content_digest import UNSIGNED, ContentDigests, SignedHead
from turnlog.wire.http.head import Headers
from turnlog.wire.message import NO_CHECKS, ResultChecks


class CheckedAnswer:
    """Hashes the content of an answer as it is read (`transport.http_client.Answer`)."""

    def __init__(self, answer: Answer, signed: SignedHead = UNSIGNED) -> None:
        """`signed` is what the signatures of the head say."""
        self._answer = answer
        self._digests = ContentDigests(answer.head, signed)
        self.head, self.length, self.content = answer.head, answer.length, answer.content

    @property
    def checks(self) -> ResultChecks:
        """The result of the checks; `NO_CHECKS` while it is not known whether the digests hold."""
        if self.at_end:
            self._digests.take_trailers(self._answer.trailers)
            return self._digests.checks
        return self._digests.checks if self.may_hold else NO_CHECKS

    @property
    def may_hold(self) -> bool:
        """Whether all digests are known, and hold if the content ends here."""
        return self._digests.may_hold

    def take_whole(self) -> bytes | None:
        """Read the body at once if it is here from its start to its end, and nothing of it was read."""
        whole = self._answer.take_whole()
        if whole is not None:
            self._digests.feed(whole)
        return whole

    async def read(self) -> bytes:
        """Return what has come of the body; nothing at its end. Raises `Failure` if it is cut."""
        piece = await self._answer.read()
        self._digests.feed(piece)
        return piece

    @property
    def trailers(self) -> Headers:
        """The fields behind the body, once it is at its end."""
        return self._answer.trailers

    @property
    def has_piece(self) -> bool:
        """Whether something of the body is here that was not read."""
        return self._answer.has_piece

    @property
    def at_end(self) -> bool:
        """Whether the whole answer has come and been read."""
        return self._answer.at_end

    async def is_reachable(self) -> bool:
        """Return whether its server accepts a connection within a short time."""
        return await self._answer.is_reachable()

    async def close(self) -> None:
        """Read no more of it."""
        await self._answer.close()
