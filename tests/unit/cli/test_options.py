from pathlib import Path

import click
import pytest

from turnlog.cli.options import FOLDER, SEQ, TURN_RANGE, number
from turnlog.sessions.log import TurnRange


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("3..7", TurnRange(3, 7)),
        ("-5..", TurnRange(-5, None)),
        ("..4", TurnRange(None, 4)),
        ("-3..-1", TurnRange(-3, -1)),
        ("4", TurnRange(4, 4)),
        ("-1", TurnRange(-1, -1)),
    ],
)
def test_turns_are_a_range_with_either_end_open(text: str, turns: TurnRange) -> None:
    assert TURN_RANGE.convert(text, None, None) == turns


@pytest.mark.parametrize("text", ["", "..", "a..b", "1...2", "1.5", "1..2..3", "9" * 50])
def test_an_invalid_range_of_turns_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"write 3\.\.7"):
        TURN_RANGE.convert(text, None, None)


@pytest.mark.parametrize("text", ["2..1", "-1..-2"])
def test_a_range_that_is_always_empty_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="ends before it begins"):
        TURN_RANGE.convert(text, None, None)


def test_an_empty_folder_is_not_the_working_directory() -> None:
    with pytest.raises(click.BadParameter, match="is not a folder, write a path"):
        FOLDER.convert("", None, None)
    assert FOLDER.convert("./data", None, None) == Path("data")


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (SEQ, "x", "'x' is not a whole number, write one like 20"),
        (SEQ, "-1", "'-1' is out of range, 0 is the least"),
        (number(1), "0", "'0' is out of range, 1 is the least"),
        (SEQ, "9" * 13, f"'{'9' * 13}' is out of range, no store holds more than 1000000000000"),
    ],
)
def test_a_number_out_of_range_is_refused_with_the_bound(
    kind: click.ParamType[int], text: str, why: str
) -> None:
    with pytest.raises(click.BadParameter) as refused:
        kind.convert(text, None, None)
    assert refused.value.message == why


def test_the_help_of_a_number_shows_no_bounds() -> None:
    option = click.Option(["--after"], type=SEQ, metavar="SEQ", help="After this commit.")
    assert option.get_help_record(click.Context(click.Command("log"))) == (
        "--after SEQ",
        "After this commit.",
    )
