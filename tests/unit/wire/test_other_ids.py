"""An answer whose id differs in type only belongs to the one request that it can mean."""

import pytest

from turnlog.wire.jsonrpc import id_key, meant_key, other_type


@pytest.mark.parametrize(
    ("raw", "other"),
    [
        (b"7", b'"7"'),
        (b'"7"', b"7"),
        (b"-1", b'"-1"'),
        (b"7.0", b'"7"'),
        (b'"07"', b""),
        (b'"7.0"', b""),
        (b'"a"', b""),
        (b'""', b""),
        (b"null", b""),
        (b"1.5", b""),
        (b"9" * 30, b""),
        (b'"' + b"9" * 30 + b'"', b""),
    ],
)
def test_a_number_and_its_digits_as_a_string_differ_in_type_only(raw: bytes, other: bytes) -> None:
    assert other_type(id_key(raw)) == (id_key(other) if other else "")


@pytest.mark.promise("OUT-16")
def test_an_answer_means_the_request_with_its_own_id_first() -> None:
    for open_ids, meant in [
        ({"7"}, "7"),
        ({'"7'}, '"7'),
        ({"7", '"7'}, "7"),
        (set[str](), "7"),
        ({"8"}, "7"),
    ]:
        assert meant_key("7", open_ids.__contains__) == meant
