"""The spool: a bounded queue of lines, and the ownership of its stream."""

import gc
import io
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

from turnlog.observe.logs import LIMIT_BYTES, Spool


def gap(lines: int) -> bytes:
    return b"%d lost\n" % lines


def wait_until(met: Callable[[], bool]) -> None:
    end = monotonic() + 10
    while not met():
        assert monotonic() < end, "the condition was not met within 10 s"
        sleep(0.005)


def test_the_spool_keeps_its_stream_open(tmp_path: Path) -> None:
    path = tmp_path / "log"
    stream = path.open("wb")
    known = weakref.ref(stream)
    spool = Spool(stream, gap)
    del stream
    gc.collect()
    # Were it gone, the next file would get its number, and the lines.
    spool.put(b"line\n", urgent=True)
    spool.close()
    assert path.read_bytes() == b"line\n"
    held = known()
    assert held is not None
    held.close()


def test_a_closed_spool_takes_no_more_lines(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as stream:
        spool = Spool(stream, gap)
        spool.put(b"one\n", urgent=False)
        spool.close()
        spool.put(b"two\n", urgent=False)
    assert (tmp_path / "log").read_bytes() == b"one\n"
    assert spool.dropped == 1


def test_dropped_lines_are_counted_and_reported(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as stream:
        spool = Spool(stream, gap)
        spool.put(b"x" * (LIMIT_BYTES + 1), urgent=False)
        spool.put(b"one\n", urgent=False)
        spool.close()
    assert (tmp_path / "log").read_bytes() == b"one\n1 lost\n"


def test_lines_are_dropped_when_the_reader_is_gone() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb", buffering=0) as stream:
        spool = Spool(stream, gap)
        os.close(reader)
        spool.put(b"one\n", urgent=False)
        wait_until(lambda: spool.dropped == 1)
        spool.put(b"two\n", urgent=False)
        assert spool.dropped == 2
        spool.close()


def test_the_gap_line_holds_the_number_of_dropped_lines() -> None:
    stream = io.BytesIO()
    told: list[int] = []

    def gap_line(lines: int) -> bytes:
        told.append(lines)
        return b"gap\n"

    spool = Spool(stream, gap_line)
    spool.put(b"x" * (LIMIT_BYTES + 1), urgent=False)
    spool.put(b"small\n", urgent=True)
    spool.close()
    assert told == [1]
    assert stream.getvalue() == b"small\ngap\n"


def test_close_does_not_wait_for_a_stalled_reader() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb", buffering=0) as stream:
        spool = Spool(stream, lambda lines: b"%d\n" % lines)
        spool.put(b"x" * 1_000_000, urgent=True)
        spool.close(timeout=0.05)
        spool.put(b"late\n", urgent=False)
        assert spool.dropped >= 1
        os.close(read_end)


class FullDisk(io.BytesIO):
    """A stream on a disk that is full for the first write."""

    def __init__(self) -> None:
        super().__init__()
        self.full = True

    def write(self, data: object, /) -> int:
        if self.full:
            self.full = False
            raise OSError(28, "No space left on device")
        return super().write(data)  # type: ignore[arg-type]


def test_a_full_disk_drops_only_the_lines_that_do_not_fit() -> None:
    stream = FullDisk()
    spool = Spool(stream, lambda lines: b"%d lost\n" % lines)
    spool.put(b"one\n", urgent=True)
    wait_until(lambda: spool.dropped == 1)
    spool.put(b"two\n", urgent=True)
    spool.close()
    assert stream.getvalue() == b"two\n1 lost\n"


class Chatty(bytes):
    """A line in the middle of which another one is logged, as by what the collector finds."""

    spool: Spool

    def __len__(self) -> int:
        self.spool.put(b"inner\n", urgent=False)
        return super().__len__()


def test_logging_during_garbage_collection_does_not_deadlock() -> None:
    stream = io.BytesIO()
    spool = Spool(stream, gap)
    line = Chatty(b"outer\n")
    line.spool = spool
    putting = threading.Thread(
        target=spool.put, args=(line,), kwargs={"urgent": False}, daemon=True
    )
    putting.start()
    putting.join(10)
    assert not putting.is_alive()
    spool.close()
    assert sorted(set(stream.getvalue().splitlines())) == [b"inner", b"outer"]
