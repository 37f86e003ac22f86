"""The process that writes a store, and the socket to it, as the proxy's loop sees them."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import msgspec

from .engine import Setup
from .folder import translated
from .parcels import Frames

_READ: Final = 1 << 16
_END: Final = 1.0
"""Seconds that it may take to end, once it is gone."""


class Line:
    """One process, from its start to its end. Sending never blocks."""

    def __init__(
        self,
        setup: Setup,
        loop: asyncio.AbstractEventLoop,
        heard: Callable[[bytes], None],
        broken: Callable[[], None],
    ) -> None:
        """Start the process. `heard` gets each of its messages; `broken` is called once when it is gone.

        Raises `StoreError`.
        """
        self._loop = loop
        self._heard = heard
        self._broken = broken
        self._frames = Frames()
        self._unsent = bytearray()
        with translated("start a process that writes to", Path(setup.data)), ExitStack() as undo:
            self._socket, theirs = socket.socketpair()
            undo.enter_context(self._socket)
            with theirs:
                self._process = _start(theirs, setup)
            undo.pop_all()
        self._socket.setblocking(False)
        loop.add_reader(self._socket, self._read)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def send(self, data: bytes) -> None:
        """Send what `framed` returned. What cannot be sent any more is lost: `broken` tells."""
        if self._unsent:
            self._unsent += data
            return
        sent = self._send(data)
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]
            self._loop.add_writer(self._socket, self._flush)

    def close(self) -> int:
        """Wait for the end of a process that is gone; return its exit code, or less than 0: a signal."""
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        with suppress(subprocess.TimeoutExpired):
            # Its end of the socket was closed: it is about to end, if it has not.
            return self._process.wait(_END)
        self._process.kill()
        return self._process.wait()

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for message in list(self._frames.feed(data)):
            self._heard(message)
        if not data:
            self._broken()

    def _flush(self) -> None:
        del self._unsent[: self._send(self._unsent)]
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            # Its end is closed; reading tells so.
            return len(data)


def _start(theirs: socket.socket, setup: Setup) -> "subprocess.Popen[bytes]":
    number = theirs.fileno()
    module = ("-P", "-m", "turnlog.store.apart_process")
    return subprocess.Popen(  # noqa: S603 - our own module
        (sys.executable, *module, str(number), msgspec.json.encode(setup).decode()),
        pass_fds=(number,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        # The same modules as here, wherever those were found.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
