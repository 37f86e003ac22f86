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

LEAST: Final = 60.0
"""s that a walk may take at least."""
RATE: Final = 1 << 20
"""Bytes that a walk gets through in a second at least, on a slow disk."""
_READ: Final = 1 << 16
_BUG: Final = 70
"""EX_SOFTWARE of sysexits.h."""

Send = Callable[[bytes], None]


class WorkerFailed(Exception):
    """The process was ended by a signal. The message names it."""


class Unfinished(Exception):
    """The process did not end in time, although it used little processor time: the disk hangs, or the
    machine was suspended."""


class Worker:
    """A child process that does some work and sends messages. Make it before there are threads."""

    def __init__(self, work: Callable[[Send], None], processor: float) -> None:
        """Start the process, which is ended after so many s of processor time. `work` gets what
        sends a message. Raises `OSError`.

        Pages that refer to each other take processor time without end; a hanging disk takes none.
        """
        fork = get_context("fork")
        self._messages, theirs = fork.Pipe(duplex=False)
        with theirs, ExitStack() as ours:
            ours.callback(self._messages.close)
            self._said, stderr = os.pipe()
            ours.callback(os.close, self._said)

            def run() -> NoReturn:
                self._messages.close()
                _work(partial(work, theirs.send_bytes), stderr, processor)

            self._process = fork.Process(target=run, daemon=True)
            with os.fdopen(stderr, "wb", 0), warnings.catch_warnings():
                # More than a pipe takes is not worth waiting for.
                os.set_blocking(stderr, False)
                # From 3.12 on for any thread at all: this child begins with nothing that one could hold.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._process.start()
            ours.pop_all()  # the process has begun: `close` ends it

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
            self._judge(self._process.exitcode or 0)
        finally:
            self.close()

    def close(self) -> None:
        """End the process, if it has not ended. May be called again."""
        if self._messages.closed:
            return
        self._messages.close()
        self._process.kill()
        self._process.join()
        os.close(self._said)

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


def _work(work: Callable[[], None], said: int, processor: float) -> NoReturn:
    """Do the work, and leave: nothing of the parent's is flushed, closed or unlocked here."""
    status = _BUG
    try:
        seconds = ceil(processor)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        gc.freeze()
        faulthandler.disable()  # a signal is a finding here
        os.dup2(said, 2)
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
