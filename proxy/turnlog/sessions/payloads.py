"""The stored input and output of a call, and what is left of them."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct

from turnlog.core.commit import Commit, CommitBody
from turnlog.store.base import Gone
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


def read_input(view: View, bodies: Sequence[CommitBody]) -> Payload:
    """Return the input of an attempt with these bodies, oldest first."""
    return read_payload(view, next((body.input_blob for body in bodies if body.input_blob), b""))


def read_output(view: View, bodies: Sequence[CommitBody]) -> Payload:
    """Return the newest output of an attempt with these bodies, oldest first."""
    newest_first = reversed(bodies)
    return read_payload(view, next((b.output_blob for b in newest_first if b.output_blob), b""))
