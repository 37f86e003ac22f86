"""`turnlog wrap` between a test that plays the agent and the same test that plays the server.

The command that is wrapped is a puppet: it hands its stdin and stdout to the test, then does what it
is told through a socket of its own. So a test sees and says each byte on both sides of turnlog.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs

from turnlog.sessions.rows import Row

from . import prefork
from .clients import BOUND, message, wait_until
from .proxy import data_of, environment, events_in, rows

Process = prefork.Process | subprocess.Popen[Any]

PUPPET: Final = """
import json, os, select, signal, socket, subprocess, sys, time
me = socket.socket(socket.AF_UNIX)
me.connect(os.environ["PUPPET"])
socket.send_fds(me, [b"x"], [0, 1])
told = me.makefile("rw")
woken, wakes = socket.socketpair()
wakes.setblocking(False)
signal.set_wakeup_fd(wakes.fileno())
while True:
    if woken in select.select([me, woken], [], [])[0]:
        woken.recv(64)
        continue
    if not (line := told.readline()):
        break
    told.write(json.dumps(eval(line)) + "\\n")
    told.flush()
"""
"""Evaluates each line that it is sent, until the test hangs up.

A signal that comes right before it begins to wait ends the wait, so its handler runs.
"""


class End:
    """One end of a pipe or socket, read or written by a test."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()
        self.closed = False
        os.set_blocking(descriptor, False)

    def send(self, data: bytes) -> None:
        """Write all of `data`."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.send_some(rest) :]

    def send_some(self, data: bytes | memoryview) -> int:
        """Write what fits, within the bound; return how much that was."""
        _, writable, _ = select.select([], [self._descriptor], [], BOUND)
        assert writable, "nobody reads what is written"
        with suppress(BlockingIOError):
            return os.write(self._descriptor, data)
        return 0

    def can_send(self, within: float) -> bool:
        """Tell whether something can be written within so many seconds."""
        return bool(select.select([], [self._descriptor], [], within)[1])

    def can_read(self, within: float) -> bool:
        """Tell whether something, or the end, is there within so many seconds."""
        return bool(self._buffer or select.select([self._descriptor], [], [], within)[0])

    def line(self, bound: float = BOUND) -> bytes:
        """Read one line, with what ends it."""

        def found(buffer: bytearray) -> int:
            return buffer.find(b"\n") + 1

        return self.until(found, bound)

    def json(self) -> Any:
        """Read one line of JSON."""
        return json.loads(self.line())

    def exactly(self, size: int) -> bytes:
        """Read `size` bytes."""

        def found(buffer: bytearray) -> int:
            return size if len(buffer) >= size else 0

        return self.until(found)

    def some(self, bound: float) -> bytes:
        """Read what is there, or comes within so many seconds."""
        if not self._buffer and select.select([self._descriptor], [], [], bound)[0]:
            assert self._more(time.monotonic()), "closed early"
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def rest(self) -> bytes:
        """Read until the other side closes."""
        end = time.monotonic() + BOUND
        while self._more(end):
            pass
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def until(self, found: Callable[[bytearray], int], bound: float = BOUND) -> bytes:
        """Read until `found` tells how much of the buffer is wanted."""
        end = time.monotonic() + bound
        while not (size := found(self._buffer)):
            assert self._more(end), f"closed after {bytes(self._buffer[-300:])!r}"
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def is_silent(self) -> bool:
        """Tell whether nothing is there to be read, not even the end."""
        return not self.can_read(0)

    def close(self) -> None:
        """Close it, once."""
        if not self.closed:
            self.closed = True
            os.close(self._descriptor)

    def _more(self, end: float) -> bool:
        readable, _, _ = select.select([self._descriptor], [], [], max(end - time.monotonic(), 0))
        assert readable, f"nothing more came after {bytes(self._buffer[-300:])!r}"
        with suppress(ConnectionError):
            data = os.read(self._descriptor, 1 << 18)
            self._buffer += data
            return bool(data)
        return False


class Server:
    """The wrapped command: what it reads and writes, and what it is told to do."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(BOUND)
        _, (stdin, stdout), _, _ = socket.recv_fds(connection, 1, 2)
        self._connection = connection
        self._told = connection.makefile("rw")
        self.stdin = End(stdin)
        self.stdout = End(stdout)
        self.pid: int = self.do("os.getpid()")

    def do(self, expression: str) -> Any:
        """Let it evaluate an expression; return the value."""
        self._told.write(expression + "\n")
        self._told.flush()
        return json.loads(self._told.readline())

    def request(self) -> Any:
        """Read what the agent said next."""
        return self.stdin.json()

    def say(self, value: object) -> None:
        """Write a message."""
        self.stdout.send(json.dumps(value).encode() + b"\n")

    def answer(self, request: Mapping[str, Any], text: str = "done") -> None:
        """Answer a request with a text."""
        self.say(text_answer(request["id"], text))

    def spawn(self, *, stdout: bool = False) -> int:
        """Let it start a process that ends by itself only after minutes; return its id."""
        where = "None" if stdout else "subprocess.DEVNULL"
        return int(self.do(f"subprocess.Popen(['sleep', '300'], stdin=-3, stdout={where}).pid"))

    def exit(self, code: int = 0) -> None:
        """Let it end."""
        self._end(f"os._exit({code})")

    def die(self, number: signal.Signals) -> None:
        """Let it die of a signal."""
        default = "" if number == signal.SIGKILL else f"signal.signal({int(number)}, 0), "
        self._end(f"[{default}os.kill(os.getpid(), {int(number)})] and None")

    def close(self) -> None:
        """Let go of it: its ends of the pipes are closed, and it ends if it has not."""
        self.stdin.close()
        self.stdout.close()
        self._told.close()
        self._connection.close()

    def _end(self, expression: str) -> None:
        self._told.write(expression + "\n")
        self._told.flush()
        self.close()


