"""A draft on its way to the disk, and the promise that the caller holds for it."""

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


class Pending(Struct, eq=False):
    """The `Ticket` of one draft.

    The fields without underscore belong to who writes until the batch is resolved on the
    loop; what follows is the loop's alone.
    """

    draft: Draft
    facts: bytes
    sealed: CommitBody | None
    """The draft's body; with salt and blobs once it is ready to be written."""
    body: bytes
    more: "Pending | None"
    size: int
    """Bytes that it takes while it waits, with what follows in its chain."""
    lazy: bool = False
    """Whether nobody waits for it."""
    entry: Entry | None = None
    """The commit as the log holds it, once it has its place there."""
    hash: bytes = b""
    commit: Commit | None = None
    """Set where the commit existed before, and by `placed` once it was asked for."""
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
                body=self.sealed,
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
        """Say that the commit is written, maybe after it had failed. Called on the loop."""
        if self.refused is not None:
            self.fail(self.refused)
            return
        self._landed = True
        # Mostly nobody waits: two of these land for each call.
        if self.told is not None or self._waiters:
            self._wake()

    def fail(self, error: StoreError) -> None:
        """Say that the commit was not written. Called on the loop."""
        self._error = error
        self._wake()

    def seal(self, salt: bytes, handles: Iterator[bytes]) -> None:
        """Give the body its salt and the handles of its blobs, as far as there are any."""
        draft, body = self.draft, self.draft.body
        if body is None:
            body = _EMPTY
        self.sealed = sealed = structs.replace(
            body,
            salt=salt,
            input_blob=body.input_blob if draft.input_blob is None else next(handles, b""),
            output_blob=body.output_blob if draft.output_blob is None else next(handles, b""),
        )
        self.body = encode_body(sealed)

    def forget(self) -> None:
        """Undo what placing set, because the transaction failed."""
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


def pend(
    draft: Draft, salt: Callable[[int], bytes], more: Pending | None = None, lazy: bool = False
) -> Pending:
    """Return the ticket of a draft; `salt` gives random bytes for its body.

    A body that waits for its blobs' handles gets its salt with them: it is encoded again then.
    Raises `ValueError` for text, and for numbers beyond 64 bits, that cannot be stored.
    """
    try:
        facts = encode_facts(draft.facts)
    except OverflowError as error:
        raise ValueError(f"a number of an {draft.facts.kind} has more than 64 bits") from error
    sealed = draft.body
    given, answered = draft.input_blob, draft.output_blob
    if sealed is not None and given is None and answered is None:
        sealed = structs.replace(sealed, salt=salt(SALT))
    body = b"" if sealed is None else encode_body(sealed)
    size = len(facts) + len(body)
    if given is not None:
        size += len(given.data)
    if answered is not None:
        size += len(answered.data)
    if more is not None:
        size += more.size
    return Pending(draft, facts, sealed, body, more, size, lazy)


def chained(batch: Iterable[Pending]) -> list[Pending]:
    """Return every draft of a batch, each before what follows in its chain."""
    found: list[Pending] = []
    for first in batch:
        link: Pending | None = first
        while link is not None:
            found.append(link)
            link = link.more
    return found


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
