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
from msgspec.structs import asdict

from turnlog.core.commit import Body, Facts, decode_link, digest
from turnlog.core.ids import uuid7
from turnlog.core.kinds import CommitKind, Effect, Executed, Phase, Rung, Status
from turnlog.store.base import Draft, Filter, SessionRef, Ticket
from turnlog.store.lmdb import LmdbReader, LmdbStore

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


async def measure(log: Log, callers: int, seconds: float) -> Rate:
    """Run callers against a log."""
    before, start = _written(), time.perf_counter()
    counts = await asyncio.gather(*(caller(log, start + seconds, i) for i in range(callers)))
    took, written = time.perf_counter() - start, _written() - before
    return Rate(commits=sum(counts), seconds=took, written=written)


def _written() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


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
    logs: tuple[Log, Log] = (LmdbStore.open(folder / "data"), AppendLog(folder / "control"))
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


class Size(Struct, frozen=True, kw_only=True):
    """What a store of so many commits costs; times in the unit of their name."""

    commits: int
    append_us: float
    batch_ms: float
    reopen_ms: float
    last_20_ms: float
    failed_20_ms: float
    rare_tool_20_ms: float
    slice_50_ms: float
    get_us: float
    verify_per_second: float


async def grow(folder: Path, sizes: list[int]) -> list[Size]:
    """Let one store grow, and look at it at each size."""
    found: list[Size] = []
    for size in sizes:
        store = LmdbStore.open(folder / "data")
        append = await _append_until(store, size)
        batch = await _batches_of_64(store)
        await store.close()
        found.append(_look(folder / "data", append, batch))
    return found


async def _append_until(store: LmdbStore, size: int) -> float:
    """Write calls that nobody waits for, 512 at a time; return microseconds for each commit."""
    with store.view() as view:
        there = view.usage().commits
    sessions = [SessionRef(candidate=new_id(), rung=Rung.TRANSPORT) for _ in range(64)]
    start, number = time.perf_counter(), 0
    while there + number * 2 < size:
        for _ in range(256):
            number += 1
            session, call = sessions[number % 64], new_id()
            tool = "rare_tool" if number % 5000 == 0 else TOOLS[number % len(TOOLS)]
            ticket = store.submit(intent(session, call, tool), wait=False)
            last = store.submit(outcome(session, call, tool, ticket, number), wait=False)
        await last.done()
    return (time.perf_counter() - start) / max(number * 2, 1) * 1e6


async def _batches_of_64(store: LmdbStore) -> float:
    """Return the median milliseconds of a durable batch of 64 commits."""
    session = SessionRef(candidate=new_id(), rung=Rung.TRANSPORT)
    times: list[float] = []
    for _ in range(30):
        start = time.perf_counter()
        drafts = [intent(session, new_id(), TOOLS[0]) for _ in range(64)]
        tickets = [store.submit(draft, wait=True) for draft in drafts]
        await tickets[-1].done()
        times.append((time.perf_counter() - start) * 1e3)
        for draft, ticket in zip(drafts, tickets, strict=True):
            store.submit(outcome(session, draft.facts.call, TOOLS[0], ticket, 1), wait=False)
    return median(times)


def _look(data: Path, append: float, batch: float) -> Size:
    def timed(action: Callable[[], object]) -> float:
        times: list[float] = []
        for _ in range(5):
            start = time.perf_counter()
            action()
            times.append((time.perf_counter() - start) * 1e3)
        return median(times)

    def reopen() -> None:
        reader = LmdbReader.open(data)
        with reader.view() as view:
            view.usage()
        reader.close()

    def newest(want: Filter, count: int) -> None:
        with reader.view() as view:
            list(islice(view.attempts(want, newest_first=True), count))

    reopened = timed(reopen)
    reader = LmdbReader.open(data)
    with reader.view() as view:
        commits, rows = view.usage().commits, list(view.sessions())
    session, middle = rows[1].session, rows[1].head_seq // 2

    def get() -> None:
        with reader.view() as view:
            for seq in range(middle, middle + 50):
                view.get(session, seq)

    def verify() -> int:
        prev, count = b"", 0
        with reader.view() as view:
            for _, header, _ in view.headers(session):
                assert not prev or decode_link(header).prev == prev
                prev, count = digest(header), count + 1
        return count

    size = Size(
        commits=commits,
        append_us=append,
        batch_ms=batch,
        reopen_ms=reopened,
        last_20_ms=timed(lambda: newest(Filter(), 20)),
        failed_20_ms=timed(lambda: newest(Filter(error="timeout"), 20)),
        rare_tool_20_ms=timed(lambda: newest(Filter(tool="rare_*"), 20)),
        slice_50_ms=timed(lambda: newest(Filter(sessions=(session,), before=middle), 50)),
        get_us=timed(get) * 1e3 / 50,
        verify_per_second=verify() / timed(verify) * 1e3,
    )
    reader.close()
    return size


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
        with tempfile.TemporaryDirectory(dir=wanted.folder) as name:
            for size in asyncio.run(grow(Path(name), wanted.growth)):
                print(" ".join(f"{k}={v:,.1f}" for k, v in asdict(size).items()))
        return
    print(f"fdatasync {sync_time(wanted.folder, 200) * 1e3:.3f} ms")
    pairs = [
        compare(wanted.folder, callers, wanted.blocks, wanted.slices, wanted.seconds)
        for callers in wanted.callers
    ]
    show(pairs)


if __name__ == "__main__":
    main()
