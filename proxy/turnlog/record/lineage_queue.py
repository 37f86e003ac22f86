"""The queue of inputs to look up and outputs to index, worked off on the event loop a little at a time."""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Set
from typing import Final

from turnlog.observe.clock import Clock
from turnlog.provenance.outputs import RecordedOutput, indexing
from turnlog.provenance.values import ValueSource

from .session_memory import SLICE, ReservedPlace, SessionMemories, SessionMemory, WaitingInput

_MOST_PUT_OFF: Final = 1 << 20
"""Bytes of outputs that wait until a session's next look-up; both together cost the loop one round less."""
_NEVER: Final = sys.maxsize


class LineageQueue:
    """The queue of look-ups and outputs, in order by session; `most_waiting` bytes of content fit in it."""

    def __init__(
        self,
        memories: SessionMemories,
        clock: Clock,
        look_up: Callable[[SessionMemory, WaitingInput], None],
        failed: Callable[[SessionMemory, Exception], None],
        most_waiting: int,
    ) -> None:
        """`failed` is called with an error of what reads content; what follows goes on."""
        self._memories = memories
        self._now = clock.monotonic
        self._look_up = look_up
        self._failed = failed
        self._most_waiting = most_waiting
        self._size = 0
        """Bytes of all content that waits."""
        self._due: deque[SessionMemory] = deque()
        self._is_scheduled = False
        self._call_soon = asyncio.get_running_loop().call_soon
        self._drained = asyncio.Event()
        """Set whenever a session has nothing left to do, or may go on."""

    def add_look_up(self, memory: SessionMemory, work: WaitingInput) -> bool:
        """Queue a look-up; return whether it fits."""
        size = self._size + len(work.content)
        if size > self._most_waiting:
            return False
        self._size = size
        memory.waiting.append(work)
        self.go_on(memory)
        return True

    def add_output(self, memory: SessionMemory, output: RecordedOutput) -> bool:
        """Queue an output, which may wait until the next look-up; return whether it fits."""
        size = self._size + len(output.content)
        if size > self._most_waiting:
            return False
        self._size = size
        memory.waiting.append(output)
        if size > _MOST_PUT_OFF:
            for each in self._memories:
                self.go_on(each)
        return True

    def reserve(self, memory: SessionMemory) -> ReservedPlace:
        """Return the place of an output that is still being prepared."""
        place = ReservedPlace(memory)
        memory.waiting.append(place)
        return place

    def fill(self, place: ReservedPlace, output: RecordedOutput) -> None:
        """Queue an output at the place that was reserved for it; it always fits."""
        waiting = place.memory.waiting
        waiting[waiting.index(place)] = output
        self._size += len(output.content)
        self.go_on(place.memory)  # a look-up may wait behind it

    def repeat(self, memory: SessionMemory, work: WaitingInput) -> None:
        """Queue a look-up once more, before everything that waits."""
        memory.waiting.appendleft(work)
        self._size += len(work.content)

    def resume(self, memory: SessionMemory, read: Set[ValueSource]) -> None:
        """Go on in a session after its past was read, without the outputs of these attempts, which were in it."""
        for work in list(memory.waiting):
            if isinstance(work, RecordedOutput) and work.source in read:
                memory.waiting.remove(work)
                self._size -= len(work.content)
        self.go_on(memory)
        self._drained.set()

    def go_on(self, memory: SessionMemory) -> None:
        """Do soon what waits in a session."""
        if memory.is_due or memory.is_reading or not memory.waiting:
            return
        memory.is_due = True
        self._due.append(memory)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._run)

    async def settled(self, memory: SessionMemory) -> None:
        """Do at once what waits in a session, and wait for what cannot be done yet."""
        self.work_off(memory)
        while memory.is_reading or memory.waiting:
            self._drained.clear()
            await self._drained.wait()
            self.work_off(memory)

    def work_off(self, memory: SessionMemory) -> None:
        """Do all that waits in a session and can be done."""
        self._work(memory, _NEVER)

    def _run(self) -> None:
        """Do what is due for a little while; go on in the loop's next round if that was not all."""
        until, due = self._now() + SLICE, self._due
        while due and self._work(due[0], until):
            due.popleft().is_due = False
        self._is_scheduled = bool(due)
        if due:
            self._call_soon(self._run)

    def _work(self, memory: SessionMemory, until: int) -> bool:
        """Do what waits in a session; return whether all that can be done was done before the time was up."""
        waiting = memory.waiting
        while True:
            try:
                for _ in memory.steps:
                    if self._now() > until:
                        return False
                if (
                    memory.is_reading
                    or not waiting
                    or isinstance(work := waiting[0], ReservedPlace)
                ):
                    break
                waiting.popleft()
                self._size -= len(work.content)
                if isinstance(work, RecordedOutput):
                    memory.steps = indexing(memory.values, work)
                    continue
                self._look_up(memory, work)
                if self._now() > until:
                    return False
            except Exception as error:  # noqa: BLE001 - the call goes on, the record says less
                self._failed(memory, error)
        self._memories.count(memory)
        self._drained.set()
        return True
