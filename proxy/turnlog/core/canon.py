"""Canonical JSON (RFC 8785), and the hash of a call's input."""

# msgspec's sorted encoder gives the same bytes as the `rfc8785` package, far faster, as long as there
# are no floats, no keys beyond the BMP and no integers of 2^53 and more. The type of the decoder
# checks that at no cost; what it refuses takes the slow way.

import hmac
import json
import re
from collections.abc import Callable
from hashlib import sha256
from itertools import accumulate
from typing import Annotated, Any, Final, NoReturn, Union

import msgspec
from msgspec import Meta

SHA256 = "sha256"
RAW_SHA256 = "raw-sha256"
HMAC_SHA256 = "hmac-sha256"

MAX_DEPTH: Final = 512
"""Deepest nesting that is read: Python's own limit depends on how deep the caller is."""
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_OUTSIDE = bytes(set(range(256)).difference(b"[{]}"))
_DEPTH = 8
"""Deepest nesting of the fast path: each level doubles the time to build its decoder."""


def _fast_type() -> Any:
    """Return the type of JSON for the fast path, unrolled: msgspec knows no recursive alias."""
    limit = 2**53 - 1
    number = Annotated[int, Meta(ge=-limit, le=limit)]
    scalar = Union[number, str, bool, None]  # noqa: UP007 - made at run time
    plain: Any = scalar
    for _ in range(_DEPTH):
        plain = Union[scalar, list[plain], dict[str, plain]]  # noqa: UP007 - made at run time
    return plain


decode_plain = msgspec.json.Decoder(_fast_type()).decode
"""Decode JSON of the fast path. Raises `ValueError` and `RecursionError` for any other."""
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
# UTF-8 and UTF-16 order keys alike as long as no character lies beyond the BMP.
_find_astral = re.compile(rb"[\xf0-\xff]|\\u[dD]").search


def canonical(data: bytes) -> tuple[str, bytes]:
    """Return the scheme and the bytes to hash: RFC 8785, or `data` itself if that is not possible.

    It is not possible with invalid UTF-8, duplicate keys, lone surrogates, NaN, integers beyond
    2^53 and nesting beyond `MAX_DEPTH`: two parsers may read such bytes differently.
    """
    fast = _canonical_fast(data)
    if fast is not None:
        return SHA256, fast
    if is_deep(data):
        return RAW_SHA256, data
    try:
        parsed = json.loads(
            data.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
        return SHA256, _rfc8785(parsed)
    except (ValueError, RecursionError):
        return RAW_SHA256, data


def canonical_of_decoded(value: object, data: bytes) -> tuple[str, bytes]:
    """Return `canonical(data)` from `value`, as `decode_plain` has read it.

    `data` must not repeat a key; it may be a part of the document that was decoded.
    """
    is_plain = data.isascii() and data.find(b"\\") < 0
    if not is_plain and _may_have_astral(data):
        return canonical(data)
    return SHA256, _encode_sorted(value)


def is_deep(data: bytes) -> bool:
    """Return whether JSON nests deeper than `MAX_DEPTH`."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    steps = _STRING.sub(b"", data).translate(_STEPS, _OUTSIDE)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > MAX_DEPTH


def input_hash(
    canon: tuple[str, bytes], *, key: bytes | Callable[[bytes], bytes] | None = None
) -> str:
    """Return the hash of a call's input as `scheme:hex`, from the result of `canonical`.

    `key` is an HMAC key, or a function that computes the HMAC-SHA-256. It is given for inputs that
    hold a secret, which a plain hash would let anybody guess.
    """
    scheme, form = canon
    if key is None:
        return f"{scheme}:{sha256(form).hexdigest()}"
    digest = hmac.digest(key, form, "sha256") if isinstance(key, bytes) else key(form)
    return f"{HMAC_SHA256}:{digest.hex()}"


def _rfc8785(value: Any) -> bytes:
    # Imported on first use: commands that only read never need it.
    import rfc8785

    return rfc8785.dumps(value)


def _canonical_fast(data: bytes) -> bytes | None:
    if _may_have_astral(data):
        return None
    try:
        form = _encode_sorted(decode_plain(data))
    except (ValueError, RecursionError):
        return None
    # The form is never longer than the data, and shorter if the decoder dropped a duplicate key.
    if len(form) == len(data):
        return form
    if data.find(b"\\") < 0 and form.count(b'"') == data.count(b'"'):
        return form
    return None


def _may_have_astral(data: bytes) -> bool:
    """Return whether a key may lie beyond the BMP."""
    # Searching for one byte is far faster than for two, and `in` takes twice as long as `find`.
    if data.isascii() and (data.find(b"\\") < 0 or data.find(b"\\u") < 0):
        return False
    return _find_astral(data) is not None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate key")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"not a JSON number: {name!r}")


def is_utf8(data: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
