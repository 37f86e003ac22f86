"""Start, watch, stop and kill turnlog: as a process of its own, or on the test's own loop.

All that one proxy writes stays below the folder it is given: `data`, `settings.yaml`, and what it
printed. A proxy that is started again in the same folder goes on with the same data.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kit import prefork
from kit.clients import wait_until
from turnlog.app.serve import serving
from turnlog.observe.logs import configure
from turnlog.sessions import log
from turnlog.sessions.log import Query
from turnlog.sessions.rows import Row
from turnlog.sessions.verify import Anchor, Finding, verify
from turnlog.settings.layers import Flags, read_settings
from turnlog.store.base import Blob, Filter
from turnlog.store.lmdb import LmdbReader

T = TypeVar("T")

READY = 30.0
"""s: a proxy that does not accept calls by then is broken, however busy the machine is."""
STOPPED = 20.0
"""s: calls under way may take 8 s to finish after SIGTERM."""
_ANY_PORT = "127.0.0.1:0"
_POLL = 0.01


class Proxy:
    """A `turnlog serve` that runs, or did."""

    def __init__(
        self, process: "prefork.Process | subprocess.Popen[bytes]", folder: Path, number: int
    ) -> None:
        self.process = process
        self.data = data_of(folder)
        self.urls: list[str] = []
        """What an agent is told to use, one URL per upstream."""
        self.stdout = folder / f"proxy-{number}.out"
        self.stderr = folder / f"proxy-{number}.err"

    @property
    def url(self) -> str:
        """The URL of the only upstream."""
        (url,) = self.urls
        return url

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """Return the log lines so far, or those of one event; a line half written is left out."""
        return events_in(self.stdout, name)

    def told(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until the log has `count` lines of an event: it is written beside the calls."""
        wait_until(lambda: len(self.events(name)) >= count, f"{count} times {name}")
        return self.events(name)

    async def event(self, name: str, **fields: object) -> dict[str, Any]:
        """Wait for the first log line of an event whose fields are these."""
        return await until(lambda: self._event(name, fields), f"the event {name!r} with {fields!r}")

    def rows(self) -> list[Row]:
        """Return the log's rows, oldest first, as a reader beside the proxy sees them."""
        return rows(self.data)

    async def row(self, wanted: Callable[[Row], bool]) -> Row:
        """Wait for a row that fits."""
        return await until(lambda: next(filter(wanted, self.rows()), None), "the row")

    def kill(self) -> None:
        """End the process the hard way, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask the process to end, and return its exit code."""
        self.process.send_signal(number)
        return await until(self.process.poll, "the end of the proxy", STOPPED)

    def _event(self, name: str, fields: Mapping[str, object]) -> dict[str, Any] | None:
        found = (e for e in self.events(name) if fields.items() <= e.items())
        return next(found, None)

    def _started(self) -> list[str] | None:
        if ready := self.events("proxy.ready"):
            urls: list[str] = ready[0]["turnlog.urls"]
            return urls
        assert self.process.poll() is None, self.stderr.read_text("utf-8", "replace")
        return None

    async def ready(self) -> None:
        """Wait until calls are accepted."""
        self.urls = await until(self._started, "proxy.ready", READY)


