"""The process that writes the store of a proxy: `python -m turnlog.store.apart_process DESCRIPTOR SETUP`.

It reads deliveries from the socket with that number, writes what has come in one transaction, and
answers. It ends with its proxy: when the other end of the socket is closed.
"""

import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from . import folder
from .base import StoreError
from .blobs import BlobReader
from .engine import LmdbEngine, Setup, Sources
from .errands import Closed, Errand
from .packing import Inbox
from .parcels import Delivery, Frames, Lost, Receipt, Trouble, framed, read_delivery
from .redo import open_redo
from .room import Room
from .scribe import AGAIN, MOST, Scribe
from .tables import NAMES, Tables
from .tickets import Pending, chained

_READ = 1 << 16


class Sayings:
    """What is to be told: a `Listener` that puts all of it into the next receipt."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._next = Receipt()
        self._failing: Trouble | None = None
        self._is_told = True
        """Whether a receipt has said that."""
        self.inbox = Inbox()

    def landed(self, batch: list[Pending], along: list[Pending]) -> None:
        told, place = self._next.landed, self.inbox.landed
        for first in batch:
            told.append((first.number, [place(one) for one in chained((first,))]))
        told += [(one.number, [place(one)]) for one in along]

    def failed(self, batch: list[Pending], error: StoreError, kept: list[Pending]) -> None:
        held = [pending.number for pending in kept]
        self.lost([pending.number for pending in batch], held, error)
        for pending in batch:
            if pending.number not in held:
                for one in chained((pending,)):
                    self.inbox.failed(one)

    def lost(self, numbers: list[int], kept: list[int], error: StoreError) -> None:
        """Tell that drafts were not written."""
        self._next.lost.append(Lost(numbers, kept, Trouble.of(error)))

    def report(self, error: StoreError) -> None:
        self._next.reports.append(str(error))

    def on_failing(self, error: StoreError | None) -> None:
        self._failing = Trouble.of(error) if error else None
        self._is_told = False

    def trimmed(self, size: int) -> None:
        """Tell that content was given up."""
        self._next.trimmed += size

    def done(self, number: int, result: Closed | StoreError) -> None:
        """Tell what an errand came to."""
        if isinstance(result, StoreError):
            self._next.done.append((number, Closed(), Trouble.of(result)))
        else:
            self._next.done.append((number, result, None))

    def send(self, spare: int) -> None:
        """Send what there is to tell; when the proxy is gone nobody is told."""
        receipt, self._next = self._next, Receipt()
        receipt.spare, receipt.failing, self._is_told = spare, self._failing, True
        with suppress(OSError):
            self._link.sendall(framed(receipt))

    @property
    def has_more(self) -> bool:
        """Whether there is something that no receipt has told."""
        found = self._next
        told = found.landed or found.lost or found.reports or found.trimmed
        return bool(told) or not self._is_told


class Clerk:
    """Takes deliveries and has them written."""

    def __init__(self, link: socket.socket, setup: Setup) -> None:
        """Open the store. Raises `StoreError`."""
        self._link = link
        self._frames = Frames()
        self._sayings = Sayings(link)
        self._at = self._clock = 0
        self._errands: list[tuple[int, Errand, int]] = []
        self._is_last = False
        """Whether nothing comes any more."""
        # Unlike `select` it knows descriptors of any number: the proxy may have many.
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._room = Room(Path(setup.data), setup.limit)
        self._spare = 0
        """What was told of it last."""
        self._engine = self._open(setup)
        self._scribe = Scribe(self._engine, self._sayings, keep=setup.keep)

    def _open(self, setup: Setup) -> LmdbEngine:
        data, sayings = Path(setup.data), self._sayings
        env = folder.open_environment(data / "log", readonly=False, tables=len(NAMES))
        with folder.translated("open", data):
            tables = Tables(env, create=True)
            redo = open_redo(env, tables, data / "log" / "data.mdb", setup.boot, os.urandom)
        sources = Sources(
            now=lambda: self._at,
            clock=lambda: self._clock,
            entropy=os.urandom,
            report=sayings.report,
            trimmed=sayings.trimmed,
        )
        blobs = BlobReader(data / "blobs", setup.boot, readonly=False)
        return LmdbEngine(
            env,
            tables,
            setup,
            redo=redo,
            blobs=blobs,
            room=self._room,
            sources=sources,
            lock=None,
        )

    def work(self) -> None:
        """Write what comes until the proxy says that it was all, or is gone."""
        while self._turn():
            pass
        self._scribe.last()
        self._scribe.close()
        self._sayings.send(self._room.spare)

    def _turn(self) -> bool:
        """Write what the proxy sends, and do what is due; tell whether more may come."""
        batch = self._receive()
        before = self._scribe.again()
        while batch:
            self._scribe.write(batch[:MOST], before)
            self._send()
            batch = batch[MOST:]
        errands, self._errands = self._errands, []
        for errand in errands:
            self._run(*errand)
        self._scribe.tend()
        self._scribe.probe()
        if self._sayings.has_more or (self._spare > 0) != (self._room.spare > 0):
            self._send()
        return not self._is_last

    def _receive(self) -> list[Pending]:
        """Return the drafts that have come by now, waiting for some.

        None when it is time to look after what is kept, when only errands came, and at the end.
        """
        batch: list[Pending] = []
        received = self._is_last
        while not received:
            if self._scribe.retries and not self._poll.poll(AGAIN * 1e3):
                break
            data = self._read()
            self._is_last = received = not data
            for frame in self._frames.feed(data):
                received = True
                batch += self._unpacked(read_delivery(frame))
        return batch

    def _read(self) -> bytes:
        """Return what the proxy has sent; nothing once it is gone and all was read."""
        try:
            return self._link.recv(_READ)
        except ConnectionResetError:
            # It is gone and has not read all receipts. What it sent before is still there.
            return self._link.recv(_READ)

    def _unpacked(self, delivery: Delivery) -> list[Pending]:
        self._at, self._clock = delivery.at, delivery.clock
        self._errands += delivery.errands
        self._is_last = delivery.is_last
        batch: list[Pending] = []
        for parcel in delivery.parcels:
            try:
                batch.append(self._sayings.inbox.unpack(parcel))
            except msgspec.DecodeError as error:
                wrong = StoreError(f"cannot read a draft that was sent: {error}")
                self._sayings.lost([parcel.number], [], wrong)
        self._sayings.inbox.forget(delivery.oldest)
        return batch

    def _run(self, number: int, errand: Errand, at: int) -> None:
        self._sayings.done(number, self._scribe.run(lambda: self._engine.run(errand, at)))
        self._send()

    def _send(self) -> None:
        self._spare = self._room.spare
        self._sayings.send(self._spare)


def main() -> int:
    """Serve the proxy at the other end of the socket; return the exit code."""
    # The proxy decides when it is over, whatever is sent to all processes of its terminal.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    setup = msgspec.json.decode(sys.argv[2], type=Setup)
    # Closed by the system when this process ends, and no sooner: the proxy waits for that.
    link = socket.socket(fileno=int(sys.argv[1]))
    try:
        Clerk(link, setup).work()
    except StoreError as error:
        with suppress(OSError):
            link.sendall(framed(Receipt(reports=[str(error)])))
        return 1
    return 0


if __name__ == "__main__":
    # Nothing is left to tidy up: the modules need not be taken down one by one.
    os._exit(main())
