"""Run scenarios through proxies, interleaved, and turn what happened into samples."""

import time
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import assert_never

from msgspec import Struct
from msgspec.json import Decoder

from .children import Child, LoadGenerator
from .jobs import Calls, Events, FirstByte, Idle, Job, Report, Request
from .proxies import Running
from .samples import Sample

_PATIENCE = 60.0
_MIB = 1 << 20


class Scenario(Struct, frozen=True, kw_only=True):
    """A row of the table. `limit` bounds the calls where one costs much disk."""

    name: str
    about: str
    request: Request = Request.READ
    connections: int = 16
    bytes: int = 0
    limit: int = 0
    events: int = 0

    def job(self, url: str, seconds: float) -> Job:
        """Return what the load generator is to do."""
        if self.events:
            return Events(url=url, streams=self.connections, events=self.events, interval_ms=10)
        return Calls(
            url=url,
            request=self.request,
            connections=self.connections,
            seconds=seconds,
            limit=self.limit,
            bytes=self.bytes,
        )


def _calls(request: Request, connections: int, about: str) -> Scenario:
    name = f"{request}-{connections}"
    return Scenario(name=name, about=about, request=request, connections=connections)


_READ = "tools/call of a trusted read, recorded, nothing waits for the disk"
_WRITE = "tools/call of unknown effect, both commits durable"
_GUARDED = "tools/call of a named write: durable, found again by who repeats it, its delivery noted"

SCENARIOS = (
    _calls(Request.GET, 16, "plain HTTP GET, recorded, nothing waits for the disk"),
    *(_calls(Request.READ, n, _READ) for n in (1, 16, 64)),
    *(_calls(Request.WRITE, n, _WRITE) for n in (1, 16, 64)),
    _calls(Request.GUARDED, 64, _GUARDED),
    Scenario(
        name="big-1mb",
        about="read of a 1 MB result, 4 connections",
        request=Request.BIG,
        connections=4,
        bytes=_MIB,
        limit=120,
    ),
    Scenario(
        name="big-10mb",
        about="read of a 10 MB result, 2 connections",
        request=Request.BIG,
        connections=2,
        bytes=10 * _MIB,
        limit=12,
    ),
    Scenario(
        name="events-16",
        about="16 streams of 40 events each, 10 ms apart; times are one event's",
        request=Request.WRITE,
        events=40,
    ),
)
PEER_SCENARIO = next(scenario for scenario in SCENARIOS if scenario.name == "read-16")


class Counters(Struct, frozen=True):
    """What reached the upstream so far."""

    requests: int
    connections: int


class Bench:
    """The load generator, the upstream's port and the proxies that stand between them."""

    def __init__(self, load: LoadGenerator, upstream: int) -> None:
        self.load = load
        self.upstream = upstream
        self.commits: Counter[str] = Counter()
        """What a proxy that records has recorded of the calls made so far, by proxy."""

    def do(self, proxy: Running, job: Job, seconds: float) -> Report:
        """Have a job done through `proxy`, and count its calls."""
        report = self.load.do(job, seconds + _PATIENCE)
        self.commits[proxy.name] += calls_of(job, report) * commits_of(job)
        return report

    def counters(self) -> Counters:
        """Ask the upstream what reached it."""
        connection = HTTPConnection("127.0.0.1", self.upstream, timeout=10)
        connection.request("GET", "/counters")
        answer = connection.getresponse().read()
        connection.close()
        return Decoder(Counters).decode(answer)

    def sample(self, scenario: Scenario, proxy: Running, turn: int, seconds: float) -> Sample:
        """Run one scenario through one proxy."""
        before, counted = Cost.of(proxy.child), self.counters()
        if proxy.child:
            proxy.child.forget_peak()
        report = self.do(proxy, scenario.job(proxy.url, seconds), seconds)
        after, reached = Cost.of(proxy.child), self.counters()
        answers = report.calls + report.failures
        return Sample(
            scenario=scenario.name,
            proxy=proxy.name,
            round=turn,
            calls=report.calls,
            failures=report.failures,
            seconds=report.seconds,
            p50=report.p50,
            p99=report.p99,
            cpu=(after.cpu - before.cpu) * 1e6 / max(answers, 1),
            load_share=report.cpu_seconds / max(report.seconds, 1e-9),
            anonymous=after.anonymous,
            peak_growth=after.peak - before.resident,
            upstream_requests=reached.requests - counted.requests - 1 - handshakes(scenario),
            upstream_connections=reached.connections - counted.connections - 1,
            written=after.written - before.written,
            trouble=report.trouble,
        )

    def idle_kib(self, proxy: Running, streams: int) -> float | None:
        """Return the memory per idle event stream; `None` if not all of them opened."""
        if not proxy.child:
            return None
        before = proxy.child.anonymous_kib()
        report = self.do(proxy, Idle(url=proxy.url, streams=streams), 0)
        growth = proxy.child.anonymous_kib() - before
        return None if report.failures else growth / streams

    def first_byte_ms(self, proxy: Running, pause_ms: float) -> float:
        """Return when the first byte of a 2 MiB result came whose second half was held back."""
        job = FirstByte(url=proxy.url, bytes=2 * _MIB, pause_ms=pause_ms)
        return self.do(proxy, job, 0).p50 / 1e3


class Cost(Struct, frozen=True):
    """What a process has used up so far."""

    cpu: float = 0.0
    anonymous: int = 0
    resident: int = 0
    peak: int = 0
    written: int = 0

    @classmethod
    def of(cls, child: Child | None) -> "Cost":
        """Read it; nothing for no process."""
        if not child:
            return cls()
        return cls(
            child.cpu_seconds(),
            child.anonymous_kib(),
            child.resident_kib(),
            child.peak_kib(),
            child.written_bytes(),
        )


def calls_of(job: Job, report: Report) -> int:
    """Return how many calls a job has made: a stream is one call, however many events it has."""
    match job:
        case Calls() | FirstByte():
            return report.calls + report.failures
        case Events() | Idle():
            return job.streams
        case _:
            assert_never(job)


def commits_of(job: Job) -> int:
    """Return how many commits one call leaves: intent, outcome, and that a guarded one arrived."""
    return 3 if isinstance(job, Calls) and job.request is Request.GUARDED else 2


def handshakes(scenario: Scenario) -> int:
    """Return how many requests the load generator sends before the first call."""
    return 0 if scenario.request is Request.GET else 3


def interleaved(proxies: list[Running], rounds: int) -> Iterator[tuple[int, list[Running]]]:
    """Yield each round with its order: rotated, so that nobody always runs first."""
    for turn in range(rounds):
        start = turn % len(proxies)
        yield turn, proxies[start:] + proxies[:start]


def settle() -> None:
    """Let what a run left behind (closing sockets, a last commit) end before the next."""
    time.sleep(0.02)
