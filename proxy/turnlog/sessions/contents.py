"""What is kept of an input or an output, and how it reads."""

from enum import StrEnum

from msgspec import Struct

from turnlog.store.base import Gone, View


class Kept(StrEnum):
    """What is left of a payload."""

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
        """Return whether there was content that cannot be read any more."""
        return self.value in set(Gone)


class Payload(Struct, frozen=True, kw_only=True):
    """An input or output. `text` is its bytes as UTF-8, what is none of it replaced."""

    kept: Kept
    redacted: bool = False
    size: int = 0
    """Bytes that are kept."""
    text: str = ""


def payload(view: View, handle: bytes) -> Payload:
    """Return what is kept of what a body names."""
    if not handle:
        return Payload(kept=Kept.NONE)
    blob = view.blob(handle)
    if blob is None:
        # Where it is there by now after all, a writer had not finished when it was looked for.
        return Payload(kept=Kept(view.gone(handle) or Gone.UNSAVED))
    return Payload(
        kept=Kept.CUT if blob.cut else Kept.WHOLE,
        redacted=blob.redacted,
        size=len(blob.data),
        text=blob.data.decode("utf-8", "replace"),
    )
