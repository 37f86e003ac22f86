"""The head of an answer that came before: what comes with the same bytes need not be parsed again."""

from typing import Final

from msgspec import Struct

from .http import Headers

_END: Final = b"\r\n"
_MOST: Final = 8192
"""bytes: a longer head is not remembered."""
_DIGITS: Final = 20
"""bytes: a length with the end of its line is not longer."""


class KnownHead(Struct, frozen=True, kw_only=True):
    """A head, but for the digits of its Content-Length, and what it says."""

    before: bytes
    """All that stands before the digits."""
    after: bytes
    """All that stands behind them, with the empty line."""
    status: int
    reason: bytes
    first: tuple[tuple[bytes, bytes], ...]
    """The fields before Content-Length."""
    name: bytes
    """Content-Length, as it was spelled."""
    rest: tuple[tuple[bytes, bytes], ...]
    raw: tuple[tuple[bytes, bytes], ...]
    """All fields but Content-Length."""

    def read(self, data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes] | None:
        """Return fields and body, if `data` is an answer with this head: all of it and nothing more."""
        if not data.startswith(self.before):
            return None
        start = len(self.before)
        end = data.find(_END, start, start + _DIGITS)
        if end < 0 or not data.startswith(self.after, end):
            return None
        digits, body = data[start:end], data[end + len(self.after) :]
        if digits != b"%d" % len(body):
            return None
        return [*self.first, (self.name, digits), *self.rest], body


def known_head(
    data: bytes, length: int, status: int, reason: bytes, headers: Headers
) -> KnownHead | None:
    """Return the head of an answer that came whole in `data`, its body of `length` bytes.

    `None` where it is long, or its length does not stand there once, and as anybody would write it.
    """
    head = data[: len(data) - length]
    at = [i for i, (name, _) in enumerate(headers) if name.lower() == b"content-length"]
    if len(head) > _MOST or len(at) != 1:
        return None
    first, (name, value), rest = headers[: at[0]], headers[at[0]], headers[at[0] + 1 :]
    before, line, after = head.partition(b"\r\n%b: %d\r\n" % (name, length))
    if value != b"%d" % length or not line:
        return None
    return KnownHead(
        before=before + line[: -len(value) - len(_END)],
        after=_END + after,
        status=status,
        reason=reason,
        first=tuple(first),
        name=name,
        rest=tuple(rest),
        raw=(*first, *rest),
    )
