"""What was measured, and the numbers drawn from it: medians and ratios within a round.

Only ratios of samples of one round are compared: both ran within the same few seconds, so what
else the machine does weighs on both.
"""

from collections.abc import Callable, Iterable
from statistics import median

from msgspec import Struct


class Sample(Struct, frozen=True, kw_only=True):
    """One run of one scenario through one proxy. Times in microseconds, memory in KiB."""

    scenario: str
    proxy: str
    round: int
    calls: int
    failures: int
    seconds: float
    p50: float
    p99: float
    cpu: float
    """Processor time of the proxy per call; 0 where there is no proxy."""
    load_share: float
    """Share of the time that the load generator computed; near 1 it is the limit."""
    anonymous: int
    """Memory of the proxy without mapped files, afterwards."""
    peak_growth: int
    """The most memory during the run over that before it."""
    upstream_requests: int
    """Requests that reached the upstream, handshake not counted."""
    upstream_connections: int
    """Connections that were opened to the upstream."""
    written: int
    """Bytes that the proxy made the disk write, its log lines included."""
    trouble: str
    """The first wrong answer, shortened."""

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self.calls / self.seconds if self.seconds else 0.0


Metric = Callable[[Sample], float]


def rate(sample: Sample) -> float:
    """Calls per second."""
    return sample.rate


def cpu(sample: Sample) -> float:
    """Processor time of the proxy per call."""
    return sample.cpu


def p50(sample: Sample) -> float:
    """The middle time of a call or event."""
    return sample.p50


def p99(sample: Sample) -> float:
    """The time that one call or event in a hundred exceeds."""
    return sample.p99


class Samples:
    """All samples of one run."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.all = tuple(samples)

    def of(self, scenario: str, proxy: str) -> dict[int, Sample]:
        """Return the samples of one cell of the table, by round."""
        return {s.round: s for s in self.all if s.scenario == scenario and s.proxy == proxy}

    def proxies(self, scenario: str) -> list[str]:
        """Return the proxies that were measured in `scenario`, as first seen."""
        return list(dict.fromkeys(s.proxy for s in self.all if s.scenario == scenario))

    def middle(self, scenario: str, proxy: str, metric: Metric) -> float | None:
        """Return the median over the rounds."""
        values = [metric(sample) for sample in self.of(scenario, proxy).values()]
        return median(values) if values else None

    def ratio(self, scenario: str, proxy: str, control: str, metric: Metric) -> float | None:
        """Return the median over the rounds of `proxy` by `control`."""
        return self._paired(scenario, proxy, control, metric, _quotient)

    def added(self, scenario: str, proxy: str) -> float | None:
        """Return the median over the rounds of what `proxy` adds to the p50 of no proxy."""
        return self._paired(scenario, proxy, "direct", p50, _difference)

    def _paired(
        self,
        scenario: str,
        proxy: str,
        control: str,
        metric: Metric,
        combine: Callable[[float, float], float | None],
    ) -> float | None:
        ours, theirs = self.of(scenario, proxy), self.of(scenario, control)
        both = ours.keys() & theirs.keys()
        values = [combine(metric(ours[n]), metric(theirs[n])) for n in both]
        known = [value for value in values if value is not None]
        return median(known) if known else None


def _quotient(ours: float, theirs: float) -> float | None:
    return ours / theirs if theirs else None


def _difference(ours: float, theirs: float) -> float:
    return ours - theirs
