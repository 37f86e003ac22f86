from datetime import UTC, datetime, timedelta, timezone

import pytest

from turnlog.core.text.units import parse_moment

NOW = datetime(2026, 11, 27, 12, 0, 0, tzinfo=UTC)
MIDNIGHT = 1_795_737_600 * 10**9
HOUR = 3600 * 10**9


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("10m", MIDNIGHT + 12 * HOUR - HOUR // 6),
        ("1.5h", MIDNIGHT + 12 * HOUR - HOUR * 3 // 2),
        ("2026-11-27", MIDNIGHT),
        ("2026-11-27T01:00:00Z", MIDNIGHT + HOUR),
        ("2026-11-27T01:00:00+01:00", MIDNIGHT),
        ("2026-11-27 01:00", MIDNIGHT + HOUR),
        ("2026-11-27T00:00:00.000001Z", MIDNIGHT + 1000),
    ],
)
def test_a_time_is_rfc_3339_a_date_or_a_duration_ago(text: str, at: int) -> None:
    assert parse_moment(text, NOW) == at


def test_a_date_as_an_end_is_the_end_of_the_day() -> None:
    assert parse_moment("2026-11-27", NOW, end=True) == MIDNIGHT + 24 * HOUR - 1
    assert parse_moment("2026-11-27T01:00:00Z", NOW, end=True) == MIDNIGHT + HOUR


def test_a_time_without_a_zone_gets_the_assumed_one() -> None:
    india = timezone(timedelta(hours=5, minutes=30))

    def assume(moment: datetime) -> datetime:
        return moment.replace(tzinfo=india)

    day = parse_moment("2026-11-27", NOW, assume=assume)
    assert day == MIDNIGHT - 11 * HOUR // 2
    assert parse_moment("2026-11-27", NOW, end=True, assume=assume) == day + 24 * HOUR - 1
    assert parse_moment("2026-11-27T01:00:00Z", NOW, assume=assume) == MIDNIGHT + HOUR


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-13-01", "10", "99999999999w", "10 parsecs"]
)
def test_text_that_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        parse_moment(text, NOW)


def test_the_last_possible_day_has_an_end() -> None:
    whole_day = parse_moment("9999-12-31", NOW, end=True) - parse_moment("9999-12-31", NOW)
    assert whole_day == 24 * HOUR - 1
