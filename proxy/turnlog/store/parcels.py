"""What a proxy and the process that writes its store say to each other, over a pair of sockets.

The proxy sends a `Delivery`: drafts, and errands to be run behind them. The process answers each
transaction with a `Receipt`. Nothing here outlives the two processes: both are of one version.
"""

import struct
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Struct

from turnlog.core.commit import Commit, Facts, Link
from turnlog.core.kinds import Rung

from .base import Blob, StoreError, StoreFull
from .errands import Closed, Errand

NONE: Final = 0
"""A `Parcel.intent`: there is none."""
UNPLACED: Final = -1
"""A `Parcel.intent` that stands nowhere."""
_LENGTH: Final = struct.Struct(">I")


class Naming(Struct, frozen=True, array_like=True, gc=False):
    """By what a session is found, or made, that its first caller has no id of yet."""

    rung: Rung
    aliases: tuple[str, ...]
    metadata: dict[str, str]


class Parcel(Struct, array_like=True, gc=False):
    """One draft, and what follows in its chain."""

    number: int
    """By which both sides know it; from 1 on."""
    session: bytes
    """The session's id; the candidate for one where there is a `naming`."""
    naming: Naming | None
    facts: bytes
    body: bytes
    looked_into: bool
    """Whether the body has to be read again: an index looks into it, or it gets handles of blobs."""
    lazy: bool
    size: int
    """bytes, with what follows in its chain"""
    intent: int = NONE
    """`Draft.intent` as a number, where the process knows it; `UNPLACED` where it stands nowhere."""
    follows: Link | None = None
    """`Draft.intent` where it is on disk."""
    again: "Parcel | None" = None
    """`Draft.intent` where it has failed: it goes along."""
    refused: tuple[str, int] | None = None
    """`Conflict` and its seq, where one that goes along was not placed for that."""
    claims: tuple[bytes, ...] = ()
    seen: int | None = None
    input_blob: Blob | None = None
    output_blob: Blob | None = None
    more: "Parcel | None" = None


class Delivery(Struct, frozen=True, array_like=True, gc=False):
    """What the proxy sends at once."""

    at: int
    """Wall clock, ns UTC."""
    clock: int
    """Monotonic clock, ns."""
    oldest: int
    """Number of the first draft that no receipt has told of, or the next to come."""
    parcels: list[Parcel] = []
    errands: tuple[tuple[int, Errand, int], ...] = ()
    """Each with its number, and the time that it is about, ns UTC."""
    is_last: bool = False
    """Whether the store is to be closed behind this."""


class Place(Struct, array_like=True, gc=False):
    """What became of one draft whose transaction is on disk."""

    position: int = 0
    link: Link | None = None
    hash: bytes = b""
    facts: Facts | None = None
    """Where others are stored than were given."""
    marks: tuple[bytes, bytes, bytes] | None = None
    """Salt and handles of a body that got them in the process."""
    existed: Commit | None = None
    """The commit that said the same before."""
    refused: tuple[str, int] | None = None
    """`Conflict` and its seq, where it was not placed."""
    session: bytes | None = None
    """The session's id, where it was not placed."""


class Trouble(Struct, frozen=True, array_like=True, gc=False):
    """A `StoreError`."""

    message: str
    is_full: bool = False

    @classmethod
    def of(cls, error: StoreError) -> "Trouble":
        """Return what is told of an error."""
        return cls(str(error), isinstance(error, StoreFull))

    def error(self) -> StoreError:
        """Return the error that it was."""
        return StoreFull(self.message) if self.is_full else StoreError(self.message)


class Lost(Struct, frozen=True, array_like=True, gc=False):
    """Drafts that were not written; `kept` of them are tried again."""

    numbers: list[int]
    kept: list[int]
    trouble: Trouble


class Receipt(Struct, array_like=True, gc=False):
    """What the process has done since it said so last."""

    landed: list[tuple[int, list[Place]]] = []
    """By the number of a chain's first draft, a place for each of the chain."""
    lost: list[Lost] = []
    done: list[tuple[int, Closed, Trouble | None]] = []
    """Errands by their numbers."""
    reports: list[str] = []
    trimmed: int = 0
    """Bytes of content that were given up to make room."""
    spare: int = 0
    """`Room.spare`."""
    failing: Trouble | None = None
    """Why nothing can be written at the moment."""


_encode: Final = msgspec.msgpack.Encoder().encode
read_delivery: Final = msgspec.msgpack.Decoder(Delivery).decode
"""Return what the bytes of a frame say to the process."""
read_receipt: Final = msgspec.msgpack.Decoder(Receipt).decode
"""Return what the bytes of a frame say to the proxy."""


def framed(message: Struct) -> bytes:
    """Return a message as it is sent: its length, 4 bytes, before it."""
    data = _encode(message)
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Cuts a stream into the messages in it."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that are whole with `data`."""
        rest = self._rest
        rest += data
        start = 0
        while len(rest) >= start + _LENGTH.size:
            (size,) = _LENGTH.unpack_from(rest, start)
            end = start + _LENGTH.size + size
            if len(rest) < end:
                break
            yield bytes(rest[start + _LENGTH.size : end])
            start = end
        del rest[:start]
