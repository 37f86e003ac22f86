"""`core.ids`: identifiers that sort by time."""

from hashlib import sha256
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.core.ids import Entropy, Ids, from_text, has_prefix, to_text, too_short, uuid7

times = st.integers(0, (1 << 48) * 1_000_000 - 1)
entropy = st.binary(min_size=10, max_size=10)


@given(at=times, dice=entropy)
def test_an_id_is_a_uuid_of_version_seven_with_its_time(at: int, dice: bytes) -> None:
    made = UUID(bytes=uuid7(at, dice))
    assert made.version == 7
    assert made.variant == "specified in RFC 4122"
    assert made.int >> 80 == at // 1_000_000


def test_an_id_begins_with_its_digits_with_hyphens_or_without() -> None:
    made = from_text("01a21f72-10b6-7abc-8def-0123456789ab")
    assert has_prefix(made, "01A21f72-10b6-7")
    assert has_prefix(made, "01a21f7210b67ab")
    assert not has_prefix(made, "01a21f7210b6-7")


@given(early=times, late=times, dice=entropy)
def test_ids_sort_by_time(early: int, late: int, dice: bytes) -> None:
    if early // 1_000_000 < late // 1_000_000:
        assert uuid7(early, b"\xff" * 10) < uuid7(late, dice)


@given(at=times, one=entropy, other=entropy)
def test_ids_of_the_same_time_differ_in_74_random_bits(at: int, one: bytes, other: bytes) -> None:
    bits = 0xFFF << 64 | (1 << 62) - 1
    same = int.from_bytes(one, "big") & bits == int.from_bytes(other, "big") & bits
    assert (uuid7(at, one) == uuid7(at, other)) == same


@given(times=st.lists(times, min_size=1, max_size=900))
def test_ids_made_in_a_block_equal_those_made_one_by_one(times: list[int]) -> None:
    drawn: list[bytes] = []

    def source(size: int) -> bytes:
        drawn.append(
            b"".join(sha256(b"%d %d" % (len(drawn), n)).digest() for n in range(size // 32))
        )
        return drawn[-1]

    ids = Ids(source)
    made = [ids.new(at) for at in times]
    tens = [each[i : i + 10] for each in drawn for i in range(0, len(each) - 9, 10)]
    assert made == [uuid7(at, ten) for at, ten in zip(times, tens, strict=False)]


@given(at=times, dice=entropy)
def test_the_text_form_is_read_back(at: int, dice: bytes) -> None:
    made = uuid7(at, dice)
    assert from_text(to_text(made)) == made
    assert len(to_text(made)) == 36


def test_an_empty_identifier_has_no_text() -> None:
    assert to_text(b"") == ""


@pytest.mark.parametrize("text", ["", "xyz", "0123", "g" * 32])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"badly formed|invalid literal"):
        from_text(text)


@given(counts=st.lists(st.integers(0, 1024), max_size=60))
def test_random_bytes_are_never_returned_twice(counts: list[int]) -> None:
    numbers = iter(range(1 << 20))
    entropy = Entropy(lambda size: b"".join(next(numbers).to_bytes(4) for _ in range(size // 4)))
    drawn = [entropy.take(4 * count) for count in counts]
    assert [len(piece) for piece in drawn] == [4 * count for count in counts]
    words = [piece[i : i + 4] for piece in drawn for i in range(0, len(piece), 4)]
    assert words == sorted(set(words))


@pytest.mark.parametrize("text", ["0193", "01-93", "not-hex", "xyz"])
def test_a_beginning_of_four_digits_is_looked_for_and_so_is_what_is_no_id(text: str) -> None:
    assert too_short(text) == ""


@pytest.mark.parametrize("text", ["", "019", "0-1-9"])
def test_a_shorter_beginning_of_an_id_is_not_looked_for(text: str) -> None:
    assert "too short" in too_short(text)
