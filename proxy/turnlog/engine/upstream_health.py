"""How the servers of one proxy are doing: their circuits and retry quotas, where they have some.

What is out of the ordinary stands in a file beside the store, for `turnlog status`.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import structs

from turnlog.core.classify import Ending
from turnlog.core.kinds import ErrorKind, Phase
from turnlog.observe.clock import Clock
from turnlog.observe.events import CircuitClosed, CircuitOpened, CircuitProbed, Log, ProcessFailed
from turnlog.record.attempt import Attempt
from turnlog.record.errors import Failure
from turnlog.rules.circuit_breaker import CircuitBreaker, CircuitPass, CircuitState
from turnlog.rules.retry import RetryBucket
from turnlog.sessions.overview import ServerHealth, remove_health, write_health
from turnlog.settings.model import UpstreamSettings
from turnlog.transport.child_process import missing

_NS: Final = 1_000_000_000
_LAG: Final = 1.0
"""s: refused retries are told together, as there may be very many."""


Ended = Callable[[Ending | None], None]
"""Called with the ending of an attempt; `None` if that is unknown."""


class Health:
    """The circuits and quotas of one proxy."""

    def __init__(
        self,
        upstreams: Mapping[str, UpstreamSettings],
        data: Path,
        epoch: int,
        clock: Clock,
        log: Log,
    ) -> None:
        """`epoch` is the proxy's own, as a writer of the store in `data`."""
        self._clock = clock
        self._log = log
        self._data = data
        self._epoch = epoch
        self._upstreams = upstreams
        now = self._now
        self._circuits = {
            name: CircuitBreaker(up.breaker)
            for name, up in upstreams.items()
            if up.breaker is not None
        }
        self._quotas = {
            name: RetryBucket(up.retry_quota, now)
            for name, up in upstreams.items()
            if up.retry_quota is not None
        }
        self._known: dict[str, ServerHealth] = {}
        """What is out of the ordinary."""
        self._telling: asyncio.TimerHandle | None = None
        for name, upstream in upstreams.items():
            if upstream.command and missing(upstream.command, upstream.env, upstream.cwd):
                program = upstream.command[0]
                self._known[name] = ServerHealth(server=name, missing=program)
                log.emit(ProcessFailed(server=name, reason=f"there is no program {program!r}"))
        self.watched = frozenset((*self._circuits, *self._quotas, *self._known))
        """The servers of which calls are counted or attempts admitted here."""
        if self._known:
            self._tell()

    def close(self) -> None:
        """Stop publishing, and remove the health file."""
        if self._telling is not None:
            self._telling.cancel()
        with suppress(OSError):  # readers check that the process is alive
            remove_health(self._data, self._epoch)

    @property
    def _now(self) -> float:
        return self._clock.monotonic() / _NS

    def called(self, server: str) -> None:
        """Count a call, of which retries are a share."""
        if self._known and (known := self._known.get(server)) is not None and known.missing:
            self._look_again(server)
        if (quota := self._quotas.get(server)) is not None:
            quota.on_call(self._now)

    def _look_again(self, server: str) -> None:
        """Clear the report of a missing program once the program exists."""
        upstream = self._upstreams[server]
        if not missing(upstream.command, upstream.env, upstream.cwd):
            del self._known[server]
            self._tell()

    def has_retry_left(self, server: str) -> bool:
        """Return whether a server's quota has a retry left."""
        quota = self._quotas.get(server)
        return quota is None or quota.has_left(self._now)

    def on_retry(self, server: str) -> None:
        """Spend one retry of a server's quota."""
        if (quota := self._quotas.get(server)) is not None:
            quota.spend()

    def on_retry_refused(self, server: str) -> None:
        """Count a retry for which a server's quota had nothing left."""
        known = self._known.get(server, ServerHealth(server=server))
        refused = known.retries_refused + 1
        self._known[server] = structs.replace(known, retries_refused=refused)
        self._tell_later()

    def uncovered(self, server: str) -> None:
        """Count a caller for whose sessions never-twice does not hold."""
        known = self._known.get(server, ServerHealth(server=server))
        count = known.uncovered_callers + 1
        self._known[server] = structs.replace(known, uncovered_callers=count)
        self._tell_later()

    def watch(self, server: str, attempt: Attempt) -> Ended | None:
        """Admit an attempt to its server's circuit breaker, and return the callback for its end, if
        there is a breaker. Raises `Failure` if the circuit is open."""
        circuit = self._circuits.get(server)
        if circuit is None:
            return None
        passed = self._admitted(server, circuit)

        def ended(ending: Ending | None) -> None:
            attempt.watch, before = None, circuit.state
            circuit.on_ended(passed, ending, self._now)
            if circuit.state is not before:
                self._changed(server, circuit)

        attempt.watch = ended
        return ended

    def _admitted(self, server: str, circuit: CircuitBreaker) -> CircuitPass:
        before = circuit.state
        passed = circuit.admit(self._now)
        if circuit.state is not before:
            self._changed(server, circuit)
        if passed is None:
            detail = f"the circuit of {server!r} is {circuit.state.value}"
            left = circuit.seconds_left(self._now)
            raise Failure(ErrorKind.CIRCUIT_OPEN, Phase.QUEUED, detail, retry_after=left)
        return passed

    def _changed(self, server: str, circuit: CircuitBreaker) -> None:
        settings = self._upstreams[server].breaker
        assert settings is not None  # it has a circuit
        until = 0
        match circuit.state:
            case CircuitState.OPEN:
                cool_down = round(settings.cool_down * _NS)
                until = self._clock.wall() + cool_down
                self._log.emit(CircuitOpened(server=server, cool_down_ns=cool_down))
            case CircuitState.HALF_OPEN:
                self._log.emit(CircuitProbed(server=server))
            case CircuitState.CLOSED:
                self._log.emit(CircuitClosed(server=server))
        known = self._known.get(server, ServerHealth(server=server))
        since = self._clock.wall()
        self._known[server] = structs.replace(known, state=circuit.state, since=since, until=until)
        self._tell()

    def _tell_later(self) -> None:
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(_LAG, self._tell)

    def _tell(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        with suppress(OSError):  # `turnlog status` says less
            write_health(self._data, self._epoch, list(self._known.values()))
