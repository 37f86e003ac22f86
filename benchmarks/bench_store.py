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
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Protocol

from msgspec import Struct

from turnlog.core.commit import Body, Facts
from turnlog.core.ids import uuid7
from turnlog.core.kinds import CommitKind, Effect, Executed, Phase, Rung, Status
from turnlog.store.base import Draft, SessionRef, Ticket
from turnlog.store.lmdb import LmdbStore

from .controls import AppendLog, sync_time
from .goals import Goal, at_least, at_most

CALLERS = (1, 16, 64, 256)
TOOLS = ("read_file", "write_file", "list_directory", "search", "run_command")


class Log(Protocol):
    """What callers write to."""

    def submit(self, draft: Draft, *, wait: bool) -> Ticket: ...
    async def close(self) -> None: ...


class Rate(Struct, frozen=True, kw_only=True):
    """One run: commits per second, bytes that the process sent to the disk for each."""

    commits: int
    seconds: float
    written: int

    @property
    def per_second(self) -> float:
        return self.commits / self.seconds


def new_id() -> bytes:
    """Return an id as the proxy makes them."""
    return uuid7(time.time_ns(), os.urandom(10))


def intent(session: SessionRef, call: bytes, tool: str) -> Draft:
    """Return the draft of a call's begin."""
    facts = Facts(
        kind=CommitKind.INTENT,
        at=time.time_ns(),
        clock=time.monotonic_ns(),
        call=call,
        server="files",
        tool=tool,
        method="tools/call",
        effect=Effect.UNKNOWN,
        bytes_in=312,
        trace="0af7651916cd43dd8448eb211c80319c",
        protocol="2025-11-25",
    )
    body = Body(
        input_hash="sha256:" + "5a" * 32,
        preview='{"path":"/srv/repo/src/main.py","content":"import asyncio ' + "x" * 80 + '"}',
    )
    return Draft(session=session, facts=facts, body=body)


def outcome(session: SessionRef, call: bytes, tool: str, ticket: Ticket, number: int) -> Draft:
    """Return the draft of a call's end; each 50th one failed."""
    failed = number % 50 == 0
    facts = Facts(
        kind=CommitKind.OUTCOME,
        at=time.time_ns(),
        clock=time.monotonic_ns(),
        call=call,
        server="files",
        tool=tool,
        method="tools/call",
        effect=Effect.UNKNOWN,
        phase=Phase.DONE,
        executed=Executed.MAYBE if failed else Executed.YES,
        status=Status.ERROR if failed else Status.OK,
        error="timeout" if failed else "",
        error_kind="response_timeout" if failed else "",
        retry="unsafe" if failed else "",
        duration=1_234_567,
        bytes_in=312,
        bytes_out=528,
        trace="0af7651916cd43dd8448eb211c80319c",
        protocol="2025-11-25",
        http_status=200,
    )
    body = Body(
        input_hash="sha256:" + "5a" * 32,
        output_hash="sha256:" + "a5" * 32,
        summary="wrote 4,312 bytes to /srv/repo/src/main.py " + "y" * 60,
    )
    return Draft(session=session, facts=facts, body=body, intent=ticket)


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


async def measure(open_log: Callable[[], Log], callers: int, seconds: float) -> Rate:
    """Run callers against a fresh log."""
    log = open_log()
    await asyncio.gather(*(caller(log, 0.0, i) for i in range(callers)))
    gc.collect()
    before, start = _written(), time.perf_counter()
    counts = await asyncio.gather(*(caller(log, start + seconds, i) for i in range(callers)))
    took, written = time.perf_counter() - start, _written() - before
    await log.close()
    return Rate(commits=sum(counts), seconds=took, written=written)


def _written() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


class Pair(Struct, frozen=True, kw_only=True):
    """The medians of one number of callers."""

    callers: int
    store: float
    control: float
    ratios: list[float]
    written: float
    """Bytes to the disk for each commit of the store."""

    @property
    def ratio(self) -> float:
        return median(self.ratios)


def compare(folder: Path, callers: int, rounds: int, seconds: float) -> Pair:
    """Measure store and control in turns; each round begins with the other."""
    stores: list[Rate] = []
    controls: list[Rate] = []
    for turn in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            place = Path(name)
            runs: list[tuple[list[Rate], Callable[[], Log]]] = [
                (stores, lambda: LmdbStore.open(place / "data")),
                (controls, lambda: AppendLog(place / "control")),
            ]
            for results, open_log in runs if turn % 2 else reversed(runs):
                results.append(asyncio.run(measure(open_log, callers, seconds)))
    return Pair(
        callers=callers,
        store=median(rate.per_second for rate in stores),
        control=median(rate.per_second for rate in controls),
        ratios=[s.per_second / c.per_second for s, c in zip(stores, controls, strict=True)],
        written=median(rate.written / max(rate.commits, 1) for rate in stores),
    )


def goals(pairs: list[Pair]) -> list[Goal]:
    """Return what the run says of goals 5 and 6."""
    found: list[Goal] = []
    for pair in pairs:
        bound = 0.5 if pair.callers > 64 else 0.6
        name = f"5 store, {pair.callers} callers: commits/s by append + fdatasync"
        found.append(at_least(name, pair.ratio, bound))
        if pair.callers == 64:
            kib = pair.written / 1024
            found.append(at_most("6 written per commit, 64 callers", kib, 5.0, " KiB"))
    return found


def show(pairs: list[Pair]) -> None:
    """Print the table and the verdicts."""
    print(f"{'callers':>8} {'store/s':>10} {'control/s':>10} {'ratio':>6} {'B/commit':>9}")
    for pair in pairs:
        print(
            f"{pair.callers:>8} {pair.store:>10,.0f} {pair.control:>10,.0f} "
            f"{pair.ratio:>6.2f} {pair.written:>9,.0f}"
        )
    for goal in goals(pairs):
        value = "-" if goal.value is None else f"{goal.value:.2f}{goal.unit}"
        print(f"{goal.verdict:>12}  {goal.name}: {value} (goal {goal.bound}{goal.unit})")


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--callers", type=int, nargs="+", default=list(CALLERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    wanted = parser.parse_args()
    print(f"fdatasync {sync_time(wanted.folder, 200) * 1e3:.3f} ms")
    show([compare(wanted.folder, n, wanted.rounds, wanted.seconds) for n in wanted.callers])


if __name__ == "__main__":
    main()
