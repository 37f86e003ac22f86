"""What a case says, and what the player and the scripted upstream report of a run."""

from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

INPUTS = Path(__file__).parent / "inputs"

YesNo = Literal["yes", "no"]


class Direct(Struct, frozen=True, forbid_unknown_fields=True):
    """How a request ends when nothing stands between client and upstream."""

    status: int | None
    complete: bool
    error: str | None


class Wanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a case expects of one request. Times are in seconds, from the request's start."""

    status: Literal["2xx", "4xx", "5xx", "2xx-or-4xx", "2xx-or-5xx", "none"]
    same_body_as_upstream: Literal["yes", "yes, endpoint path excepted", "no", "partial", "n/a"]
    error: str
    outcome_known: YesNo
    retry_safe: YesNo
    direct: Direct
    answer: Literal["", "proxy_error"] = ""
    within_s: float | None = None
    not_before_s: float | None = None
    first_chunk_within_s: float | None = None
    chunks_min: int = 0
    bytes_min: int = 0
    body_contains: str = ""
    header_kept: str = ""
    request_body_reaches_upstream_unchanged: str = ""


class WantedUpstream(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often the tools may run, and how many requests may come."""

    executions_min: int
    executions_max: int
    requests_max: int | None = None
    note: str = ""


class WantedRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the log has to show."""

    commits: int
    flags: tuple[str, ...]
    attempts: int = 1
    must_contain: tuple[str, ...] = ()
    must_not_contain: tuple[str, ...] = ()
    note: str = ""


class Expect(Struct, frozen=True, forbid_unknown_fields=True):
    """All that a case expects."""

    requests: dict[str, Wanted]
    upstream: WantedUpstream
    record: WantedRecord


class Case(Struct, frozen=True, kw_only=True):
    """One case. `client` and `upstream` are for the player alone."""

    case: str
    title: str
    source: str
    transport: Literal["http-json", "mcp-streamable", "mcp-sse-legacy"]
    tools: dict[str, Literal["read", "write"]]
    proxy_settings: dict[str, Any]
    client: list[dict[str, Any]]
    upstream: dict[str, Any]
    expect: Expect

    @property
    def listens(self) -> bool:
        """Whether there is an upstream at all."""
        return bool(self.upstream.get("listen", True))


class Answered(Struct, frozen=True, kw_only=True):
    """One request as the client saw it. Times are seconds since the client's start."""

    name: str
    status: int | None
    complete: bool
    error: str | None
    t_start: float
    t_end: float
    chunks: list[tuple[float, int]]
    bytes: int
    body: str
    """At most 20,000 bytes of it, as `body_base64`."""
    body_base64: str
    body_sha256: str
    headers: list[tuple[str, str]] = []


class Report(Struct, frozen=True):
    """All that the client saw."""

    requests: list[Answered]


class Entry(Struct, frozen=True, kw_only=True):
    """A line of the upstream's log: `request`, `effect`, `sent`, `peer_closed`, `conn_end`, ..."""

    ev: str
    n: int = 0
    """The request's number; `conn_end` has none."""
    conn: int = 0
    exchange: int | None = None
    """Which part of the script answered; `None` when nothing fitted."""
    http: str = ""
    path: str = ""
    headers: list[tuple[str, str]] = []
    body_sha256: str = ""
    body_base64: str = ""
    """At most 65,536 bytes of it."""


class Run(Struct, frozen=True):
    """One play of a case."""

    report: Report
    upstream: list[Entry]

    def requests(self) -> list[Entry]:
        """Return what reached the upstream."""
        return [entry for entry in self.upstream if entry.ev == "request"]

    def executions(self) -> int:
        """Return how often a tool ran; a request that nothing is scripted for counts as well."""
        ran = [entry for entry in self.upstream if entry.ev == "effect"]
        return len(ran) + sum(entry.exchange is None for entry in self.requests())

    def settled(self) -> bool:
        """Tell whether nothing is under way at the upstream any more."""
        over = {entry.n for entry in self.upstream if entry.ev in {"sent", "peer_closed"}}
        closed = {entry.conn for entry in self.upstream if entry.ev == "conn_end"}
        return all(entry.n in over or entry.conn in closed for entry in self.requests())

    def left(self) -> int:
        """Return how many requests the upstream saw abandoned."""
        return sum(entry.ev == "peer_closed" for entry in self.upstream)


def load(name: str) -> Case:
    """Return the case of this name."""
    return msgspec.json.decode((INPUTS / f"{name}.json").read_bytes(), type=Case)


def names() -> list[str]:
    """Return the names of all cases."""
    return sorted(file.stem for file in INPUTS.glob("*.json"))
