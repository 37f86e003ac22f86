"""Collect one JSON text that comes in pieces: the start of it, its size, its digest, its meaning."""

from hashlib import sha256
from typing import Protocol

from msgspec import Struct

from turnlog.core.kinds import Flag
from turnlog.wire.json.skim import Outline, Skimmer

from .jsonrpc import Batch, Malformed, Message, Reason, outline_kind, parse

_ENDS = (b"}", b"]")
_LOOKS = 32
_LAST = 3
"""Pieces that are looked at for the end of a text: blanks may come alone."""
LIMIT = 1 << 20
"""Bytes kept unless told otherwise."""


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


class MessageReader(Struct, eq=False):
    """Keeps the first `limit` bytes; what lies beyond is hashed, counted and skimmed.

    Use: `feed` each piece, then `finish`, then ask for `content`. Never raises.
    """

    limit: int = LIMIT
    size: int = 0
    """Bytes fed so far."""
    truncated: bool = False
    """Whether the text is longer than what was kept."""
    unread: bool = False
    """Whether there was more that could not be fed: then the text is not to blame for its end."""
    notes: tuple[Flag, ...] = ()
    """What happened to the text on its way here, or may have."""
    _pieces: list[bytes] = []
    _kept: bytes | None = None
    _hash: _Hash | None = None
    """Of what came, once that is more than is kept."""
    _skimmer: Skimmer | None = None
    _content: Message | Batch | Malformed | Outline | None = None
    _looks: int = 0
    """How often `so_far` has read a text that goes on."""
    _looked: int = 0
    """How long it was the last time."""

    def feed(self, data: bytes) -> None:
        """Take the next piece."""
        self.size += len(data)
        if self.size <= self.limit:
            self._pieces.append(data)
        elif self._skimmer is not None and self._hash is not None:
            self._hash.update(data)
            self._skimmer.feed(data)
        else:
            self._overflow(data, self.limit - self.size + len(data))

    def _overflow(self, data: bytes, room: int) -> None:
        skimmer, hash_ = Skimmer(), sha256()
        for piece in (*self._pieces, data):
            hash_.update(piece)
            skimmer.feed(piece)
        self._hash = hash_
        self._pieces.append(data[:room])
        self._skimmer = skimmer
        self.truncated = True

    @property
    def so_far(self) -> Message | Batch | Malformed | Outline | None:
        """What the text says if it ends here; `None` where that is not known, or it cannot.

        More may be fed after this.
        """
        if self._skimmer is not None:
            return self._skimmer.outline
        last = next(
            (piece for piece in self._pieces[: -_LAST - 1 : -1] if not piece.isspace()), b""
        )
        if not last.rstrip().endswith(_ENDS):
            return None
        # So that a text in many pieces is not read anew for each.
        if self._looks >= _LOOKS and self.size < self._looked + self._looked // 8:
            return None
        found = parse(b"".join(self._pieces))
        self._looks, self._looked = self._looks + 1, self.size
        return found

    def finish(self) -> bytes:
        """Return what was kept of the text. May be called again."""
        if self._kept is None:
            pieces = self._pieces
            self._kept = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._pieces = []
        return self._kept

    @property
    def digest(self) -> bytes:
        """sha256 of the whole text."""
        return self._hash.digest() if self._hash is not None else sha256(self.finish()).digest()

    @property
    def content(self) -> Message | Batch | Malformed | Outline:
        """What the text says; of a truncated one an `Outline`. Call after `finish`."""
        if self._content is None:
            if self._skimmer is not None:
                self._content = self._skimmed(self._skimmer)
            else:
                self._content = parse(self.finish())
        return self._content

    def _skimmed(self, skimmer: Skimmer) -> Malformed | Outline:
        outline = skimmer.finish()
        if skimmer.failed:
            return Malformed(Reason.NOT_JSON)
        if self.unread:
            return outline
        if not outline.complete:
            return Malformed(Reason.CUT)
        # A batch is not read item by item.
        known = outline_kind(outline) is not None or outline.raw("").startswith(b"[")
        return outline if known else Malformed(Reason.NOT_JSONRPC)
