"""The contents of a store now: sessions, pending calls, free space, writers and the health of servers."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from turnlog.core import ids
from turnlog.core.kinds import Rung, TurnSource
from turnlog.core.lifecycle import SessionStage
from turnlog.core.text.units import timestamp
from turnlog.host import lock_holders, whole_file
from turnlog.rules.circuit_breaker import CircuitState
from turnlog.store.base import ALIAS_SEPARATOR, SessionRow, Usage
from turnlog.store.read.view import View

from .control.writer import Lease, lease_of
from .dangling import DanglingReason
from .rows import Row, row_of


class SessionLine(Struct, frozen=True, kw_only=True):
    """One line of `turnlog sessions --json`; `session`, `seq` and `hash` make it an anchor."""

    session: str
    seq: int
    hash: str
    named_by: Rung
    names: list[str]
    metadata: dict[str, str]
    opened_at: str
    active_at: str
    turn: int
    turn_source: TurnSource
    in_flight: int
    held: bool
    """Whether its content is kept, whatever its age, until `turnlog sessions release`."""
    stage: SessionStage
    resumes: int
    """How often it was resumed after a pause."""
    lease: Lease | None


class StoreWriter(Struct, frozen=True, kw_only=True):
    """A running process that writes to the store."""

    epoch: int
    pid: int | None
    """`None` for a process in another pid namespace (a container), and on systems without /proc/locks."""


class ServerHealth(Struct, frozen=True, kw_only=True):
    """A running proxy's report about a server with problems. Times are ns UTC, 0 for none."""

    server: str
    state: CircuitState = CircuitState.CLOSED
    """State of its circuit breaker."""
    since: int = 0
    until: int = 0
    """When an open circuit lets the next attempt pass."""
    retries_refused: int = 0
    """Retries that its quota did not allow."""
    missing: str = ""
    """The program of its command, when there is no such program."""
    uncovered_callers: int = 0
    """Callers in whose sessions repeated calls cannot be recognised, since the proxy started."""


class StoreStatus(Struct, frozen=True, kw_only=True):
    """The output of `turnlog status --json`. Sizes are in bytes."""

    data: str
    usage: Usage
    room: int
    """Bytes that can be written before calls are refused; 0 when they are refused now."""
    reserve: int
    """Bytes of the limit or the disk that are reserved for outcomes."""
    writers: list[StoreWriter]
    pending: list[Row]
    dangling: dict[DanglingReason, int]
    """Number of calls without an answer, by reason; reasons without a call are left out."""
    servers: list[ServerHealth] = []
    """Servers whose circuit opened, or whose retry quota ran out, since their proxy started."""


def list_sessions(view: View) -> Iterator[SessionLine]:
    """Yield all sessions, the most recently active first."""
    held = view.held()
    return (session_line(view, row, held) for row in view.sessions())


def names_of(aliases: Iterable[str]) -> list[str]:
    """Return the names in a session's aliases, each once."""
    # The same name may lead to the session on several rungs, or for several principals.
    return list(dict.fromkeys(alias.partition(ALIAS_SEPARATOR)[0] for alias in aliases))


def session_line(view: View, row: SessionRow, held: Collection[bytes]) -> SessionLine:
    """Return one session as `turnlog sessions` lists it; `held` are the sessions under a hold."""
    return SessionLine(
        session=ids.to_text(row.session),
        seq=row.head_seq,
        hash=f"sha256:{row.head_hash.hex()}",
        named_by=row.rung,
        names=names_of(row.aliases),
        metadata=row.metadata,
        opened_at=timestamp(row.opened_at),
        active_at=timestamp(row.place.active_at),
        turn=row.place.turn,
        turn_source=row.place.source,
        in_flight=row.place.in_flight,
        held=row.session in held,
        stage=row.stage,
        resumes=row.control.resumes if row.control is not None else 0,
        lease=lease_of(view, row.session, row.control),
    )


def pending_calls(view: View) -> Iterator[Row]:
    """Yield the newest attempt of each call whose last status is not final."""
    return map(row_of, view.unsettled())


def store_writers(view: View, data: Path) -> list[StoreWriter]:
    """Return the running processes that write to the store in `data`."""
    folder = data / "epochs"
    pids = dict(lock_holders())
    found: list[StoreWriter] = []
    # A held lock shows that a process lives, also in another pid namespace, where /proc/locks is silent.
    for epoch in view.living_epochs():
        # The lock file disappears when its proxy ends.
        with suppress(FileNotFoundError):
            inode = (folder / f"{epoch}.lock").stat().st_ino
            found.append(StoreWriter(epoch=epoch, pid=pids.get(inode)))
    return found


_HEALTH: Final = "health"


def write_health(data: Path, epoch: int, servers: Sequence[ServerHealth]) -> None:
    """Publish the health of a proxy's servers in the data folder. Raises `OSError`."""
    # Named by epoch: a process id may stand for another process in each pid namespace.
    folder = data / _HEALTH
    folder.mkdir(mode=0o700, exist_ok=True)
    with whole_file(folder / f"{epoch}.json", replace=True, durable=False) as stream:
        stream.write(msgspec.json.encode(servers))


def remove_health(data: Path, epoch: int) -> None:
    """Remove what a proxy published, as it ends. Raises `OSError`."""
    (data / _HEALTH / f"{epoch}.json").unlink(missing_ok=True)


def read_health(data: Path, epochs: Iterable[int]) -> Iterator[ServerHealth]:
    """Yield what the proxies of these epochs published; files of dead ones are not read."""
    for epoch in sorted(set(epochs)):
        with suppress(OSError, msgspec.DecodeError):
            published = (data / _HEALTH / f"{epoch}.json").read_bytes()
            yield from msgspec.json.decode(published, type=list[ServerHealth])
