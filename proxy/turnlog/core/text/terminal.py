"""Text for terminals: escaped, cut to columns, and calls and answers summed up on one line.

Summaries are made without a model. Their input is redacted and may be cut or broken; they have
printable characters only, whitespace folded, and at most a number of bytes.
"""

import json
import re
import unicodedata
from collections import Counter
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from .units import human_size

SUMMARY_BYTES = 512
PREVIEW_BYTES = 200
EMPTY = "empty"
_MEDIA = 256  # characters of a media type that are looked at
_BLANKS = b" \t\r\n"
_SNIFFED = 1024  # bytes that are tested for text without a media type

_CUT_TEXT = re.compile(rb'"text"\s*:\s*"([^"\\]*+(?:\\.[^"\\]*+)*+)')
_CUT_KIND = re.compile(rb'"mimeType"\s*:\s*"([\w.+/-]{1,100})"')
_TEXTUAL = re.compile(r"^text/|json|xml|javascript|yaml|csv|urlencoded|graphql|event-stream")
_SEARCHED = 16 * SUMMARY_BYTES  # bytes of a broken result that are searched for its first text
_LABEL = 1024  # bytes of what names a block or a media type
_WIDE: Final = frozenset({"W", "F"})
# Control and format characters, surrogates, private and unassigned code points, line separators:
# they steer a terminal, or hide in a review.
_UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_KEPT: Final = 1 << 16
"""Code points below are remembered once they were looked up: all alphabets."""
# CSI, OSC (with its end) and the other escape sequences of terminals.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*+[ -/]*+[@-~]?|\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)?|\x1b[ -/]*+[0-~]?"
)
_BLANK = bytes.maketrans(b"\t\n\v\f\r", b"     ")
"""Translation of ASCII in which all blanks are spaces."""


class _ShownResource(Struct, gc=False):
    uri: str = ""
    text: str = ""
    mime_type: str = field(name="mimeType", default="")
    blob: Raw = Raw(b"")


class _ShownBlock(Struct, gc=False):
    type: str = ""
    text: str = ""
    uri: str = ""
    mime_type: str = field(name="mimeType", default="")
    data: Raw = Raw(b"")
    resource: _ShownResource | None = None


class _ShownError(Struct, gc=False):
    code: int | float | str | None = None
    message: str = ""


class _ShownResult(Struct, gc=False):
    """A result of `tools/call`, or the whole message around it."""

    content: list[_ShownBlock] | None = None
    structured: Raw = field(name="structuredContent", default=Raw(b""))
    is_error: bool | None = field(name="isError", default=None)
    kind: str = field(name="resultType", default="")
    result: Raw = Raw(b"")
    error: _ShownError | None = None
    code: int | float | str | None = None
    message: str = ""


_decode_result = msgspec.json.Decoder(_ShownResult).decode


def result_summary(answer: bytes, *, size: int, limit: int = SUMMARY_BYTES) -> str:
    """Return a summary, in at most `limit` bytes, of a result of `tools/call` or the message around it.

    `size` is that of the whole answer.
    """
    # Nothing else is an object: a cut text is not read to its end in vain.
    if not answer.rstrip(_BLANKS).endswith(b"}"):
        return _broken_summary(answer, size, limit)
    try:
        result = _decode_result(answer)
        if result.result:
            result = _decode_result(result.result)
    except (ValueError, RecursionError):
        return _broken_summary(answer, size, limit)
    error = result.error or result
    if error.code is not None:
        return one_line(f"error {error.code}: {error.message[:limit]}", limit)
    blocks = result.content or []
    text = ""
    for block in blocks:
        said = block.text or (block.resource.text if block.resource else "")
        if said and (text := one_line(said[: 4 * limit], limit - 1)):
            break
    if text and len(blocks) == 1 and not result.is_error:
        return text
    return _result_summary(result, blocks, text, answer, limit)


def text_summary(text: str) -> str:
    """Return the summary of a result that holds this text and nothing else."""
    return one_line(text[: 4 * SUMMARY_BYTES], SUMMARY_BYTES - 1) or EMPTY


def body_summary(answer: bytes, media_type: str, *, size: int, limit: int = SUMMARY_BYTES) -> str:
    """Return a summary, in at most `limit` bytes, of a body of any type; `size` is that of all of it."""
    if size == 0:
        return EMPTY
    if answer and _is_text(answer, media_type):
        return preview(answer, limit) or EMPTY
    media = one_line(media_type[:64], _LABEL)
    if answer and not media:
        media = "application/octet-stream"
    return cut_bytes(f"{human_size(size)} {media}".rstrip(), limit)


def preview(content: bytes, limit: int = PREVIEW_BYTES) -> str:
    """Return the beginning of a text in at most `limit` bytes."""
    # Whitespace folds and escapes are dropped: read more than is shown.
    return one_line(content[: 4 * limit].decode("utf-8", "replace"), limit)


def one_line(text: str, limit: int) -> str:
    """Return `text` in at most `limit` bytes on one line, whitespace folded, without terminal escapes."""
    # Most text has one blank between two words: then its head, with one at either end, is all that counts.
    head = text[: limit + 4]
    is_printable = head.isprintable()
    if not is_printable and head.isascii():
        head = head.encode().translate(_BLANK).decode()
        is_printable = head.isprintable()
    if is_printable and "  " not in head:
        line = head.strip()
        return line if len(line) <= limit and line.isascii() else cut_bytes(line, limit)
    line = " ".join(text.split())
    if not line[: limit + 4].isprintable():
        text = "".join(c if c.isprintable() or c.isspace() else "" for c in _ESCAPES.sub("", text))
        line = " ".join(text.split())
    return cut_bytes(line, limit)


