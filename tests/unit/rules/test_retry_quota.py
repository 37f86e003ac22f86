"""Retries stay a share of the calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from turnlog.rules.retry import RetryBucket, RetryQuota


def took(quota: RetryBucket, now: float) -> bool:
    """Spend a retry, if one is left."""
    if has_left := quota.has_left(now):
        quota.spend()
    return has_left


def spent(quota: RetryBucket, now: float) -> int:
    count = 0
    while took(quota, now):
        count += 1
    return count


def test_the_bucket_starts_full() -> None:
    assert spent(RetryBucket(RetryQuota(burst=3), 0.0), 0.0) == 3


def test_each_call_adds_its_share() -> None:
    quota = RetryBucket(RetryQuota(ratio=0.5, min_per_second=0, burst=3), 0.0)
    spent(quota, 0.0)
    quota.on_call(0.0)
    assert spent(quota, 0.0) == 0
    quota.on_call(0.0)
    assert spent(quota, 0.0) == 1


def test_each_second_adds_up_to_the_burst() -> None:
    quota = RetryBucket(RetryQuota(ratio=0, min_per_second=2, burst=3), 0.0)
    spent(quota, 0.0)
    assert spent(quota, 1.0) == 2
    assert spent(quota, 100.0) == 3


@pytest.mark.promise("RULE-20")
@given(some.lists(some.sampled_from(["call", "retry", "second"]), max_size=60))
def test_retries_never_exceed_what_calls_and_time_allow(steps: list[str]) -> None:
    settings = RetryQuota(ratio=0.25, min_per_second=0.5, burst=2)
    quota, now, made = RetryBucket(settings, 0.0), 0.0, 0
    for step in steps:
        now += step == "second"
        made += step == "retry" and took(quota, now)
        if step == "call":
            quota.on_call(now)
    assert made <= settings.burst + 0.25 * steps.count("call") + 0.5 * now
