"""The live index of values: what a call is given is looked up in what its session has seen before.

No answer waits for it: look-ups and outputs to index are queued by session, and done on the event
loop a little at a time. The outcome of a call that ends before its look-up was done says so.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct, structs

from turnlog.core.kinds import Phase, ValueOrigin
from turnlog.core.note import Note
from turnlog.observe.clock import Clock
from turnlog.provenance.leaves import leaves
from turnlog.provenance.taint import carried
from turnlog.provenance.values import LOOKED_AT, Inputs, SessionValues, ValueSource
from turnlog.rules.http_tools import values_in
from turnlog.rules.model import TaintAction
from turnlog.sessions.lineage.history import (
    EMPTY,
    NOT_YET,
    TOO_MUCH,
    Declaration,
    GivenAnswer,
    History,
    PastOutput,
    declaration,
    given_answer,
    read_history,
    start_of,
)
from turnlog.sessions.lineage.taint import notes_about, tainted_by_marks
from turnlog.store.base import Blob, SessionRef, StoreError, Ticket
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View

from .attempt import Ask, Attempt

_SLICE: Final = 2_000_000
"""ns of work after which the loop's other tasks go on. In a burst one round of the loop serves many calls: with
less it would fall behind them."""
_MOST_WAITING: Final = 16 << 20
_MOST_PUT_OFF: Final = 1 << 20
"""Bytes of outputs that wait until a session's next look-up; both together cost the loop one round less."""
_MOST_SESSIONS: Final = 4096
_MOST_VALUES: Final = 262_144
_FEW: Final = 64
"""Commits that are read in the loop, in less time than a switch to a thread takes; more are read in a thread."""
_LOOK: Final = 1_000_000_000
"""ns between two looks whether other processes have the store open."""
_QUEUED: Final = Phase.QUEUED
_UNSEEN: Final = ValueOrigin.UNVERIFIED
_NOTHING: Final = Inputs()
_NOT_RECORDED: Final = Inputs(partial="the input is not recorded")
_NOT_YET: Final = Inputs(partial=NOT_YET)
_TOO_MUCH: Final = Inputs(partial=TOO_MUCH)
_WHOLE: Final = object()
_UNREAD: Final = "earlier outputs could not be read"
_OLDER: Final = "not all earlier outputs were read"
_CUT_INPUT: Final = "the input is not recorded whole"
_CUT: Final = "not all outputs are recorded whole"
_LEFT_OUT: Final = "outputs were left out, because too much waited to be looked at"


class Waiting(Struct, eq=False, gc=False):
    """An input to look up, or an output to index. Until it is `ready` it holds up those behind it."""

    content: bytes
    attempt: Attempt | None = None
    """The attempt whose input is looked up; `None` for an output."""
    # Not an attempt: an output may wait for long, and an attempt holds much.
    source: ValueSource | None = None
    """The attempt whose output is indexed; `None` for an input."""
    is_ready: bool = True
    is_cut: bool = False
    """Whether this input is not recorded whole."""
    is_second: bool = False
    """Whether this look-up is made again, after outputs of other processes were read."""
    is_tainted: bool | None = False
    """Whether this output is tainted; `None` if it is where `own_input` carries tainted values."""
    own_input: bytes = b""
    """The input of the same call, if its output is tainted or may be: what the output only repeats of it is
    not indexed."""


class _SessionMemory(Struct, eq=False):
    """The values of a session, and what waits to be looked up or indexed."""

    ref: SessionRef
    values: SessionValues
    waiting: deque[Waiting]
    partial: str = ""
    """Why outputs are missing in `values`; empty if none are."""
    is_due: bool = False
    is_reading: bool = False
    """Whether its past is being read from the store; what waits goes on afterwards."""
    read_until: int = -1
    """The newest commit that was read from the store."""
    read_at: int = 0
    """When that was, monotonic ns."""
    size: int = 0
    """Values that were counted for it."""
    is_forgotten: bool = False
    """Whether it is counted no more, because others were used later."""
    indexing: Iterator[None] | None = None
    """The rest of an output that is being indexed."""
    controls: int = 0
    """Number of control commits in the store when its marks were looked at."""
    marked: int = -1
    """Position of the newest note, when it was read, that marks or endorses an output; -1 for none."""