def cut_bytes(text: str, limit: int) -> str:
    """Return `text` cut to `limit` bytes, with an ellipsis if anything was cut."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    return data[: max(0, limit - 3)].decode("utf-8", "ignore").rstrip() + "…"


def display_width(text: str) -> int:
    """Return how many columns of a terminal `text` takes."""
    return len(text) if text.isascii() else sum(map(_width, text))


def fit_columns(text: str, columns: int) -> str:
    """Return `text` cut to a number of columns, with an ellipsis if anything was cut."""
    if display_width(text) <= columns:
        return text
    if columns < 1:
        return ""
    widths = accumulate(map(_width, text), initial=1)  # with that of the ellipsis
    count = next(number for number, used in enumerate(widths) if used > columns)
    return text[: count - 1] + "…"


def escape_unprintable(text: str) -> str:
    """Return `text` with every character that is not printable as a `\\u` escape."""
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_SHOWN)


def contains_text(content: bytes, text: str) -> bool:
    """Return whether content contains a text, in any case and also behind JSON escapes."""
    wanted = text.casefold()
    if wanted in content.decode("utf-8", "replace").casefold():
        return True
    if b"\\" not in content:
        return False
    try:
        plain = msgspec.json.encode(msgspec.json.decode(content)).decode().casefold()
    except (ValueError, RecursionError):
        return False
    return wanted in plain or json.dumps(wanted, ensure_ascii=False)[1:-1] in plain


def _result_summary(
    result: _ShownResult, blocks: list[_ShownBlock], text: str, answer: bytes, limit: int
) -> str:
    """Return a summary of a result that is more than `text`, the first one in it."""
    # The tail names the other blocks; a long text must not push it out.
    tail = _other_blocks(blocks)
    if not text and result.structured:
        text = preview(bytes(result.structured), limit)
    if not text and not tail:
        text = _without_content(result, answer, limit)
    if result.is_error:
        text = f"error: {text}"
    if not tail:
        return cut_bytes(text, limit - 1).strip()
    room = max(limit - len(tail.encode()) - 1, limit // 2)
    return cut_bytes(f"{cut_bytes(text, room)} {tail}".strip(), limit)


def _without_content(result: _ShownResult, answer: bytes, limit: int) -> str:
    if result.kind and result.kind != "complete":
        return result.kind
    shown = preview(answer, limit)
    return EMPTY if result.content is not None or shown in {"{}", "null"} else shown


def _other_blocks(blocks: list[_ShownBlock]) -> str:
    """Return the blocks beside the first text, as `[image/png 34 KiB, 2 text]`."""
    if len(blocks) == 1 and blocks[0].text:
        return ""
    counts: Counter[str] = Counter()
    first_text = True
    for block in blocks:
        if first_text and (block.text or (block.resource and block.resource.text)):
            first_text = False
        else:
            counts[_block_label(block)] += 1
    shown = [f"{n} x {kind}" if n > 1 else kind for kind, n in counts.most_common(4) if kind]
    if len(counts) > len(shown):
        shown.append("...")
    return f"[{', '.join(shown)}]" if shown else ""


def _block_label(block: _ShownBlock) -> str:
    resource = block.resource or _ShownResource()
    payload = bytes(block.data or resource.blob)
    if payload:
        kind = block.mime_type or resource.mime_type or block.type
        return one_line(f"{kind[:64]} {human_size(max(0, len(payload) - 2) * 3 // 4)}", _LABEL)
    if uri := block.uri or resource.uri:
        return one_line(f"{block.type[:32].replace('_', ' ')} {uri[:120]}", _LABEL) or "block"
    return one_line(block.type[:32], _LABEL) or "block"


def _broken_summary(answer: bytes, size: int, limit: int) -> str:
    """Return the readable part of a result that is cut, or not JSON."""
    text = _CUT_TEXT.search(answer, 0, _SEARCHED)
    if text:
        head = text[1][: 4 * limit].decode("utf-8", "replace")
        return one_line(_unescape(head), limit)
    if kind := _CUT_KIND.search(answer, 0, _SEARCHED):
        return cut_bytes(f"{kind[1].decode()} {human_size(size)}", limit)
    return preview(answer, limit) or EMPTY


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        try:
            decoded: Any = msgspec.json.decode(f'"{match[0]}"')
        except ValueError:
            return " "
        return str(decoded)

    return re.sub(r"(?:\\u[0-9a-fA-F]{4}){1,2}|\\.", one, text, flags=re.DOTALL)


def _is_text(answer: bytes, media_type: str) -> bool:
    if media_type:
        return _is_textual(media_type[:_MEDIA])
    head = answer[:_SNIFFED]
    try:
        head.decode()
    except UnicodeDecodeError as error:
        # The head may end within a character.
        return len(answer) > _SNIFFED and error.start > _SNIFFED - 4
    return b"\0" not in head


@lru_cache(maxsize=256)
def _is_textual(media_type: str) -> bool:
    return _TEXTUAL.search(media_type.lower()) is not None


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1


class _Shown(dict[int, str]):
    """A table for `str.translate` that is filled as characters are met."""

    def __missing__(self, code: int) -> str:
        character = shown = chr(code)
        if unicodedata.category(character) in _UNPRINTABLE:
            utf16 = character.encode("utf-16-be", "surrogatepass").hex()
            shown = "".join(f"\\u{utf16[at : at + 4]}" for at in range(0, len(utf16), 4))
        if code < _KEPT:
            self[code] = shown
        return shown


_SHOWN: Final = _Shown()
