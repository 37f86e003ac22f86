"""A pytest plugin for the Python SDK's interaction suite: real sockets instead of its bridge.

All HTTP tests of the suite go through one class, `StreamingASGITransport`, which calls the server
application in the same process. Here the class serves the application with uvicorn on a loopback
socket and sends each request over a connection, either to that socket or to a turnlog in front of
it. URLs and Host headers of the tests stay as they are; only where the connection goes changes.

Runs in the SDK's environment, not in turnlog's. `MATRIX_TURNLOG` names the turnlog to start (none:
direct), `MATRIX_FOLDER` where its data and output go.
"""

# pyright: reportMissingImports=false, reportUnknownVariableType=false

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import anyio
import httpx2
import pytest
import uvicorn
from starlette.types import ASGIApp
from tests.interaction.transports import _bridge  # type: ignore[import-not-found]

TURNLOG = os.environ.get("MATRIX_TURNLOG")
FOLDER = Path(os.environ["MATRIX_FOLDER"])
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
# Below the range that the system gives to outgoing connections, so that a port that is free
# between two tests stays free.
FIRST_PORT = 21000 + 500 * WORKER
# Names in the URLs of the suite's tests, beside 127.0.0.1.
OTHER_HOSTS = "corp-as.example"
READY = 30.0
# How many applications one test serves at the same time.
AT_ONCE = 2
# A test of the suite that ends within 5 s in one process may need longer over sockets on a busy
# machine: one of them takes 4.6 s with nothing else to do and no proxy.
LIMIT = 5.0
LONGER = 6


class Place(NamedTuple):
    """Where an application listens, and where its clients connect."""

    port: int
    entry: httpx2.URL
    process: "subprocess.Popen[bytes] | None"


class Places:
    """The places of this worker; a turnlog is started once and serves one test after another."""

    def __init__(self) -> None:
        self.free: list[Place] = []
        self.all: list[Place] = []
        self._next_port = FIRST_PORT

    def take(self) -> Place:
        """Return a place that nobody uses, a new one if there is none."""
        if not self.free:
            self.free.append(self._open())
        return self.free.pop()

    def give_back(self, place: Place) -> None:
        """Let the next test use a place."""
        self.free.append(place)

    def close(self) -> None:
        """Stop every turnlog and write down how it ended."""
        for place in self.all:
            if place.process is not None:
                place.process.terminate()
        codes = [place.process.wait(30) for place in self.all if place.process is not None]
        (FOLDER / f"ended-{WORKER}.json").write_text(json.dumps(codes), encoding="utf-8")

    def _open(self) -> Place:
        port = self._free_port()
        if TURNLOG is None:
            place = Place(port, httpx2.URL(f"http://127.0.0.1:{port}"), None)
        else:
            place = start_turnlog(TURNLOG, port)
        self.all.append(place)
        return place

    def _free_port(self) -> int:
        while True:
            port = self._next_port
            self._next_port += 1
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                return port


def start_turnlog(command: str, port: int) -> Place:
    """Run a turnlog whose upstream is the application that will listen on `port`."""
    name = f"turnlog-{port}"
    upstream = f"http://127.0.0.1:{port}/mcp"
    output = FOLDER / f"{name}.out"
    with output.open("wb") as out, (FOLDER / f"{name}.err").open("wb") as err:
        process = subprocess.Popen(
            [
                *(command, "serve", "--upstream", upstream, "--listen", "127.0.0.1:0"),
                *("--data", str(FOLDER / name), "--log-format", "json"),
            ],
            env={**os.environ, "TURNLOG_ALLOW_HOSTS": OTHER_HOSTS},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
    return Place(port, ready_url(output), process)


def ready_url(output: Path) -> httpx2.URL:
    """Return the URL that turnlog says it serves."""
    end = time.monotonic() + READY
    while time.monotonic() < end:
        for line in output.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n") and (event := json.loads(line))["event"] == "proxy.ready":
                return httpx2.URL(event["turnlog.urls"][0])
        time.sleep(0.02)
    raise RuntimeError(f"turnlog was not ready within {READY} s")


places = Places()


class SocketTransport(httpx2.AsyncBaseTransport):
    """Serve an application on a socket and send requests to it over connections.

    With `cancel_on_close`, whatever the application still does at the end is cancelled; without
    it, closing waits until the application noticed that its clients are gone.
    """

    def __init__(self, app: ASGIApp, *, cancel_on_close: bool = True) -> None:
        self._cancel = cancel_on_close
        config = uvicorn.Config(app, lifespan="off", log_level="critical", ws="none")
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self._http = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=None))

    async def __aenter__(self) -> "SocketTransport":
        self._place = places.take()
        listener = socket.create_server(("127.0.0.1", self._place.port), backlog=128)
        await self._server.startup(sockets=[listener])
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._http.__aexit__(exc_type, exc_value, traceback)
        if self._cancel:
            for task in self._server.server_state.tasks:
                task.cancel()
        await self._stop()
        places.give_back(self._place)

    async def _stop(self) -> None:
        """Do what uvicorn's own shutdown does, without its fixed pause of 0.1 s per test."""
        for server in self._server.servers:
            server.close()
        state = self._server.server_state
        for connection in list(state.connections):
            connection.shutdown()
        async with asyncio.timeout(10):
            while state.connections or state.tasks:  # noqa: ASYNC110 - uvicorn signals nothing
                await asyncio.sleep(0.002)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request as it is, to where the application can be reached."""
        entry = self._place.entry
        moved = httpx2.Request(
            request.method,
            request.url.copy_with(scheme="http", host=entry.host, port=entry.port),
            headers=request.headers,
            stream=request.stream,
            extensions=request.extensions,
        )
        return await self._http.handle_async_request(moved)


fail_after = anyio.fail_after


def fail_later(
    delay: float | None, shield: bool = False
) -> contextlib.AbstractContextManager[anyio.CancelScope]:
    """Do what `anyio.fail_after` does, with more time where a test limits itself."""
    return fail_after(delay * LONGER if delay and delay >= LIMIT else delay, shield)


_bridge.StreamingASGITransport = SocketTransport
anyio.fail_after = fail_later  # type: ignore[assignment]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Open as many places as one test needs, before the suite watches for blocking calls."""
    if is_worker():
        for place in [places.take() for _ in range(AT_ONCE)]:
            places.give_back(place)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop what this worker started."""
    if is_worker():
        places.close()


def is_worker() -> bool:
    """Tell the processes that run tests from the one that hands them out."""
    return "PYTEST_XDIST_WORKER" in os.environ
