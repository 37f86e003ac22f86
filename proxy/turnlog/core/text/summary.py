"""One-line summaries of a call's arguments and answer; deterministic, without a model.

The input is redacted and may be cut or broken. The output is for terminals: printable characters
only, whitespace folded, at most a number of bytes.
"""

import json
import re
from collections import Counter
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from .terminal import one_line
from .units import human_size

SUMMARY_BYTES = 512
PREVIEW_BYTES = 200
EMPTY = "empty"
_MEDIA = 256  # characters of a media type that are looked at
_BLANKS = b" \t\r\n"
_SNIFFED = 1024  # bytes that are tested for text without a media type

_CUT_TEXT = re.compile(rb'"text"\s*:\s*"((?:[^"\\]|\\.)*+)')
_CUT_KIND = re.compile(rb'"mimeType"\s*:\s*"([\w.+/-]{1,100})"')
_TEXTUAL = re.compile(r"^text/|json|xml|javascript|yaml|csv|urlencoded|graphql|event-stream")
_SEARCHED = 16 * SUMMARY_BYTES  # bytes of a broken result that are searched for its first text


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


def summarize(
    answer: bytes, *, media_type: str, size: int, is_mcp: bool, limit: int = SUMMARY_BYTES
) -> str:
    """Return a summary of an answer in at most `limit` bytes; `size` is that of the whole answer."""
    if is_mcp:
        return _cut(_mcp_summary(answer, size, limit), limit)
    return _cut(_plain_summary(answer, media_type, size, limit), limit)


def preview(arguments: bytes, limit: int = PREVIEW_BYTES) -> str:
    """Return the beginning of a call's arguments in at most `limit` bytes."""
    return _cut(one_line(_head(arguments, limit)), limit)


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


def _mcp_summary(answer: bytes, size: int, limit: int) -> str:
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
        return one_line(f"error {error.code}: {error.message[:limit]}")
    return _result_summary(result, answer, limit)


def _result_summary(result: _ShownResult, answer: bytes, limit: int) -> str:
    blocks = result.content or []
    text = _first_text(blocks, limit)
    # The tail names the other blocks; a long text must not push it out.
    tail = _other_blocks(blocks)
    if not text and result.structured:
        text = one_line(_head(bytes(result.structured), limit))
    if not text and not tail:
        text = _without_content(result, answer, limit)
    if result.is_error:
        text = f"error: {text}"
    if not tail:
        return _cut(text, limit - 1).strip()
    room = max(limit - len(tail.encode()) - 1, limit // 2)
    return f"{_cut(text, room)} {tail}".strip()


def _without_content(result: _ShownResult, answer: bytes, limit: int) -> str:
    if result.kind and result.kind != "complete":
        return result.kind
    shown = one_line(_head(answer, limit))
    return EMPTY if result.content is not None or shown in {"{}", "null"} else shown


def _first_text(blocks: list[_ShownBlock], limit: int) -> str:
    for block in blocks:
        text = block.text or (block.resource.text if block.resource else "")
        if text and (shown := one_line(text[: 4 * limit])):
            return shown
    return ""


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
        return one_line(f"{kind[:64]} {human_size(max(0, len(payload) - 2) * 3 // 4)}")
    if uri := block.uri or resource.uri:
        return one_line(f"{block.type[:32].replace('_', ' ')} {uri[:120]}") or "block"
    return one_line(block.type[:32]) or "block"


def _broken_summary(answer: bytes, size: int, limit: int) -> str:
    """Return the readable part of a result that is cut, or not JSON."""
    text = _CUT_TEXT.search(answer, 0, _SEARCHED)
    if text:
        head = text[1][: 4 * limit].decode("utf-8", "replace")
        return one_line(_unescape(head))
    if kind := _CUT_KIND.search(answer, 0, _SEARCHED):
        return f"{kind[1].decode()} {human_size(size)}"
    return one_line(_head(answer, limit)) or EMPTY


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        try:
            decoded: Any = msgspec.json.decode(f'"{match[0]}"')
        except ValueError:
            return " "
        return str(decoded)

    return re.sub(r"(?:\\u[0-9a-fA-F]{4}){1,2}|\\.", one, text, flags=re.DOTALL)


def _plain_summary(answer: bytes, media_type: str, size: int, limit: int) -> str:
    if size == 0 or not answer:
        return EMPTY if size == 0 else f"{human_size(size)} {one_line(media_type[:64])}".rstrip()
    if _is_text(answer, media_type):
        return one_line(_head(answer, limit)) or EMPTY
    return f"{human_size(size)} {one_line(media_type[:64]) or 'application/octet-stream'}"


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


def _head(data: bytes, limit: int) -> str:
    # Whitespace folds and escapes are dropped: read more than is shown.
    return data[: 4 * limit].decode("utf-8", "replace")


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit and text.isascii():
        return text
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    return data[: max(0, limit - 3)].decode("utf-8", "ignore").rstrip() + "…"
