"""A queue of log lines that one thread writes to a stream, so that the event loop never blocks."""

import atexit
import errno
import io
import os
import select
import threading
from collections.abc import Callable
from typing import BinaryIO, Final

LINGER: Final = 0.05
"""s that a line may wait to be written together with others."""
EAGER_BYTES: Final = 64 * 1024
"""Queued bytes that are written without waiting any longer."""
LIMIT_BYTES: Final = 8 * 1024 * 1024
"""Queued bytes above which lines are dropped, so that a stalled reader costs bounded memory."""
_PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class Spool:
    """A bounded queue of lines and the thread that writes them.

    Lines are dropped and counted when the queue is full or the reader has closed the stream;
    `gap_line(n)` makes the line that reports them once lines can be written again.
    """

    def __init__(self, stream: BinaryIO, gap_line: Callable[[int], bytes]) -> None:
        # Without a reference the stream would close its descriptor, and another file get the number.
        self._stream = stream
        self._write = _writer(stream)
        self._gap_line = gap_line
        # Reentrant: garbage collection in the middle of `put` may log something.
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._lines: list[bytes] = []
        self._size = 0
        self._urgent = False
        self._closing = False
        self._broken = False
        self._gap = 0
        self.dropped = 0
        """Lines lost since the start."""
        self._thread = threading.Thread(target=self._run, name="turnlog-log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, line: bytes, *, urgent: bool) -> None:
        """Queue one line, newline included; an urgent line is written at once."""
        self._lock.acquire()  # once per call: `with` takes longer
        try:
            size = self._size + len(line)
            if self._broken or self._closing or size > LIMIT_BYTES:
                self._count(1)
                return
            self._lines.append(line)
            self._size = size
            if urgent or size >= EAGER_BYTES:
                self._urgent = True
                self._wake.notify()
            elif size == len(line):
                self._wake.notify()
        finally:
            self._lock.release()

    def close(self, timeout: float = 1.0) -> None:
        """Write the queued lines for at most `timeout` seconds; the rest counts as dropped."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout)
        with self._wake:
            self._count(len(self._lines))
            self._lines = []
        atexit.unregister(self.close)

    def _run(self) -> None:
        while batch := self._next():
            rest = self._send(b"".join(batch))
            if rest:
                with self._wake:
                    self._count(rest.count(b"\n"))

    def _next(self) -> list[bytes]:
        """Return the next lines to write; empty once the spool is closed and empty."""
        with self._wake:
            while not self._lines and not self._closing:
                self._wake.wait()
            if self._lines and not self._urgent and not self._closing:
                self._wake.wait(LINGER)
            batch, self._lines = self._lines, []
            self._size, self._urgent = 0, False
            if self._gap and batch:
                batch.append(self._gap_line(self._gap))
                self._gap = 0
            return batch

    def _send(self, data: bytes) -> bytes:
        """Write `data`; return the part that could not be written."""
        view = memoryview(data)
        while view:
            try:
                view = view[self._write(view) :]
            except OSError as error:
                # A full disk may have room later; a pipe without a reader will not come back.
                self._broken = error.errno not in _PASSING
                return bytes(view)
        return b""

    def _count(self, lines: int) -> None:
        self._gap += lines
        self.dropped += lines


def _writer(stream: BinaryIO) -> Callable[[memoryview], int]:
    """Return a function that writes to `stream`, unbuffered when it has a descriptor."""
    try:
        stream.flush()
        descriptor = stream.fileno()
    except (io.UnsupportedOperation, AttributeError):
        return stream.write
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)

    def write(view: memoryview) -> int:
        while True:
            try:
                return os.write(descriptor, view)
            except BlockingIOError:
                # Another process on the same terminal or pipe made it non-blocking.
                poll.poll(1000)

    return write