class LineageTracker:
    """The live index of a process: for each call the earlier outputs that the values in its input come from."""

    def __init__(
        self,
        store: LmdbStore,
        clock: Clock,
        work: asyncio.TaskGroup,
        report: Callable[[Exception], None],
        *,
        most_values: int = _MOST_VALUES,
        most_waiting: int = _MOST_WAITING,
    ) -> None:
        """`report` is called with an error of what reads content; the record says less then.

        `most_values` of all sessions are in memory, and `most_waiting` bytes of content wait to be looked at.
        """
        self._most_values, self._most_waiting = most_values, most_waiting
        self._report = report
        self._store = store
        self._now = clock.monotonic
        self._work = work
        self._controls = store.control_counter()
        self._sessions: OrderedDict[bytes, _SessionMemory] = OrderedDict()
        """By id, or by candidate until it has an id; the one used last is at the end."""
        self._due: deque[_SessionMemory] = deque()
        self._is_scheduled = False
        self._bytes = 0
        """Of all content that waits."""
        self._size = 0
        """Values of all sessions."""
        self._looked_at = -_LOOK
        self._shared_until = 0
        """Until when other processes may have written to the store, as far as is known."""
        self._drained = asyncio.Event()
        """Set whenever a session has nothing left to do."""

    def on_begun(self, attempt: Attempt, blob: Blob | None) -> None:
        """Queue the look-up of an attempt's recorded input, unless that was looked up before."""
        ask = attempt.ask
        if ask.inputs is not None or not ask.is_call:
            attempt.inputs = _as_recorded(ask, blob)
        elif blob is None:
            self._memory(ask.session)  # its first call shows whether it has a past
            attempt.inputs = _NOT_RECORDED
        else:
            content = start_of(blob) if ask.is_mcp else values_in(start_of(blob))
            work = Waiting(content, attempt=attempt, is_cut=blob.cut)
            if not self._queue(ask.session, work):
                attempt.inputs = _TOO_MUCH

    def settle(self, attempt: Attempt) -> None:
        """End the look-up of an attempt's input, because its outcome is to be recorded."""
        if attempt.inputs is not None:
            return
        ending = attempt.ending
        if ending is not None and ending.phase is _QUEUED:
            # It was not sent: there was hardly time between intent and outcome.
            self._work_off(self._memory(attempt.ask.session))
        attempt.inputs = attempt.inputs or _NOT_YET

    def on_ended(
        self, attempt: Attempt, blob: Blob | None, place: Waiting | None, *, is_tainted: bool
    ) -> None:
        """Queue an attempt's recorded output for indexing; where a `place` was reserved for it, there."""
        content = start_of(blob) if blob is not None else b""
        if blob is not None and blob.cut:
            self._memory(attempt.ask.session).partial = _CUT
        taint: bool | None = is_tainted or (None if _is_late(attempt) else False)
        own_input = _own_input(attempt.ask, taint)
        if place is not None:
            self._fill(attempt.ask, place, content, taint)
        elif content:
            source = _source(attempt)
            work = Waiting(content, source=source, is_tainted=taint, own_input=own_input)
            if not self._queue(attempt.ask.session, work):
                self._memory(attempt.ask.session).partial = _LEFT_OUT

    def reserve(self, attempt: Attempt) -> Waiting:
        """Return the place of an output that is still being prepared: later look-ups wait for it."""
        place = Waiting(b"", source=_source(attempt), is_ready=False)
        self._queue(attempt.ask.session, place)
        return place

    async def on_given(self, attempt: Attempt, source: Ticket, place: Waiting) -> None:
        """Index, at the place reserved for it, the answer of another session that an attempt was given."""
        given, is_read = None, False
        try:
            await self._store.flush()
            await source.done()  # it may still have been prepared
            given = await asyncio.to_thread(self._given, attempt.ask)
            is_read = given is None or bool(given.content)
        except StoreError:
            pass
        finally:
            if not is_read:
                self._memory(attempt.ask.session).partial = _UNREAD
            content, taint = (given.content, given.is_tainted) if given else (b"", False)
            self._fill(attempt.ask, place, content, taint)

    def _given(self, ask: Ask) -> GivenAnswer | None:
        with self._store.view() as view:
            session = view.session_of(ask.session)
            return given_answer(view, ask.call, session) if session is not None else None

    def _fill(self, ask: Ask, place: Waiting, content: bytes, taint: bool | None) -> None:
        place.content, place.is_ready = content, True
        place.is_tainted, place.own_input = taint, _own_input(ask, taint)
        self._bytes += len(content)
        self._set_due(self._memory(ask.session))  # a look-up may wait behind it

    def on_noted(self, session: bytes, seq: int, note: Note) -> None:
        """Index a text that a note declares."""
        # A session that this process has not met is read with all its notes when it is.
        told = declaration(seq, note)
        if told is not None and session in self._sessions:
            self._learn(self._sessions[session], told)

    async def caught_up(self, session: SessionRef) -> tuple[SessionValues, str]:
        """Return a session's values once nothing waits in it, and why some are missing; for a rule that depends on them.

        Those that other processes have recorded are among them.
        """
        memory = await self._settled(session)
        # What this process knows shows nothing of them: prose that is tainted there is not missed here.
        if self._store.is_shared():
            self._read_news(memory)
            memory = await self._settled(session)
        return memory.values, memory.partial

    async def _settled(self, session: SessionRef) -> _SessionMemory:
        memory = self._memory(session)
        while self._work_off(memory):
            self._drained.clear()
            await self._drained.wait()
        return memory

    def _queue(self, session: SessionRef, work: Waiting) -> bool:
        size = self._bytes + len(work.content)
        if size > self._most_waiting and work.is_ready:
            return False
        self._bytes = size
        memory = self._memory(session)
        memory.waiting.append(work)
        if work.source is None:
            self._set_due(memory)
        elif size > _MOST_PUT_OFF:
            for other in self._sessions.values():
                self._set_due(other)
        return True

    def _memory(self, ref: SessionRef) -> _SessionMemory:
        sessions, key = self._sessions, ref.id or ref.candidate
        memory = sessions.get(key)
        if memory is None:
            memory = sessions.pop(ref.candidate, None)  # from before it had an id
            if memory is None:
                memory = _SessionMemory(ref, SessionValues(), deque())
                self._begin(memory)
            sessions[key] = memory
            if len(sessions) > _MOST_SESSIONS:
                self._forget_oldest()
        else:
            sessions.move_to_end(key)
        # Each call reads the counter anyway (`engine.session_gate`).
        if memory.controls != self._controls.count and not memory.is_reading:
            self._look_at_marks(memory)
        return memory

    def _look_at_marks(self, memory: _SessionMemory) -> None:
        """Index a session anew if an operator has marked or endorsed one of its outputs since."""
        count = self._controls.count
        try:
            with self._store.view() as view:
                session = view.session_of(memory.ref)
                notes = [] if session is None else notes_about(view, session)
        except StoreError:
            return  # the next call looks again
        memory.controls = count
        if (notes[-1].position if notes else -1) != memory.marked:
            memory.values, memory.read_until = SessionValues(), -1
            self._read(memory)

    def _set_due(self, memory: _SessionMemory) -> None:
        if memory.is_due or memory.is_reading or not memory.waiting:
            return
        memory.is_due = True
        self._due.append(memory)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        """Do what is due for a little while; go on in the loop's next round if that was not all."""
        until = self._now() + _SLICE
        while self._due:
            memory = self._due[0]
            if not self._next(memory):
                memory.is_due = False
                self._due.popleft()
            if self._now() > until:
                break
        if self._due:
            asyncio.get_running_loop().call_soon(self._run)
        else:
            self._is_scheduled = False

    def _work_off(self, memory: _SessionMemory) -> bool:
        """Do all that waits in a session and can be done; return whether anything still waits."""
        while self._next(memory):
            pass
        return memory.is_reading or bool(memory.waiting)

    def _next(self, memory: _SessionMemory) -> bool:
        """Do the next piece of work of a session; return whether there is more that can be done."""
        waiting = memory.waiting
        try:
            if memory.indexing is not None:
                self._index(memory, memory.indexing)
            elif memory.is_reading or not waiting or not waiting[0].is_ready:
                return False
            else:
                self._begin_next(memory, waiting.popleft())
        except Exception as error:  # noqa: BLE001 - the call goes on, the record says less
            self._report(error)
            memory.partial = _UNREAD
        if waiting or memory.indexing is not None:
            return True
        self._drained.set()
        return False

    def _begin_next(self, memory: _SessionMemory, work: Waiting) -> None:
        self._bytes -= len(work.content)
        if work.source is not None:
            self._index(memory, _adding(memory.values, work.source, work))
        elif work.attempt is not None and work.attempt.inputs is None:
            self._look_up(memory, work, work.attempt)

    def _index(self, memory: _SessionMemory, steps: Iterator[None]) -> None:
        """Do one of the steps in which an output is indexed."""
        memory.indexing = None if next(steps, _WHOLE) is _WHOLE else steps
        if memory.indexing is None:
            self._count(memory)

    def _look_up(self, memory: _SessionMemory, work: Waiting, attempt: Attempt) -> None:
        found = memory.values.look_up(work.content)
        if not work.is_second and self._may_be_elsewhere(memory, found):
            work.is_second = True
            memory.waiting.appendleft(work)
            self._bytes += len(work.content)
            self._read_news(memory)
            return
        partial = found.partial or memory.partial or (_CUT_INPUT if work.is_cut else "")
        attempt.inputs = (
            found if partial == found.partial else structs.replace(found, partial=partial)
        )

    def _may_be_elsewhere(self, memory: _SessionMemory, found: Inputs) -> bool:
        """Return whether a value that was not found may be in an output that another process recorded."""
        if all(entry.origin is not _UNSEEN for entry in found.lineage):
            return False
        now = self._now()
        if now - self._looked_at >= _LOOK:
            self._looked_at = now
            if self._store.is_shared():
                self._shared_until = now + _LOOK
        return memory.read_at < self._shared_until

    def _learn(self, memory: _SessionMemory, item: PastOutput | Declaration) -> None:
        """Index an output or a declaration at once."""
        if isinstance(item, Declaration):
            memory.values.declare(item.text, str(item.seq))
        else:
            for _ in _adding(memory.values, ValueSource(item.call, item.attempt), item):
                pass
        self._count(memory)

    def _count(self, memory: _SessionMemory) -> None:
        """Count the values of a session; forget the oldest sessions if there are too many in all."""
        if memory.is_forgotten:
            return
        size = len(memory.values)
        self._size += size - memory.size
        memory.size = size
        while self._size > self._most_values and len(self._sessions) > 1:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        # What waits in it is still done. If it is used again, its past is read from the store.
        _, memory = self._sessions.popitem(last=False)
        self._size -= memory.size
        memory.is_forgotten = True

    def _begin(self, memory: _SessionMemory) -> None:
        """Read the past of a session that this process has not met, if it has any."""
        try:
            with self._store.view() as view:
                is_known = view.session_of(memory.ref) is not None
        except StoreError:
            is_known, memory.partial = False, _UNREAD
        if is_known:
            self._read(memory)

    def _read_news(self, memory: _SessionMemory) -> None:
        """Index what other processes have recorded of a session since it was last read."""
        try:
            with self._store.view() as view:
                session = view.session_of(memory.ref)
                row = view.session(session) if session is not None else None
                if row is None or row.head_seq - memory.read_until > _FEW:
                    self._read(memory)
                    return
                # A mark that is among them is looked at by the next call.
                past, _ = self._past(view, row.session, memory.read_until)
        except StoreError:
            memory.partial = _UNREAD
            return
        memory.read_at = self._now()
        for item in past.items:  # there are few
            self._learn(memory, item)
        self._have_read(memory, past)

    def _read(self, memory: _SessionMemory) -> None:
        memory.is_reading, memory.read_at = True, self._now()
        memory.controls = self._controls.count
        self._work.create_task(self._read_past(memory))

    async def _read_past(self, memory: _SessionMemory) -> None:
        """Index what the store has of a session that this process has not indexed."""
        try:
            if memory.read_until < 0 and memory.ref.id is not None:
                # What this process has recorded of it before may still be on its way.
                await self._store.flush()
            past, memory.marked = await asyncio.to_thread(self._whole_past, memory)
            self._drop_read(memory, past)
            until = self._now() + _SLICE
            for item in past.items:
                self._learn(memory, item)
                if self._now() > until:
                    await asyncio.sleep(0)
                    until = self._now() + _SLICE
            self._have_read(memory, past)
        except StoreError:
            memory.partial = _UNREAD
        finally:
            memory.is_reading = False
            self._set_due(memory)
            self._drained.set()

    def _drop_read(self, memory: _SessionMemory, past: History) -> None:
        """Drop the outputs that wait although they were read from the store, where marks count."""
        read = {(item.call, item.attempt) for item in past.items if isinstance(item, PastOutput)}
        for work in list(memory.waiting):
            of = work.source
            if of is not None and work.is_ready and (of.call, of.attempt) in read:
                memory.waiting.remove(work)
                self._bytes -= len(work.content)

    def _have_read(self, memory: _SessionMemory, past: History) -> None:
        memory.read_until = max(memory.read_until, past.until)
        if not past.is_whole:
            memory.partial = _OLDER

    def _whole_past(self, memory: _SessionMemory) -> tuple[History, int]:
        with self._store.view() as view:
            session = view.session_of(memory.ref)
            if session is None:
                return EMPTY, -1
            return self._past(view, session, memory.read_until)

    def _past(self, view: View, session: bytes, after: int) -> tuple[History, int]:
        """Return the past of a session after a commit that was read before, and the newest note by which an
        operator marked an output."""
        notes = notes_about(view, session)
        past = read_history(
            view,
            session,
            after=after,
            without=self._store.epoch if after >= 0 else None,
            tainted=tainted_by_marks(view, session) if notes else None,
        )
        return past, notes[-1].position if notes else -1


