"""What a store of many commits costs, at several sizes of the same store."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from turnlog.core.commit import decode_link, digest
from turnlog.core.kinds import Rung
from turnlog.sessions.log import Query, TurnRange, find_session, read_rows
from turnlog.sessions.state.backlog import AT_ONCE, StateBacklog
from turnlog.sessions.state.state_at import head_of, read_state, saved_states
from turnlog.store.base import Draft, Filter, SessionRef, Ticket, alias
from turnlog.store.lmdb import LmdbReader, LmdbStore
from turnlog.store.saved_states import SavedStates

from .drafts import TOOLS, changed_file, intent, new_id, outcome
from .goals import Goal, at_most
from .store_gc import gc_beside_calls

LONG: Final = 100_000
"""Commits of the session whose state is asked for."""
_NAME: Final = "long"
_IN_TURN: Final = 20
"""Calls of a turn."""
_LIMIT: Final = 1 << 40
_BATCHES: Final = 100
_CHUNK: Final = 2048
_CHUNKS: Final = 20
"""That are appended to a store of each size, by the same sessions, to see what that costs there."""


class Writing(Struct, frozen=True, kw_only=True):
    """Microseconds for a commit that nobody waits for, milliseconds for a durable batch of 64."""

    append_us: float
    append_empty_us: float
    """On an empty store, in turns with the one that grows: only what that costs more is its growth."""
    batch_ms: float
    batch_empty_ms: float
    save_us: float
    """Processor time for each commit that the proxy folds on while it is idle."""


class Reading(Struct, frozen=True, kw_only=True):
    """What readers ask for, the best of several times: what else the machine does only adds.

    Times are in the unit of their name.
    """

    commits: int
    reopen_ms: float
    last_20_ms: float
    failed_20_ms: float
    rare_tool_20_ms: float
    slice_50_ms: float
    get_us: float
    verify_per_second: float
    first_state_ms: float
    """Of the long session, for whoever asks first, as a proxy leaves it."""
    state_ms: float
    state_somewhere_ms: float
    last_5_turns_ms: float
    """Which files the long session's last five turns changed."""
    path_50_ms: float
    """The newest 50 changes of one file, across sessions; so are the next two."""
    glob_50_ms: float
    field_50_ms: float


def show_growth(folder: Path, sizes: list[int]) -> list[Goal]:
    """Let one store grow to each size, print what it costs there, and return goal 7."""
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(dir=folder) as name:
        data = Path(name) / "data"
        for size in sizes:
            found.append({**asdict(asyncio.run(_grow(data, size))), **asdict(_look(data))})
            print("  ".join(f"{name} {value:,.1f}" for name, value in found[-1].items()))
        # Last: it deletes what the others read.
        collected = gc_beside_calls(data)
    return [
        *(
            at_most(f"7 {what}, {sizes[0]:,} to {sizes[-1]:,} commits", _rise(found, name), most)
            for what, name, most in _RISES
        ),
        *collected,
        at_most(f"7 reopen with {sizes[-1]:,} commits", found[-1]["reopen_ms"], 50.0, " ms"),
    ]


_RISES: Final = (
    ("append", "append_us", 1.5),
    ("durable batch of 64", "batch_ms", 1.2),
    ("slice of 50", "slice_50_ms", 1.6),
    ("point get", "get_us", 3.0),
    ("state", "state_ms", 1.6),
    ("state at any commit", "state_somewhere_ms", 1.6),
    ("files of the last 5 turns", "last_5_turns_ms", 1.6),
    ("50 changes of a file", "path_50_ms", 1.6),
    ("50 changes by a glob", "glob_50_ms", 1.6),
    ("50 changes of a field", "field_50_ms", 1.6),
)


_EMPTY: Final = {"append_us": "append_empty_us", "batch_ms": "batch_empty_ms"}


def _rise(found: list[dict[str, float]], name: str) -> float | None:
    """Return what something costs at the last size by what it costs at the first.

    Where an empty store was measured as well, each counts by what it costs there.
    """
    if len(found) < 2:
        return None
    last, first = (at[name] / at.get(_EMPTY.get(name, ""), 1.0) for at in (found[-1], found[0]))
    return last / first


async def _grow(data: Path, size: int) -> Writing:
    """Let a store grow, then write to it and to an empty one in turns."""
    store = LmdbStore.open(data, limit=_LIMIT)
    await _append_until(store, size)
    with tempfile.TemporaryDirectory(dir=data.parent) as name:
        empty = LmdbStore.open(Path(name) / "data", limit=_LIMIT)
        appends = await _in_turns(store, empty, _CHUNKS, _chunk)
        batches = await _in_turns(store, empty, _BATCHES, _batch_of_64)
        await empty.close()
    saving = _save(store, data)
    await store.close()
    return Writing(
        append_us=appends[0],
        append_empty_us=appends[1],
        batch_ms=batches[0],
        batch_empty_ms=batches[1],
        save_us=saving,
    )


