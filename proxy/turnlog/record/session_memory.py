"""The values of sessions in memory: those of the sessions that were used last."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from msgspec import Struct

from turnlog.provenance.outputs import RecordedOutput
from turnlog.provenance.values import SessionValues
from turnlog.store.base import SessionRef

from .attempt import Attempt

SLICE: Final = 2_000_000
"""ns of work after which the loop's other tasks go on. In a burst one round of the loop serves many calls: with
less it would fall behind them."""
_MOST_SESSIONS: Final = 4096


class WaitingInput(Struct, eq=False, gc=False):
    """An input to look up."""

    attempt: Attempt
    content: bytes
    is_cut: bool
    """Whether the input is not recorded whole."""
    is_second: bool = False
    """Whether this look-up is made again, after outputs of other processes were read."""


class ReservedPlace(Struct, eq=False):
    """The place of an output that is still being prepared: what is behind it waits."""

    memory: "SessionMemory"


Work: TypeAlias = WaitingInput | RecordedOutput | ReservedPlace


class SessionMemory(Struct, eq=False):
    """The values of a session, and what waits to be looked up or indexed."""

    ref: SessionRef
    values: SessionValues
    waiting: deque[Work]
    steps: Iterator[None]
    """The rest of an output that is being indexed."""
    partial: str = ""
    """Why outputs are missing in `values`; empty if none are."""
    unread: str = ""
    """Why outputs are missing that may be tainted, and that may be read once more; empty if none are."""
    left_out: int = -1
    """The newest commit that was left out when its past was read, for its age or size; -1 for none."""
    is_gated: bool = False
    """Whether a rule depends on its values: then tainted outputs are read however old they are."""
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
    controls: int = 0
    """Number of control commits in the store when its marks were looked at."""
    marked: int = -1
    """Position of the newest note, when it was read, that marks or endorses an output; -1 for none."""


class SessionMemories:
    """The sessions used last, bounded in number and in values. A forgotten one that is used again is met anew."""

    def __init__(self, most_values: int, on_met: Callable[[SessionMemory], None]) -> None:
        """`on_met` is called with each session that is not in memory, once it is used."""
        self._most_values = most_values
        self._on_met = on_met
        self._sessions: OrderedDict[bytes, SessionMemory] = OrderedDict()
        """By id, or by candidate until it has an id; the one used last is at the end."""
        self._size = 0
        """Values of all sessions."""

    def __iter__(self) -> Iterator[SessionMemory]:
        """Return the sessions in memory."""
        return iter(self._sessions.values())

    def known(self, session: bytes) -> SessionMemory | None:
        """Return a session by its id; `None` if it is not in memory."""
        return self._sessions.get(session)

    def used(self, ref: SessionRef) -> SessionMemory:
        """Return a session that is being used."""
        sessions, key = self._sessions, ref.id or ref.candidate
        memory = sessions.get(key)
        if memory is not None:
            sessions.move_to_end(key)
            return memory
        memory = sessions.pop(ref.candidate, None)  # from before it had an id
        if memory is None:
            memory = SessionMemory(ref, SessionValues(), deque(), iter(()))
            self._on_met(memory)
        sessions[key] = memory
        if len(sessions) > _MOST_SESSIONS:
            self._forget_oldest()
        return memory

    def count(self, memory: SessionMemory) -> None:
        """Count the values of a session; forget the oldest sessions if there are too many in all."""
        if memory.is_forgotten:
            return
        size = len(memory.values)
        self._size += size - memory.size
        memory.size = size
        while self._size > self._most_values and len(self._sessions) > 1:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        # What waits in it is still done.
        _, memory = self._sessions.popitem(last=False)
        self._size -= memory.size
        memory.is_forgotten = True
