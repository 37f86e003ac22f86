"""The name of outcomes is looked for wherever a client may read it."""

import gzip

import pytest

from turnlog.wire.outcome_key import (
    MASK,
    OtherReadings,
    OutcomeMask,
    has_hint,
    holds_json,
    is_wide,
    mask_for,
    without_mask,
    without_outcome,
)

MEMBER = '{"turnlog/outcome": 1}'


@pytest.mark.parametrize(
    "name", [b'"turnlog/outcome"', rb'"turnlog\/outcome"', rb'"turn\u006cog/outcome"']
)
@pytest.mark.parametrize("size", [10, 9_000, 2_000_000])
def test_each_spelling_of_the_name_is_found_in_a_text_of_any_size(name: bytes, size: int) -> None:
    before = b"\xff\xc3(" + b"x" * size
    assert has_hint(before + name + before)
    assert not has_hint(before + b'"turn/outcome"' + before + b'"turn\\nlog"')


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (b"{", True),
        (b" \r\n[", True),
        (b"\xef\xbb\xbf {", True),
        (b"# page", False),
        (b"", None),
        (b" \n", None),
        (b"\xef\xbb\xbf", None),
    ],
)
def test_a_text_begins_as_json_behind_blanks_and_a_byte_order_mark(
    start: bytes, expected: bool | None
) -> None:
    assert holds_json(start) is expected


def test_whether_a_text_is_json_is_open_while_only_blanks_come() -> None:
    json, page = OutcomeMask(looks=True), OutcomeMask(looks=True)
    for mask, start in ((json, b"["), (page, b"# ")):
        for piece in (b"", b" ", b"\n", start, MEMBER.encode()):
            mask.feed(piece)
    assert (json.found, page.found) == (True, False)


def found(raw: bytes, *charsets: str, is_coded: bool = False) -> bool:
    readings = OtherReadings(charsets, is_coded=is_coded, in_events=False, looks=False)
    for place in range(0, len(raw), 3):
        readings.feed(raw[place : place + 3], raw[place : place + 3])
    return readings.found


@pytest.mark.parametrize(
    ("charset", "raw"),
    [
        ("utf-7", MEMBER.replace("/", "+AC8-").encode()),
        ("utf-16", MEMBER.encode("utf-16")),
        ("utf-16", MEMBER.encode("utf-16-be")),
        ("UTF-16LE", MEMBER.encode("utf-16-le")),
        ("utf-32", MEMBER.encode("utf-32")),
        ("cp037", MEMBER.encode("cp037")),
        ("unicode_escape", MEMBER.replace("t", r"\x74").encode()),
        ("iso2022_jp", MEMBER.replace("log", "\x1b(Blog").encode()),
        ("hz", MEMBER.replace("log", "~\nlog").encode()),
    ],
)
def test_the_name_is_found_in_a_charset_that_spells_it_otherwise(charset: str, raw: bytes) -> None:
    assert found(raw, charset)
    assert found(raw, "utf-8", charset)
    assert not found(raw, "utf-8")


@pytest.mark.parametrize(
    "charset", ["utf-8", "latin-1", "punycode", "zip", "rot13", "hex", "x", "\0"]
)
def test_other_words_for_charsets_are_not_decoded(charset: str) -> None:
    assert not found(MEMBER.encode(), charset)


def test_a_coded_body_is_searched_as_it_came() -> None:
    assert found(MEMBER.encode(), is_coded=True)
    assert not found(gzip.compress(MEMBER.encode()), is_coded=True)
    assert not found(MEMBER.encode())


@pytest.mark.parametrize(
    "charset", ["utf-16", "utf-32", "utf-7", "idna", "cp037", "unicode_escape"]
)
def test_bytes_outside_the_charset_do_not_end_the_reading(charset: str) -> None:
    for raw in (b"\xff\xfe\xff", b"\\x", b"+\xff" * 5, b"no" * 9):
        assert not found(raw, charset)


def test_in_other_media_types_only_json_is_searched() -> None:
    page = b'# "turnlog/outcome": x'
    for charsets, raw in (((), page), (("utf-16",), page.decode().encode("utf-16"))):
        readings = OtherReadings(charsets, is_coded=True, in_events=False, looks=True)
        readings.feed(raw, raw)
        assert not readings.found


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ('{"a":1, "turnlog/outcome": {"b":[1]}, "c":2}', '{"a":1, "c":2}'),
        ('{"turnlog/outcome":1 , "c":2}', '{ "c":2}'),
        ('{"turnlog/outcome":1}', "{}"),
        ('{"\\u0074urnlog\\/outcome":"x","c":2}', '{"c":2}'),
        ('{"a":1,"turnlog/outcome":{"cut', '{"a":1'),
        ('{"a":"turnlog/outcome"}', None),
        ('{"a":1}', None),
    ],
)
def test_the_member_is_taken_out_of_a_whole_text(text: str, clean: str | None) -> None:
    found = without_outcome(text.encode())
    assert (found.decode() if found is not None else None) == clean


def test_a_member_whose_name_was_overwritten_is_taken_out_later() -> None:
    mask = OutcomeMask()
    left = mask.feed(b'{"a":1,"turnlog/') + mask.feed(b'outcome":2}') + mask.finish()
    assert left == b'{"a":1,%b :2}' % MASK
    assert without_mask(left) == b'{"a":1}'
    assert without_mask(b"{}") is None


def test_a_name_cut_by_the_end_of_a_text_is_passed_on() -> None:
    mask = OutcomeMask()
    assert mask.feed(b'{"turnlog/out') == b'{"'
    assert mask.finish() == b"turnlog/out"
    escaped = OutcomeMask()
    assert escaped.feed(b'{"\\u0074urnlog\\/') == b'{"'
    assert escaped.feed(b'outcome" :1}') == MASK[1:].ljust(22) + b" :1}"
    assert escaped.found


def test_a_body_that_may_be_events_is_searched_both_ways() -> None:
    for body in (MEMBER.encode(), b"data: " + MEMBER.encode() + b"\n\n"):
        mask = mask_for(in_events=True, looks=False)
        left = mask.feed(body) + mask.finish()
        assert mask.found
        assert not mask.passes
        assert len(left) == len(body)
        assert b"turnlog/outcome" not in left


def test_text_in_wide_characters_is_told_from_others() -> None:
    assert is_wide("{".encode("utf-16"))
    assert is_wide("{".encode("utf-32-be"))
    assert not is_wide(b"{}")


def test_a_charset_whose_decoder_gives_up_is_left_out() -> None:
    readings = OtherReadings(["iso2022_jp", "cp037"], is_coded=False, in_events=False, looks=False)
    readings.feed(b"", b"\x1b((((((((((")
    readings.feed(b"", MEMBER.encode())
    assert not readings.found
    readings.feed(b"", MEMBER.encode("cp037"))
    assert readings.found
