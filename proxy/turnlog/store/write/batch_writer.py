"""Batches of drafts are written, kept until there is room, or reported as lost.

Knows neither threads nor the event loop: `submit_queue` has both.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol, TypeVar

from turnlog.core.kinds import Actor, CommitKind
from turnlog.store.base import StoreError, StoreFull, StoreGone

from .pending_append import PendingAppend, chained

MOST = 1024
"""Drafts in one transaction, which takes some 1.5 KB more for each: memory that is hardly given back."""
AGAIN = 1.0
"""Seconds after which outcomes that found no room are tried again."""
KEPT = 64 << 20
"""Bytes of such outcomes that are kept."""
_PASSING = (StoreFull, StoreGone)
"""There may be room later, and a folder that was moved may be put back."""
T = TypeVar("T")


class Engine(Protocol):
    """The part that writes. All errors it raises are `StoreError`s, but for bugs."""

    def write(self, batch: list[PendingAppend]) -> list[PendingAppend]:
        """Write a batch in one transaction; return further drafts that went along."""
        ...

    def tend(self) -> None:
        """Do what is due after a batch."""
        ...

    def probe(self) -> None:
        """Make a small write, to see whether writing works. Raises `StoreError`."""
        ...

    def close(self) -> None:
        """Finish and close."""
        ...


class Listener(Protocol):
    """Gets the result of each batch, and the errors that no caller would see."""

    def on_written(self, batch: list[PendingAppend], along: list[PendingAppend]) -> None:
        """`batch`, and `along` with it, is on disk, maybe after it had failed before."""
        ...

    def on_failed(self, batch: list[PendingAppend], error: StoreError) -> None:
        """`batch` is not on disk; some of it may be tried again later."""
        ...

    def on_error(self, error: StoreError) -> None:
        """An error that no caller would see."""
        ...

    def on_failing(self, error: StoreError | None) -> None:
        """Nothing can be written, and why; `None`: it can be again."""
        ...


class BatchWriter:
    """Writes batches with an engine, and remembers what found no room."""

    def __init__(self, engine: Engine, listener: Listener, *, keep: int) -> None:
        """`keep` is how many bytes of outcomes that find no room are kept until there is some."""
        self._engine = engine
        self._listener = listener
        self._overflow = OverflowBuffer(keep)
        self._failing = False
        """Whether the last write failed, for a reason that is not one batch's own."""
        self._told = False
        """Whether the present failure was reported."""
        self._unsaid = 0
        """Drafts without a waiter that were lost since the failure was reported."""

    @property
    def retries(self) -> bool:
        """Whether there is something to try again: outcomes that are kept, or whether writing works."""
        return self._failing or len(self._overflow) > 0

    def write(self, batch: list[PendingAppend], before: StoreError | None) -> None:
        """Write a batch, unless what came before it cannot be written yet: that is `before`."""
        error = before or self._put(batch)
        if error:
            self._lost(batch, error)
        elif self._told:
            self.tell_rest()
            self._told = False

    def again(self) -> StoreError | None:
        """Write the outcomes that are kept; return why that cannot be done yet."""
        for piece in self._overflow.pieces():
            error = self._put(piece)
            if isinstance(error, _PASSING):
                return error
            if error:
                self._listener.on_failed(piece, error)
                self._missed(len(piece), error)
        return None

    def probe(self) -> None:
        """Make a small write if the last one failed: it shows whether writing works again."""
        if self._failing:
            error = self.run(self._engine.probe)
            self._on_written(error if isinstance(error, StoreError) else None)

    def run(self, job: Callable[[], T]) -> T | StoreError:
        """Run a job; return its result, or why it failed."""
        try:
            return job()
        except StoreError as error:
            return error
        except Exception as error:  # noqa: BLE001 - it goes to the caller, who expects errors of one kind
            return StoreError(f"the store's work failed: {error!r}")

    def tend(self) -> None:
        """Do what is due after a batch."""
        self._guarded("tend the store", self._engine.tend)

    def last(self) -> None:
        """Try the kept outcomes once more: the last jobs may have made room."""
        if error := self.again():
            self._missed(len(self._overflow), error)

    def close(self) -> None:
        """Close the engine."""
        self._guarded("close the store", self._engine.close)

    def tell_rest(self) -> None:
        """Report how many drafts were lost since the failure was reported."""
        if self._unsaid:
            self.say(StoreError(f"{self._unsaid} more drafts were not written since then"))
        self._unsaid = 0

    def say(self, error: StoreError) -> None:
        """Report an error that no caller would see."""
        with suppress(Exception):
            self._listener.on_error(error)

    def _put(self, batch: list[PendingAppend]) -> StoreError | None:
        """Write a batch; return why that failed."""
        try:
            along = self._engine.write(batch)
        except StoreError as error:
            self._on_written(error)
            return error
        except Exception as error:  # noqa: BLE001 - the thread must survive a bug; the tickets fail
            return StoreError(f"cannot write {len(batch)} drafts: {error!r}")
        self._on_written(None)
        self._listener.on_written(batch, along)
        return None

    def _on_written(self, error: StoreError | None) -> None:
        if error or self._failing:
            self._failing = error is not None
            self._listener.on_failing(error)

    def _lost(self, batch: list[PendingAppend], error: StoreError) -> None:
        """Fail a batch. Outcomes are kept, to be tried again, where the reason may pass."""
        passes = isinstance(error, _PASSING)
        kept = [pending for pending in batch if passes and self._overflow.take(pending)]
        self._listener.on_failed(batch, error)
        held = set(map(id, kept))
        gone = [pending for pending in batch if id(pending) not in held]
        self._missed(sum(pending.lazy for pending in chained(gone)), error)

    def _missed(self, unseen: int, error: StoreError) -> None:
        """Report the first failure in a row of drafts without a waiter, and count the others."""
        if unseen and not self._told:
            self._told = True
            self.say(StoreError(f"{error} ({unseen} drafts were not written)"))
        else:
            self._unsaid += unseen

    def _guarded(self, doing: str, action: Callable[[], None]) -> None:
        try:
            action()
        except StoreError as error:
            self.say(error)
        except Exception as error:  # noqa: BLE001 - the thread must survive a bug
            self.say(StoreError(f"cannot {doing}: {error!r}; restart turnlog if this comes again"))


