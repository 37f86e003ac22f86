"""Content-Encoding undone for the observer."""

import gzip
import sys
import zlib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import pytest

from turnlog.wire.http.content_coding import ContentDecoder, decoder_for

brotli: Any = import_module("brotli")
zstd: Any = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

BODY = b'{"jsonrpc":"2.0"}' * 40
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": partial(gzip.compress, mtime=0),
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstd.compress,
}


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def decoder(coding: str, limit: int = 1 << 20) -> ContentDecoder:
    found = decoder_for(coding, limit)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("gzip", gzip.compress(BODY, mtime=0)),
        ("X-GZIP", gzip.compress(BODY, mtime=0)),
        (
            "gzip",
            gzip.compress(BODY[:9], mtime=0) + gzip.compress(BODY[9:], mtime=0) + b"\0\0padding",
        ),
        ("gzip", gzip.compress(BODY, mtime=0) + b"\x1f no member"),
        ("deflate", zlib.compress(BODY)),
        ("deflate", bare_deflate(BODY)),
        ("br", brotli.compress(BODY)),
        ("zstd", zstd.compress(BODY)),
        ("zstd", zstd.compress(BODY[:9]) + zstd.compress(BODY[9:])),
        ("gzip, br", brotli.compress(gzip.compress(BODY, mtime=0))),
        ("identity, gzip ,", gzip.compress(BODY, mtime=0)),
        ("", BODY),
        ("identity", BODY),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_body_is_decoded_piece_by_piece(coding: str, data: bytes, size: int) -> None:
    found = decoder(coding)
    out = b"".join(found.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert out == BODY
    assert not found.failed
    assert not found.overflow


@pytest.mark.parametrize("coding", ["compress", "gzip, unknown", "gzip,gzip,gzip,gzip,gzip", "*"])
def test_a_coding_that_is_not_known_has_no_decoder(coding: str) -> None:
    assert decoder_for(coding, 100) is None


@pytest.mark.promise("SEC-11")
@pytest.mark.parametrize(
    ("coding", "size"),
    [
        ("gzip", 10_000_000),
        ("deflate", 10_000_000),
        ("br", 10_000_000),
        ("zstd", 10_000_000),
        ("gzip, gzip", 50_000_000),
        ("br, gzip", 10_000_000),
    ],
)
def test_a_bomb_ends_the_decoding_at_the_limit(coding: str, size: int) -> None:
    packed = bytes(size)
    for one in coding.split(", "):
        packed = PACKERS[one](packed)
    found = decoder(coding, limit=100_000)
    out = b"".join(found.feed(packed[at : at + 512]) for at in range(0, len(packed), 512))
    assert found.overflow
    assert not out.strip(b"\0")
    assert len(out) <= 100_000
    assert found.feed(b"more") == b""


def test_a_stage_in_between_is_bounded_as_well() -> None:
    inner = gzip.compress(b"small", mtime=0) + bytes(10_000_000)
    found = decoder("gzip, gzip", limit=1000)
    assert found.feed(gzip.compress(inner, mtime=0)) == b"small"
    assert found.overflow


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_data_that_is_not_coded_so_fails(coding: str) -> None:
    found = decoder(coding)
    assert found.feed(b'{"jsonrpc":"2.0","id":1}') == b""
    assert found.failed
    assert found.feed(b"more") == b""


def test_a_window_beyond_what_http_allows_is_refused() -> None:
    window = {zstd.CompressionParameter.window_log: 27}
    packer = zstd.ZstdCompressor(options=window)
    packed = packer.compress(bytes(100)) + packer.flush(zstd.ZstdCompressor.FLUSH_BLOCK)
    found = decoder("zstd")
    found.feed(packed)
    assert found.failed
