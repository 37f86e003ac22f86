"""`transport.wakeup`: whoever waits is woken once for each ring, at once or in the next turn."""

import asyncio

import pytest

from turnlog.transport.wakeup import Wakeup


async def heard(bell: Wakeup, times: list[int]) -> None:
    """Wait again and again; note each time."""
    while True:
        await bell
        times.append(len(times))


async def rung(*, at_once: bool) -> tuple[list[int], list[int]]:
    """Ring for a task that waits; return what it heard before and after the loop's next turn."""
    loop = asyncio.get_running_loop()
    bell, times = Wakeup(loop), list[int]()
    heard_before: asyncio.Future[list[int]] = loop.create_future()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(heard(bell, times))
        await asyncio.sleep(0)
        assert not bell.done()
        loop.call_soon(bell.ring if at_once else lambda: bell.set_result(None))
        loop.call_soon(lambda: heard_before.set_result(list(times)))
        before = await heard_before
        await asyncio.sleep(0)
        task.cancel()
    return before, times


async def test_who_waits_goes_on_at_once() -> None:
    assert await rung(at_once=True) == ([0], [0])


async def test_who_waits_goes_on_in_the_next_turn() -> None:
    assert await rung(at_once=False) == ([], [0])


async def test_who_waits_is_woken_once_however_often_it_rings() -> None:
    bell, times = Wakeup(asyncio.get_running_loop()), list[int]()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(heard(bell, times))
        await asyncio.sleep(0)
        bell.set_result(None)
        assert bell.done()
        bell.set_result(None)
        bell.ring()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert times == [0]
        task.cancel()


async def test_who_is_cancelled_does_not_go_on_and_another_may_wait() -> None:
    bell = Wakeup(asyncio.get_running_loop())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await bell
    assert not bell.cancel()
    asyncio.get_running_loop().call_soon(bell.ring)
    async with asyncio.timeout(10):
        await bell


async def test_who_is_cancelled_when_it_rang_is_cancelled() -> None:
    bell, times = Wakeup(asyncio.get_running_loop()), list[int]()
    task = asyncio.get_running_loop().create_task(heard(bell, times))
    await asyncio.sleep(0)
    bell.set_result(None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not times


@pytest.mark.parametrize("bell_first", [True, False])
async def test_who_is_cancelled_twice_is_cancelled(bell_first: bool) -> None:
    bell, times = Wakeup(asyncio.get_running_loop()), list[int]()
    task = asyncio.get_running_loop().create_task(heard(bell, times))
    await asyncio.sleep(0)
    for cancel in (bell.cancel, task.cancel) if bell_first else (task.cancel, bell.cancel):
        cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not times
