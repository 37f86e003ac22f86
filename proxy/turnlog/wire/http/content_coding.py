"""Decodes Content-Encoding for the observer, piece by piece, with a limit on the result."""

import sys
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

if sys.version_info >= (3, 14):  # pragma: no cover - one version runs one branch
    from compression import zstd
else:  # pragma: no cover - one version runs one branch
    from backports import zstd

_brotli: Any = import_module("brotli")
"""As `Any`, because the package has no types."""
_MAX_CODINGS = 4
_WINDOW_LOG = 23
"""8 MiB: the largest window that RFC 9659 allows for `zstd`."""
_ERRORS: tuple[type[Exception], ...] = (
    zlib.error,
    zstd.ZstdError,
    _brotli.error,
    EOFError,
)


class _Stage(Protocol):
    """Decodes one coding."""

    def feed(self, data: bytes, room: int) -> bytes:
        """Decode `data`, up to `room` bytes of the result. Raises one of `_ERRORS`."""
        ...


class ContentDecoder:
    """Decodes a body in pieces. Never raises.

    Wrong data sets `failed`, more than `limit` bytes set `overflow`. Both end the decoding; earlier
    results remain. Without any coding the data is returned unchanged, without a limit.
    """

    __slots__ = ("_limit", "_produced", "_stages", "failed", "overflow")

    def __init__(self, stages: "list[_Stage]", limit: int) -> None:
        self._stages = stages
        self._limit = limit
        self._produced = 0
        self.failed = False
        self.overflow = False

    def feed(self, data: bytes) -> bytes:
        """Return the next piece decoded."""
        if not self._stages:
            return data
        if self.failed or self.overflow or not data:
            return b""
        # One byte too many shows that there is more; stages in between get no more room either.
        room = self._limit - self._produced + 1
        try:
            for stage in self._stages:
                data = stage.feed(data, room)
                self.overflow = self.overflow or len(data) >= room
        except _ERRORS:
            self.failed = True
            return b""
        decoded = data[: room - 1]
        self._produced += len(decoded)
        return decoded


def decoder_for(content_encoding: str, limit: int) -> ContentDecoder | None:
    """Return a decoder for a Content-Encoding; `None` if one of its codings is unknown.

    `limit` bounds the decoded bytes.
    """
    names = [name.strip().lower() for name in content_encoding.split(",")]
    codings = [name for name in names if name not in ("", "identity")]
    if len(codings) > _MAX_CODINGS or any(name not in _STAGES for name in codings):
        return None
    return ContentDecoder([_STAGES[name]() for name in reversed(codings)], limit)


class _Gzip:
    """RFC 1952: one or more members; other bytes after the last one are ignored."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(31)
        self._is_sure = True
        """Whether the next bytes must be a member: it is the first, or it has given output."""

    def feed(self, data: bytes, room: int) -> bytes:
        pieces: list[bytes] = []
        while data and room > 0:
            if self._member.eof:
                if not data.startswith(b"\x1f"):
                    break
                self._member = zlib.decompressobj(31)
                self._is_sure = False
            try:
                piece = self._member.decompress(data, room)
            except zlib.error:
                if self._is_sure:
                    raise
                break
            self._is_sure = self._is_sure or bool(piece)
            pieces.append(piece)
            room -= len(piece)
            data = self._member.unused_data if self._member.eof else b""
        return b"".join(pieces)


class _Deflate:
    """RFC 1950, or the bare RFC 1951 that some servers send."""

    def __init__(self) -> None:
        self._start = b""
        self._inner: Any = None

    def feed(self, data: bytes, room: int) -> bytes:
        if self._inner is None:
            data = self._start + data
            if len(data) < 2:
                self._start = data
                return b""
            wrapped = data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._inner = zlib.decompressobj(15 if wrapped else -15)
        piece: bytes = self._inner.decompress(data, room)
        return piece


class _Brotli:
    """RFC 7932."""

    def __init__(self) -> None:
        self._inner: Any = _brotli.Decompressor()

    def feed(self, data: bytes, room: int) -> bytes:
        pieces: list[bytes] = []
        while room > 0:
            piece: bytes = self._inner.process(data, output_buffer_limit=room)
            data = b""
            pieces.append(piece)
            room -= len(piece)
            if not piece or self._inner.can_accept_more_data():
                break
        return b"".join(pieces)


class _Zstd:
    """RFC 8878: one or more frames."""

    def __init__(self) -> None:
        self._frame = self._new()

    @staticmethod
    def _new() -> zstd.ZstdDecompressor:
        return zstd.ZstdDecompressor(
            options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
        )

    def feed(self, data: bytes, room: int) -> bytes:
        pieces: list[bytes] = []
        while data and room > 0:
            if self._frame.eof:
                self._frame = self._new()
            piece = self._frame.decompress(data, room)
            pieces.append(piece)
            room -= len(piece)
            data = self._frame.unused_data if self._frame.eof else b""
        return b"".join(pieces)


_STAGES: dict[str, Callable[[], _Stage]] = {
    "gzip": _Gzip,
    "x-gzip": _Gzip,
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": _Zstd,
}
