"""Corrects the head of an answer that a strict parser refuses and usual clients accept.

An answer that other HTTP libraries can read must also arrive through a proxy (decision 20). Only the
head is changed, into a valid one. Other errors are refused by the parser again.
"""

import re
from typing import Final

__all__ = ["HEAD_END", "LINE_ENDS", "mended"]

HEAD_END: Final = re.compile(rb"\n\r{0,2}\n")
"""A head ends with its first match."""
LINE_ENDS: Final = re.compile(rb"[\r\n]*")
"""Bytes that are allowed before a head."""
_FOLD: Final = re.compile(rb"\r{0,2}\n[ \t]+")
_SKIPPED: Final = re.compile(rb"\A(?:[ \t][^\n]*\n)+")
_LINE: Final = re.compile(rb"\r{0,2}\n")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([0-9])[ \t]+([0-9]{3})(?:[ \t]+|$)")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:")
_LENGTH: Final = b"content-length"
_CODING: Final = b"transfer-encoding"
_BLANKS: Final = bytes.maketrans(b"\0\r", b"  ")


def mended(head: bytes) -> bytes:
    """Return a head, or the start of one, with everything corrected that can be."""
    first, *rest = _LINE.split(head, maxsplit=1)
    # RFC 9112, 2.2: lines that begin with a blank before the first field are skipped; 5.2: folds are
    # blanks.
    fields = _FOLD.sub(b" ", _SKIPPED.sub(b"", b"".join(rest)))
    lines = _sound_fields(_LINE.split(fields))
    lines = _with_one_coding(_with_one_length(lines))
    return b"\r\n".join([_status_line(first), *lines]) if rest else first


def _status_line(line: bytes) -> bytes:
    """Return a status line with one blank between its parts, and no version above 1.1."""
    found = _STATUS_LINE.match(line)
    if found is None:
        return line
    minor, status = found.groups()
    # RFC 9110, 2.5: a higher minor version is read as the highest one that is known.
    return b"HTTP/1.%b %b %b" % (min(minor, b"1"), status, line[found.end() :])


def _sound_fields(lines: list[bytes]) -> list[bytes]:
    """Return the lines that are fields, without the errors for which a parser refuses them."""
    kept: list[bytes] = []
    for line in lines:
        found = _FIELD.match(line)
        if found is not None:
            # RFC 9112, 5.1: no blank stands before the colon. RFC 9110, 5.5: NUL and CR become blanks.
            kept.append(found[1] + b":" + line[found.end() :].translate(_BLANKS))
        elif not line:
            kept.append(line)
    return kept


def _with_one_length(lines: list[bytes]) -> list[bytes]:
    """Return the lines with one Content-Length, if all that there are have the same value.

    RFC 9110 section 8.6; a sign and empty items of the list are ignored.
    """
    said = {each.removeprefix(b"+") for each in _values(lines, _LENGTH)}
    return _with_one(lines, _LENGTH, b"Content-Length: " + said.pop()) if len(said) == 1 else lines


def _with_one_coding(lines: list[bytes]) -> list[bytes]:
    """Return the lines without codings that have no effect, and with `chunked` once."""
    if not _has(lines, _CODING):
        return lines
    codings = {each.lower() for each in _values(lines, _CODING)} - {b"identity"}
    if codings - {b"chunked"}:
        return lines
    return _with_one(lines, _CODING, b"Transfer-Encoding: chunked" if codings else None)


def _with_one(lines: list[bytes], name: bytes, line: bytes | None) -> list[bytes]:
    """Return the lines with `line` in place of the first one of a field, and without its others."""
    at = next(n for n, each in enumerate(lines) if _is(each, name))
    others = [each for each in lines[at:] if not _is(each, name)]
    return [*lines[:at], *([] if line is None else [line]), *others]


def _has(lines: list[bytes], name: bytes) -> bool:
    return any(_is(line, name) for line in lines)


def _values(lines: list[bytes], name: bytes) -> list[bytes]:
    """Return the items of a field's list, without empty ones (RFC 9110, 5.6.1)."""
    joined = b",".join(line.partition(b":")[2] for line in lines if _is(line, name))
    return [item for each in joined.split(b",") if (item := each.strip(b" \t"))]


def _is(line: bytes, name: bytes) -> bool:
    return line.partition(b":")[0].lower() == name
