"""What the runner tells the load generator, and what it gets back: one JSON line each."""

from enum import StrEnum

from msgspec import Struct


class Request(StrEnum):
    """What one call of a run asks for."""

    GET = "get"
    READ = "read"
    WRITE = "write"
    GUARDED = "guarded"
    BIG = "big"


class Calls(Struct, frozen=True, kw_only=True, tag="calls"):
    """Call in closed loops for `seconds`, or until `limit` calls if that is not 0."""

    url: str
    request: Request
    connections: int
    seconds: float
    limit: int = 0
    bytes: int = 0
    """Size of the result; 0 is small."""


class Events(Struct, frozen=True, kw_only=True, tag="events"):
    """Open `streams` event streams at once, each of `events` events `interval_ms` apart."""

    url: str
    streams: int
    events: int
    interval_ms: float


class Idle(Struct, frozen=True, kw_only=True, tag="idle"):
    """Open streams and keep them open, each after its first event, until the next job."""

    url: str
    streams: int


class FirstByte(Struct, frozen=True, kw_only=True, tag="first_byte"):
    """Ask for one result whose second half comes `pause_ms` after the first."""

    url: str
    bytes: int
    pause_ms: float


Job = Calls | Events | Idle | FirstByte


class Report(Struct, frozen=True, kw_only=True):
    """What came of a job. Times of calls, events or first bytes in microseconds.

    `calls` counts right answers, `failures` the others. `cpu_seconds` is the load generator's own.
    """

    calls: int = 0
    failures: int = 0
    seconds: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    cpu_seconds: float = 0.0
    trouble: str = ""
    """The first wrong answer, shortened."""
