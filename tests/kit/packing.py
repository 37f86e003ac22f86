"""Content codings, as bytes to bytes."""

import gzip
import sys
import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

_brotli: Any = import_module("brotli")
_zstd: Any = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

Pack = Callable[[bytes], bytes]


def _by_brotli(data: bytes) -> bytes:
    packed: bytes = _brotli.compress(data)
    return packed


def _by_zstd(data: bytes) -> bytes:
    packed: bytes = _zstd.compress(data)
    return packed


PACKERS: Final[Mapping[str, Pack]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": _by_brotli,
    "zstd": _by_zstd,
}
"""By the name that `Content-Encoding` gives."""
