"""Mend the head of an answer that a strict parser refuses and a recipient may accept.

Folded fields become one line (RFC 9112, 5.2), a Content-Length that says the same thing several
times says it once (RFC 9110, 8.6). Whatever else is wrong stays as it is, to be refused again.
"""

import re
from typing import Final

__all__ = ["head_end", "head_start", "mended"]

_END: Final = re.compile(rb"\n\r?\n")
_FOLD: Final = re.compile(rb"\r?\n[ \t]+")
_LINE: Final = re.compile(rb"\r?\n")
_LINE_ENDS: Final = re.compile(rb"[\r\n]*")
_LENGTH: Final = b"content-length"


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
