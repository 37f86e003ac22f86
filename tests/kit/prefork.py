"""Processes of turnlog, and of servers of the kit, that need not load it first.

To load turnlog takes an interpreter longer than most tests take, and one run starts more than a thousand
processes. So one process loads it, and forks another for each command line: that has its own id,
environment, working directory, files and signals, like one started by a shell. How a shell starts turnlog
is tested by those tests that start it themselves.
"""

import atexit
import gc
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from turnlog.cli.main import COMMANDS

from .stalls import add_stop_point

TURNLOG = "turnlog"
LOADED = (
    "turnlog.app.serve",
    "turnlog.app.wrap",
    "turnlog.settings.layers",
    "turnlog.store.startup_check",
    "turnlog.cli.main",
    *(f"turnlog.cli.commands.{found.module}" for found in COMMANDS.values()),
)
"""Modules that load all that commands need."""
_PIECE = 1 << 16
_STREAMS = ("stdin", "stdout", "stderr")
_STARTING = threading.Lock()


class Process:
    """A command line that runs, or did; what `subprocess.Popen` has of one."""

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; `None` while it runs."""
        return self._read(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code. Raises `subprocess.TimeoutExpired`."""
        code = self._read(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended a moment ago
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it the hard way."""
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                self.returncode = int(self._status.recv(16))
            except (BlockingIOError, TimeoutError):
                return None
            self._status.close()
        return self.returncode


class Printer(NamedTuple):
    """A process, and what it prints."""

    process: Process
    printed: TextIO


def start(
    arguments: Sequence[str],
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    env: Mapping[str, str],
    cwd: Path | None = None,
    program: str = TURNLOG,
) -> Process:
    """Run turnlog, or a module of the kit, with arguments; the files are descriptors."""
    # Packets: of a process that ends at once, its id and its end may have come before one is read.
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    said = {"arguments": [*arguments], "env": dict(env), "cwd": str(cwd or Path.cwd())}
    data = json.dumps(said).encode() + b"\n"
    with theirs, _STARTING:
        forker = _forker(program)
        files = [theirs.fileno(), stdin, stdout, stderr]
        forker.sendall(data[socket.send_fds(forker, [data], files) :])
    return Process(int(ours.recv(16)), ours)


def run(
    arguments: Sequence[str], *, env: Mapping[str, str], bound: float, program: str = TURNLOG
) -> "subprocess.CompletedProcess[bytes]":
    """Run a program until it ends; return what it printed. It has `bound` seconds."""
    with (
        Path(os.devnull).open() as nothing,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        process = start(
            arguments,
            stdin=nothing.fileno(),
            stdout=stdout.fileno(),
            stderr=stderr.fileno(),
            env=env,
            program=program,
        )
        try:
            code = process.wait(bound)
        finally:
            process.kill()
            process.wait()
        for file in (stdout, stderr):
            file.seek(0)
        return subprocess.CompletedProcess([*arguments], code, stdout.read(), stderr.read())


@contextmanager
def running(program: str, *arguments: str) -> Generator[str]:
    """Run a module of the kit until the block ends; yield the first line that it prints."""
    with printing(program, *arguments) as child:
        yield child.printed.readline().strip()


@contextmanager
def printing(program: str, *arguments: str) -> Generator[Printer]:
    """Run a module of the tests until the block ends."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as printed, Path(os.devnull).open("r+b") as nothing:
        process = start(
            arguments,
            stdin=nothing.fileno(),
            stdout=writing,
            stderr=nothing.fileno(),
            env=os.environ,
            program=program,
        )
        os.close(writing)
        try:
            yield Printer(process, printed)
        finally:
            process.kill()
            process.wait()


@cache
def _forker(program: str) -> socket.socket:
    """Return the connection to the process that forks a program, one of each process that tests."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "kit.prefork", program],
            stdin=theirs.fileno(),
            cwd=Path(__file__).parents[1],
        )
    atexit.register(_end, ours, process)
    return ours


def _end(connection: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    connection.close()
    process.wait()


def _wake(*_: object) -> None:
    """Do nothing: only with a handler does a signal write to the descriptor that wakes."""


class _Forker:
    """Forks a process for each request, and tells how it ended."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._woken, self._wakes = socket.socketpair()
        self._running: dict[int, socket.socket] = {}

    def serve(self) -> dict[str, Any] | None:
        """Serve until nobody asks any more; in a process that was forked, return what it is to do."""
        self._wakes.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno())
        signal.signal(signal.SIGCHLD, _wake)
        while True:
            ready, _, _ = select.select([self._connection, self._woken], [], [])
            if self._woken in ready:
                self._woken.recv(1024)
                self._tell()
            if self._connection in ready:
                request = self._request()
                if request is None or self._is_forked(request):
                    return request

    def _request(self) -> dict[str, Any] | None:
        data, files, _, _ = socket.recv_fds(self._connection, _PIECE, 4)
        while data and not data.endswith(b"\n"):
            data += self._connection.recv(_PIECE)
        return {**json.loads(data), "files": files} if data else None

    def _is_forked(self, request: dict[str, Any]) -> bool:
        """Fork; return whether this is the process that was forked."""
        status = socket.socket(fileno=request["files"].pop(0))
        if pid := os.fork():
            self._running[pid] = status
            status.send(str(pid).encode())
            for descriptor in request["files"]:
                os.close(descriptor)
            return False
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        kept = (status, *self._running.values(), self._connection, self._woken, self._wakes)
        for one in kept:
            one.close()
        return True

    def _tell(self) -> None:
        """Tell of all that have ended."""
        for pid, status in [*self._running.items()]:
            ended, how = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._running[pid]
                with status, suppress(BrokenPipeError):  # nobody wants to know
                    status.send(str(os.waitstatus_to_exitcode(how)).encode())


def _become(program: str, request: Mapping[str, Any]) -> int:
    """Be the process that was asked for; return its exit code."""
    for descriptor, (given, name) in enumerate(zip(request["files"], _STREAMS, strict=True)):
        os.dup2(given, descriptor)
        os.close(given)
        # What the stream of the process before knows of its file is not true of this one.
        before = getattr(sys, name)
        binary = open(descriptor, "wb" if descriptor else "rb", closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(
            binary, before.encoding, before.errors, line_buffering=descriptor == 2
        )
        setattr(sys, name, stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    sys.argv = [program, *request["arguments"]]
    sys.orig_argv[:] = [sys.executable, "-m", "turnlog", *request["arguments"]]
    main: Any = import_module("turnlog.cli.main" if program == TURNLOG else program).main
    add_stop_point()
    return int(main() or 0)


def _end_at_once(code: int) -> None:
    """Exit without taking the loaded modules apart, which took three quarters of a short command's time."""
    gc.collect()  # so that what was never closed still warns, as when an interpreter ends
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _program = sys.argv[1]
    _code = 1  # unless it ends as it should
    # It is registered before what a program registers, so it runs after that, and when threads have ended.
    atexit.register(lambda: _end_at_once(_code))
    for _name in LOADED if _program == TURNLOG else (_program,):
        import_module(_name)
    # What is loaded is never garbage: a collector that looks at it copies the pages of every fork.
    gc.freeze()
    _asked = _Forker(socket.socket(fileno=os.dup(0))).serve()
    _code = 0 if _asked is None else _become(_program, _asked)
