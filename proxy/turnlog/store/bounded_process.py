"""Reading a store that may be damaged, in a child process with a time limit.

LMDB ends its process where a page makes no sense (SIGABRT), and the system where one cannot be read
(SIGBUS); pages that name each other are read without end.
"""

import faulthandler
import gc
import os
import resource
import selectors
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path
from time import monotonic
from typing import IO, Final, NoReturn

LEAST: Final = 60.0
"""s that a walk may take at least."""
RATE: Final = 1 << 20
"""Bytes that a walk gets through in a second at least, on a slow disk."""
_READ: Final = 1 << 16
_BUG: Final = 70
"""EX_SOFTWARE of sysexits.h."""

Send = Callable[[bytes], None]


class WorkerFailed(Exception):
    """The process did not come to its end. The message says how it ended."""


class Unfinished(Exception):
    """The process was not at its end in time, and has not used up its own: the machine stood still, or
    the disk."""


class Worker:
    """A child process that does some work and sends messages. Make it before there are threads."""

    def __init__(self, work: Callable[[Send], None], processor: float) -> None:
        """Start the process, which is ended after so many s of processor time. `work` gets what
        sends a message. Raises `OSError`.

        Pages that name each other burn processor time without end; a disk that hangs takes none.
        """
        self._messages, theirs = os.pipe()
        self._said, stderr = os.pipe()
        # More than a pipe takes is not worth waiting for.
        os.set_blocking(stderr, False)
        with warnings.catch_warnings():
            # From 3.12 on for any thread at all: this child begins with nothing that one could hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            os.close(self._messages)
            os.close(self._said)
            _work(work, theirs, stderr, processor)
        os.close(theirs)
        os.close(stderr)
        self._status: int | None = None

    def messages(self, seconds: float) -> Iterator[bytes]:
        """Yield what the process sends, until its end. Raises `WorkerFailed`, after `seconds` `Unfinished`."""
        try:
            yield from _framed(self._received(monotonic() + seconds))
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            self._judge(self._status)
        finally:
            self.close()

    def close(self) -> None:
        """End the process, if it has not ended. May be called again."""
        if self._messages < 0:
            return
        os.close(self._messages)
        self._messages = -1
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._said)

    def _received(self, end: float) -> Iterator[bytes]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._messages, selectors.EVENT_READ)
            while True:
                if not selector.select(max(0.0, end - monotonic())):
                    raise Unfinished
                data = os.read(self._messages, _READ)
                if not data:
                    return
                yield data

    def _judge(self, status: int) -> None:
        if status == 0:
            return
        said = os.read(self._said, _READ).decode("utf-8", "replace").strip()
        if status > 0:
            raise RuntimeError(said or f"exit code {status}")
        last = said.rpartition("\n")[2]
        name = signal.Signals(-status).name
        raise WorkerFailed(f"{name} ended it: {last}" if last else f"{name} ended it")


def seconds_for(folder: Path) -> float:
    """Return the time that reading all of a folder may take."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            size += path.stat().st_blocks * 512
    return LEAST + size / RATE


def _framed(received: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the messages in the received bytes: each follows its length in four bytes."""
    rest = b""
    for data in received:
        rest += data
        while len(rest) >= 4 and len(rest) >= 4 + (size := int.from_bytes(rest[:4], "big")):
            yield rest[4 : 4 + size]
            rest = rest[4 + size :]


def _work(work: Callable[[Send], None], to: int, said: int, processor: float) -> NoReturn:
    """Do the work, and leave: nothing of the parent's is flushed, closed or unlocked here."""
    status = _BUG
    try:
        seconds = ceil(processor)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        gc.freeze()
        faulthandler.disable()  # a signal is a finding here
        os.dup2(said, 2)
        with os.fdopen(to, "wb") as pipe:
            work(lambda message: _put(pipe, message))
        status = 0
    except BrokenPipeError:
        pass
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BaseException:  # noqa: BLE001 - the parent raises it again
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _put(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(len(message).to_bytes(4, "big") + message)
    pipe.flush()
