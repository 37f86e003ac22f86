"""`store.gathering`: writes that wait while none ends."""

from turnlog.store.gathering import Stall


def looked(*counts: tuple[int, int], every: float = 1.0) -> float:
    """Return what the last look says, when there was one at each of these counts."""
    stall = Stall()
    told = [stall.seconds(*count, 1000.0 + every * n) for n, count in enumerate(counts)]
    return told[-1]


def test_it_counts_while_something_waits_and_nothing_ends() -> None:
    assert looked((10, 5), (10, 5), (12, 5), (20, 5)) == 3.0


def test_a_write_that_ends_starts_it_anew() -> None:
    assert looked((10, 5), (10, 5), (10, 6)) == 0.0
    assert looked((10, 5), (10, 5), (10, 6), (10, 6)) == 1.0


def test_it_does_not_count_while_nothing_waits() -> None:
    assert looked((5, 5), (5, 5), (5, 5)) == 0.0


def test_time_in_which_nobody_looked_hardly_counts() -> None:
    assert looked((10, 5), (10, 5), every=3600.0) == 2.0