async def _in_turns(
    store: LmdbStore,
    empty: LmdbStore,
    times: int,
    measure: Callable[[LmdbStore, list[SessionRef]], Awaitable[float]],
) -> tuple[float, float]:
    sides = [(one, [_session() for _ in range(64)]) for one in (store, empty)]
    took: tuple[list[float], list[float]] = ([], [])
    for number in range(times):
        for side in (number % 2, 1 - number % 2):
            took[side].append(await measure(*sides[side]))
    return median(took[0]), median(took[1])


async def _chunk(store: LmdbStore, sessions: list[SessionRef]) -> float:
    return await _calls(store, sessions, _CHUNK)


async def _append_until(store: LmdbStore, size: int) -> None:
    """Let a store grow: first the long session, then others."""
    made = _commits(store)
    if made < LONG:
        await _calls(store, [_long()], LONG - made)
    while (made := _commits(store)) < size:
        await _calls(store, [_session() for _ in range(64)], min(size - made, LONG))


def _commits(store: LmdbStore) -> int:
    with store.view() as view:
        return view.last


async def _calls(store: LmdbStore, sessions: list[SessionRef], commits: int) -> float:
    """Write whole calls to sessions in turn, some more than `commits`; return us for each commit."""
    start, number = time.perf_counter(), 0
    while number * 2 < commits:
        tickets: list[Ticket] = []
        for _ in range(256):
            number += 1
            tickets.append(_submit_call(store, sessions[number % len(sessions)], number))
        await tickets[-1].done()
    return (time.perf_counter() - start) / (number * 2) * 1e6


def _save(store: LmdbStore, data: Path) -> float:
    """Fold sessions on as an idle proxy does; return us for each commit."""
    saving, start, steps = StateBacklog(saved_states(data)), time.thread_time(), 0
    with store.view() as view:
        saving.look(view)
    while saving.is_due:
        with store.view() as view:
            saving.step(view)
        steps += 1
    return (time.thread_time() - start) / (max(steps, 1) * AT_ONCE) * 1e6


def _long() -> SessionRef:
    """Return the session that has the first commits of the store, whatever its size."""
    name = alias(Rung.EXPLICIT, _NAME, "benchmark")
    return SessionRef(candidate=new_id(), rung=Rung.EXPLICIT, aliases=(name,))


def _session() -> SessionRef:
    return SessionRef(candidate=new_id(), rung=Rung.TRANSPORT)


def _submit_call(store: LmdbStore, session: SessionRef, number: int) -> Ticket:
    call = new_id()
    tool = "rare_tool" if number % 5000 == 0 else TOOLS[number % len(TOOLS)]
    ticket = store.submit(intent(session, call, tool, f"turn {number // _IN_TURN}"), wait=False)
    return store.submit(outcome(session, call, tool, ticket, number), wait=number % 256 == 0)


async def _batch_of_64(store: LmdbStore, sessions: list[SessionRef]) -> float:
    drafts: list[Draft] = [intent(one, new_id(), TOOLS[0]) for one in sessions]
    start = time.perf_counter()
    tickets = [store.submit(draft, wait=True) for draft in drafts]
    await tickets[-1].done()
    took = (time.perf_counter() - start) * 1e3
    ends = [
        store.submit(outcome(d.session, d.facts.call, TOOLS[0], t, 1), wait=True)
        for d, t in zip(drafts, tickets, strict=True)
    ]
    await ends[-1].done()
    return took


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
            **_states(data, reader),
        )


def _states(data: Path, reader: LmdbReader) -> dict[str, float]:
    saved = saved_states(data)
    with reader.view() as view:
        session = find_session(view, _NAME)
        head = head_of(view, session)
    changed = Filter(field="files_modified")
    query = Query(session=session, turns=TurnRange(-5, None), match=changed)
    place = head * 593 // 997
    return {
        "first_state_ms": _timed(lambda: _state(reader, saved, session, head), times=1),
        "state_ms": _timed(lambda: _state(reader, saved, session, head)),
        "state_somewhere_ms": _timed(lambda: _state(reader, saved, session, place)),
        "last_5_turns_ms": _timed(lambda: _rows(reader, query)),
        "path_50_ms": _timed(
            lambda: _rows(reader, Query(match=Filter(path=changed_file(1)), last=50))
        ),
        "glob_50_ms": _timed(
            lambda: _rows(reader, Query(match=Filter(path="*/part_*6.py"), last=50))
        ),
        "field_50_ms": _timed(lambda: _rows(reader, Query(match=changed, last=50))),
    }


def _state(reader: LmdbReader, saved: SavedStates, session: bytes, at: int) -> None:
    with reader.view() as view:
        read_state(view, saved, session, at)


def _rows(reader: LmdbReader, query: Query) -> None:
    with reader.view() as view:
        if not list(read_rows(view, query)):
            raise AssertionError(f"nothing was found for {query!r}")


def _timed(action: Callable[[], object], times: int = 5) -> float:
    took: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        took.append((time.perf_counter() - start) * 1e3)
    return min(took)


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
