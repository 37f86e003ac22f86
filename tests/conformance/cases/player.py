"""Play a case: the scripted upstream and the client run in processes of their own."""

import os
import socket
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import msgspec

from conformance.cases.forked_play import PROGRAM
from conformance.cases.reports import Entry, Report
from kit import prefork
from kit.proxy import until

_LIMIT = 60.0
"""s: no case takes half as long."""


class Upstream(msgspec.Struct, frozen=True):
    """A scripted upstream that runs, and the file that it writes its log to."""

    port: int
    log: Path

    @property
    def origin(self) -> str:
        """Its URL without a path."""
        return f"http://127.0.0.1:{self.port}"

    def entries(self) -> list[Entry]:
        """Return its log so far."""
        lines = self.log.read_bytes().splitlines(keepends=True)
        return [msgspec.json.decode(line, type=Entry) for line in lines if line.endswith(b"\n")]


@asynccontextmanager
async def upstream(case: Path, log: Path, *, listens: bool) -> AsyncGenerator[Upstream]:
    """Run the case's upstream until the block ends; without `listens`, a port that refuses."""
    if not listens:
        _empty(log)
        with _refusing_port() as port:
            yield Upstream(port, log)
        return
    process, port = await _listening(case, log)
    try:
        yield Upstream(port, log)
    finally:
        process.kill()
        process.wait()


async def client(case: Path, origin: str) -> Report:
    """Send the case's requests to `origin`; return what came back."""
    with tempfile.TemporaryFile() as output:
        process = _started("--client", origin, str(case), stdout=output.fileno())
        try:
            code = await until(process.poll, "the end of the client", _LIMIT)
        finally:
            process.kill()
        assert code == 0, f"the player ended with {code}"
        output.seek(0)
        return msgspec.json.decode(output.read(), type=Report)


async def _listening(case: Path, log: Path) -> tuple[prefork.Process, int]:
    """Start an upstream. It cannot choose its port itself: the script may speak of it."""
    while True:
        port = _free_port()
        _empty(log)
        process = _started("--upstream-port", str(port), "--log", str(log), str(case))
        await until(partial(_begun, process, log), "the scripted upstream")
        if process.poll() is None:
            return process, port
        # Somebody took the port in between: another one.


def _begun(process: prefork.Process, log: Path) -> bool | None:
    """Tell whether an upstream either listens or has given up."""
    return process.poll() is not None or log.stat().st_size > 0 or None


def _empty(log: Path) -> None:
    log.write_bytes(b"")


def _started(*arguments: str, stdout: int | None = None) -> prefork.Process:
    with Path(os.devnull).open("r+b") as file:
        nothing = file.fileno()
        return prefork.start(
            arguments,
            stdin=nothing,
            stdout=nothing if stdout is None else stdout,
            stderr=nothing,
            env=os.environ,
            program=PROGRAM,
        )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def _refusing_port() -> Generator[int]:
    """Hold a port without listening on it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        yield port
