"""Drafts on their way to the disk: checked and encoded on the caller's thread, resolved on the loop."""

import asyncio
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final

from msgspec import structs

from turnlog.core.commit import CommitBody, encode_body, encode_facts
from turnlog.core.kinds import CommitKind
from turnlog.core.lifecycle import CONTROL_KINDS
from turnlog.store.base import Draft, StoreError, StoreFull
from turnlog.store.log.translate_errors import translated
from turnlog.store.quota import Quota

AMPLE: Final = 64 << 20
"""Queued bytes above which drafts submitted without `wait` are written without their blobs."""
MOST_QUEUED: Final = 128 << 20
"""Queued bytes above which intents and notes with content are refused."""
COMMIT_LIMIT: Final = 1 << 20
"""Bytes of a commit's header, and of its body."""
SALT: Final = 16
"""Bytes of a body's salt."""
_EMPTY: Final = CommitBody()


def complete(draft: Draft, salt: bytes, handle: bytes | None = None) -> None:
    """Complete a draft's body with its salt and the handle of its blob, if it has one."""
    if handle is None:
        draft.body = structs.replace(draft.body or _EMPTY, salt=salt)
    else:
        draft.body = _with_handle(draft, handle, salt)
    draft.encoded_body = encode_body(draft.body)


def forget(draft: Draft) -> None:
    """Undo what the ledger set, because the transaction failed."""
    draft.commit = draft.refused = None


def prepare(draft: Draft, salt: Callable[[int], bytes], *, lazy: bool = False) -> Draft:
    """Encode a draft, and return it; `salt` gives random bytes for its body.

    A body that waits for its blobs' handles gets its salt with them: it is encoded again then.
    Raises `ValueError` for a draft that cannot be stored: without a call's id, with text that is not
    UTF-8 or numbers beyond 64 bits, or too large.
    """
    facts, body, blob = draft.facts, draft.body, draft.blob
    if len(facts.call) != 16:
        _check_without_call(draft)
    try:
        draft.encoded_facts = encoded = encode_facts(facts)
    except OverflowError as error:
        raise ValueError(f"a number of an {facts.kind} has more than 64 bits") from error
    size = len(encoded)
    if body is not None:
        if blob is None:
            draft.body = body = structs.replace(body, salt=salt(SALT))
        draft.encoded_body = encoded = encode_body(body)
        size += len(encoded)
    if size > COMMIT_LIMIT:
        _check_size(draft)
    if blob is not None:
        size += len(blob.data)
    draft.size, draft.lazy = size, lazy
    return draft


def _check_without_call(draft: Draft) -> None:
    facts = draft.facts
    if facts.kind is CommitKind.INTENT or facts.kind is CommitKind.OUTCOME:
        raise ValueError(f"an {facts.kind} needs a call id of 16 bytes, not {facts.call!r}")
    if (facts.kind in CONTROL_KINDS) != (draft.expected_head is not None):
        raise ValueError(f"an expected head is for control commits, and each has one: {facts.kind}")


def _check_size(draft: Draft) -> None:
    size = max(len(draft.encoded_facts), len(draft.encoded_body))
    if size > COMMIT_LIMIT:
        raise ValueError(f"a commit of {size} bytes is over the cap of {COMMIT_LIMIT}; cut it")


def land(batch: Iterable[Draft], along: Iterable[Draft] = ()) -> None:
    """Resolve the tickets of a batch that is on disk, and of what went along. Called on the loop."""
    for draft in (*batch, *along):
        draft.landed, draft.error = draft.refused is None, draft.refused
        # Mostly there is no waiter: two of these land for each call.
        if draft.on_written is not None or draft.waiters:
            _wake(draft)


def fail(batch: Iterable[Draft], error: StoreError) -> None:
    """Reject the tickets of a batch that was not written. Called on the loop."""
    for draft in batch:
        draft.error = error
        _wake(draft)


def _wake(draft: Draft) -> None:
    """Wake the waiters: the draft is written, or has failed."""
    waiters, draft.waiters = draft.waiters, ()
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    on_written, draft.on_written = draft.on_written, None
    if on_written is None:
        return
    try:
        on_written(draft.landed)
    except Exception as failure:  # noqa: BLE001 - the others must be told as well
        message = "a callback failed that was told what became of a draft"
        context = {"message": message, "exception": failure}
        asyncio.get_running_loop().call_exception_handler(context)


def drop_content(draft: Draft) -> None:
    """Remove a draft's blob. Its body keeps the hash: it reads as lost."""
    if blob := draft.blob:
        draft.body = _with_handle(draft, blob.digest or sha256(blob.data).digest())
        draft.blob = None


def purge_content(draft: Draft) -> bool:
    """Remove all content from a draft of a purged session; return whether a payload of it is stored already.

    Then its body names that, so that it can be found and purged.
    """
    body, draft.blob = draft.body, None
    handles = () if body is None else (body.input_blob, body.output_blob)
    draft.body, draft.encoded_body = None, b""
    if not any(handles):
        return False
    assert body is not None
    kept = CommitBody(input_blob=body.input_blob, output_blob=body.output_blob)
    draft.body = kept
    complete(draft, body.salt)
    return True


def _with_handle(draft: Draft, handle: bytes, salt: bytes = b"") -> CommitBody:
    """Return a draft's body with its salt and the handle of its blob."""
    body = draft.body or _EMPTY
    if draft.facts.kind is CommitKind.OUTCOME:
        return structs.replace(body, salt=salt, output_blob=handle)
    return structs.replace(body, salt=salt, input_blob=handle)


class DraftAdmission:
    """Refuses drafts without room, in the store or in the queue, and takes content out of them."""

    def __init__(
        self, data: Path, quota: Quota, *, ample: int = AMPLE, most: int = MOST_QUEUED
    ) -> None:
        self.quota = quota
        self.ample = ample
        """Up to so many queued bytes, and while the quota has some to spare, any draft is admitted."""
        self._data = data
        self._most = most

    def admit(self, draft: Draft, wait: bool, queued: int) -> None:
        """Admit a draft with `queued` bytes before it, maybe without its content.

        Raises `StoreFull`, `StoreError`.
        """
        self._check_room(draft, queued)
        if queued > self.ample and not wait:
            drop_content(draft)

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

    def check_import(self, need: int) -> None:
        """Refuse a session of `need` bytes from another store if there is no room. Raises `StoreFull`,
        `StoreError`."""
        with translated("measure", self._data):
            left = self.quota.look()
        if left < need:
            raise StoreFull(
                f"no room for the session in {str(self._data)!r}: it has up to {need} bytes, {left} are left "
                "of limits.store or on the disk; raise limits.store, or free space on the disk"
            )

    def _check_room(self, draft: Draft, queued: int) -> None:
        kind = draft.facts.kind
        begins = kind is CommitKind.INTENT
        # Control commits may use what is kept for outcomes: some of them make room.
        if not (begins or (kind is CommitKind.NOTE and draft.body is not None and draft.body.note)):
            return
        what = "an intent" if begins else "a note"
        if queued > self._most:
            raise StoreFull(
                f"no room for {what} in memory: {queued} bytes wait to be written to "
                f"{str(self._data)!r}; wait, or use a faster disk"
            )
        if self.quota.spare <= 0 and (shortage := self.shortage(what)):
            raise StoreFull(shortage)
