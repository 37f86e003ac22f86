"""What is measured once per run, beside the table: disk, start, streams, first byte, memory."""

import os
import subprocess
import time
from pathlib import Path
from statistics import median

from msgspec import Struct
from msgspec.json import Decoder

from .children import Children
from .jobs import Calls, Request
from .measure import Bench
from .proxies import Running, command, start_turnlog

SOAK_CALLS = 600_000
_SOAK_STEP = 10_000
_SOAK_CONNECTIONS = 64
_SOAKED = (Request.READ, Request.WRITE, Request.GUARDED)
_STEP_SECONDS = 120.0
_RECORD = b"r" * 300


class SoakPoint(Struct, frozen=True):
    """Memory after so many calls, in KiB. `anonymous` is without mapped files."""

    calls: int
    anonymous: int
    resident: int
    failures: int


class Soak(Struct, frozen=True):
    """The memory over a long run, and what it left on the disk."""

    points: list[SoakPoint]
    disk_bytes: int
    payload_bytes: int

    def growth(self, since: int, until: int) -> float:
        """Growth of the memory between two numbers of calls, as a share of what it was at the first.

        Looked at after each kind of call: the median of the three last points.
        """
        before, after = (
            median([p.anonymous for p in self.points if p.calls <= calls][-3:])
            for calls in (since, until)
        )
        return after / before - 1


class Usage(Struct, frozen=True):
    """What the store says that it holds."""

    commits: int
    sessions: int


class Status(Struct, frozen=True):
    """What `turnlog status --json` prints, as far as it is looked at."""

    usage: Usage


class Facts(Struct, kw_only=True):
    """All of them; `None` is not measured. Times in milliseconds."""

    recorded: float | None = None
    """Share of the commits in turnlog's log that the calls which reached it should have left."""

    fsync_ms: float | None = None
    idle_kib: float | None = None
    first_byte_ms: float | None = None
    start_ms: float | None = None
    log_ms: float | None = None
    soak: Soak | None = None


def fsync_ms(folder: Path, times: int = 100) -> float:
    """Return the median time to append a record of 300 B and wait until the disk has it."""
    taken: list[float] = []
    with (folder / "fsync-control").open("ab", buffering=0) as file:
        for _ in range(times):
            began = time.perf_counter()
            file.write(_RECORD)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return median(taken) * 1e3


def soak(bench: Bench, proxy: Running, data: Path, total: int) -> Soak:
    """Make `total` calls, of each kind in turns, and look at the memory in between."""
    points: list[SoakPoint] = []
    child = proxy.child
    if child is None:
        raise ValueError("no process to watch")
    before = disk_bytes(data)
    for number in range(total // _SOAK_STEP):
        job = Calls(
            url=proxy.url,
            request=_SOAKED[number % len(_SOAKED)],
            connections=_SOAK_CONNECTIONS,
            seconds=_STEP_SECONDS,
            limit=_SOAK_STEP,
        )
        failures = bench.do(proxy, job, 2 * _STEP_SECONDS).failures
        done = (number + 1) * _SOAK_STEP
        points.append(SoakPoint(done, child.anonymous_kib(), child.resident_kib(), failures))
    # About 230 B of arguments and 500 B of result: what the calls carried.
    return Soak(points, disk_bytes(data) - before, total * 730)


def disk_bytes(folder: Path) -> int:
    """Return the room that `folder` takes on the disk; sparse files count as what they hold."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def start_ms(children: Children, config: Path, data: Path) -> float:
    """Return the time from the command to the line `proxy.ready`, over existing data."""
    began = time.perf_counter()
    running = start_turnlog(children, config, data)
    taken = (time.perf_counter() - began) * 1e3
    if running.child:
        children.stop(running.child)
    return taken


def recorded(data: Path, commits: int) -> float:
    """Return how many commits the log holds by those that the calls should have left."""
    printed = subprocess.run(
        [command(), "status", "--json", "--data", data], check=True, capture_output=True
    ).stdout
    usage = Decoder(Status).decode(printed).usage
    # Each session begins with a commit of its own.
    return (usage.commits - usage.sessions) / commits if commits else 0.0


def log_ms(data: Path) -> float:
    """Return the median time of `turnlog log --last 20`, beside nothing else."""
    taken: list[float] = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(
            [command(), "log", "--last", "20", "--data", data], check=True, capture_output=True
        )
        taken.append(time.perf_counter() - began)
    return median(taken) * 1e3
