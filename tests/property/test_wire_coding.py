"""Laws of content decoding: chunks are invisible, output is bounded, nothing raises."""

import gzip
import itertools
import sys
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from turnlog.wire.http.content_coding import ContentDecoder, decoder_for

brotli: Any = import_module("brotli")
zstd: Any = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def bare(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def two_members(data: bytes) -> bytes:
    return gzip.compress(data[:5]) + gzip.compress(data[5:])


def two_frames(data: bytes) -> bytes:
    return bytes(zstd.compress(data[:3]) + zstd.compress(data[3:]))


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": two_members,
    "deflate": zlib.compress,
    "Deflate ": bare,
    "br": brotli.compress,
    "zstd": zstd.compress,
    " ZSTD": two_frames,
    "identity": bytes,
    "": bytes,
}
codings = st.lists(st.sampled_from(sorted(ENCODERS)), max_size=3)
bodies = st.one_of(
    st.binary(max_size=200),
    st.tuples(st.binary(min_size=1, max_size=4), st.integers(1, 60_000)).map(lambda p: p[0] * p[1]),
)
cuts = st.lists(st.integers(0, 1000), max_size=8)


def encoded(data: bytes, names: list[str]) -> bytes:
    for name in names:
        data = ENCODERS[name](data)
    return data


def decode(decoder: ContentDecoder, data: bytes, where: list[int]) -> bytes:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in where)})
    return b"".join(decoder.feed(data[start:end]) for start, end in itertools.pairwise(edges))


def new(names: list[str], limit: int) -> ContentDecoder:
    decoder = decoder_for(",".join(names), limit)
    assert decoder is not None
    return decoder


@given(bodies, codings, cuts)
def test_what_was_encoded_comes_out_whatever_the_chunks(
    body: bytes, names: list[str], where: list[int]
) -> None:
    decoder = new(names, 1 << 20)
    assert decode(decoder, encoded(body, names), where) == body
    assert not decoder.failed
    assert not decoder.overflow


@given(
    bodies, codings.filter(lambda names: encoded(b"x", names) != b"x"), cuts, st.integers(0, 999)
)
def test_no_more_than_the_limit_comes_out(
    body: bytes, names: list[str], where: list[int], limit: int
) -> None:
    decoder = new(names, limit)
    out = decode(decoder, encoded(body, names), where)
    assert len(out) <= limit
    assert body.startswith(out)
    if len(body) > limit:
        assert decoder.overflow
    if not decoder.overflow:
        assert out == body


@given(bodies, codings, cuts, st.integers(0, 1000), st.binary(max_size=4))
def test_damaged_data_ends_the_decoding_without_raising(
    body: bytes, names: list[str], where: list[int], place: int, noise: bytes
) -> None:
    data = encoded(body, names)
    at = place % (len(data) + 1)
    damaged = data[:at] + noise + data[at + len(noise) + 1 :]
    decoder = new(names, 1 << 16)
    decode(decoder, damaged, where)
    if decoder.failed:
        assert decoder.feed(b"more") == b""
