from turnlog.core.text.units import timestamp


def test_a_time_is_utc_with_microseconds() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00.000000Z"
    assert timestamp(999_999_999) == "1970-01-01T00:00:00.999999Z"
