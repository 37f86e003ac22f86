"""`python -m benchmarks.bench_store`: the store alone, against append + fdatasync in the same run.

Callers run in closed loops, each in a session of its own: an intent that is waited for, then its
outcome that is waited for, as a call with an unknown effect makes them. All indexes are queryable
at any time; their flushes fall into the measured time.
"""

import argparse
import asyncio
import gc
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Protocol

from msgspec import Struct

from turnlog.core.kinds import Rung
from turnlog.store.base import Draft, SessionRef, Ticket
from turnlog.store.lmdb import LmdbStore

from .children import field_of
from .controls import AppendLog, sync_time
from .drafts import TOOLS, intent, new_id, outcome
from .goals import Goal, at_least, at_most
from .store_growth import show_growth

CALLERS = (1, 16, 64, 256)


class Log(Protocol):
    """What callers write to."""

    def submit(self, draft: Draft, *, wait: bool) -> Ticket: ...
    async def close(self) -> None: ...


class Rate(Struct, frozen=True, kw_only=True):
    """One run: commits per second, bytes that the process sent to the disk for each."""

    commits: int
    seconds: float
    written: int


async def caller(log: Log, until: float, first_tool: int) -> int:
    """Make calls until the time is over; return the commits made."""
    session = SessionRef(candidate=new_id(), rung=Rung.TRANSPORT)
    number = 0
    while time.perf_counter() < until:
        number += 1
        tool = TOOLS[(first_tool + number) % len(TOOLS)]
        call = new_id()
        ticket = log.submit(intent(session, call, tool), wait=True)
        await ticket.done()
        await log.submit(outcome(session, call, tool, ticket, number), wait=True).done()
    return number * 2


async def measure(log: Log, callers: int, seconds: float) -> Rate:
    """Run callers against a log."""
    before, start = _written(), time.perf_counter()
    counts = await asyncio.gather(*(caller(log, start + seconds, i) for i in range(callers)))
    took, written = time.perf_counter() - start, _written() - before
    return Rate(commits=sum(counts), seconds=took, written=written)


def _written() -> int:
    return field_of(os.getpid(), "io", "write_bytes")


class Pair(Struct, frozen=True, kw_only=True):
    """What one number of callers reached."""

    callers: int
    store: float
    control: float
    ratio: float
    written: float
    """Bytes to the disk for each commit of the store."""


async def block(folder: Path, callers: int, slices: int, seconds: float) -> Pair:
    """Measure store and control in turns of `seconds`, `slices` of each."""
    logs: tuple[Log, Log] = (
        LmdbStore.open(folder / "data"),
        AppendLog(folder / "control"),
    )
    rates: tuple[list[Rate], list[Rate]] = ([], [])
    for log in logs:
        await measure(log, callers, seconds)
    gc.collect()
    for turn in range(slices):
        # Each turn begins with the other, so that neither always follows the other's flush.
        for which in (0, 1) if turn % 2 else (1, 0):
            rates[which].append(await measure(logs[which], callers, seconds))
    for log in logs:
        await log.close()
    store, control = (
        sum(r.commits for r in found) / sum(r.seconds for r in found) for found in rates
    )
    written = sum(r.written for r in rates[0]) / max(sum(r.commits for r in rates[0]), 1)
    return Pair(
        callers=callers, store=store, control=control, ratio=store / control, written=written
    )


def compare(folder: Path, callers: int, blocks: int, slices: int, seconds: float) -> Pair:
    """Return the medians of several blocks, each with new files."""
    pairs: list[Pair] = []
    for _ in range(blocks):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            pairs.append(asyncio.run(block(Path(name), callers, slices, seconds)))
    return Pair(
        callers=callers,
        store=median(pair.store for pair in pairs),
        control=median(pair.control for pair in pairs),
        ratio=median(pair.ratio for pair in pairs),
        written=median(pair.written for pair in pairs),
    )


def goals(pairs: list[Pair]) -> list[Goal]:
    """Return what the run says of goals 5 and 6."""
    found: list[Goal] = []
    for pair in pairs:
        bound = 0.45 if pair.callers in (16, 64) else 0.4
        name = f"5 store, {pair.callers} callers: commits/s by append + fdatasync"
        found.append(at_least(name, pair.ratio, bound))
        if pair.callers == 64:
            kib = pair.written / 1024
            found.append(at_most("6 written per commit, 64 callers", kib, 6.0, " KiB"))
    return found


def show(pairs: list[Pair]) -> None:
    """Print the table and the verdicts."""
    print(f"{'callers':>8} {'store/s':>10} {'control/s':>10} {'ratio':>6} {'B/commit':>9}")
    for pair in pairs:
        print(
            f"{pair.callers:>8} {pair.store:>10,.0f} {pair.control:>10,.0f} "
            f"{pair.ratio:>6.2f} {pair.written:>9,.0f}"
        )
    tell(goals(pairs))


def tell(found: list[Goal]) -> None:
    """Print verdicts."""
    for goal in found:
        value = "-" if goal.value is None else f"{goal.value:.2f}{goal.unit}"
        print(f"{goal.verdict:>12}  {goal.name}: {value} (goal {goal.bound}{goal.unit})")


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--callers", type=int, nargs="+", default=list(CALLERS))
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--slices", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.15)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--growth", type=int, nargs="+", help="sizes in commits, rising")
    wanted = parser.parse_args()
    if wanted.growth:
        tell(show_growth(wanted.folder, wanted.growth))
        return
    print(f"fdatasync {sync_time(wanted.folder, 200) * 1e3:.3f} ms")
    pairs = [
        compare(wanted.folder, callers, wanted.blocks, wanted.slices, wanted.seconds)
        for callers in wanted.callers
    ]
    show(pairs)


if __name__ == "__main__":
    main()