@asynccontextmanager
async def running(
    folder: Path,
    *upstreams: str,
    settings: Mapping[str, object] | None = None,
    flags: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> AsyncGenerator[Proxy]:
    """Run `turnlog serve` in a process until the block ends; then it must stop without complaint.

    `upstreams` are `[NAME=]URL`, `settings` what its configuration file says. A process that the
    block killed or stopped itself is left as it is.
    """
    arguments = [*_options(folder, upstreams, settings), *flags]
    proxy = _launched(folder, arguments, environment(environ))
    try:
        await proxy.ready()
        yield proxy
        if proxy.process.poll() is None:
            assert await proxy.stop() == 0
            assert proxy.stderr.read_text("utf-8", "replace") == ""
        assert not events_in(proxy.stdout, "call.bug")
    finally:
        proxy.kill()


class Serving(msgspec.Struct, frozen=True):
    """A proxy on the test's own loop. Its rows can be read once it has ended: see `rows`."""

    urls: tuple[str, ...]
    data: Path
    stdout: Path

    @property
    def url(self) -> str:
        """The URL of the only upstream."""
        (url,) = self.urls
        return url


@asynccontextmanager
async def here(
    folder: Path, *upstreams: str, settings: Mapping[str, object] | None = None
) -> AsyncGenerator[Serving]:
    """Serve on this loop until the block ends: no process to start, everything else the same.

    Each line of the log is written, those of level debug too. At the end of the block calls under
    way may finish, as after SIGTERM.
    """
    config = _write(folder, settings or {})
    flags = Flags(
        config=str(config) if config else None,
        upstreams=upstreams,
        listen=_ANY_PORT,
        data=str(data_of(folder)),
    )
    chosen = read_settings(flags=flags, environ={}, folder=folder)
    stdout = folder / f"proxy-{_next_number(folder)}.out"
    with stdout.open("wb") as stream:
        logs = configure("json", "debug", stream)
        try:
            async with serving(chosen, logs) as proxy:
                yield Serving(proxy.urls(), chosen.data, stdout)
                await proxy.drain("the test has ended")
        finally:
            logs.close()
    assert not events_in(stdout, "call.bug")


def data_of(folder: Path) -> Path:
    """Return where a proxy that was given `folder` keeps its data."""
    return folder / "data"


def rows(data: Path) -> list[Row]:
    """Return the rows of a store that is not open in this process, oldest first."""
    reader = LmdbReader.open(data)
    try:
        with reader.view() as view:
            return list(log.read_rows(view, Query()))
    finally:
        reader.close()


def findings(data: Path) -> list[Finding]:
    """Return what `verify` says of each session of such a store."""
    reader = LmdbReader.open(data)
    try:
        with reader.view() as view:
            return [
                verify(
                    row.session, view.headers(row.session), [Anchor(row.head_seq, row.head_hash)]
                )
                for row in view.sessions()
            ]
    finally:
        reader.close()


def payloads(data: Path) -> list[bytes]:
    """Return every input and output that such a store keeps: on disk they are compressed."""
    reader = LmdbReader.open(data)
    try:
        with reader.view() as view:
            commits = [
                commit for made in view.attempts(Filter(), newest_first=False) for commit in made
            ]
            bodies = [commit.body for commit in commits if commit.body is not None]
            handles = [
                name for body in bodies for name in (body.input_blob, body.output_blob) if name
            ]
            return [blob.data for blob in map(view.blob, handles) if isinstance(blob, Blob)]
    finally:
        reader.close()


def events_in(file: Path, name: str = "") -> list[dict[str, Any]]:
    """Return the log lines in a file, or those of one event; a line half written is left out."""
    lines = file.read_bytes().splitlines(keepends=True)
    events = [msgspec.json.decode(line) for line in lines if line.endswith(b"\n")]
    return [event for event in events if not name or event["event"] == name]


def written(folder: Path) -> dict[Path, bytes]:
    """Return all that a proxy wrote, file by file: its data and its log. Not its settings."""
    files = [*data_of(folder).rglob("*"), *folder.glob("proxy-*")]
    return {file: file.read_bytes() for file in files if file.is_file()}


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without turnlog's own variables, and with `more`."""
    kept = {key: text for key, text in os.environ.items() if not key.startswith("TURNLOG_")}
    return kept | dict(more or {})


async def until(look: Callable[[], T | None], what: str, seconds: float = READY) -> T:
    """Look again and again until there is something to see; return it."""
    end = time.monotonic() + seconds
    while (found := look()) is None:
        assert time.monotonic() < end, f"no sign of {what} within {seconds} s"
        await asyncio.sleep(_POLL)
    return found


def _launched(folder: Path, arguments: Sequence[str], environ: Mapping[str, str]) -> Proxy:
    number = _next_number(folder)
    out, err = (folder / f"proxy-{number}.{end}" for end in ("out", "err"))
    nothing = Path(os.devnull)
    with nothing.open() as stdin, out.open("wb") as stdout, err.open("wb") as stderr:
        process = prefork.start(
            ["serve", *arguments],
            stdin=stdin.fileno(),
            stdout=stdout.fileno(),
            stderr=stderr.fileno(),
            env=environ,
        )
    return Proxy(process, folder, number)


def _next_number(folder: Path) -> int:
    """Return a number that no earlier proxy of this folder has."""
    return len(list(folder.glob("proxy-*.out")))


def _options(
    folder: Path, upstreams: Sequence[str], settings: Mapping[str, object] | None
) -> list[str]:
    config = _write(folder, settings or {})
    named = ["--config", str(config)] if config else []
    given = [part for upstream in upstreams for part in ("--upstream", upstream)]
    return [*named, *given, "--listen", _ANY_PORT, "--data", str(data_of(folder))]


def _write(folder: Path, settings: Mapping[str, object]) -> Path | None:
    """Write a configuration file, if there is anything to say. JSON is YAML."""
    if not settings:
        return None
    file = folder / "settings.yaml"
    file.write_bytes(msgspec.json.encode(settings))
    return file
