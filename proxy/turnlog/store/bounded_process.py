"""Reading a store that may be damaged, in a child process with a time limit.

LMDB aborts its process at an invalid page (SIGABRT), the system ends it where a page cannot be read
(SIGBUS), and pages that refer to each other are read without end.
"""

import faulthandler
import gc
import os
import resource
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from math import ceil
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Final, NoReturn

MIN_SECONDS: Final = 60.0
"""Time that a walk gets at least."""
RATE: Final = 1 << 20
"""Bytes that a walk reads in a second at least, on a slow disk."""
_STDERR_MOST: Final = 1 << 16
_BUG: Final = 70
"""EX_SOFTWARE of sysexits.h."""

Send = Callable[[bytes], None]


class WorkerFailed(Exception):
    """The process was killed by a signal. The message names it."""


class Unfinished(Exception):
    """The process did not end in time, although it used little processor time: the disk hangs, or the
    machine was suspended."""


class Worker:
    """A child process that does some work and sends messages. Make it before there are threads."""

    def __init__(self, work: Callable[[Send], None], cpu_seconds: float) -> None:
        """Start the process, which is killed after `cpu_seconds`. `work` gets a function that sends a
        message. Raises `OSError`.

        Pages that refer to each other take processor time without end; a hanging disk takes none.
        """
        fork = get_context("fork")
        self._messages, child_end = fork.Pipe(duplex=False)
        with child_end, ExitStack() as cleanup:
            cleanup.callback(self._messages.close)
            self._stderr, stderr = os.pipe()
            cleanup.callback(os.close, self._stderr)

            def run() -> NoReturn:
                self._messages.close()
                _work(partial(work, child_end.send_bytes), stderr, cpu_seconds)

            self._process = fork.Process(target=run, daemon=True)
            with os.fdopen(stderr, "wb", 0), warnings.catch_warnings():
                # What a pipe does not hold is dropped: nobody reads it before the end.
                os.set_blocking(stderr, False)
                # Python 3.12 warns if there is any other thread; this child needs no lock that one could hold.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._process.start()
            cleanup.pop_all()  # the process has begun: `close` ends it

    def messages(self, seconds: float) -> Iterator[bytes]:
        """Yield what the process sends, until its end. Raises `WorkerFailed`, after `seconds` `Unfinished`."""
        end = monotonic() + seconds
        try:
            with suppress(EOFError, OSError):  # at the end, or in a message that was not sent whole
                while True:
                    if not self._messages.poll(max(0.0, end - monotonic())):
                        raise Unfinished
                    yield self._messages.recv_bytes()
            self._process.join()
            self._raise_for(self._process.exitcode or 0)
        finally:
            self.close()

    def close(self) -> None:
        """End the process, if it has not ended. May be called again."""
        if self._messages.closed:
            return
        self._messages.close()
        self._process.kill()
        self._process.join()
        os.close(self._stderr)

    def _raise_for(self, status: int) -> None:
        if status == 0:
            return
        text = os.read(self._stderr, _STDERR_MOST).decode("utf-8", "replace").strip()
        if status > 0:
            raise RuntimeError(text or f"exit code {status}")
        last = text.rpartition("\n")[2]
        name = signal.Signals(-status).name
        raise WorkerFailed(f"{name} ended it: {last}" if last else f"{name} ended it")


def seconds_for(folder: Path) -> float:
    """Return the time that reading all of a folder may take."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            size += path.stat().st_blocks * 512
    return MIN_SECONDS + size / RATE


def _work(work: Callable[[], None], stderr: int, cpu_seconds: float) -> NoReturn:
    """Do the work and exit at once: nothing of the parent's is flushed, closed or unlocked here."""
    status = _BUG
    try:
        seconds = ceil(cpu_seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        gc.freeze()
        faulthandler.disable()  # a signal is a finding here
        os.dup2(stderr, 2)
        work()
        status = 0
    except BrokenPipeError:
        pass
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BaseException:  # noqa: BLE001 - the parent raises it again
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)
