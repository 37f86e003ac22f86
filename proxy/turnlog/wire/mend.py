"""Mend the head of an answer that a strict parser refuses and a recipient may accept.

Folded fields become one line (RFC 9112, 5.2), a Content-Length that says the same thing several
times says it once (RFC 9110, 8.6). Whatever else is wrong stays as it is, to be refused again.
"""

import re
from typing import Final

__all__ = ["Mender", "head_end", "head_start", "mended"]

_END: Final = re.compile(rb"\n\r?\n")
_FOLD: Final = re.compile(rb"\r?\n[ \t]+")
_LINE: Final = re.compile(rb"\r?\n")
_LINE_ENDS: Final = re.compile(rb"[\r\n]*")
_LENGTH: Final = b"content-length"
_HTTP: Final = b"HTTP/1."


def head_end(raw: bytes | bytearray, start: int = 0) -> int:
    """Return where the head ends that is under way at `start`; 0 where it is not all there."""
    found = _END.search(raw, start)
    return 0 if found is None else found.end()


def head_start(raw: bytes, start: int = 0) -> int:
    """Return where a head begins, behind the line ends that may stand before it."""
    found = _LINE_ENDS.match(raw, start)
    return start if found is None else found.end()


def mended(head: bytes) -> bytes | None:
    """Return a head with nothing left of what can be mended; `None` if there was nothing."""
    first, *rest = _LINE.split(head, maxsplit=1)
    fields = b"".join(rest)
    if fields.startswith((b" ", b"\t")):
        return None  # nothing stands before it that it could belong to
    lines = _once(_LINE.split(_FOLD.sub(b" ", fields)))
    whole = b"\r\n".join([first, *lines]) if rest else first
    return whole if whole != head else None


def _once(lines: list[bytes]) -> list[bytes]:
    """Return the lines with one Content-Length, where all that there are say the same."""
    lengths = [line for line in lines if _is_length(line)]
    said = {each.strip(b" \t") for line in lengths for each in line.partition(b":")[2].split(b",")}
    if len(said) != 1:
        return lines
    at = lines.index(lengths[0])
    lines[at] = b"Content-Length: " + said.pop()
    return [*lines[: at + 1], *(line for line in lines[at + 1 :] if not _is_length(line))]


def _is_length(line: bytes) -> bool:
    return line.partition(b":")[0].lower() == _LENGTH


class Mender:
    """Keeps the head of an answer as it comes, in case that a parser refuses it."""

    def __init__(self) -> None:
        self._came: list[bytes] = []
        self._refused = bytearray()
        """What has come of a head that was refused and that may yet be mended."""
        self.why = ""
        """Why it was refused."""
        self.passed = 0
        """How much of what has come are interim heads (1xx)."""
        self.is_over = False
        """Whether an interim head said that the connection is: the answer follows all the same."""

    def take(self, data: bytes) -> None:
        """Take what came of a head."""
        self._came.append(data)

    def read(self) -> None:
        """Learn that the head was read."""
        self._came.clear()

    def passes(self) -> int:
        """Go on behind an interim head; return how much is there of the next one."""
        if len(self._came) > 1:
            self._came[:] = [b"".join(self._came)[self.passed :]]
            self.passed = 0
        raw = self._came[0]
        self.passed = head_end(raw, head_start(raw, self.passed))
        return len(raw) - self.passed

    def mend(self) -> tuple[bytes, bytes] | None:
        """Return the head that was refused as it can be read again, and what came behind it.

        `None` while it is not all there; an empty one where it cannot be mended.
        """
        raw = self._refused
        start = max(len(raw) - 2, 0)
        came = b"".join(self._came)
        raw += came if raw else came[head_start(came, self.passed) :]
        self._came.clear()
        self.passed = 0
        if not raw.startswith(_HTTP) and not (self.is_over and _HTTP.startswith(bytes(raw))):
            return b"", b""
        end = head_end(raw, start)
        if not end:
            return None
        head, rest = mended(bytes(raw[:end])), bytes(raw[end:])
        if head is None and self.is_over:
            head = bytes(raw[:end])  # only the parser thought that nothing more could come
        self.is_over = False
        raw.clear()
        return head or b"", rest

    def guess(self) -> bytes | None:
        """Return what was refused and is not all there as it would be read; `None` for nothing to mend."""
        return mended(bytes(self._refused))

    @property
    def waits(self) -> bool:
        """Whether more of a head that was refused may come."""
        return bool(self._refused)
