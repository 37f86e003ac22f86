"""Going on with a session, in this store or in another: what a runtime needs for it."""

import asyncio
from typing import IO, Final

import msgspec
from msgspec import Raw, Struct

from turnlog.core import ids
from turnlog.core.lifecycle import Action, SessionStage
from turnlog.core.text.units import timestamp
from turnlog.observe.clock import Clock
from turnlog.sessions.control.writer import ControlRequest, ControlWriter
from turnlog.sessions.dangling import (
    Dangling,
    DanglingFilter,
    DanglingReason,
    dangling,
    find_dangling,
)
from turnlog.sessions.errors import NotFoundError
from turnlog.sessions.log import Query, read_rows
from turnlog.sessions.overview import names_of
from turnlog.sessions.rows import Row, row_of
from turnlog.sessions.state.state_at import SessionState, read_state
from turnlog.store.base import SessionRow
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View
from turnlog.store.saved_states import SavedStates

from .bundle import Watch, head_of_bundle, write_bundle

LAST: Final = 20
"""Attempts that are given unless the caller says how many."""
MOVED: Final = "moved"
"""First word of the reason for the pause of a session that goes on elsewhere."""
_LOOKS: Final = 40
_BETWEEN: Final = 0.05
"""s between two looks: with `_LOOKS` of them, calls that run have 2 s to end."""


class Resumption(Struct, frozen=True, kw_only=True):
    """The output of `turnlog resume --json`."""

    session: str
    names: list[str]
    stage: SessionStage
    state: SessionState
    """The newest state: `evicted_keys`, `facts`, `decisions_made` and the other fields are in it."""
    pending: list[Row]
    """The newest attempt of each call that is open, or waits for more input or its task."""
    unknown: list[Row]
    """Calls of which nobody knows whether they happened."""
    dangling: list[Dangling]
    """Calls whose agent has no answer, with the recorded one: for a transcript that ends in them."""
    last: list[Row]
    """The newest attempts, oldest first."""


def resumption(view: View, saved: SavedStates, session: bytes, *, last: int = LAST) -> Resumption:
    """Return what is needed to go on with a session. Raises `NotFoundError`."""
    row = _row(view, session)
    unsettled = [*map(row_of, view.unsettled((session,)))]
    found = [*dangling(view, DanglingFilter(session=session))]
    # Of an attempt whose process is dead the row says what recovery will write.
    unknown = {one.row.call: one.row for one in found if one.standing is DanglingReason.UNKNOWN}
    return Resumption(
        session=ids.to_text(session),
        names=names_of(row.aliases),
        stage=row.stage,
        state=read_state(view, saved, session, row.head_seq),
        pending=[one for one in unsettled if one.call not in unknown],
        unknown=[*unknown.values()],
        dangling=found,
        last=[*read_rows(view, Query(session=session, last=last))] if last else [],
    )


def _row(view: View, session: bytes) -> SessionRow:
    row = view.session(session)
    if row is None:
        raise NotFoundError(f"there is no session {ids.to_text(session)!r}")
    return row


class PackedSession(Struct, frozen=True, kw_only=True):
    """The result of writing a bundle."""

    session: str
    seq: int
    in_flight: int
    """Calls that were running: their outcomes are not in the bundle."""
    fence: int | None
    """seq of the commit that paused the session here; `None` for a copy."""


async def pack_session(
    store: LmdbStore,
    saved: SavedStates,
    session: bytes,
    sink: IO[bytes],
    clock: Clock,
    controls: ControlWriter,
    *,
    fence: str | None,
    on_part: Watch,
) -> PackedSession:
    """Write a session as a bundle. Raises `StoreError`, also where it cannot be paused, `OSError`.

    `fence` is the reason for which the session is paused here first; `None` for a copy, which leaves it
    as it is.
    """
    await store.recover()
    with store.view() as view:
        was_paused = _row(view, session).stage is SessionStage.PAUSED
    fenced = None
    if fence is not None:
        fenced = (await controls.write(session, ControlRequest(action=Action.PAUSE, why=fence))).seq
        await _settled(store, session, clock)
    try:
        with store.view() as view:
            return _write(
                store, view, _Source(session, fenced, was_paused), saved, sink, clock, on_part
            )
    except Exception:
        if fenced is not None and not was_paused:
            why = "the bundle could not be written"
            await controls.write(session, ControlRequest(action=Action.RESUME, why=why))
        raise


class _Source(Struct, frozen=True):
    session: bytes
    fence: int | None
    was_paused: bool


def _write(
    store: LmdbStore,
    view: View,
    source: _Source,
    saved: SavedStates,
    sink: IO[bytes],
    clock: Clock,
    on_part: Watch,
) -> PackedSession:
    session, row = source.session, _row(view, source.session)
    shown = resumption(view, saved, session)
    head = head_of_bundle(
        made_at=timestamp(clock.wall()),
        session=ids.to_text(session),
        seq=row.head_seq,
        hash=f"sha256:{row.head_hash.hex()}",
        secret=store.secret_of(session),
        aliases=row.aliases,
        fence=source.fence,
        was_paused=source.was_paused,
        resume=Raw(msgspec.json.encode(shown)),
    )
    write_bundle(view, head, sink, on_part)
    in_flight = sum(one.standing is DanglingReason.IN_FLIGHT for one in shown.dangling)
    return PackedSession(
        session=head.session, seq=head.seq, in_flight=in_flight, fence=source.fence
    )


async def _settled(store: LmdbStore, session: bytes, clock: Clock) -> None:
    """Wait a while for calls that were running, and for notes that their answers were delivered.

    A commit that comes after the bundle is written would not be in it.
    """
    for _ in range(_LOOKS):
        with store.view() as view:
            known = find_dangling(view, DanglingFilter(session=session))
            final = find_dangling(view, DanglingFilter(session=session, now=clock.wall()))
        is_running = any(one.standing is DanglingReason.IN_FLIGHT for one in known)
        if not is_running and len(known) == len(final):
            return
        await asyncio.sleep(_BETWEEN)
