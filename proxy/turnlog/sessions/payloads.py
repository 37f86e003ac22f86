"""The stored input and output of a call, and what is left of them."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct

from turnlog.core.commit import Commit, CommitBody
from turnlog.core.kinds import CommitKind, Gone
from turnlog.store.read.view import View


class PayloadState(StrEnum):
    """How much is left of a payload, or why it is gone."""

    NONE = "none"
    WHOLE = "whole"
    CUT = "cut"
    TRIMMED = Gone.TRIMMED.value
    EXPIRED = Gone.EXPIRED.value
    PURGED = Gone.PURGED.value
    UNSAVED = Gone.UNSAVED.value
    DAMAGED = Gone.DAMAGED.value

    @property
    def is_gone(self) -> bool:
        """Whether there was content that can no longer be read."""
        return self.value in set(Gone)


class Payload(Struct, frozen=True, kw_only=True):
    """An input or output; `text` is decoded as UTF-8, with invalid bytes replaced."""

    kept: PayloadState
    redacted: bool = False
    size: int = 0
    """Bytes that are stored."""
    text: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether this is the whole payload as it was sent, with nothing redacted."""
        return self.kept is PayloadState.WHOLE and not self.redacted


def read_payload(view: View, handle: bytes) -> Payload:
    """Return the payload stored under a handle; an empty handle means there was none."""
    if not handle:
        return Payload(kept=PayloadState.NONE)
    blob = view.blob(handle)
    if isinstance(blob, Gone):
        return Payload(kept=PayloadState(blob))
    return Payload(
        kept=PayloadState.CUT if blob.cut else PayloadState.WHOLE,
        redacted=blob.redacted,
        size=len(blob.data),
        text=blob.data.decode("utf-8", "replace"),
    )


def bodies_of(commits: Iterable[Commit]) -> list[CommitBody]:
    """Return the bodies of commits that have one."""
    return [commit.body for commit in commits if commit.body]


def read_input(view: View, commits: Iterable[Commit]) -> Payload:
    """Return the input of an attempt with these commits, oldest first."""
    begun = (commit for commit in commits if commit.facts.kind is CommitKind.INTENT)
    return _first(view, ((c, c.body.input_blob if c.body else b"") for c in begun))


def read_output(view: View, commits: Sequence[Commit]) -> Payload:
    """Return the newest output of an attempt with these commits, oldest first."""
    ended = (commit for commit in reversed(commits) if commit.facts.kind is CommitKind.OUTCOME)
    return _first(view, ((c, c.body.output_blob if c.body else b"") for c in ended))


def _first(view: View, found: Iterable[tuple[Commit, bytes]]) -> Payload:
    """Return the first payload that has a handle, else why the body that may have had one is gone."""
    gone: Gone | None = None
    for commit, handle in found:
        if handle:
            return read_payload(view, handle)
        gone = gone or commit.gone
    return Payload(kept=PayloadState(gone) if gone else PayloadState.NONE)
