"""`store.bounded_process`: work in a process of its own, however that ends."""

import os
import resource
import signal
from pathlib import Path

import pytest

from turnlog.store.bounded_process import Send, Unfinished, Worker, WorkerFailed


def test_messages_come_whole_and_in_order() -> None:
    sent = [b"", b"one", b"x" * 300_000, b"last"]

    def work(send: Send) -> None:
        for message in sent:
            send(message)

    assert list(Worker(work, 30).messages(30)) == sent


def test_a_signal_that_ends_the_work_is_named_behind_what_was_found() -> None:
    def work(send: Send) -> None:
        send(b"found")
        os.write(2, b"noise\nthe last line\n")
        os.kill(os.getpid(), signal.SIGABRT)

    messages = Worker(work, 30).messages(30)
    assert next(messages) == b"found"
    with pytest.raises(WorkerFailed, match="SIGABRT ended it: the last line"):
        next(messages)


def test_work_that_burns_its_processor_time_is_broken() -> None:
    def work(_: Send) -> None:
        while True:
            pass

    with pytest.raises(WorkerFailed, match="SIGXCPU ended it"):
        list(Worker(work, 1).messages(600))


def test_work_that_only_waits_is_unfinished_and_not_broken() -> None:
    def work(_: Send) -> None:
        while True:
            signal.pause()

    with pytest.raises(Unfinished):
        list(Worker(work, 30).messages(0.05))


def test_a_bug_in_the_work_is_told() -> None:
    def work(_: Send) -> None:
        raise KeyError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        list(Worker(work, 30).messages(30))


def test_work_that_nobody_wants_any_more_is_ended() -> None:
    def work(send: Send) -> None:
        while True:
            send(b"more")

    child = Worker(work, 30)
    messages = child.messages(30)
    assert next(messages) == b"more"
    messages.close()  # type: ignore[attr-defined]
    child.close()


def test_a_process_that_cannot_be_started_leaves_no_descriptor_open() -> None:
    def work(_: Send) -> None:
        raise AssertionError

    before = sorted(Path("/dev/fd").iterdir())
    free = [*os.pipe(), *os.pipe()]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for descriptor in free:
        os.close(descriptor)
    # Its own two pipes fit, and nothing else.
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free) + 1, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            Worker(work, 30)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sorted(Path("/dev/fd").iterdir()) == before
