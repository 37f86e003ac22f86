"""What begins like a failure: measured on texts that tools have returned as a success."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from turnlog.wire.error_text import LOOKED_AT, looks_like_error

TEXTS: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "tool_texts.json").read_text("utf-8")
)
# What docs/reference/outcomes.md says. Whoever changes the patterns changes these, too.
FOUND, OF_FAILURES = 115, 117
LATER, OF_LATER = 41, 48
FALSE, OF_HONEST = 1, 176


def test_as_many_failures_are_found_as_the_docs_say() -> None:
    missed = [text for text in TEXTS["failures"] if not looks_like_error(text)]
    assert (len(TEXTS["failures"]) - len(missed), len(TEXTS["failures"])) == (
        FOUND,
        OF_FAILURES,
    ), missed


def test_of_texts_that_were_gathered_later_as_many_are_found_as_the_docs_say() -> None:
    missed = [text for text in TEXTS["later"] if not looks_like_error(text)]
    assert (len(TEXTS["later"]) - len(missed), len(TEXTS["later"])) == (LATER, OF_LATER), missed


def test_as_few_honest_results_are_taken_for_failures_as_the_docs_say() -> None:
    wrong = [text for text in TEXTS["honest"] if looks_like_error(text)]
    assert (len(wrong), len(TEXTS["honest"])) == (FALSE, OF_HONEST), wrong


@pytest.mark.promise("OUT-18")
def test_the_docs_say_what_was_measured() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "outcomes.md").read_text("utf-8")
    assert f"{FOUND} of {OF_FAILURES} texts of failures" in page
    assert f"{LATER} of {OF_LATER}" in page
    assert f"{FALSE} of {OF_HONEST} honest" in page


@pytest.mark.parametrize(
    ("text", "like_an_error"),
    [
        ("Error: no such file", True),
        ("  ERROR: no such file", True),
        ("Error executing tool read_file: no such file", True),
        ("Traceback (most recent call last):\n  File", True),
        ("Exception: x", True),
        ("Acce\u017fs denied.", True),
        ("Internal Server Error", True),
        ("Errors: 0", False),
        ("error", False),
        ("An error is what follows: Error: x", False),
        ("No Exception: x", False),
        (" " * 200 + "Error: x", False),
        ("", False),
    ],
)
def test_only_the_beginning_of_a_text_looks_like_an_error(text: str, like_an_error: bool) -> None:
    assert looks_like_error(text) is like_an_error


@pytest.mark.parametrize(
    "text", ["a " * 100, "a.b" * 66, "x" * LOOKED_AT, '{"a":1,' * 30, "1: " * 70]
)
def test_long_words_and_many_of_them_are_no_failure(text: str) -> None:
    assert not looks_like_error(text)
    assert not looks_like_error(f"{text} error")
