"""A draft on its way to the disk: what the writer needs of it, and the ticket of its caller."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Final

from msgspec import Struct, structs

from turnlog.core.commit import Commit, CommitBody, encode_body, encode_facts
from turnlog.store.base import Blob, Conflict, Draft, StoreError
from turnlog.store.log.index import Entry

SALT: Final = 16
"""Bytes of a body's salt."""
_EMPTY: Final = CommitBody()


class PendingAppend(Struct, eq=False):
    """The `Ticket` of one draft.

    The fields without underscore belong to the writer's thread until the batch is resolved on the
    loop; those with one belong to the loop.
    """

    draft: Draft
    facts: bytes
    completed: CommitBody | None
    """The draft's body; with salt and blobs once it is ready to be written."""
    body: bytes
    more: "PendingAppend | None"
    size: int
    """Bytes that it takes while it waits, with what follows in its chain."""
    lazy: bool = False
    """Whether it was submitted without `wait`."""
    entry: Entry | None = None
    """The commit as the log holds it, once it has its place there."""
    hash: bytes = b""
    commit: Commit | None = None
    """Set where the commit existed before, and by the first use of `placed`."""
    refused: Conflict | None = None
    """Why it was not placed, although its transaction is on disk."""
    told: Callable[[bool], None] | None = None
    """Gets whether the commit is on disk, as soon as that is known."""
    _landed: bool = False
    _waiters: "Sequence[asyncio.Future[None]]" = ()
    _error: StoreError | None = None

    @property
    def placed(self) -> Commit | None:
        entry = self.entry
        if self.commit is None and self._landed and entry:
            self.commit = Commit(
                position=entry.position,
                link=entry.link,
                facts=entry.facts,
                hash=self.hash,
                body=self.completed,
            )
        return self.commit if self._landed else None

    async def done(self) -> Commit:
        if not self._landed and self._error is None:
            # Each waits on a future of its own: one that is cancelled must not cancel the others.
            waiter = asyncio.get_running_loop().create_future()
            self._waiters = (*self._waiters, waiter)
            await waiter
        placed = self.placed
        if placed is not None:
            return placed
        raise self._error or StoreError("the draft was not written")

    def land(self) -> None:
        """Resolve the ticket: the commit is written, maybe after it had failed. Called on the loop."""
        if self.refused is not None:
            self.fail(self.refused)
            return
        self._landed = True
        # Mostly there is no waiter: two of these land for each call.
        if self.told is not None or self._waiters:
            self._wake()

    def fail(self, error: StoreError) -> None:
        """Reject the ticket: the commit was not written. Called on the loop."""
        self._error = error
        self._wake()

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

    def _wake(self) -> None:
        told, self.told = self.told, None
        waiters, self._waiters = self._waiters, ()
        try:
            if told:
                told(self._landed)
        finally:
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


def new_pending(
    draft: Draft,
    salt: Callable[[int], bytes],
    more: PendingAppend | None = None,
    lazy: bool = False,
) -> PendingAppend:
    """Return the ticket of a draft; `salt` gives random bytes for its body.

    A body that waits for its blobs' handles gets its salt with them: it is encoded again then.
    Raises `ValueError` for text, and for numbers beyond 64 bits, that cannot be stored.
    """
    try:
        facts = encode_facts(draft.facts)
    except OverflowError as error:
        raise ValueError(f"a number of an {draft.facts.kind} has more than 64 bits") from error
    completed = draft.body
    given, answered = draft.input_blob, draft.output_blob
    if completed is not None and given is None and answered is None:
        completed = structs.replace(completed, salt=salt(SALT))
    body = b"" if completed is None else encode_body(completed)
    size = len(facts) + len(body)
    if given is not None:
        size += len(given.data)
    if answered is not None:
        size += len(answered.data)
    if more is not None:
        size += more.size
    return PendingAppend(draft, facts, completed, body, more, size, lazy)


def chained(batch: Iterable[PendingAppend]) -> list[PendingAppend]:
    """Return every draft of a batch, each before what follows in its chain."""
    found: list[PendingAppend] = []
    for first in batch:
        link: PendingAppend | None = first
        while link is not None:
            found.append(link)
            link = link.more
    return found


def land(batch: list[PendingAppend], along: list[PendingAppend]) -> None:
    """Resolve the tickets of a batch that is on disk, and of what went along. Called on the loop."""
    _resolve((*chained(batch), *along), PendingAppend.land)


def fail(batch: list[PendingAppend], error: StoreError) -> None:
    """Reject the tickets of a batch that was not written. Called on the loop."""
    _resolve(chained(batch), lambda pending: pending.fail(error))


def _resolve(drafts: Iterable[PendingAppend], how: Callable[[PendingAppend], None]) -> None:
    for pending in drafts:
        try:
            how(pending)
        except Exception as failure:  # noqa: BLE001 - the others must be told as well
            message = "a callback failed that was told what became of a draft"
            context = {"message": message, "exception": failure}
            asyncio.get_running_loop().call_exception_handler(context)


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
