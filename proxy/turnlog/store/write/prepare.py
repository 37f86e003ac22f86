"""Drafts are checked, salted and encoded on the caller's thread. Cheap, and never blocks."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from turnlog.core.ids import Entropy
from turnlog.core.kinds import CommitKind
from turnlog.store.base import Draft, StoreFull
from turnlog.store.log.translate_errors import translated
from turnlog.store.quota import Quota

from .batch_writer import KEPT
from .pending_append import PendingAppend, new_pending, without_content

_INTENT: Final = CommitKind.INTENT
_OUTCOME: Final = CommitKind.OUTCOME


class Backlog(Struct, frozen=True, kw_only=True):
    """How many bytes may wait for the writer before a slow disk costs content, and calls."""

    content: int = 64 << 20
    """Above this, drafts submitted without `wait` are written without their blobs."""
    intents: int = 128 << 20
    """Above this, intents and notes with content are refused."""
    outcomes: int = KEPT
    """This much of outcomes that found no room on the disk is kept until there is some; what comes
    on top is lost."""


class DraftPreparer:
    """Turns drafts into pending appends, and refuses those without room."""

    def __init__(
        self,
        data: Path,
        quota: Quota,
        *,
        commit_limit: int,
        backlog: Backlog,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._data = data
        self._quota = quota
        self._commit_limit = commit_limit
        self._backlog = backlog
        self._ample = min(backlog.content, backlog.intents)
        self._entropy = Entropy(entropy)

    def prepare(self, draft: Draft, wait: bool, queued: int) -> PendingAppend:
        """Return the ticket of a draft, with `queued` bytes before it.

        Raises `StoreFull`, `StoreError`, `ValueError`.
        """
        more = None if draft.more is None else self.prepare(draft.more, wait, queued)
        facts, kind = draft.facts, draft.facts.kind
        if len(facts.call) != 16 and (kind is _INTENT or kind is _OUTCOME):
            raise ValueError(f"an {kind} needs a call id of 16 bytes, not {facts.call!r}")
        if queued > self._ample or self._quota.spare <= 0:
            self._check_room(draft, queued)
            if queued > self._backlog.content and not wait:
                draft = without_content(draft)
        pending = new_pending(draft, self._entropy.take, more, not wait)
        # The whole is no smaller than its parts.
        if pending.size > self._commit_limit:
            self._check_size(pending)
        return pending

    def shortage(self, what: str = "calls") -> str:
        """Measure; return why `what` is refused for want of room, empty where it is not.

        Raises `StoreError`.
        """
        with translated("measure", self._data):
            if self._quota.look():
                return ""
            return (
                f"no room for {what} in {str(self._data)!r}: less than {self._quota.reserve} bytes are left, "
                "of limits.store or on the disk, and those are kept for outcomes; raise limits.store, or free "
                "space on the disk"
            )

    def _check_size(self, pending: PendingAppend) -> None:
        size, limit = max(len(pending.facts), len(pending.body)), self._commit_limit
        if size > limit:
            raise ValueError(f"a commit of {size} bytes is over the cap of {limit}; cut it")

    def _check_room(self, draft: Draft, queued: int) -> None:
        begins = draft.facts.kind is _INTENT
        if not (begins or (draft.body is not None and draft.body.note)):
            return
        what = "an intent" if begins else "a note"
        if queued > self._backlog.intents:
            raise StoreFull(
                f"no room for {what} in memory: {queued} bytes wait to be written to "
                f"{str(self._data)!r}; wait, or use a faster disk"
            )
        if self._quota.spare <= 0 and (shortage := self.shortage(what)):
            raise StoreFull(shortage)
