"""Canonical JSON: one form for equal values, raw bytes where parsers disagree."""

import hmac
import json
from hashlib import sha256

import pytest

from turnlog.core.canon import canonical, canonical_of_decoded, input_hash, is_deep, is_utf8


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b'{"b":1,"a":2}', b'{"a":2,"b":1}'),
        (b'{ "a" : [ 1 , true , null ] }', b'{"a":[1,true,null]}'),
        (b'"\\u0041\\/\\u00e9"', '"A/é"'.encode()),
        (b"-0", b"0"),
        (b"[1.0,1e21,0.000001,1e-7]", b"[1,1e+21,0.000001,1e-7]"),
        (b"9007199254740991", b"9007199254740991"),
        (b'{"a":{"a":{"a":{}}}}', b'{"a":{"a":{"a":{}}}}'),
        (b'"\\u001f\\n\x7f"', b'"\\u001f\\n\x7f"'),
        (b'{"a\\"b":"c\\\\d"}', b'{"a\\"b":"c\\\\d"}'),
    ],
)
def test_json_has_one_form(data: bytes, form: bytes) -> None:
    assert canonical(data) == ("sha256", form)


def test_keys_beyond_the_bmp_are_ordered_by_utf_16() -> None:
    # U+10000 is D800 DC00 in UTF-16, before U+FFFF; code points order them the other way.
    data = '{"\uffff":1,"\U00010000":2}'.encode()
    assert canonical(data) == ("sha256", '{"\U00010000":2,"\uffff":1}'.encode())


def test_escaped_keys_beyond_the_bmp_are_ordered_by_utf_16() -> None:
    data = b'{"\\uffff":1,"\\ud800\\udc00":2}'
    assert canonical(data) == ("sha256", '{"\U00010000":2,"\uffff":1}'.encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nothing",
        b'{"a":1',
        b'{"a":1,"a":2}',
        b'{"a":1, "a":1}',
        b'{"a":"x","\\u0061":"y"}',
        b'{"\\"":1,"\\"":2}',
        b'{"a":{"b":[{"c":1,"c":2.5}]}}',
        b"NaN",
        b"[Infinity]",
        b"1e400",
        b"9007199254740992",
        b"-9007199254740992",
        b"9" * 5000,
        b'"\\ud800"',
        b'{"\\ud800":1}',
        b'"\xff"',
        b"\xef\xbb\xbf{}",
        b"1\x00",
        '{"a":1}'.encode("utf-16"),
        b"[" * 100_000,
        b"[" * 5_000 + b"]" * 5_000,
        b'{"a":' * 100_000,
    ],
    ids=lambda data: repr(data[:16]),
)
def test_json_that_parsers_read_differently_stays_raw(data: bytes) -> None:
    assert canonical(data) == ("raw-sha256", data)


def test_the_hash_names_its_scheme() -> None:
    assert (
        input_hash(canonical(b'{"b":1, "a":2}')) == "sha256:" + sha256(b'{"a":2,"b":1}').hexdigest()
    )
    assert input_hash(canonical(b"\xff")) == "raw-sha256:" + sha256(b"\xff").hexdigest()


def test_a_keyed_hash_depends_on_key_and_content_only() -> None:
    expected = hmac.digest(b"k" * 32, b'{"a":2,"b":1}', "sha256").hex()
    assert input_hash(canonical(b'{"b":1, "a":2}'), key=b"k" * 32) == f"hmac-sha256:{expected}"
    assert input_hash(canonical(b'{"a":2,"b":1}'), key=b"k" * 32) == f"hmac-sha256:{expected}"
    assert input_hash(canonical(b'{"a":2,"b":1}'), key=b"other") != f"hmac-sha256:{expected}"


def test_the_key_may_be_a_function_that_computes_the_hmac() -> None:
    def keyed(data: bytes) -> bytes:
        return hmac.digest(b"secret", data, "sha256")

    assert input_hash(canonical(b"{}"), key=keyed) == input_hash(canonical(b"{}"), key=b"secret")


def nested(depth: int, value: bytes = b"1.5") -> bytes:
    return b"[" * depth + value + b"]" * depth


def at_depth(frames: int, data: bytes) -> tuple[str, bytes]:
    return canonical(data) if frames == 0 else at_depth(frames - 1, data)


@pytest.mark.parametrize(("depth", "scheme"), [(512, "sha256"), (513, "raw-sha256")])
def test_the_depth_limit_does_not_depend_on_the_callers_depth(depth: int, scheme: str) -> None:
    # A quote, a bracket and a backslash in a string are no nesting.
    data = nested(depth, b'["]]]\\"[",1.5]'[1:-1])
    assert [at_depth(frames, data)[0] for frames in (0, 100, 250)] == [scheme] * 3


def test_wide_json_is_not_deep() -> None:
    assert not is_deep(b"[" + b"{}," * 1000 + b'"' + b"[" * 1000 + b'"]')
    assert is_deep(b"[{" * 257)
    assert not is_deep(b"]" * 1000)


def test_a_decoded_value_has_the_same_form_as_its_bytes() -> None:
    for data in (b'{"b": 1, "a": []}', '{"\U0001f600": 1, "\uffff": 2}'.encode()):
        assert canonical_of_decoded(json.loads(data), data) == canonical(data)


@pytest.mark.parametrize(
    ("data", "said"), [(b"a", True), ("\u00e9".encode(), True), (b"\xe9", False), (b"", True)]
)
def test_utf_8_is_told_from_other_bytes(data: bytes, said: bool) -> None:
    assert is_utf8(data) is said
