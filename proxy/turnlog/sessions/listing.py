"""What the store holds: its sessions, its pending calls, its room and its writers."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from turnlog.core import ids
from turnlog.core.kinds import Rung, TurnSource
from turnlog.core.times import timestamp
from turnlog.store.base import ALIAS_SEPARATOR, SessionRow, Usage, View

from .dangling import Standing
from .health import ServerHealth
from .rows import Row, row_of


class SessionLine(Struct, frozen=True, kw_only=True):
    """One line of `turnlog sessions --json`. With `session`, `seq` and `hash` it is an anchor."""

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


class Writer(Struct, frozen=True, kw_only=True):
    """A process that writes to the store."""

    epoch: int
    pid: int


class StoreStatus(Struct, frozen=True, kw_only=True):
    """What `turnlog status --json` says. Sizes are in bytes."""

    data: str
    usage: Usage
    writers: list[Writer] | None
    """`None` where the system does not tell who holds a lock."""
    pending: list[Row]
    dangling: dict[Standing, int]
    """How many calls have no answer, and why; reasons that nothing has are left out."""
    servers: list[ServerHealth] = []
    """Those whose circuit has opened, or whose retry quota was spent, since their proxies began."""


def sessions(view: View) -> Iterator[SessionLine]:
    """Yield all sessions, the most recently active first."""
    return map(session_line, view.sessions())


def session_line(row: SessionRow) -> SessionLine:
    """Return a session as it is listed."""
    return SessionLine(
        session=ids.to_text(row.session),
        seq=row.head_seq,
        hash=f"sha256:{row.head_hash.hex()}",
        named_by=row.rung,
        # A name may stand for the session on several rungs or for several principals.
        names=list(dict.fromkeys(a.partition(ALIAS_SEPARATOR)[0] for a in row.aliases)),
        metadata=row.metadata,
        opened_at=timestamp(row.opened_at),
        active_at=timestamp(row.place.active_at),
        turn=row.place.turn,
        turn_source=row.place.source,
        in_flight=row.place.in_flight,
    )


def pending(view: View) -> Iterator[Row]:
    """Yield the newest attempt of each call whose last status leaves something open."""
    return map(row_of, view.unsettled())


def writers(data: Path) -> list[Writer] | None:
    """Return the processes that write to the store in `data`, by the locks that they hold."""
    try:
        locks = Path("/proc/locks").read_text()
    except OSError:
        return None
    return _holders(locks, dict(_lock_files(data / "epochs")))


def _lock_files(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the inode and the epoch of each lock file."""
    for path in folder.glob("*.lock"):
        # A proxy that ends removes its file.
        with suppress(FileNotFoundError, ValueError):
            yield path.stat().st_ino, int(path.stem)


def _holders(locks: str, epochs: dict[int, int]) -> list[Writer]:
    """Read proc_locks(5): `1: FLOCK  ADVISORY  WRITE 15152 fe:00:2271517 0 EOF`."""
    held: list[Writer] = []
    for line in locks.splitlines():
        fields = line.split()
        if len(fields) < 6 or fields[1] != "FLOCK":
            continue
        inode = int(fields[5].rpartition(":")[2])
        if inode in epochs:
            held.append(Writer(epoch=epochs[inode], pid=int(fields[4])))
    return sorted(held, key=lambda writer: writer.epoch)
