"""The live index of values: the input of a call is looked up in the earlier outputs of its session.

No answer waits for it: look-ups and outputs to index are queued by session, and done on the event
loop a little at a time. The outcome of a call that ends before its look-up was done says so.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import structs

from turnlog.core.kinds import Phase
from turnlog.core.note import Note
from turnlog.observe.clock import Clock
from turnlog.provenance.leaves import leaves
from turnlog.provenance.outputs import RecordedOutput, missing_content, output_taint
from turnlog.provenance.values import (
    CUT_INPUT,
    LEFT_OUT,
    LOOKED_AT,
    LOOKED_AT_FOR_TAINT,
    NOT_RECORDED,
    NOT_WHOLE,
    NOT_YET,
    TOO_MUCH,
    UNREAD,
    Inputs,
    ValueSource,
    unsourced,
)
from turnlog.rules.http_tools import values_in
from turnlog.sessions.lineage.history import (
    GivenAnswer,
    declaration,
    given_answer,
    recorded_input,
    start_of,
)
from turnlog.store.base import Blob, Draft, SessionRef, StoreError, Ticket
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View

from .attempt import Ask, Attempt
from .lineage_queue import LineageQueue
from .past_reader import PastReader
from .session_memory import ReservedPlace, SessionMemories, SessionMemory, WaitingInput

_LOOK: Final = 1_000_000_000
"""ns between two looks whether other processes have the store open."""
_MOST_WAITING: Final = 16 << 20
_MOST_VALUES: Final = 262_144
_NOT_RECORDED: Final = Inputs(partial=NOT_RECORDED)
_NOT_YET: Final = Inputs(partial=NOT_YET)
_TOO_MUCH: Final = Inputs(partial=TOO_MUCH)
_CUT: Final = "not all outputs are recorded whole"


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
        self._store = store
        self._controls = store.control_counter()
        self._now = clock.monotonic
        self._report = report
        self._looked_at = -_LOOK
        self._shared_until = 0
        """Until when other processes may have written to the store, as far as is known."""
        self._memories = SessionMemories(most_values, lambda memory: self._past.meet(memory))
        self._queue = LineageQueue(
            self._memories, clock, self._look_up, self._on_error, most_waiting
        )
        self._past = PastReader(store, clock, work, report, self._memories, self._queue.resume)

    def on_begun(self, attempt: Attempt, blob: Blob | None) -> None:
        """Queue the look-up of an attempt's recorded input, unless that was looked up before."""
        ask = attempt.ask
        if ask.inputs is not None or not ask.is_call:
            attempt.inputs = _as_recorded(ask, blob)
            return
        memory = self._memories.used(ask.session)  # its first call shows whether it has a past
        if memory.controls != self._controls.count:  # each call reads the counter anyway
            self._past.look_at_marks(memory)
        if blob is None:
            attempt.inputs = _NOT_RECORDED
            return
        content = _start(blob) if ask.is_mcp else values_in(_start(blob))
        if not self._queue.add_look_up(memory, WaitingInput(attempt, content, blob.cut)):
            attempt.inputs = _TOO_MUCH

    def settle(self, attempt: Attempt) -> None:
        """End the look-up of an attempt's input, because its outcome is to be recorded."""
        if attempt.inputs is not None:
            return
        ending = attempt.ending
        if ending is not None and ending.phase is Phase.QUEUED:
            # It was not sent: there was hardly time between intent and outcome.
            self._queue.work_off(self._memories.used(attempt.ask.session))
        attempt.inputs = attempt.inputs or _NOT_YET

    def on_ended(self, attempt: Attempt, draft: Draft, place: ReservedPlace | None) -> None:
        """Queue an attempt's recorded output for indexing; where a `place` was reserved for it, there."""
        ask, blob, inputs = attempt.ask, draft.blob, attempt.inputs
        memory = self._memories.used(ask.session)
        is_tainted = output_taint(draft.facts, inputs.partial if inputs is not None else "")
        if blob is not None and blob.cut:
            memory.partial = memory.partial or _CUT
        source = ValueSource(ask.call, ask.number)
        if is_tainted is False:
            output = RecordedOutput(source, _start(blob) if blob is not None else b"")
        else:
            output = self._doubtful(attempt, source, draft, is_tainted=is_tainted)
        if place is not None:
            self._queue.fill(place, output)
            if place.memory is memory:
                return
            # The session was forgotten meanwhile, and met anew without this output.
        if (output.content or output.missing) and not self._queue.add_output(memory, output):
            memory.partial = LEFT_OUT
            if is_tainted is not False:
                memory.unread = LEFT_OUT

    def _doubtful(
        self, attempt: Attempt, source: ValueSource, draft: Draft, *, is_tainted: bool | None
    ) -> RecordedOutput:
        """Return an output that is tainted or may be."""
        content, is_cut, blob = b"", False, draft.blob
        if blob is not None:
            content, is_cut = start_of(blob, LOOKED_AT_FOR_TAINT), blob.cut
        missing = missing_content(draft.facts, is_recorded=blob is not None, is_cut=is_cut)
        own_input = self._own_input(attempt)
        return RecordedOutput(source, content, is_tainted, missing, *own_input)

    def _own_input(self, attempt: Attempt) -> tuple[bytes, bool]:
        """Return what is looked at of an attempt's input, and whether it was longer."""
        ask, start = attempt.ask, attempt.ask.arguments[:LOOKED_AT_FOR_TAINT]
        if start:
            is_whole = ask.complete and ask.says_all and len(ask.arguments) <= LOOKED_AT_FOR_TAINT
            return start if ask.is_mcp else values_in(start), not is_whole
        try:  # of a call that was long under way it is in the store alone
            with self._store.view() as view:
                return recorded_input(view, attempt.facts)
        except StoreError:
            return b"", True

    def reserve(self, attempt: Attempt) -> ReservedPlace:
        """Return the place of an output that is still being prepared: later look-ups wait for it."""
        return self._queue.reserve(self._memories.used(attempt.ask.session))

    async def on_given(self, attempt: Attempt, source: Ticket, place: ReservedPlace) -> None:
        """Index, at the place reserved for it, the answer of another session that an attempt was given."""
        output = RecordedOutput(of := ValueSource(attempt.ask.call, attempt.ask.number), b"")
        try:
            await self._store.flush()
            await source.done()  # it may still have been prepared
            given = await self._store.read(partial(_given, attempt.ask))
            if given is not None:
                own = self._own_input(attempt)
                output = RecordedOutput(of, given.content, given.is_tainted, given.missing, *own)
                if not given.content:
                    place.memory.partial = UNREAD
        except Exception as error:  # noqa: BLE001 - the call goes on, the record says less
            if not isinstance(error, StoreError):
                self._report(error)
            place.memory.partial = place.memory.unread = UNREAD
        finally:
            self._queue.fill(place, output)

    def on_noted(self, session: bytes, seq: int, note: Note) -> None:
        """Index a text that a note declares."""
        # A session that this process has not met is read with all its notes when it is.
        told, memory = declaration(seq, note), self._memories.known(session)
        if told is not None and memory is not None:
            self._past.learn(memory, told)

    async def caught_up(self, session: SessionRef) -> SessionMemory:
        """Return the memory of a session once nothing waits in it, for a rule that depends on its values.

        It also has what other processes have recorded, and the old tainted outputs of a long session. If its
        `unread` is set, outputs could not be read.
        """
        memory = self._memories.used(session)
        memory.is_gated = True
        await self._queue.settled(memory)  # marks are not looked at while the past is read
        if memory.controls != self._controls.count:
            self._past.look_at_marks(memory)
        if memory.unread or memory.left_out >= 0:
            self._past.read_anew(memory)
        await self._queue.settled(memory)
        # Always: unlike `_look_up`, which reads news only where a value is unsourced. Tainted prose has no such value.
        if self._store.is_shared():
            self._past.read_news(memory)
            await self._queue.settled(memory)
        return memory

    def _on_error(self, memory: SessionMemory, error: Exception) -> None:
        self._report(error)
        memory.partial = memory.unread = UNREAD

    def _look_up(self, memory: SessionMemory, work: WaitingInput) -> None:
        attempt = work.attempt
        if attempt.inputs is not None:
            return  # its call has ended
        found = memory.values.look_up(work.content)
        if self._may_have_news(memory) and not work.is_second and unsourced(found):
            work.is_second = True
            self._queue.repeat(memory, work)
            self._past.read_news(memory)
            return
        # What leaves open whether the output is tainted comes first.
        missing = CUT_INPUT if work.is_cut else memory.partial
        is_less = missing and found.partial not in NOT_WHOLE
        attempt.inputs = structs.replace(found, partial=missing) if is_less else found

    def _may_have_news(self, memory: SessionMemory) -> bool:
        """Return whether another process may have recorded outputs of a session that were not read."""
        now = self._now()
        if now - self._looked_at >= _LOOK:
            self._looked_at = now
            if self._store.is_shared():
                self._shared_until = now + _LOOK
        return memory.read_at < self._shared_until


def _start(blob: Blob) -> bytes:
    """Return what is looked at of a recorded content."""
    # Most have nothing redacted, and are shorter.
    is_short = len(blob.data) <= LOOKED_AT and not blob.redacted
    return blob.data if is_short else start_of(blob)


def _given(ask: Ask, view: View) -> GivenAnswer | None:
    session = view.session_of(ask.session)
    return given_answer(view, ask.call, session) if session is not None else None


def _as_recorded(ask: Ask, blob: Blob | None) -> Inputs:
    """Return what was found before the call in its input as received, with the pointers that the record may hold."""
    found = ask.inputs or Inputs()
    if not found.lineage or (blob is not None and not blob.redacted):
        return found
    # Names of members are secrets as well, or are in what a rule keeps out of the record.
    kept = {pointer for pointer, _ in leaves(blob.data[:LOOKED_AT])} if blob is not None else ()
    lineage = (e if e.pointer in kept else structs.replace(e, pointer="") for e in found.lineage)
    return structs.replace(found, lineage=tuple(dict.fromkeys(lineage)))
