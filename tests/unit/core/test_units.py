import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.core.text.units import age, counted, duration, duration_text, size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("200ms", 0.2), ("30s", 30), ("2m", 120), ("7d", 604_800), ("1.5h", 5400), ("45", 45)],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "200ms"), (0.0005, "0.5ms"), (1.5, "1.5s"), (90, "90s"), (120, "2m"), (7200, "2h"),
     (604_800, "7d"), (0, "0ms")],
)  # fmt: skip
def test_a_duration_is_written_as_it_is_read(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "count"),
    [("64KiB", 65_536), ("10MiB", 10_485_760), ("1.5kib", 1536), ("2 GB", 2 * 10**9), ("12", 12)],
)
def test_a_size_is_read_in_bytes(text: str, count: int) -> None:
    assert size(text) == count


def test_a_bare_number_is_seconds_or_bytes() -> None:
    assert (duration(2.5), size(4096)) == (2.5, 4096)


@pytest.mark.parametrize(
    "value",
    ["", "s", "-1s", "1 hour ago", "1x", True, None, [], -1, float("nan"), float("inf"), 10**400],
)
def test_text_that_is_not_a_duration_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(ValueError, match="write a duration like 200ms"):
        duration(value)


def test_an_age_is_a_duration_or_forever() -> None:
    assert (age("7d"), age(60), age(" forever ")) == (604_800, 60, math.inf)
    with pytest.raises(ValueError, match=r"write a duration like 200ms, .* or forever$"):
        age("always")


def test_a_blank_value_is_reported_as_blank() -> None:
    with pytest.raises(ValueError, match=r"^no value is given, write a duration"):
        duration(None)


@pytest.mark.parametrize("value", ["1e9", "64KiBB", "9999999TiB", "1" * 5000, b"1", 2**60])
def test_text_that_is_not_a_size_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(ValueError, match="write a size like 64KiB"):
        size(value)


@given(st.integers(min_value=0, max_value=2**20), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_a_size_is_its_number_times_its_unit(number: int, unit: str) -> None:
    assert size(f"{number}{unit}") == number * size(f"1{unit}")


@given(st.one_of(st.text(), st.floats(), st.integers(), st.none(), st.booleans()))
def test_any_value_is_read_or_refused(value: object) -> None:
    try:
        read: float | str = duration(value)
    except ValueError as error:
        read = str(error)
    assert "write a duration" in read if isinstance(read, str) else 0 <= read <= 2**53


def test_a_number_has_its_noun_in_the_singular_or_the_plural() -> None:
    assert [counted(number, "rule") for number in (0, 1, 2)] == ["0 rules", "1 rule", "2 rules"]
