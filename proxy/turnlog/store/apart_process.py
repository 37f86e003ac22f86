"""The process that writes the store of a proxy: `python -m turnlog.store.apart_process DESCRIPTOR OPENING`.

It reads deliveries from the socket with that number, writes what has come in one transaction, and
answers. It ends with its proxy: when the other end of the socket is closed.
"""

import gc
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from . import folder
from .base import StoreError, StoreFull
from .blobs import BlobReader, BlobWriter
from .engine import LmdbEngine, Sources
from .parcels import (
    Closed,
    Errand,
    Frames,
    Inbox,
    Lost,
    Opening,
    Receipt,
    Trouble,
    framed,
    read_delivery,
)
from .redo import open_redo
from .room import Room
from .scribe import AGAIN, MOST, Scribe, chained
from .tables import NAMES, Tables
from .tickets import Pending

_READ = 1 << 16
_COLLECT_AFTER = 20_000
_PATIENCE = 0.005
"""Seconds that others who write wait for a proxy that has stopped in the middle of what it sends."""


class Sayings:
    """What is to be told: a `Listener` that puts all of it into the next receipt."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._next = Receipt()
        self.inbox = Inbox()

    def landed(self, batch: list[Pending], along: list[Pending]) -> None:
        told, place = self._next.landed, self.inbox.landed
        for first in batch:
            if first.more is None:
                told.append((first.number, [place(first)]))
            else:
                told.append((first.number, [place(one) for one in chained((first,))]))
        told += [(one.number, [place(one)]) for one in along]

    def failed(self, batch: list[Pending], error: StoreError, kept: list[Pending]) -> None:
        numbers = [pending.number for pending in batch]
        trouble = Trouble(str(error), isinstance(error, StoreFull))
        self._next.lost.append(Lost(numbers, [pending.number for pending in kept], trouble))

    def report(self, error: StoreError) -> None:
        self._next.reports.append(str(error))

    def trimmed(self, size: int) -> None:
        """Tell that content was given up."""
        self._next.trimmed += size

    def done(self, number: int, closed: Closed, trouble: Trouble | None) -> None:
        """Tell what an errand came to."""
        self._next.done.append((number, closed, trouble))

    def send(self, spare: int) -> None:
        """Send what there is to tell. Raises `OSError` when the proxy is gone."""
        receipt, self._next = self._next, Receipt()
        receipt.spare = spare
        self._link.sendall(framed(receipt))

    @property
    def has_more(self) -> bool:
        """Whether there is something that no receipt has told."""
        found = self._next
        return bool(found.landed or found.lost or found.reports or found.trimmed)


class Clerk:
    """Takes deliveries and has them written."""

    def __init__(self, link: socket.socket, opening: Opening) -> None:
        """Open the store. Raises `StoreError`."""
        self._link = link
        self._frames = Frames()
        self._sayings = Sayings(link)
        self._at = self._clock = 0
        self._errands: list[tuple[int, Errand, int]] = []
        self._more_follows = self._is_last = False
        """What the last delivery said."""
        self._growth = 0
        """How many drafts the transaction under way may still take."""
        self._room = Room(Path(opening.data), opening.limit)
        self._spare = 0
        """What was told of it last."""
        self._engine = self._open(opening)
        self._scribe = Scribe(self._engine, self._sayings, keep=opening.keep)

    def _open(self, opening: Opening) -> LmdbEngine:
        data, sayings = Path(opening.data), self._sayings
        env = folder.open_environment(data / "log", readonly=False, tables=len(NAMES))
        with folder.translated("open", data):
            tables = Tables(env, create=True)
            redo = open_redo(env, tables, data / "log" / "data.mdb", opening.boot, os.urandom)
        reader = BlobReader(data / "blobs", opening.boot, readonly=False)
        return LmdbEngine(
            data,
            env,
            tables,
            epoch=opening.epoch,
            lock=None,
            room=self._room,
            blobs=BlobWriter(
                data, opening.span, reader, opening.boot, opening.epoch, report=sayings.report
            ),
            redo=redo,
            flush_every=opening.flush_every,
            sources=Sources(
                now=lambda: self._at,
                clock=lambda: self._clock,
                entropy=os.urandom,
                report=sayings.report,
                trimmed=sayings.trimmed,
            ),
            more=self._more,
        )

    def work(self) -> None:
        """Write what comes until the proxy says that it was all. Raises `OSError` when it is gone."""
        while self._turn():
            pass
        self._scribe.last()
        self._scribe.close()
        self._sayings.send(self._room.spare)

    def _turn(self) -> bool:
        """Write what the proxy sends, and do what is due; tell whether more may come."""
        batch = self._receive(AGAIN if self._scribe.keeps else None)
        full = self._scribe.again()
        while batch:
            self._growth = MOST - len(batch)
            self._scribe.write(batch[:MOST], full)
            self._send()
            batch = batch[MOST:]
        errands, self._errands = self._errands, []
        for errand in errands:
            self._run(*errand)
        self._scribe.tend()
        if self._sayings.has_more or (self._spare > 0) != (self._room.spare > 0):
            self._send()
        return not self._is_last

    def _receive(self, timeout: float | None) -> list[Pending]:
        """Return the drafts that have come by now, waiting for some. Raises `OSError`.

        None after `timeout` s, and where only errands came.
        """
        inbox = self._sayings.inbox
        batch: list[Pending] = []
        received = False
        while not received:
            if timeout is not None and not select.select([self._link], (), (), timeout)[0]:
                self._more_follows = False
                break
            data = self._link.recv(_READ)
            if not data:
                raise ConnectionResetError
            for frame in self._frames.feed(data):
                received = True
                delivery = read_delivery(frame)
                self._at, self._clock = delivery.at, delivery.clock
                self._errands += delivery.errands
                self._more_follows, self._is_last = delivery.more_follows, delivery.is_last
                batch += map(inbox.unpack, delivery.parcels)
                inbox.forget(delivery.oldest)
        return batch

    def _more(self) -> list[Pending]:
        """Return what else belongs into the transaction under way."""
        added: list[Pending] = []
        # What a proxy that is gone did send is written; the next turn finds that it is.
        with suppress(ConnectionResetError):
            while self._growth > 0 and self._more_follows and not added:
                added = self._receive(_PATIENCE)
        self._growth -= len(added)
        return added

    def _run(self, number: int, errand: Errand, at: int) -> None:
        closed, trouble = Closed(), None
        try:
            closed = self._engine.run(errand, at)
        except StoreError as error:
            trouble = Trouble(str(error), isinstance(error, StoreFull))
        except Exception as error:  # noqa: BLE001 - it goes to the caller, who expects errors of one kind
            trouble = Trouble(f"the store's work failed: {error!r}")
        self._sayings.done(number, closed, trouble)
        self._send()

    def _send(self) -> None:
        self._spare = self._room.spare
        self._sayings.send(self._spare)


def main() -> int:
    """Serve the proxy at the other end of the socket; return the exit code."""
    # The proxy decides when it is over, whatever is sent to all processes of its terminal.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    opening = msgspec.json.decode(sys.argv[2], type=Opening)
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 50)
    # Closed by the system when this process ends, and no sooner: the proxy waits for that.
    link = socket.socket(fileno=int(sys.argv[1]))
    with suppress(OSError):
        try:
            Clerk(link, opening).work()
        except StoreError as error:
            link.sendall(framed(Receipt(reports=[str(error)])))
        else:
            return 0
    return 1


if __name__ == "__main__":
    # Nothing is left to tidy up: the modules need not be taken down one by one.
    os._exit(main())