class Wrap(Struct, frozen=True, kw_only=True):
    """A `turnlog wrap` that runs, or did."""

    process: Process
    data: Path
    stdin: End
    stdout: End
    stderr: Path
    of: Server | None = None

    @property
    def server(self) -> Server:
        """The wrapped command, where it is a puppet."""
        assert self.of is not None
        return self.of

    def send(self, *lines: bytes) -> None:
        """Say lines to the server; each gets its newline."""
        self.stdin.send(b"".join(line + b"\n" for line in lines))

    def asked(self, line: bytes) -> Any:
        """Say a line to the server; return what the server got."""
        self.send(line)
        return self.server.request()

    def exited(self, bound: float = BOUND) -> int:
        """Wait for the end of the process; return its exit code."""
        return self.process.wait(bound)

    def finish(self) -> int:
        """Leave as a client does; the server sees that and ends. Return the exit code."""
        self.stdin.close()
        assert self.server.stdin.rest() == b""
        self.server.exit()
        return self.exited()

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """Return the log's lines, or those of one event."""
        return events_of(self.data, name)

    def rows(self) -> list[Row]:
        """Return the store's rows, oldest first."""
        return rows(self.data)

    def row(self) -> Row:
        """Return the only row."""
        (row,) = self.rows()
        return row


class Near:
    """The client's side of one wrap: its ends of the pipes, and the file of its stderr."""

    def __init__(self, folder: Path, *, sockets: bool) -> None:
        self.stderr = folder / f"wrap-{len(list(folder.glob('wrap-*.err')))}.err"
        if sockets:
            # As Node does.
            pairs = [socket.socketpair() for _ in range(2)]
            (stdin, self.their_stdin), (stdout, self.their_stdout) = [
                (ours.detach(), theirs.detach()) for ours, theirs in pairs
            ]
        else:
            self.their_stdin, stdin = os.pipe()
            stdout, self.their_stdout = os.pipe()
        self.stdin = End(stdin)
        self.stdout = End(stdout)

    def started(
        self, arguments: Sequence[str], environ: Mapping[str, str], *, fresh: bool, **more: Any
    ) -> Process:
        """Run `turnlog` with these ends; `fresh` as a shell would, with `more` for `Popen`."""
        with self.stderr.open("wb") as stderr:
            more |= {"stdin": self.their_stdin, "stdout": self.their_stdout, "env": environ}
            if fresh:
                command = [sys.executable, "-m", "turnlog", *arguments]
                process: Process = subprocess.Popen(command, stderr=stderr, **more)
            else:
                process = prefork.start(arguments, stderr=stderr.fileno(), **more)
        os.close(self.their_stdin)
        os.close(self.their_stdout)
        return process

    def close(self) -> None:
        """Close both ends."""
        self.stdin.close()
        self.stdout.close()


