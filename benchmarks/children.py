"""Processes that a run starts: where their output goes, what they cost, how they end.

Each is ended by its own pid when the `Children` are closed, whatever happened in between.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from msgspec import Struct
from msgspec.json import Decoder, encode

from .jobs import Job, Report

_ROOT = Path(__file__).resolve().parent.parent
_START_SECONDS = 30.0
_END_SECONDS = 10.0


class StartError(Exception):
    """A process did not become ready. The message names it and ends with what it said."""


class Port(Struct, frozen=True):
    """The line that our own processes print first."""

    port: int


class Child:
    """A running process."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def output(self) -> bytes:
        """Return what it wrote to stdout so far."""
        return self.log.read_bytes()

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready`. Raises `StartError` when it ends before, or takes too long."""
        until = time.monotonic() + _START_SECONDS
        while not ready():
            if self.process.poll() is not None or time.monotonic() > until:
                said = self.output()[-2000:] + self.log.with_suffix(".err").read_bytes()[-2000:]
                raise StartError(
                    f"{self.name} did not become ready: {said.decode(errors='replace')}"
                )
            time.sleep(0.005)

    def port(self) -> int:
        """Wait for the first line of stdout and return the port it names."""
        self.wait(lambda: b"\n" in self.output())
        return Decoder(Port).decode(self.output().partition(b"\n")[0]).port

    def cpu_seconds(self) -> float:
        """Return the processor time of all its threads so far, user and system."""
        return _cpu_seconds(self.pid)

    def anonymous_kib(self) -> int:
        """Return its memory without mapped files: the pages of LMDB's map are page cache."""
        return field_of(self.pid, "status", "RssAnon")

    def resident_kib(self) -> int:
        """Return all its memory that is in RAM."""
        return field_of(self.pid, "status", "VmRSS")

    def peak_kib(self) -> int:
        """Return the most `resident_kib` since `forget_peak`."""
        return field_of(self.pid, "status", "VmHWM")

    def forget_peak(self) -> None:
        """Start a new peak at what is resident now."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def written_bytes(self) -> int:
        """Return how much it made the disk write so far."""
        return field_of(self.pid, "io", "write_bytes")

    def stop(self) -> None:
        """End it and wait for its end; kill it when it does not obey."""
        if self.process.stdin:
            with suppress(OSError):
                self.process.stdin.close()
        self.process.terminate()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def field_of(pid: int, file: str, name: str) -> int:
    """Return a number that the system tells of a process in /proc/PID/`file`; 0 where it does not."""
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    return 0


def _cpu_seconds(pid: int) -> float:
    # The clock id that clock_getcpuclockid(3) computes on Linux: /proc/PID/stat has the same
    # time, but in ticks of 10 ms, which is too coarse for runs of half a second.
    return time.clock_gettime((~pid << 3) | 2)


class Children:
    """Starts processes, keeps their output in `folder`, ends them all when closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._running:
            self._running.pop().stop()

    def start(self, name: str, *command: str | Path) -> Child:
        """Start `command` with its output in files named after `name`."""
        log = self.folder / f"{name}.out"
        with log.open("wb") as out, log.with_suffix(".err").open("wb") as err:
            return self._start(name, command, log, out, err)

    def start_own(self, name: str, module: str, *arguments: str) -> Child:
        """Start one of our own modules with this Python."""
        return self.start(name, sys.executable, "-m", f"benchmarks.{module}", *arguments)

    def stop(self, child: Child) -> None:
        """End one of them early."""
        self._running.remove(child)
        child.stop()

    def _start(
        self, name: str, command: tuple[str | Path, ...], log: Path, out: IO[bytes], err: IO[bytes]
    ) -> Child:
        process = subprocess.Popen(
            [os.fspath(part) for part in command],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
        )
        child = Child(name, process, log)
        self._running.append(child)
        return child


class LoadGenerator:
    """The load generator's process, asked one job at a time."""

    def __init__(self, children: Children) -> None:
        self._child = children.start_own("load", "load")
        self._reports = self._child.log.open("rb")
        self._decoder = Decoder(Report)

    def do(self, job: Job, seconds: float) -> Report:
        """Have `job` carried out. Raises `StartError` if no report comes within `seconds`."""
        stdin = self._child.process.stdin
        if stdin is None:
            raise StartError("the load generator has no stdin")
        stdin.write(encode(job) + b"\n")
        stdin.flush()
        until = time.monotonic() + seconds
        line = b""
        while not line.endswith(b"\n"):
            if time.monotonic() > until or self._child.process.poll() is not None:
                said = self._child.log.with_suffix(".err").read_text()[-2000:]
                raise StartError(f"no report within {seconds} s for {job!r}: {said}")
            time.sleep(0.002)
            line += self._reports.readline()
        return self._decoder.decode(line)

    def close(self) -> None:
        """Close what it reads; the process itself belongs to `Children`."""
        self._reports.close()


def free_port() -> int:
    """Return a port that was free a moment ago, for programs that cannot choose one."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def accepts(port: int) -> bool:
    """Tell whether something listens on `port`."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
