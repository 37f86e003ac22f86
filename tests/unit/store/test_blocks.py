"""`store.log.blocks`: several records to a value, and what is read of values that are damaged."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from turnlog.store.log import blocks
from turnlog.store.log.keys import unpack

records = st.lists(st.binary(max_size=300), min_size=1, max_size=blocks.MOST)


@given(records)
def test_a_block_gives_its_records_back(held: list[bytes]) -> None:
    data = blocks.pack(held)
    assert blocks.unpack(data) == held
    assert [blocks.record(data, back) for back in range(len(held))] == held[::-1]
    assert blocks.record(data, len(held)) is None


@given(records, st.data())
def test_the_first_bytes_of_records_may_be_given_apart(
    held: list[bytes], draw: st.DataObject
) -> None:
    marks = [draw.draw(st.binary(max_size=2)) for _ in held]
    together = [mark + record for mark, record in zip(marks, held, strict=True)]
    assert blocks.pack(held, marks) == blocks.pack(together)
    more, all_marks = held * 70, marks * 70
    items = blocks.items(10, more, all_marks)
    found = [record for _, value in items for record in blocks.unpack(value)]
    assert found == [mark + record for mark, record in zip(all_marks, more, strict=True)]


@given(st.binary(max_size=400))
def test_any_bytes_are_taken(data: bytes) -> None:
    found = blocks.unpack(data)
    assert len(found) <= blocks.MOST
    assert [blocks.record(data, back) for back in range(len(found))] == found[::-1]


@given(records, st.data())
def test_a_damaged_block_gives_no_more_records_than_a_whole_one(
    held: list[bytes], draw: st.DataObject
) -> None:
    data = bytearray(blocks.pack(held))
    for _ in range(3):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    assert len(blocks.unpack(bytes(data))) <= blocks.MOST


@given(st.lists(st.integers(0, 40_000), max_size=300))
def test_records_are_cut_by_number_and_by_size(sizes: list[int]) -> None:
    held = [bytes(size) for size in sizes]
    made = blocks.items(5, held)
    found = [blocks.unpack(value) for _, value in made]
    assert [record for block in found for record in block] == held
    ends = [5 + end for end in accumulate(map(len, found))]
    assert [unpack(key) for key, _ in made] == ends
    for block in found:
        assert 0 < len(block) <= blocks.MOST
        assert sum(map(len, block[:-1])) < blocks.MOST_BYTES


def test_a_block_stands_under_the_position_of_its_last_record() -> None:
    items = blocks.items(10, [b"x"] * (blocks.MOST + 1))
    assert [unpack(key) for key, _ in items] == [10 + blocks.MOST, 11 + blocks.MOST]
