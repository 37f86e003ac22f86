"""Play a case: the scripted upstream and the client run in processes of their own."""

import asyncio
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import msgspec

from conformance.cases.reports import Entry, Report
from kit.proxy import until

_PLAY = Path(__file__).with_name("play.py")
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
        await process.wait()


async def client(case: Path, origin: str) -> Report:
    """Send the case's requests to `origin`; return what came back."""
    process = await _python("--client", origin, str(case), output=PIPE)
    try:
        async with asyncio.timeout(_LIMIT):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, f"the player ended with {process.returncode}"
    return msgspec.json.decode(output, type=Report)


async def _listening(case: Path, log: Path) -> tuple[Process, int]:
    """Start an upstream. It cannot choose its port itself: the script may speak of it."""
    while True:
        port = _free_port()
        _empty(log)
        process = await _python(
            "--upstream-port", str(port), "--log", str(log), str(case), output=DEVNULL
        )
        await until(partial(_begun, process, log), "the scripted upstream")
        if process.returncode is None:
            return process, port
        # Somebody took the port in between: another one.


def _begun(process: Process, log: Path) -> bool | None:
    """Tell whether an upstream either listens or has given up."""
    return process.returncode is not None or log.stat().st_size > 0 or None


def _empty(log: Path) -> None:
    log.write_bytes(b"")


async def _python(*arguments: str, output: int) -> Process:
    # -I -S: nothing but the standard library, which starts in a third of the time.
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(_PLAY), *arguments),
        stdin=DEVNULL,
        stdout=output,
        stderr=DEVNULL,
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
