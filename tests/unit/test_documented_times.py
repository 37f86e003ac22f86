"""The times that the reference names are those of the code."""

import re
from pathlib import Path

import pytest

from turnlog.engine.redirects import CONSENTED, FOLLOWED
from turnlog.exchange.duplicates import CANCELLED_LIFE, KEY_LIFE, NeverTwice
from turnlog.exchange.replacement import REPLACE_WITHIN
from turnlog.record.drafts import PARKED_LIFE

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("page", "sentence", "seconds"),
    [
        ("rules", "one tool by one principal for 24 hours", KEY_LIFE),
        ("rules", "It can still be joined for 5 s", CANCELLED_LIFE),
        ("rules", "it begins with `initialize` within 60 s", REPLACE_WITHIN),
        ("outcomes", "It must come within 60 s in the same session", FOLLOWED / SECOND),
        ("outcomes", "within 15 minutes after the error -32042", CONSENTED / SECOND),
        ("outcomes", "becomes `unknown` after 15 minutes", PARKED_LIFE / SECOND),
        ("configuration", "`never_twice.join_after` | `5s`", NeverTwice().join_after),
        ("configuration", "`never_twice.cancel_grace` | `5s`", NeverTwice().cancel_grace),
        ("configuration", "`never_twice.drain` | `10m`", NeverTwice().drain),
        ("configuration", "`never_twice.window` | `10m`", NeverTwice().window),
    ],
)
def test_a_documented_time_is_that_of_the_code(page: str, sentence: str, seconds: float) -> None:
    text = " ".join((REFERENCE / f"{page}.md").read_text("utf-8").split())
    assert sentence in text
    (found,) = re.findall(r"(\d+) ?(s|m|minutes|hours)\b", sentence)
    units = {"s": 1, "m": 60, "minutes": 60, "hours": 3600}
    assert int(found[0]) * units[found[1]] == seconds
