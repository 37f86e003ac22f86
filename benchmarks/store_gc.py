"""What durable calls wait for while a store of many commits is collected beside them.

`python -m benchmarks.store_gc DATA` collects a store in a process of its own, as `turnlog gc --yes` does.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import quantiles
from typing import Final

from turnlog.core.kinds import Rung
from turnlog.observe.clock import Clock
from turnlog.sessions.retention.ages import Retention
from turnlog.sessions.retention.collect import Collector
from turnlog.sessions.retention.gc import Expired, expired
from turnlog.sessions.state.backlog import SHARE
from turnlog.sessions.state.state_at import saved_states
from turnlog.store.base import SessionRef
from turnlog.store.lmdb import DAY, LmdbStore
from turnlog.store.read.held_content import HeldContent

from .children import field_of
from .drafts import TOOLS, intent, new_id, outcome
from .goals import Goal, at_most

CALLERS: Final = 16
_ALONE: Final = 5.0
"""s without a collection, before it and after it."""
_MOST: Final = 60.0
"""s beside a collection, at most."""
_SAMPLE: Final = 0.5
"""s between two looks at the memory of the other process."""
_LIMIT: Final = 1 << 40
_LATER: Final = 400 * DAY
"""The collector's clock is so far ahead: all that was written so far has expired."""
Work = Callable[[LmdbStore, Path], Awaitable[None]]


def gc_beside_calls(data: Path) -> list[Goal]:
    """Make durable calls with and without a collection beside them; return by how much their p99 rises.

    First the process that makes them collects, as a proxy does, then another one.
    """
    return asyncio.run(_both(data))


async def _both(data: Path) -> list[Goal]:
    goals: list[Goal] = []
    store = LmdbStore.open(data, limit=_LIMIT)
    works: tuple[tuple[str, Work], ...] = (("its own", _own), ("another process's", _other))
    for whose, work in works:
        with store.view() as view:
            commits = view.last
        alone = await _calls(store, asyncio.sleep(_ALONE))
        beside = await _calls(store, _bounded(work(store, data)))
        alone += await _calls(store, asyncio.sleep(_ALONE))
        print(
            f"{whose} gc of {commits:,} commits: p99 of {len(beside):,} calls {_p99(beside):.2f} ms, "
            f"of {len(alone):,} without {_p99(alone):.2f} ms"
        )
        ratio = _p99(beside) / _p99(alone)
        goals.append(at_most(f"7 p99 beside {whose} gc of {commits:,} commits", ratio, 2.0))
    await store.close()
    return goals


async def _bounded(work: Awaitable[None]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_MOST):
            await work


def _p99(times: list[float]) -> float:
    return quantiles(times, n=100)[-1]


async def _calls(store: LmdbStore, work: Awaitable[None]) -> list[float]:
    """Make calls of `CALLERS` until some work has ended; return what each took, in ms."""
    took: list[float] = []
    running = asyncio.ensure_future(work)

    async def calls() -> None:
        session = SessionRef(candidate=new_id(), rung=Rung.TRANSPORT)
        while not running.done():
            start, call = time.perf_counter(), new_id()
            ticket = store.submit(intent(session, call, TOOLS[1]), wait=True)
            await ticket.done()
            await store.submit(outcome(session, call, TOOLS[1], ticket, 1), wait=True).done()
            took.append((time.perf_counter() - start) * 1e3)

    async with asyncio.TaskGroup() as callers:
        for _ in range(CALLERS):
            callers.create_task(calls())
    await running
    return took


async def _own(store: LmdbStore, data: Path) -> None:
    with ThreadPoolExecutor(1) as thread:
        await _collect(Collector(store, saved_states(data), _clock(), thread, SHARE))


async def _other(_: LmdbStore, data: Path) -> None:
    command = (sys.executable, "-m", "benchmarks.store_gc", str(data))
    process = await asyncio.create_subprocess_exec(*command)
    most = 0
    try:
        while process.returncode is None:
            most = max(most, field_of(process.pid, "status", "RssAnon"))
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _SAMPLE)
        if process.returncode:
            raise AssertionError("the collection failed")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        print(f"the other process had {most / 1024:.1f} MiB of anonymous memory at most")


def _clock() -> Clock:
    return Clock(wall=lambda: time.time_ns() + _LATER)


async def _collect(collector: Collector) -> None:
    def due() -> list[Expired]:
        now = collector.clock.wall()
        return expired(collector.store.view(), Retention(), now, HeldContent())

    found = await asyncio.get_running_loop().run_in_executor(collector.thread, due)
    async for _ in collector.collect(found):
        pass


async def _main(data: Path) -> None:
    store = LmdbStore.open(data, limit=_LIMIT)
    await _collect(Collector(store, saved_states(data), _clock()))
    await store.close()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
