from pathlib import Path

import click
import pytest

from turnlog.cli.options import FOLDER, TURN_RANGE
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
