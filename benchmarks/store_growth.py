"""What a store of many commits costs, at several sizes of the same store."""

import asyncio
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median

from msgspec import Struct
from msgspec.structs import asdict

from turnlog.core.commit import decode_link, digest
from turnlog.core.kinds import Rung
from turnlog.store.base import Draft, Filter, SessionRef, Ticket
from turnlog.store.lmdb import LmdbReader, LmdbStore

from .drafts import TOOLS, intent, new_id, outcome


class Writing(Struct, frozen=True, kw_only=True):
    """Microseconds for a commit that nobody waits for, milliseconds for a durable batch of 64."""

    append_us: float
    batch_ms: float


class Reading(Struct, frozen=True, kw_only=True):
    """Medians of what readers ask for; times in the unit of their name."""

    commits: int
    reopen_ms: float
    last_20_ms: float
    failed_20_ms: float
    rare_tool_20_ms: float
    slice_50_ms: float
    get_us: float
    verify_per_second: float


def show_growth(folder: Path, sizes: list[int]) -> None:
    """Let one store grow to each size, and print what it costs there."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        data = Path(name) / "data"
        for size in sizes:
            found = {**asdict(asyncio.run(_grow(data, size))), **asdict(_look(data))}
            print("  ".join(f"{name} {value:,.1f}" for name, value in found.items()))


async def _grow(data: Path, size: int) -> Writing:
    store = LmdbStore.open(data)
    append = await _append_until(store, size)
    batch = await _batches_of_64(store)
    await store.close()
    return Writing(append_us=append, batch_ms=batch)


async def _append_until(store: LmdbStore, size: int) -> float:
    with store.view() as view:
        missing = max(size - view.usage().commits, 0)
    sessions = [_session() for _ in range(64)]
    start, number = time.perf_counter(), 0
    while number * 2 < missing:
        tickets: list[Ticket] = []
        for _ in range(256):
            number += 1
            tickets.append(_submit_call(store, sessions[number % 64], number))
        await tickets[-1].done()
    return (time.perf_counter() - start) / max(number * 2, 1) * 1e6


def _session() -> SessionRef:
    return SessionRef(candidate=new_id(), rung=Rung.TRANSPORT)


def _submit_call(store: LmdbStore, session: SessionRef, number: int) -> Ticket:
    call = new_id()
    tool = "rare_tool" if number % 5000 == 0 else TOOLS[number % len(TOOLS)]
    ticket = store.submit(intent(session, call, tool), wait=False)
    return store.submit(outcome(session, call, tool, ticket, number), wait=number % 256 == 0)


async def _batches_of_64(store: LmdbStore) -> float:
    session = _session()
    times: list[float] = []
    for _ in range(30):
        drafts: list[Draft] = [intent(session, new_id(), TOOLS[0]) for _ in range(64)]
        start = time.perf_counter()
        tickets = [store.submit(draft, wait=True) for draft in drafts]
        await tickets[-1].done()
        times.append((time.perf_counter() - start) * 1e3)
        ends = [
            store.submit(outcome(session, d.facts.call, TOOLS[0], t, 1), wait=True)
            for d, t in zip(drafts, tickets, strict=True)
        ]
        await ends[-1].done()
    return median(times)


def _look(data: Path) -> Reading:
    reopen = _timed(lambda: _reopen(data))
    with LmdbReader.open(data) as reader:
        with reader.view() as view:
            commits, row = view.usage().commits, list(islice(view.sessions(), 2))[1]
        middle = row.head_seq // 2
        half = Filter(sessions=(row.session,), before=middle)
        return Reading(
            commits=commits,
            reopen_ms=reopen,
            last_20_ms=_timed(lambda: _newest(reader, Filter(), 20)),
            failed_20_ms=_timed(lambda: _newest(reader, Filter(error="timeout"), 20)),
            rare_tool_20_ms=_timed(lambda: _newest(reader, Filter(tool="rare_*"), 20)),
            slice_50_ms=_timed(lambda: _newest(reader, half, 50)),
            get_us=_timed(lambda: _get_50(reader, row.session, middle)) * 1e3 / 50,
            verify_per_second=(row.head_seq + 1)
            / _timed(lambda: _verify(reader, row.session))
            * 1e3,
        )


def _timed(action: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        action()
        times.append((time.perf_counter() - start) * 1e3)
    return median(times)


def _reopen(data: Path) -> None:
    with LmdbReader.open(data) as reader, reader.view() as view:
        view.usage()


def _newest(reader: LmdbReader, want: Filter, count: int) -> None:
    with reader.view() as view:
        list(islice(view.attempts(want, newest_first=True), count))


def _get_50(reader: LmdbReader, session: bytes, first: int) -> None:
    with reader.view() as view:
        for seq in range(first, first + 50):
            view.get(session, seq)


def _verify(reader: LmdbReader, session: bytes) -> None:
    prev = b""
    with reader.view() as view:
        for _, header, _ in view.headers(session):
            if prev and decode_link(header).prev != prev:
                raise AssertionError("the chain is broken")
            prev = digest(header)
