"""The load generator's process: a job per line on stdin, a report per line on stdout."""

import socket
import sys
from typing import assert_never

from msgspec.json import Decoder, encode

from .calls import Run
from .jobs import Calls, Events, FirstByte, Idle, Job, Report
from .streams import events, first_byte, idle


def do(job: Job, kept: list[socket.socket]) -> Report:
    """Carry out one job; streams that are to stay open go into `kept`."""
    match job:
        case Calls():
            return Run(job).run()
        case Events():
            return events(job)
        case FirstByte():
            return first_byte(job)
        case Idle():
            report, opened = idle(job)
            kept.extend(opened)
            return report
        case _:
            assert_never(job)


def main() -> None:
    """Work until stdin ends; a failed connection is a report, not an end."""
    decoder: Decoder[Job] = Decoder(Job)
    kept: list[socket.socket] = []
    for line in sys.stdin.buffer:
        while kept:
            kept.pop().close()
        try:
            report = do(decoder.decode(line), kept)
        except OSError as error:
            report = Report(failures=1, trouble=f"{type(error).__name__}: {error}")
        sys.stdout.buffer.write(encode(report) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