class OverflowBuffer:
    """Outcomes that found no room on the disk, oldest first. Used by the writer's thread.

    Their intents are on disk and their answers were handed on: an outcome lost here would leave a
    call whose end nobody knows.
    """

    def __init__(self, most: int) -> None:
        """`most` is how many bytes may be kept."""
        self._most = most
        self._size = 0
        self._pending: list[PendingAppend] = []

    def __len__(self) -> int:
        return len(self._pending)

    def take(self, pending: PendingAppend) -> bool:
        """Keep a draft if it is an outcome and fits; return whether it was kept."""
        size, facts = _size(pending), pending.draft.facts
        # An operator is told that nothing was written, so it must not be written later.
        if facts.kind is not CommitKind.OUTCOME or facts.actor is Actor.OPERATOR:
            return False
        if self._size + size > self._most:
            return False
        self._pending.append(pending)
        self._size += size
        return True

    def pieces(self) -> Iterator[list[PendingAppend]]:
        """Yield the drafts piece by piece, oldest first; a piece is dropped once the caller returns for the next.

        Each piece is twice as large as the one before: the first fits into little room, and a disk
        with much room does not cost one transaction for each draft.
        """
        size = 1
        while self._pending:
            piece = self._pending[:size]
            yield piece
            del self._pending[:size]
            self._size -= sum(map(_size, piece))
            size *= 2


def _size(pending: PendingAppend) -> int:
    intent = pending.draft.intent
    # An intent that was not written either is tried again with its outcome.
    return pending.size + (intent.size if isinstance(intent, PendingAppend) else 0)
