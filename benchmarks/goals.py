"""The goals of the project and whether a run met them; pure."""

from collections.abc import Callable

from msgspec import Struct

from .facts import Facts
from .samples import Metric, Samples, cpu, p99, rate

BARE = "bare aiohttp"
OURS = "turnlog"
WITHOUT_INPUTS = "turnlog, inputs off"
_EVENT_INTERVAL_US = 10_000


class Goal(Struct, frozen=True):
    """One line of the verdicts. `value` is `None` where nothing was measured."""

    name: str
    value: float | None
    bound: float
    at_least: bool
    unit: str = "x"

    @property
    def verdict(self) -> str:
        """Say met, missed or not measured."""
        if self.value is None:
            return "not measured"
        met = self.value >= self.bound if self.at_least else self.value <= self.bound
        return "met" if met else "missed"


def at_least(name: str, value: float | None, bound: float, unit: str = "x") -> Goal:
    """Return a goal that more is better for."""
    return Goal(name, value, bound, at_least=True, unit=unit)


def at_most(name: str, value: float | None, bound: float, unit: str = "x") -> Goal:
    """Return a goal that less is better for."""
    return Goal(name, value, bound, at_least=False, unit=unit)


def required(samples: Samples, facts: Facts) -> list[Goal]:
    """Return the goals that a release must meet."""
    ratio = _against(samples)
    grown = [
        at_most(
            f"memory: growth from {since:,} calls to {until:,}",
            facts.soak.growth(since, until) * 100 if facts.soak else None,
            3.0,
            "%",
        )
        for since, until in ((100_000, 200_000), (200_000, 600_000))
    ]
    return [
        at_least("reads (GET, 16): calls/s by bare aiohttp", ratio("get-16", BARE, rate), 0.7),
        at_least("reads (MCP, 16): calls/s by bare aiohttp", ratio("read-16", BARE, rate), 0.7),
        at_least("reads (MCP, 64): calls/s by bare aiohttp", ratio("read-64", BARE, rate), 0.7),
        at_least("writes (64): calls/s by bare aiohttp", ratio("write-64", BARE, rate), 0.6),
        *grown,
        at_least("recorded: commits by what the calls should leave", facts.recorded, 1.0),
        at_most("wrong answers, all scenarios", _failures(samples), 0, ""),
    ]


def wanted(samples: Samples, facts: Facts) -> list[Goal]:
    """Return the goals of the design, for information."""
    return [
        *_costs(samples),
        *_latencies(samples, facts),
        *_disk(samples, facts),
        *_large(samples, facts),
        at_most("10 start over existing data", facts.start_ms, 1000, "ms"),
        at_most("10 turnlog log --last 20", facts.log_ms, 300, "ms"),
    ]


def _costs(samples: Samples) -> list[Goal]:
    ratio = _against(samples)
    return [
        at_most("1 reads: CPU per call by bare aiohttp", ratio("read-16", BARE, cpu), 0.33),
        at_most("1 reads: CPU per call by nginx", ratio("read-16", "nginx", cpu), 3.3),
        at_most("1 reads: CPU by that without inputs", ratio("read-16", WITHOUT_INPUTS, cpu), 1.25),
        at_most(
            "2 writes: CPU by that without inputs", ratio("write-16", WITHOUT_INPUTS, cpu), 1.25
        ),
        at_most("2 writes (64): CPU per call by bare aiohttp", ratio("write-64", BARE, cpu), 0.45),
        at_least("2 writes (64): calls/s by bare aiohttp", ratio("write-64", BARE, rate), 2.2),
        at_least("3 calls/s by mcp-proxy", ratio("read-16", "mcp-proxy", rate), 20),
        at_least("3 calls/s by fastmcp, reused", ratio("read-16", "fastmcp reused", rate), 40),
        at_least("3 calls/s by mitmproxy", ratio("read-16", "mitmproxy", rate), 15),
    ]


def _latencies(samples: Samples, facts: Facts) -> list[Goal]:
    read, write = samples.added("read-1", OURS), samples.added("write-1", OURS)
    bare = samples.added("read-1", BARE)
    reads = read / bare if read is not None and bare else None
    syncs = None
    if read is not None and write is not None and facts.fsync_ms:
        syncs = (write - read) / 1e3 / facts.fsync_ms
    return [
        at_most("4 reads (1): added p50 by bare aiohttp's", reads, 0.6),
        at_most("4 writes (1): p50 over reads, in fsync controls", syncs, 2.0),
    ]


def _disk(samples: Samples, facts: Facts) -> list[Goal]:
    # Two commits per call; the log lines on stdout are in it as well.
    written = samples.middle("write-64", OURS, lambda s: s.written / max(s.calls, 1) / 2048)
    disk = facts.soak.disk_bytes / facts.soak.payload_bytes if facts.soak else None
    return [
        at_most("6 disk used by payload", disk, 1.25),
        at_most("6 written per commit, 64 connections", written, 5.0, "KiB"),
    ]


def _large(samples: Samples, facts: Facts) -> list[Goal]:
    ratio = _against(samples)
    held = samples.middle("big-10mb", OURS, lambda s: s.peak_growth / 2 / 1024)
    once = samples.middle(
        "read-16", OURS, lambda s: s.upstream_requests / max(s.calls + s.failures, 1)
    )
    late = samples.middle("events-16", OURS, p99)
    return [
        at_most("8 1 MB result: CPU by nginx", ratio("big-1mb", "nginx", cpu), 1.3),
        at_most("8 10 MB result: peak memory per call in flight", held, 2.0, "MiB"),
        at_most("8 first byte of a 2 MiB result paused for 200 ms", facts.first_byte_ms, 100, "ms"),
        at_most("8 upstream requests per call", once, 1.0, ""),
        at_most("8 events: p99 within the interval", late, _EVENT_INTERVAL_US, "us"),
        at_most("8 memory per idle stream", facts.idle_kib, 30, "KiB"),
    ]


def _against(samples: Samples) -> Callable[[str, str, Metric], float | None]:
    """Return a function of scenario, control and metric: our ratio there."""

    def ratio(scenario: str, control: str, metric: Metric) -> float | None:
        return samples.ratio(scenario, OURS, control, metric)

    return ratio


def _failures(samples: Samples) -> float | None:
    ours = [sample.failures for sample in samples.all if sample.proxy == OURS]
    return sum(ours) if ours else None
