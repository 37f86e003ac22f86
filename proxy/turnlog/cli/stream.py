"""Output that goes on: each line is out at once, and a reader that has gone is noticed."""

import os
import select
import sys
from collections.abc import Iterable

from .failures import PipeClosedError


def write_now(lines: Iterable[str]) -> None:
    """Write lines to stdout past its buffer, so that none is left there when a signal comes."""
    text = "".join(f"{line}\n" for line in lines)
    rest = memoryview(text.encode(sys.stdout.encoding, "backslashreplace"))
    while rest:
        rest = rest[os.write(sys.stdout.fileno(), rest) :]


def pause(seconds: float) -> None:
    """Wait; raises `PipeClosedError` as soon as nobody reads stdout any more."""
    poll = select.poll()
    # Without an event to wait for there are still errors: the other end was closed.
    poll.register(sys.stdout.fileno(), 0)
    if poll.poll(seconds * 1000):
        raise PipeClosedError
