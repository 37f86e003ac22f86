"""What running proxies say of their servers beside the store: open circuits, spent quotas."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from turnlog.rules.circuit_breaker import State

_FOLDER: Final = "health"


class ServerHealth(Struct, frozen=True, kw_only=True):
    """A server that is, or was, not as it should be. Times are ns UTC, 0 for none."""

    server: str
    state: State = State.CLOSED
    """Of its circuit."""
    since: int = 0
    until: int = 0
    """When an open circuit lets the next attempt pass."""
    retries_refused: int = 0
    """Attempts that its quota did not allow."""
    missing: str = ""
    """The program of its command, where there is none of that name."""
    uncovered_callers: int = 0
    """Callers for whose sessions never-twice does not hold, since the proxy began."""


def write_health(data: Path, epoch: int, servers: Sequence[ServerHealth]) -> None:
    """Say how the servers of a proxy are. Raises `OSError`."""
    # A process id names another process in each pid namespace; an epoch names one writer of the store.
    folder = data / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    new = folder / f"{epoch}.new"
    new.write_bytes(msgspec.json.encode(servers))
    new.replace(folder / f"{epoch}.json")


def remove_health(data: Path, epoch: int) -> None:
    """Say nothing any more: the proxy ends. Raises `OSError`."""
    (data / _FOLDER / f"{epoch}.json").unlink(missing_ok=True)


def read_health(data: Path, epochs: Iterable[int]) -> Iterator[ServerHealth]:
    """Yield what the writers of these epochs say; what a dead one has left is not read."""
    for epoch in sorted(set(epochs)):
        with suppress(OSError, msgspec.DecodeError):
            said = (data / _FOLDER / f"{epoch}.json").read_bytes()
            yield from msgspec.json.decode(said, type=list[ServerHealth])
