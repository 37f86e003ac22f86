"""Drafts on their way to the disk: checked, encoded and given a ticket on the caller's thread."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from turnlog.core.commit import Commit, CommitBody, encode_body, encode_facts
from turnlog.core.kinds import CommitKind
from turnlog.store.base import Blob, Conflict, Draft, StoreError, StoreFull
from turnlog.store.log.index import Entry
from turnlog.store.log.translate_errors import translated
from turnlog.store.quota import Quota

KEPT: Final = 64 << 20
"""Bytes of outcomes that found no room on the disk which are kept, to be tried again."""
COMMIT_LIMIT: Final = 1 << 20
"""Bytes of a commit's header, and of its body."""
SALT: Final = 16
"""Bytes of a body's salt."""
_EMPTY: Final = CommitBody()
_INTENT: Final = CommitKind.INTENT
_OUTCOME: Final = CommitKind.OUTCOME


class PendingAppend(Struct, eq=False):
    """The `Ticket` of one draft.

    It belongs to the writer's thread until `land` or `fail` is called for it on the loop, but for the
    fields from `on_written` on: those are the loop's.
    """

    draft: Draft
    facts: bytes
    completed: CommitBody | None
    """The draft's body; with salt and blobs once it is ready to be written."""
    body: bytes
    size: int
    """Bytes that it takes while it waits."""
    lazy: bool = False
    """Whether it was submitted without `wait`."""
    entry: Entry | None = None
    """The commit as the log holds it, once it has its place there."""
    hash: bytes = b""
    commit: Commit | None = None
    """Set where the commit existed before, and by the first use of `placed`."""
    refused: Conflict | None = None
    """Why it was not placed, although its transaction is on disk."""
    on_written: Callable[[bool], None] | None = None
    """Called with whether the commit is on disk, as soon as that is known."""
    landed: bool = False
    """Whether the commit is written, maybe after it had failed."""
    waiters: "Sequence[asyncio.Future[None]]" = ()
    error: StoreError | None = None
    """Why it was not written."""

    @property
    def placed(self) -> Commit | None:
        entry = self.entry
        if self.commit is None and self.landed and entry:
            self.commit = Commit(
                position=entry.position,
                link=entry.link,
                facts=entry.facts,
                hash=self.hash,
                body=self.completed,
            )
        return self.commit if self.landed else None

    async def done(self) -> Commit:
        if not self.landed and self.error is None:
            # Each waits on a future of its own: one that is cancelled must not cancel the others.
            waiter = asyncio.get_running_loop().create_future()
            self.waiters = (*self.waiters, waiter)
            await waiter
        placed = self.placed
        if placed is not None:
            return placed
        raise self.error or StoreError("the draft was not written")

    def complete(self, salt: bytes, handles: Iterator[bytes]) -> None:
        """Complete the body with its salt and the handles of its blobs, as far as there are any."""
        draft, body = self.draft, self.draft.body
        if body is None:
            body = _EMPTY
        self.completed = completed = structs.replace(
            body,
            salt=salt,
            input_blob=body.input_blob if draft.input_blob is None else next(handles, b""),
            output_blob=body.output_blob if draft.output_blob is None else next(handles, b""),
        )
        self.body = encode_body(completed)

    def forget(self) -> None:
        """Undo what the ledger set, because the transaction failed."""
        self.entry = None
        self.commit = None
        self.refused = None

    def wake(self) -> None:
        """Wake the waiters: the draft is written, or has failed."""
        waiters, self.waiters = self.waiters, ()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        on_written, self.on_written = self.on_written, None
        if on_written is None:
            return
        try:
            on_written(self.landed)
        except Exception as failure:  # noqa: BLE001 - the others must be told as well
            message = "a callback failed that was told what became of a draft"
            context = {"message": message, "exception": failure}
            asyncio.get_running_loop().call_exception_handler(context)


