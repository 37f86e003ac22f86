"""turnlog on a terminal: a process whose stdout is one, of so many columns."""

import fcntl
import os
import pty
import re
import struct
import termios
import unicodedata
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kit import prefork
from kit.proxy import environment

_STYLE = re.compile(r"\x1b\[[0-9]*m")


class OnTerminal:
    """A command that runs on a terminal, whose other end is read here."""

    def __init__(self, process: prefork.Process, ours: int) -> None:
        self.process = process
        self._ours = ours

    def lines(self, count: int) -> list[str]:
        """Wait for so many lines."""
        printed = b""
        while printed.count(b"\n") < count:
            printed += os.read(self._ours, 4096)
        return printed.decode().splitlines()

    def rest(self) -> list[str]:
        """Return all that it prints until it ends."""
        printed = b""
        while piece := self._read():
            printed += piece
        return printed.decode().splitlines()

    def _read(self) -> bytes:
        try:
            return os.read(self._ours, 4096)
        except OSError:
            return b""  # EIO: nobody has the other end any more


@contextmanager
def on_a_terminal(
    *arguments: str, data: Path, columns: int, environ: Mapping[str, str]
) -> Generator[OnTerminal]:
    """Run a command on a terminal until the block ends."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    known = {key: text for key, text in environment(environ).items() if key != "COLUMNS"}
    with Path(os.devnull).open("r+b") as nothing:
        process = prefork.start(
            [*arguments, "--data", str(data)],
            stdin=nothing.fileno(),
            stdout=theirs,
            stderr=nothing.fileno(),
            env=known,
        )
    os.close(theirs)
    try:
        yield OnTerminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def plain(line: str) -> str:
    """Return a line without what colours it."""
    return _STYLE.sub("", line)


def columns_of(line: str) -> int:
    """Return the columns that a line takes."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)
