"""Text made safe for a terminal."""

import pytest

from turnlog.core.text.terminal import display_width, escape_unprintable, fit_columns, one_line


@pytest.mark.parametrize(
    ("text", "width"), [("abc", 3), ("é", 1), ("e\u0301", 1), ("日本", 4), ("ﾃ", 1)]
)
def test_wide_characters_take_two_columns_and_combining_ones_none(text: str, width: int) -> None:
    assert display_width(text) == width


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("abcd", 4, "abcd"),
        ("abcd", 3, "ab…"),
        ("日本語", 4, "日…"),
        ("abcd", 0, ""),
        ("ab", 1, "…"),
    ],
)
def test_a_text_that_is_too_wide_ends_in_an_ellipsis(text: str, columns: int, shown: str) -> None:
    assert fit_columns(text, columns) == shown


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain", "plain"),
        ("\x1b[2J", "\\u001b[2J"),
        ("a\u202eb", "a\\u202eb"),
        ("é\n", "é\\u000a"),
        ("\U000e0041", "\\udb40\\udc41"),
        ("\ud800", "\\ud800"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, escaped: str) -> None:
    assert escape_unprintable(text) == escaped


@pytest.mark.parametrize(
    ("text", "line"),
    [(" a ", "a"), ("a\n b", "a b"), ("\x1b[31mred\x1b[0m", "red"), ("é\u200b", "é")],
)
def test_text_is_folded_to_one_printable_line(text: str, line: str) -> None:
    assert one_line(text, 20) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a" * 20, "a" * 20),
        ("a" * 20 + "\n\n", "a" * 20),
        (" " + "a" * 19 + " b", "a" * 17 + "…"),
        ("a" * 16 + "  \n  b c d e f", "a" * 16 + "…"),
        ("a b\tc\r" * 9 + "\x1b[0m", "a b c a b c a b c…"),
        ("é" * 10 + "\u200b", "é" * 10),
        ("é é " * 9, "é é é é é é…"),
        ("é\n" * 12, "é é é é é é…"),
        ("word " * 9 + "\x1b[31m", "word word word wo…"),
    ],
)
def test_a_line_is_cut_to_its_bytes(text: str, line: str) -> None:
    assert one_line(text, 20) == line
    assert len(line.encode()) <= 20