def _source(attempt: Attempt) -> ValueSource:
    return ValueSource(attempt.ask.call, attempt.ask.number)


def _own_input(ask: Ask, taint: bool | None) -> bytes:
    """Return the input of a call whose output is tainted, or may be."""
    own_input = b"" if taint is False else ask.arguments[:LOOKED_AT]
    return values_in(own_input) if taint is None and not ask.is_mcp else own_input


def _is_late(attempt: Attempt) -> bool:
    """Return whether its output is to be indexed with a look-up of its input, which was not done before it ended."""
    is_open = attempt.inputs is _NOT_YET or attempt.inputs is _TOO_MUCH
    return is_open and attempt.ask.policy.taint is not TaintAction.ENDORSE


def _adding(
    values: SessionValues, source: ValueSource, output: Waiting | PastOutput
) -> Iterator[None]:
    """Return the steps in which an output is indexed."""
    is_tainted, own_input = output.is_tainted, output.own_input
    if is_tainted is None:
        is_tainted = bool(carried(values.look_up(own_input).lineage))
    return values.adding(
        source, output.content, tainted=is_tainted, own_input=own_input if is_tainted else b""
    )


def _as_recorded(ask: Ask, blob: Blob | None) -> Inputs:
    """Return what was found before the call in its input as received, with the pointers that the record may hold."""
    found = ask.inputs or _NOTHING
    if not found.lineage or (blob is not None and not blob.redacted):
        return found
    # Names of members are secrets as well, or are in what a rule keeps out of the record.
    kept = {pointer for pointer, _ in leaves(blob.data[:LOOKED_AT])} if blob is not None else ()
    lineage = (e if e.pointer in kept else structs.replace(e, pointer="") for e in found.lineage)
    return structs.replace(found, lineage=tuple(dict.fromkeys(lineage)))
