"""Where a tool comes from: whether its definition is the one that an operator pinned."""

from enum import StrEnum
from typing import Final

from msgspec import Struct


class Provenance(StrEnum):
    """What is known of a tool's definition."""

    PINNED = "pinned"
    """It is the one in turnlog.lock."""
    MISMATCH = "mismatch"
    """turnlog.lock has another for this tool."""
    UNVERIFIED = "unverified"
    """turnlog.lock has none for this tool, or nobody has seen its definition yet."""


class PinStatus(Struct, frozen=True, gc=False):
    """How a tool stands against the lock."""

    provenance: Provenance = Provenance.UNVERIFIED
    pinned: bytes = b""
    """sha256 of the definition in the lock, where that is another."""


UNVERIFIED: Final = PinStatus()
_PINNED: Final = PinStatus(Provenance.PINNED)


def pin_status(pinned: bytes | None, definition: bytes) -> PinStatus:
    """Compare the sha256 of a tool's definition (empty: not seen) with what is pinned for it."""
    if pinned is None or not definition:
        return UNVERIFIED
    return _PINNED if definition == pinned else PinStatus(Provenance.MISMATCH, pinned)
