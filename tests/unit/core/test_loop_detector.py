import pytest

from turnlog.core.turns import LOOP_CALLS, LoopDetector


def counted(loops: LoopDetector, *turns: int, what: str = "it", first: int = 0) -> list[bool]:
    calls = range(first, first + len(turns))
    return [
        loops.add_failure(what, call.to_bytes(2), turn=turn)
        for call, turn in zip(calls, turns, strict=True)
    ]


@pytest.mark.promise("OUT-26")
def test_the_third_call_that_fails_alike_and_those_after_it_are_a_loop() -> None:
    assert counted(LoopDetector(), 1, 1, 1, 1) == [False, False, True, True]


def test_other_failures_are_counted_separately() -> None:
    loops = LoopDetector()
    counted(loops, 1, 1)
    assert counted(loops, 1, what="other") == [False]


def test_attempts_of_one_call_count_once() -> None:
    loops = LoopDetector()
    assert [loops.add_failure("it", b"call", turn=1) for _ in range(LOOP_CALLS + 1)] == [False] * (
        LOOP_CALLS + 1
    )


def test_a_new_turn_resets_the_count() -> None:
    assert counted(LoopDetector(), 1, 1, 2, 2, 2) == [False, False, False, False, True]


def test_a_failure_without_a_turn_number_counts_for_the_turn_before() -> None:
    assert counted(LoopDetector(), 0, 1, 0) == [False, False, True]


def test_memory_is_bounded() -> None:
    loops = LoopDetector()
    counted(loops, 1, 1)
    for number in range(5000):
        loops.add_failure(number, b"", turn=1)
    assert counted(loops, 1, first=2) == [False]
