"""`store.bounded`: work in a process of its own, however that ends."""

import os
import signal

import pytest

from turnlog.store.bounded import Broken, Child, Send


def test_messages_come_whole_and_in_order() -> None:
    sent = [b"", b"one", b"x" * 300_000, b"last"]

    def work(send: Send) -> None:
        for message in sent:
            send(message)

    assert list(Child(work).messages(30)) == sent


def test_a_signal_that_ends_the_work_is_named_behind_what_was_found() -> None:
    def work(send: Send) -> None:
        send(b"found")
        os.write(2, b"noise\nthe last line\n")
        os.kill(os.getpid(), signal.SIGABRT)

    messages = Child(work).messages(30)
    assert next(messages) == b"found"
    with pytest.raises(Broken, match="SIGABRT ended it: the last line"):
        next(messages)


def test_work_without_an_end_is_ended() -> None:
    def work(_: Send) -> None:
        while True:
            signal.pause()

    with pytest.raises(Broken, match="no end in time"):
        list(Child(work).messages(0.05))


def test_a_bug_in_the_work_is_told() -> None:
    def work(_: Send) -> None:
        raise KeyError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        list(Child(work).messages(30))


def test_work_that_nobody_wants_any_more_is_ended() -> None:
    def work(send: Send) -> None:
        while True:
            send(b"more")

    child = Child(work)
    messages = child.messages(30)
    assert next(messages) == b"more"
    messages.close()  # type: ignore[attr-defined]
    child.close()
