import json
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.cli.render import Cell, Column, Style, aligned, clean_lines, fitted_table, json_line
from turnlog.core.text.terminal import escape_unprintable, fit_columns

HOSTILE = ["\x1b[2J", "\x9b31m", "a\rb", "\x07", "\x7f", "\u202egpj.exe", "\u2028", "\U000e0041"]


def rendered(
    columns: Sequence[Column], rows: Iterable[Sequence[Cell]], *, width: int | None
) -> list[str]:
    return list(fitted_table(columns, rows, width=width))


def _width(text: str) -> int:
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


@pytest.mark.promise("CLI-6")
@pytest.mark.parametrize("text", HOSTILE)
def test_control_characters_are_escaped(text: str) -> None:
    for shown in (
        escape_unprintable(text),
        clean_lines(text),
        json_line({"a": text}),
        *fitted_table([Column("")], [[Cell(text)]], width=None),
    ):
        assert all(c.isprintable() for c in shown), shown


def test_plain_text_is_unchanged() -> None:
    assert escape_unprintable("naïve 漢字 🙂 ok") == "naïve 漢字 🙂 ok"
    assert escape_unprintable("a\nb\tc") == "a\\u000ab\\u0009c"


def test_line_ends_and_tabs_of_a_payload_are_kept() -> None:
    assert clean_lines("a\tb\r\nc\x1b\n") == "a\tb\nc\\u001b\n"


@given(st.text())
def test_escaped_json_has_the_same_value(text: str) -> None:
    line = json_line({"text": text})

    assert json.loads(line) == {"text": text}
    assert all(c.isprintable() or unicodedata.category(c) == "Zs" for c in line)


def test_columns_are_aligned_by_display_width() -> None:
    lines = rendered(
        [Column("A"), Column("B")],
        [[Cell("漢字"), Cell("x")], [Cell("abc"), Cell("y")]],
        width=None,
    )

    assert lines == ["A     B", "漢字  x", "abc   y"]


def test_the_last_column_is_cut_to_the_terminal() -> None:
    lines = rendered(
        [Column("A", whole=True), Column("SUMMARY")], [[Cell("a" * 10), Cell("b" * 100)]], width=40
    )

    assert [len(line) for line in lines] == [19, 40]
    assert lines[1].endswith("…")


def test_the_widest_cuttable_column_is_cut_first() -> None:
    columns = [Column("ID", whole=True), Column("A"), Column("B")]
    row = [Cell("i" * 20), Cell("a" * 30), Cell("b" * 12)]

    assert rendered(columns, [row], width=52)[1] == f"{'i' * 20}  {'a' * 15}…  {'b' * 12}"
    assert rendered(columns, [row], width=40)[1] == f"{'i' * 20}  {'a' * 7}…  {'b' * 7}…"


def test_a_wide_table_uses_narrow_texts_then_leaves_columns_out() -> None:
    columns = [Column("ID", whole=True), Column("N", whole=True, spare=1), Column("TEXT")]
    row = [Cell("i" * 20, narrow="iiii"), Cell("12345"), Cell("t" * 30)]

    assert rendered(columns, [row], width=41)[1] == f"{'i' * 20}  12345  {'t' * 11}…"
    assert rendered(columns, [row], width=40)[1] == f"iiii  12345  {'t' * 26}…"
    assert rendered(columns, [row], width=20) == ["ID    TEXT", f"iiii  {'t' * 13}…"]
    assert rendered(columns, [row], width=11) == ["ID    TEXT", "iiii  tttt…"]
    assert rendered(columns, [row], width=10) == ["ID", "iiii"]


def test_a_cut_last_column_is_whole_while_others_can_be_cut() -> None:
    columns = [Column("TOOL", cut_last=True), Column("N", whole=True, spare=1), Column("TEXT")]
    row = [Cell("t" * 10), Cell("12345"), Cell("x" * 30)]

    assert rendered(columns, [row], width=31)[1] == f"{'t' * 10}  12345  {'x' * 11}…"
    assert rendered(columns, [row], width=24)[1] == f"{'t' * 10}  {'x' * 11}…"
    assert rendered(columns, [row], width=17)[1] == f"{'t' * 10}  xxxx…"
    assert rendered(columns, [row], width=15)[1] == f"{'t' * 7}…  xxxx…"


@given(
    st.lists(st.tuples(st.text(max_size=40), st.booleans(), st.integers(0, 2)), min_size=1),
    st.integers(1, 90),
)
def test_no_line_of_a_table_is_wider_than_the_terminal(
    cells: list[tuple[str, bool, int]], width: int
) -> None:
    columns = [Column("NAME", whole=whole, spare=spare) for _, whole, spare in cells]
    row = [Cell(text) for text, _, _ in cells]

    assert all(_width(line) <= width for line in rendered(columns, [row], width=width))


def _row(*texts: str) -> list[Cell]:
    return [Cell(text) for text in texts]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (None, ["ok    files/write_everything_now  a long summary"]),
        (60, ["ok    files/write_everything_now  a long summary"]),
        (44, ["ok    files/write_everything_…  a long summ…"]),
        (32, ["ok    files/write…  a long summ…"]),
        (25, ["ok    files/write…  a lo…"]),
        (8, ["ok    f…"]),
        (6, ["ok"]),
        (1, ["…"]),
    ],
)
def test_streamed_lines_fit_the_terminal(width: int | None, expected: list[str]) -> None:
    row = _row("ok", "files/write_everything_now", "a long summary")

    assert aligned([row], (4, 6, 0), elastic=(1,), width=width) == expected


def test_streamed_lines_are_aligned_with_earlier_ones() -> None:
    lines = [
        *aligned([_row("A", "B", "C")], (4, 6, 0), elastic=(1,), width=40),
        *aligned([_row("ok", "漢字", "x" * 90)], (4, 6, 0), elastic=(1,), width=40),
        *aligned([], (4, 6, 0), elastic=(1,), width=40),
    ]

    assert lines == ["A     B       C", "ok    漢字    " + "x" * 25 + "…"]


def test_without_a_terminal_nothing_is_cut_or_coloured() -> None:
    lines = rendered([Column("A")], [[Cell("b" * 500, Style.BAD)]], width=None)

    assert lines[1] == "b" * 500


@given(st.text(max_size=30), st.integers(min_value=1, max_value=20))
def test_a_cut_text_fits(text: str, width: int) -> None:
    shown = fit_columns(escape_unprintable(text), width)

    assert _width(shown) <= width
    assert shown == escape_unprintable(text) or escape_unprintable(text).startswith(shown[:-1])


def test_a_table_of_any_length_streams_in_blocks() -> None:
    taken = 0

    def rows() -> Iterator[list[Cell]]:
        nonlocal taken
        for n in range(10_000):
            taken += 1
            yield [Cell(f"{n}")]

    lines = fitted_table([Column("N")], rows(), width=80)

    assert [next(lines), next(lines)] == ["N", "0"]
    assert taken == 1000
    assert sum(1 for _ in lines) == 9_999


def test_a_table_without_rows_prints_a_message_or_its_head() -> None:
    columns = [Column("A"), Column("B")]

    assert list(fitted_table(columns, [], width=80)) == ["A  B"]
    assert list(fitted_table(columns, [], width=80, empty="nothing")) == ["nothing"]
