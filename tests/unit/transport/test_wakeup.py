"""`transport.wakeup`: a waiting task is woken once for each ring, at once or in the next turn."""

import asyncio

import pytest

from turnlog.transport.wakeup import Wakeup


async def note_wakes(wakeup: Wakeup, times: list[int]) -> None:
    """Wait again and again; note each time."""
    while True:
        await wakeup
        times.append(len(times))


async def rung(*, at_once: bool) -> tuple[list[int], list[int]]:
    """Ring for a waiting task; return when it woke, seen before and after the loop's next turn."""
    loop = asyncio.get_running_loop()
    wakeup, times = Wakeup(loop), list[int]()
    woken_before: asyncio.Future[list[int]] = loop.create_future()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(note_wakes(wakeup, times))
        await asyncio.sleep(0)
        assert not wakeup.done()
        loop.call_soon(wakeup.ring if at_once else lambda: wakeup.set_result(None))
        loop.call_soon(lambda: woken_before.set_result(list(times)))
        before = await woken_before
        await asyncio.sleep(0)
        task.cancel()
    return before, times


async def test_a_waiting_task_goes_on_at_once() -> None:
    assert await rung(at_once=True) == ([0], [0])


async def test_a_waiting_task_goes_on_in_the_next_turn() -> None:
    assert await rung(at_once=False) == ([], [0])


async def test_several_rings_wake_a_waiting_task_once() -> None:
    wakeup, times = Wakeup(asyncio.get_running_loop()), list[int]()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(note_wakes(wakeup, times))
        await asyncio.sleep(0)
        wakeup.set_result(None)
        assert wakeup.done()
        wakeup.set_result(None)
        wakeup.ring()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert times == [0]
        task.cancel()


async def test_a_cancelled_wait_ends_and_another_may_follow() -> None:
    wakeup = Wakeup(asyncio.get_running_loop())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await wakeup
    assert not wakeup.cancel()
    asyncio.get_running_loop().call_soon(wakeup.ring)
    async with asyncio.timeout(10):
        await wakeup


async def test_a_task_that_is_cancelled_after_a_ring_is_cancelled() -> None:
    wakeup, times = Wakeup(asyncio.get_running_loop()), list[int]()
    task = asyncio.get_running_loop().create_task(note_wakes(wakeup, times))
    await asyncio.sleep(0)
    wakeup.set_result(None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not times


@pytest.mark.parametrize("wakeup_first", [True, False])
async def test_a_task_that_is_cancelled_twice_is_cancelled(wakeup_first: bool) -> None:
    wakeup, times = Wakeup(asyncio.get_running_loop()), list[int]()
    task = asyncio.get_running_loop().create_task(note_wakes(wakeup, times))
    await asyncio.sleep(0)
    for cancel in (wakeup.cancel, task.cancel) if wakeup_first else (task.cancel, wakeup.cancel):
        cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not times
