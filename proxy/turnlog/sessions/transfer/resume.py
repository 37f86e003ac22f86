"""Resume a session, in this store or in another one: what a runtime needs for it."""

import asyncio
from typing import IO, Final

import msgspec
from msgspec import Raw, Struct, structs

from turnlog.core import ids
from turnlog.core.lifecycle import Action, LifecycleContent, SessionStage, action_of, is_move
from turnlog.core.text.units import timestamp
from turnlog.observe.clock import Clock
from turnlog.sessions.control.lifecycle import moved_by
from turnlog.sessions.control.writer import ControlRequest, ControlWriter
from turnlog.sessions.dangling import (
    Dangling,
    DanglingCall,
    DanglingFilter,
    DanglingReason,
    dangling,
    find_dangling,
)
from turnlog.sessions.log import Query, read_rows, session_row
from turnlog.sessions.overview import names_of
from turnlog.sessions.rows import Row, row_of
from turnlog.sessions.state.state_at import SessionState, read_state
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View
from turnlog.store.saved_states import SavedStates

from .bundle import Watch, head_of_bundle, write_bundle

LAST: Final = 20
"""Attempts that are given unless the caller says how many."""
MOVED: Final = "moved"
"""First word of the reason for the pause of a session that goes on elsewhere."""
_POLLS: Final = 40
_POLL_INTERVAL: Final = 0.05
"""s between two polls: with `_POLLS` of them, calls in flight have 2 s to end."""


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
    """Calls of unknown outcome: nobody knows whether they happened."""
    dangling: list[Dangling]
    """Calls whose agent has no answer, with the recorded one: for a transcript that ends in them."""
    last: list[Row]
    """The newest attempts, oldest first."""


def resumption(view: View, saved: SavedStates, session: bytes, *, last: int = LAST) -> Resumption:
    """Return what is needed to go on with a session. Raises `NotFoundError`."""
    row = session_row(view, session)
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


class PackedSession(Struct, frozen=True, kw_only=True):
    """The result of writing a bundle."""

    session: str
    seq: int
    in_flight: int
    """Calls that were running: their outcomes are not in the bundle."""
    fence: int | None
    """seq of the commit that paused the session here; `None` for a copy."""


class BundleSource(Struct, frozen=True, kw_only=True):
    """A session that is to be packed."""

    session: bytes
    secret: bytes
    """The secret of its digests."""
    saved: SavedStates
    clock: Clock
    fence: int | None = None
    """seq of the commit that has paused it for that; `None` for a copy."""
    was_paused: bool = False


async def move_session(
    store: LmdbStore,
    source: BundleSource,
    sink: IO[bytes],
    controls: ControlWriter,
    why: str,
    on_part: Watch,
    lease: int | None = None,
) -> PackedSession:
    """Pause a session and write it as a bundle. Raises `StoreError`, also where it cannot be paused, `OSError`.

    `why` is the reason for the pause, `lease` the number of the operator's lease. The pause is ended again if the bundle cannot be written.
    """
    await store.recover()
    session = source.session
    with store.view() as view:
        is_paused = session_row(view, session).stage is SessionStage.PAUSED
        was_paused = is_paused and _was_paused(view, session)
        is_moved = moved_by(view, session) is not None
    content = LifecycleContent(moved=True)
    move = ControlRequest(action=Action.PAUSE, why=why, content=content, fence=lease)
    if not is_moved:
        await controls.write(session, move)
    await _wait_for_calls(store, session)
    try:
        # Behind this one the store adds no note on a delivery: it would not be in the bundle.
        packed = LifecycleContent(moved=True, packed=True)
        fence = await controls.write(session, structs.replace(move, content=packed))
        fenced = structs.replace(source, fence=fence.seq, was_paused=was_paused)
        with store.view() as view:
            return pack_session(view, fenced, sink, on_part)
    except Exception:
        if not is_paused:
            why = "the bundle could not be written"
            await controls.write(session, ControlRequest(action=Action.RESUME, why=why))
        raise


def _was_paused(view: View, session: bytes) -> bool:
    """Return whether a paused session was paused before it was moved: a bundle may be packed again."""
    for commit in view.controls(session, newest_first=True):
        action = action_of(commit.facts)
        if action is Action.PAUSE and not is_move(commit.facts, commit.body):
            return True
        if action is Action.RESUME:
            return False
    return False


def pack_session(
    view: View, source: BundleSource, sink: IO[bytes], on_part: Watch
) -> PackedSession:
    """Write a session as a bundle. Raises `StoreError`, `OSError`."""
    session, row = source.session, session_row(view, source.session)
    shown = resumption(view, source.saved, session)
    head = head_of_bundle(
        made_at=timestamp(source.clock.wall()),
        session=ids.to_text(session),
        seq=row.head_seq,
        hash=f"sha256:{row.head_hash.hex()}",
        secret=source.secret,
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


async def _wait_for_calls(store: LmdbStore, session: bytes) -> None:
    """Wait for calls in flight, and for the notes that answers were delivered, for 2 s at most.

    A commit that comes after the bundle is written would not be in it.
    """
    for _ in range(_POLLS):
        with store.view() as view:
            found = find_dangling(view, DanglingFilter(session=session))
            if not any(_may_go_on(view, one) for one in found):
                return
        await asyncio.sleep(_POLL_INTERVAL)


def _may_go_on(view: View, call: DanglingCall) -> bool:
    """Return whether the process of a call may still write of it."""
    if call.standing is DanglingReason.UNDELIVERED and not call.abandoned:
        return view.is_alive(call.attempt[-1].link.epoch)
    return call.standing is DanglingReason.IN_FLIGHT
