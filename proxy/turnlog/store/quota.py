"""The store's quota: its limit, the disk, and the reserve that only outcomes may use."""

import os
import threading
from collections.abc import Callable, Container
from pathlib import Path

from . import blobs, saved_states
from .blobs import Bucket

RESERVE = 64 << 20
STATES_SHARE = 32
"""Saved states take no more than this part of the limit."""
STATES_EVERY = 16 << 20
"""Bytes that may be written before saved states are counted again, at most."""
_MEASURE_EVERY = 256 << 10
"""Bytes that may be written before the disk is looked at again, where there is little room."""
_SHARE = 256
"""Part of the remaining space that may be written before the next look."""


def reserve_of(limit: int, disk: int) -> int:
    """Return the bytes below which intents are refused: 64 MiB, or 5 % of a smaller limit or disk."""
    return min(RESERVE, limit // 20, disk // 20)


def log_size(data: Path) -> int:
    """Return the bytes that headers, bodies and indexes take on disk."""
    try:
        return (data / "log" / "data.mdb").stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def blob_size(data: Path) -> int:
    """Return the bytes that all buckets take on disk."""
    folder = data / "blobs"
    return sum(blobs.size(folder, bucket) for bucket in blobs.buckets(folder))


def state_size(data: Path) -> int:
    """Return the bytes that saved states take on disk."""
    return saved_states.size(data / "states")


def disk_free(data: Path) -> int:
    """Return the bytes that the disk has left for this user. Raises `OSError`."""
    disk = os.statvfs(data)
    return disk.f_bavail * disk.f_frsize


class Quota:
    """Measures how much may still be written. `spare` is cheap enough for every intent.

    The writer measures as it writes; the loop only where none was left at the last look.
    """

    def __init__(self, data: Path, limit: int) -> None:
        self._data = data
        self._limit = limit
        self._every = min(_MEASURE_EVERY, reserve_of(limit, limit) // 4)
        self._unmade = self._every
        self._states = 0
        """Bytes of saved states, as last looked at."""
        self._unlooked = STATES_EVERY
        """Bytes written since then."""
        self._measuring = threading.Lock()
        self.spare = 0
        """Bytes that may be written before intents are refused: as last measured, less what was written
        since. Not above 0 when that is in doubt."""

    @property
    def reserve(self) -> int:
        """Bytes that only outcomes may use. Raises `OSError`."""
        disk = os.statvfs(self._data)
        return reserve_of(self._limit, disk.f_blocks * disk.f_frsize)

    def look(self) -> int:
        """Measure; return how many bytes may be written before intents are refused, 0 where they are.

        Raises `OSError`.
        """
        self._measure()
        return max(0, self.spare)

    def wrote(self, count: int) -> None:
        """Count bytes that went to the disk."""
        self._unmade += count
        self._unlooked += count
        with self._measuring:
            self.spare -= count

    def doubt(self) -> None:
        """Discard the last measurement, because a write failed: the next intent makes a new one."""
        with self._measuring:
            self.spare = 0
            self._unmade = self._every

    def is_due(self) -> bool:
        """Return whether enough was written since for `make` to look again."""
        return self.spare <= 0 or self._unmade >= max(self._every, self.spare // _SHARE)

    def make(
        self,
        unlink: Callable[[Bucket], None],
        held: Callable[[], Container[Bucket]] = lambda: (),
    ) -> int:
        """Unlink the oldest buckets that are not `held` while the store exceeds its quota.

        Saved states go first: they can be worked out again. The present bucket goes only if it
        alone is left. Return the bytes of content that were given up. Raises `OSError`.
        """
        self._unmade = 0
        try:
            return self._make(unlink, held)
        except OSError:
            self.doubt()
            raise

    def _make(self, unlink: Callable[[Bucket], None], held: Callable[[], Container[Bucket]]) -> int:
        folder = self._data / "blobs"
        oldest_first = blobs.buckets(folder)
        sizes = {bucket: blobs.size(folder, bucket) for bucket in oldest_first}
        need = self._without_states(sum(sizes.values()))
        given_up = 0
        kept = held() if need > 0 else ()
        for bucket in oldest_first:
            if given_up >= need:
                break
            if bucket not in kept:
                unlink(bucket)
                given_up += sizes[bucket]
        self._measure()
        return given_up

    def _without_states(self, blob_bytes: int) -> int:
        """Return how many bytes of content have to go once saved states have made room.

        They are held to their share, and counted now and then only: there may be many files.
        """
        folder = self._data / "states"
        if self._unlooked >= min(STATES_EVERY, self._limit // STATES_SHARE):
            self._unlooked = 0
            self._states = saved_states.trim(folder, self._limit // STATES_SHARE)
        need = self._need(blob_bytes)
        if need <= 0 or not self._states:
            return need
        self._states = saved_states.trim(folder, max(0, self._states - need))
        return self._need(blob_bytes)

    def _need(self, blob_bytes: int) -> int:
        kept = log_size(self._data) + blob_bytes + self._states
        return self.reserve + max(kept - self._limit, -disk_free(self._data))

    def _measure(self) -> None:
        with self._measuring:
            left = min(
                self._limit - log_size(self._data),
                disk_free(self._data) + blob_size(self._data) + self._states,
            )
            self.spare = left - self.reserve
