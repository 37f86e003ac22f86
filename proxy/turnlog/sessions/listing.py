"""What the store holds: its sessions, its pending calls, its room and its writers."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from turnlog.core import ids
from turnlog.core.kinds import Rung, TurnSource
from turnlog.core.text.times import timestamp
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
    pid: int | None
    """`None` where this is not known: in another pid namespace (a container's), and on some systems."""


class StoreStatus(Struct, frozen=True, kw_only=True):
    """What `turnlog status --json` says. Sizes are in bytes."""

    data: str
    usage: Usage
    room: int
    """Bytes that may be written before calls are refused; 0 where they are."""
    reserve: int
    """Bytes of the limit or of the disk that only outcomes may use."""
    writers: list[Writer]
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


def writers(view: View, data: Path) -> list[Writer]:
    """Return the processes that write to the store in `data`, by the locks that they hold."""
    pids = _holders(data / "epochs")
    # What /proc/locks says of other pid namespaces is nothing: whether a lock is held shows who lives.
    living = {epoch for epoch in _epochs(data / "epochs") if view.lives(epoch)}
    return [Writer(epoch=epoch, pid=pids.get(epoch)) for epoch in sorted(living)]


def _epochs(folder: Path) -> Iterator[int]:
    return (int(path.stem) for path in folder.glob("*.lock") if path.stem.isdigit())


def _holders(folder: Path) -> dict[int, int]:
    """Return process ids by epoch, by proc_locks(5): `1: FLOCK  ADVISORY  WRITE 15152 fe:00:2271517 0 EOF`.

    Those of another pid namespace are missing; on a system without that file all are.
    """
    inodes: dict[int, int] = {}
    for epoch in _epochs(folder):
        # A proxy that ends removes its file.
        with suppress(FileNotFoundError):
            inodes[(folder / f"{epoch}.lock").stat().st_ino] = epoch
    held: dict[int, int] = {}
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if len(fields) < 6 or fields[1] != "FLOCK":
                continue
            epoch_held = inodes.get(int(fields[5].rpartition(":")[2]))
            if epoch_held is not None and int(fields[4]) > 0:
                held[epoch_held] = int(fields[4])
    return held