def new_pending(draft: Draft, salt: Callable[[int], bytes], *, lazy: bool = False) -> PendingAppend:
    """Return the ticket of a draft; `salt` gives random bytes for its body.

    A body that waits for its blobs' handles gets its salt with them: it is encoded again then.
    Raises `ValueError` for a draft that cannot be stored: without a call's id, with text that is not
    UTF-8 or numbers beyond 64 bits, or too large.
    """
    facts, completed = draft.facts, draft.body
    kind, given, answered = facts.kind, draft.input_blob, draft.output_blob
    if len(facts.call) != 16 and (kind is _INTENT or kind is _OUTCOME):
        raise ValueError(f"an {kind} needs a call id of 16 bytes, not {facts.call!r}")
    try:
        raw = encode_facts(facts)
    except OverflowError as error:
        raise ValueError(f"a number of an {kind} has more than 64 bits") from error
    if completed is not None and given is None and answered is None:
        completed = structs.replace(completed, salt=salt(SALT))
    body = b"" if completed is None else encode_body(completed)
    size = max(len(raw), len(body))
    if size > COMMIT_LIMIT:
        raise ValueError(f"a commit of {size} bytes is over the cap of {COMMIT_LIMIT}; cut it")
    size = len(raw) + len(body)
    if given is not None:
        size += len(given.data)
    if answered is not None:
        size += len(answered.data)
    return PendingAppend(draft, raw, completed, body, size, lazy)


def land(batch: Iterable[PendingAppend], along: Iterable[PendingAppend] = ()) -> None:
    """Resolve the tickets of a batch that is on disk, and of what went along. Called on the loop."""
    for pending in (*batch, *along):
        pending.landed, pending.error = pending.refused is None, pending.refused
        # Mostly there is no waiter: two of these land for each call.
        if pending.on_written is not None or pending.waiters:
            pending.wake()


def fail(batch: Iterable[PendingAppend], error: StoreError) -> None:
    """Reject the tickets of a batch that was not written. Called on the loop."""
    for pending in batch:
        pending.error = error
        pending.wake()


def without_content(draft: Draft) -> Draft:
    """Return a draft without its blobs. Its body still has their hashes: they read as lost."""
    if not (draft.input_blob or draft.output_blob):
        return draft
    body = structs.replace(
        draft.body or _EMPTY,
        input_blob=_digest(draft.input_blob),
        output_blob=_digest(draft.output_blob),
    )
    return structs.replace(draft, body=body, input_blob=None, output_blob=None)


def _digest(blob: Blob | None) -> bytes:
    return (blob.digest or sha256(blob.data).digest()) if blob else b""


class Backlog(Struct, frozen=True, kw_only=True):
    """How many bytes may wait for the writer before a slow disk costs content, and calls."""

    content: int = 64 << 20
    """Above this, drafts submitted without `wait` are written without their blobs."""
    intents: int = 128 << 20
    """Above this, intents and notes with content are refused."""
    outcomes: int = KEPT
    """This much of outcomes that found no room on the disk is kept until there is some; what comes
    on top is lost."""


class Admission:
    """Refuses drafts without room, in the store or in the queue, and takes content out of them."""

    def __init__(self, data: Path, quota: Quota, backlog: Backlog) -> None:
        self.quota = quota
        self.ample = min(backlog.content, backlog.intents)
        """Up to so many queued bytes, and while the quota has some to spare, any draft is admitted."""
        self._data = data
        self._backlog = backlog

    def admit(self, draft: Draft, wait: bool, queued: int) -> Draft:
        """Return what may be written of a draft, with `queued` bytes before it.

        Raises `StoreFull`, `StoreError`.
        """
        self._check_room(draft, queued)
        return without_content(draft) if queued > self._backlog.content and not wait else draft

    def shortage(self, what: str = "calls") -> str:
        """Measure; return why `what` is refused for want of room, empty where it is not.

        Raises `StoreError`.
        """
        with translated("measure", self._data):
            if self.quota.look():
                return ""
            return (
                f"no room for {what} in {str(self._data)!r}: less than {self.quota.reserve} bytes are left, "
                "of limits.store or on the disk, and those are kept for outcomes; raise limits.store, or free "
                "space on the disk"
            )

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
        if self.quota.spare <= 0 and (shortage := self.shortage(what)):
            raise StoreFull(shortage)
