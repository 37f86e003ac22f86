"""Batches of drafts are written, kept until there is room, or reported as lost.

Knows neither threads nor the event loop: `submit_queue` has both.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol, TypeVar

from turnlog.core.kinds import Actor, CommitKind
from turnlog.store.base import Draft, StoreError, StoreFull, StoreGone

from .drafts import fail, land

MOST = 1024
"""Drafts in one transaction, which takes some 1.5 KB more for each: memory that is hardly given back."""
AGAIN = 1.0
"""Seconds after which outcomes that found no room are tried again."""
KEPT = 64 << 20
"""Bytes of outcomes that found no room on the disk which are kept, to be tried again."""
_PASSING = (StoreFull, StoreGone)
"""There may be room later, and a folder that was moved may be put back."""
T = TypeVar("T")


class Engine(Protocol):
    """The part that writes. All errors it raises are `StoreError`s, but for bugs."""

    def write(self, batch: list[Draft]) -> list[Draft]:
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


class BatchWriter:
    """Writes batches with an engine, and remembers what found no room."""

    def __init__(
        self,
        engine: Engine,
        *,
        post: Callable[..., None],
        report: Callable[[StoreError], None],
        on_failing: Callable[[StoreError | None], None],
    ) -> None:
        """`post` calls a function on the loop: there all drafts are resolved.

        `report` gets the errors that no caller would see, `on_failing` why nothing can be written,
        and `None` once it can be again.
        """
        self._engine = engine
        self._post = post
        self._report = report
        self._on_failing = on_failing
        self._overflow = OverflowBuffer(KEPT)
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

    def write(self, batch: list[Draft], before: StoreError | None) -> None:
        """Write a batch, unless what came before it cannot be written yet: that is `before`."""
        error = before or self._put(batch)
        if error:
            self._lost(batch, error)
        elif self._told:
            self.report_rest()
            self._told = False

    def again(self) -> StoreError | None:
        """Write the outcomes that are kept; return why that cannot be done yet."""
        for piece in self._overflow.pieces():
            error = self._put(piece)
            if isinstance(error, _PASSING):
                return error
            if error:
                self._post(fail, piece, error)
                self._missed(len(piece), error)
        return None

    def run(self, job: Callable[[], T]) -> T | StoreError:
        """Run a job; return its result, or why it failed."""
        try:
            return job()
        except StoreError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the thread must survive a bug
            return StoreError(f"the store's work failed: {error!r}")

    def tend(self) -> None:
        """Do what is due after a batch. If the last write failed, see whether writing works again."""
        self._run_reported(self._engine.tend)
        if self._failing:
            error = self.run(self._engine.probe)
            self._on_written(error if isinstance(error, StoreError) else None)

    def close(self) -> None:
        """Close the engine."""
        self._run_reported(self._engine.close)

    def last(self) -> None:
        """Try the kept outcomes once more: the last jobs may have made room."""
        if error := self.again():
            self._missed(len(self._overflow), error)

    def report_rest(self) -> None:
        """Report how many drafts were lost since the failure was reported."""
        if self._unsaid:
            self.report(StoreError(f"{self._unsaid} more drafts were not written since then"))
        self._unsaid = 0

    def report(self, error: StoreError) -> None:
        """Report an error that no caller would see."""
        with suppress(Exception):
            self._report(error)

    def _run_reported(self, job: Callable[[], None]) -> None:
        error = self.run(job)
        if isinstance(error, StoreError):
            self.report(error)

    def _put(self, batch: list[Draft]) -> StoreError | None:
        """Write a batch; return why that failed."""
        try:
            along = self._engine.write(batch)
        except StoreError as error:
            self._on_written(error)
            return error
        except Exception as error:  # noqa: BLE001 - the thread must survive a bug; the tickets fail
            return StoreError(f"cannot write {len(batch)} drafts: {error!r}")
        self._on_written(None)
        self._post(land, batch, along)
        return None

    def _on_written(self, error: StoreError | None) -> None:
        if error or self._failing:
            self._failing = error is not None
            self._on_failing(error)

    def _lost(self, batch: list[Draft], error: StoreError) -> None:
        """Fail a batch. Outcomes are kept, to be tried again, where the reason may pass."""
        passes = isinstance(error, _PASSING)
        gone = [draft for draft in batch if not (passes and self._overflow.take(draft))]
        self._post(fail, batch, error)
        self._missed(sum(draft.lazy for draft in gone), error)

    def _missed(self, unseen: int, error: StoreError) -> None:
        """Report the first failure in a row of drafts without a waiter, and count the others."""
        if unseen and not self._told:
            self._told = True
            self.report(StoreError(f"{error} ({unseen} drafts were not written)"))
        else:
            self._unsaid += unseen


def first_batch(queue: list[Draft]) -> list[Draft]:
    """Return the drafts at the front of a queue that one transaction takes."""
    end = MOST
    # A call that was never sent is queued whole: between its commits there must be no crash.
    while end < len(queue) and queue[end].intent is queue[end - 1]:
        end += 1
    return queue[:end]


class OverflowBuffer:
    """Outcomes that found no room on the disk, oldest first. Used by the writer's thread.

    Their intents are on disk and their answers were handed on: an outcome lost here would leave a
    call whose end nobody knows.
    """

    def __init__(self, most: int) -> None:
        """`most` is how many bytes may be kept."""
        self._most = most
        self._size = 0
        self._drafts: list[Draft] = []

    def __len__(self) -> int:
        return len(self._drafts)

    def take(self, draft: Draft) -> bool:
        """Keep a draft if it is an outcome and fits; return whether it was kept."""
        size, facts = _size(draft), draft.facts
        # An operator is told that nothing was written, so it must not be written later.
        if facts.kind is not CommitKind.OUTCOME or facts.actor is Actor.OPERATOR:
            return False
        if self._size + size > self._most:
            return False
        self._drafts.append(draft)
        self._size += size
        return True

    def pieces(self) -> Iterator[list[Draft]]:
        """Yield the drafts piece by piece, oldest first; a piece is dropped once the caller returns for the next.

        Each piece is twice as large as the one before: the first fits into little room, and a disk
        with much room does not cost one transaction for each draft.
        """
        size = 1
        while self._drafts:
            piece = self._drafts[:size]
            yield piece
            del self._drafts[:size]
            self._size -= sum(map(_size, piece))
            size *= 2


def _size(draft: Draft) -> int:
    intent = draft.intent
    # An intent that was not written either is tried again with its outcome.
    return draft.size + (intent.size if isinstance(intent, Draft) else 0)
