"""The head of a request that came before: what comes with the same bytes need not be parsed again."""

from typing import Final

from msgspec import Struct

from .head import Headers

_MOST: Final = 8192
"""bytes: a longer head is not remembered."""


class KnownHead(Struct, frozen=True):
    """A head, but for the digits of its Content-Length, and what its fields say."""

    before: bytes
    """All that stands before the digits; the whole head of a request that has no body."""
    after: bytes
    """All that stands behind them, with the empty line."""
    first: tuple[tuple[bytes, bytes], ...]
    """The fields before Content-Length."""
    name: bytes
    """Content-Length, as it was spelled."""
    rest: tuple[tuple[bytes, bytes], ...]
    fixed: int
    """How many bytes of it are not those digits."""

    def read(self, data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes] | None:
        """Return fields and body, if `data` is a request with this head: all of it and nothing more."""
        if not self.name:
            return ([*self.first], b"") if data == self.before else None
        free = len(data) - self.fixed
        # Just below a power of ten this is a smaller length; those few are left to a parser.
        length = free - len(str(free))
        digits = b"%d" % length
        head = self.before + digits + self.after
        if len(head) + length != len(data) or not data.startswith(head):
            return None
        return [*self.first, (self.name, digits), *self.rest], data[len(head) :]


def known_head(data: bytes, length: int, headers: Headers) -> KnownHead | None:
    """Return the head of a message that came whole in `data`, its body of `length` bytes.

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
    before, after = before + line[: -len(value) - 2], b"\r\n" + after
    return KnownHead(before, after, tuple(first), name, tuple(rest), len(before) + len(after))


def known_bodiless(data: bytes, headers: Headers) -> KnownHead | None:
    """Return the head that is all of `data`, a message without a body; `None` where it is long."""
    if len(data) > _MOST:
        return None
    return KnownHead(data, b"", tuple(headers), b"", (), len(data))