@contextmanager
def wrapping(
    folder: Path,
    *flags: str,
    rules: str = "",
    environ: Mapping[str, str] | None = None,
    name: str = "puppet",
    sockets: bool = False,
    **more: Any,
) -> Generator[Wrap]:
    """Wrap a puppet until the block ends; then nothing of it may be left, and nothing on stderr."""
    if rules:
        (folder / "rules.yaml").write_text(rules)
        flags = ("--rules", str(folder / "rules.yaml"), *flags)
    address = folder / f"puppet-{len(list(folder.glob('puppet-*')))}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        listener.settimeout(BOUND)
        # In the environment: all puppets are one command, and so one target.
        environ = {**(environ or {}), "PUPPET": str(address)}
        command = (sys.executable, "-I", "-S", "-c", PUPPET)
        with wrapped(
            folder, command, *flags, "--name", name, environ=environ, sockets=sockets, **more
        ) as wrap:
            wrap = structs.replace(wrap, of=Server(listener.accept()[0]))
            try:
                yield wrap
                if wrap.process.poll() is None and not wrap.server.stdin.closed:
                    assert wrap.finish() == 0
            finally:
                wrap.server.close()
    assert wrap.stderr.read_text() == ""
    assert is_gone(wrap.server.pid)


@contextmanager
def wrapped(
    folder: Path,
    command: Sequence[str],
    *flags: str,
    environ: Mapping[str, str] | None = None,
    sockets: bool = False,
    fresh: bool = False,
    bugs: Sequence[str] = (),
    **more: Any,
) -> Generator[Wrap]:
    """Wrap a command until the block ends; `more` is for `Popen`. `fresh` loads turnlog anew.

    `bugs` are the events in the log that come at a wrong stage.
    """
    near = Near(folder, sockets=sockets)
    options = [*flags, "--data", str(data_of(folder))]
    process = near.started(
        ["wrap", *options, "--", *command],
        environment(environ),
        fresh=fresh or bool(more),
        **more,
    )
    try:
        yield Wrap(
            process=process,
            data=data_of(folder),
            stdin=near.stdin,
            stdout=near.stdout,
            stderr=near.stderr,
        )
    finally:
        near.close()
        if process.poll() is None:
            process.kill()
        process.wait()
    logged = events_of(data_of(folder), "call.bug")
    assert [each["turnlog.happened"] for each in logged] == list(bugs)


def events_of(data: Path, name: str = "") -> list[dict[str, Any]]:
    """Return the lines of the log that all wraps of a store write, or those of one event."""
    file = data / "logs" / "wrap.jsonl"
    return events_in(file, name) if file.exists() else []


def pumped(data: bytes, source: End, target: End, size: int | None = None) -> bytes:
    """Write all of `data` at one side while `size` bytes are read at the other; return those.

    What is on its way may be more than pipes and turnlog hold.
    """
    got, rest = bytearray(), memoryview(data)
    while len(got) < (len(data) if size is None else size):
        if rest and source.can_send(0):
            rest = rest[source.send_some(rest) :]
        got += target.some(0 if rest else BOUND)
    return bytes(got)


def is_gone(pid: int) -> bool:
    """Wait until a process is no more, not even as a zombie."""
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), f"the end of process {pid}")
    return True


def text_answer(request_id: Any, text: str = "done", **more: Any) -> dict[str, Any]:
    """Return a tool's answer that is a text."""
    result = {"content": [{"type": "text", "text": text}], **more}
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def outcome(answer: Mapping[str, Any]) -> Any:
    """Return what turnlog says of a call in an answer."""
    return answer["result"]["_meta"]["turnlog/outcome"]


def initialize(wrap: Wrap, revision: str = "2025-11-25") -> None:
    """Shake hands."""
    info = {"name": "tester", "version": "1"}
    asked = wrap.asked(message("initialize", {"protocolVersion": revision, "clientInfo": info}))
    result = {"protocolVersion": revision, "capabilities": {}, "serverInfo": info}
    wrap.server.say({"jsonrpc": "2.0", "id": asked["id"], "result": result})
    wrap.stdout.line()


def result_of(value: Any) -> Callable[[Any], dict[str, Any]]:
    """Return what makes an answer of this result, for the id of a request."""
    return lambda request_id: {"jsonrpc": "2.0", "id": request_id, "result": value}


def error_of(code: int, text: str = "no") -> Callable[[Any], dict[str, Any]]:
    """Return what makes an answer of this error, for the id of a request."""
    error = {"code": code, "message": text}
    return lambda request_id: {"jsonrpc": "2.0", "id": request_id, "error": error}
