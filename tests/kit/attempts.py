"""A recorder on a real store, with a log that keeps its events and a clock that tests set."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from turnlog.core.kinds import Durability, Effect, Rung, WhenFull
from turnlog.observe.clock import Clock
from turnlog.observe.events import Level, LogEvent
from turnlog.record.attempt import Ask
from turnlog.record.drafts import Drafter
from turnlog.record.lineage import LineageTracker
from turnlog.record.recorder import Recorder
from turnlog.redaction.redact import Redactor
from turnlog.store.base import SessionRef, alias
from turnlog.store.lmdb import LmdbStore

START = 1_795_737_600 * 10**9
"""2026-11-28T00:00:00Z, in ns."""
E = TypeVar("E", bound=LogEvent)


class Collected:
    """A log that keeps what it is told."""

    tells_content = False

    def __init__(self) -> None:
        self.events: list[LogEvent] = []

    def wants(self, kind: type[LogEvent]) -> bool:
        """Tell that all events are wanted."""
        return kind.level >= Level.DEBUG

    def emit(self, event: LogEvent) -> None:
        """Keep an event."""
        self.events.append(event)

    def fault(self, error: Exception) -> None:
        """Fail the test: content could not be read."""
        raise AssertionError from error

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


class Time:
    """Both clocks: a second goes by only where a test says so."""

    def __init__(self) -> None:
        self.now = 0
        self._numbers: Iterator[int] = count(1)

    def clock(self) -> Clock:
        """Return what the recorder asks."""
        return Clock(
            wall=lambda: START + self.now,
            monotonic=lambda: self.now,
            entropy=self._dice,
        )

    def _dice(self, size: int) -> bytes:
        """Return bytes of which every ten are a higher number: what a call's id takes."""
        return b"".join(next(self._numbers).to_bytes(10) for _ in range(-(-size // 10)))[:size]


class Bench(Struct, frozen=True):
    """A recorder and what is around it."""

    recorder: Recorder
    store: LmdbStore
    log: Collected
    time: Time
    lineage: LineageTracker


@asynccontextmanager
async def bench(
    folder: Path,
    *,
    durability: Durability = Durability.BALANCED,
    when_full: WhenFull = WhenFull.REFUSE_WRITES,
    record_limit: int = 1 << 20,
    store_limit: int = 1 << 30,
    bounds: Mapping[str, int] | None = None,
) -> AsyncGenerator[Bench]:
    """Open a store in `folder` with a recorder before it; `bounds` are those of its `LineageTracker`."""
    time, log = Time(), Collected()
    clock = time.clock()
    store = LmdbStore.open(folder, limit=store_limit, now=clock.wall, clock=clock.monotonic)
    drafter = Drafter(Redactor(), clock, store.keyed_for, log.fault, record_limit=record_limit)
    try:
        async with asyncio.TaskGroup() as work:
            lineage = LineageTracker(store, clock, work, log.fault, **(bounds or {}))
            recorder = Recorder(
                store,
                drafter,
                log,
                clock,
                work,
                durability=durability,
                when_full=when_full,
                lineage=lineage,
            )
            yield Bench(recorder, store, log, time, lineage)
            recorder.flush()
    finally:
        await store.close()


def session(name: str = "work") -> SessionRef:
    """Return a session that is named explicitly."""
    return SessionRef(
        candidate=name.encode().ljust(16, b"\0")[:16],
        rung=Rung.EXPLICIT,
        aliases=(alias(Rung.EXPLICIT, name, ""),),
    )


def ask(ref: SessionRef, call: bytes, **changes: Any) -> Ask:
    """Return a `tools/call` as it was asked for, with these fields changed."""
    plain = Ask(
        session=ref,
        call=call,
        server="files",
        tool="write",
        method="tools/call",
        effect=Effect.UNKNOWN,
        arguments=b'{"path":"/tmp/a"}',
        size=100,
        protocol="2025-11-25",
    )
    return msgspec.structs.replace(plain, **changes)
