"""Run this program again under another process id, when its own is taken in the store.

LMDB identifies readers by process id, which two containers may share.
"""

import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NoReturn

from turnlog.host import kill_with_parent, wait_for_signal
from turnlog.store.base import ProcessIdTaken
from turnlog.store.log.environment import is_id_taken
from turnlog.transport.child_process import exit_as

MOST: Final = 256
"""Number of ids to try; each process in another container may take one or two."""
_FORWARDED: Final = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
)


def run_again(taken: ProcessIdTaken) -> int:
    """Run this command line in a child whose process id is free; return its exit code.

    The child has the same descriptors and gets the signals sent to this process. Raises
    `ProcessIdTaken` when no id is free.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED | {signal.SIGCHLD})
    die_with_parent = kill_with_parent(os.getpid())
    for _ in range(MOST):
        taken_end, child_end = os.pipe()  # exec closes the child's
        child = os.fork()
        if child == 0:
            if die_with_parent is not None:
                die_with_parent()
            _become_this_program(taken.lock, child_end, before)
        os.close(child_end)
        is_taken = bool(os.read(taken_end, 1))
        os.close(taken_end)
        code = _wait(child)
        if not is_taken:
            return exit_as(code)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    raise taken


def _become_this_program(lock: Path, taken_pipe: int, mask: Iterable[int]) -> NoReturn:
    try:
        if is_id_taken(lock):
            os.write(taken_pipe, b"x")
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - this program
    finally:
        os._exit(127)  # no cleanup of the parent may run here


def _wait(child: int) -> int:
    """Forward signals until a child ends; return its exit code, negative for a signal."""
    # As process 1 of a container, this process must also reap orphans.
    while True:
        number, is_ours_alone = wait_for_signal(_FORWARDED | {signal.SIGCHLD})
        if number == signal.SIGCHLD:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    return os.waitstatus_to_exitcode(ended[1])
        elif is_ours_alone:  # the terminal signals the child itself
            os.kill(child, number)
