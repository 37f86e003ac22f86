"""A command's process: its pipes, its signals, and how turnlog exits as it did.

Light to import: a command is started before the rest of turnlog is loaded, so that both start at
the same time.

The command gets a process group of its own, in our session: signals reach all that it has started,
and none of ours. It dies with us, whatever we die of (Linux: parent-death signal).
"""

import os
import resource
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from shutil import which
from typing import Final

from turnlog.host import initial_environment, kill_with_parent

NOT_FOUND: Final = 127
NOT_RUNNABLE: Final = 126
"""Exit codes of a shell for a command that is not there, or cannot be run (POSIX, sh)."""
_NOTHING: Final[Mapping[str, str]] = {}


class Child:
    """A running command. `stdin` and `stdout` are descriptors of ours, the other ends of its pipes."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: int, stdout: int) -> None:
        self.process = process
        self.stdin = stdin
        self.stdout = stdout

    @property
    def pid(self) -> int:
        """The process id, which is its group's id too."""
        return self.process.pid

    def end(self) -> None:
        """End whatever of it is left, at once."""
        if self.process.poll() is None:
            self.send(signal.SIGKILL)
            self.process.wait()

    def send(self, number: int) -> None:
        """Send a signal to all that the command has started, if anything of it is left."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def start(command: Sequence[str], env: Mapping[str, str] = _NOTHING, cwd: str = "") -> Child:
    """Start a command with this process's environment, folder and stderr. Raises `OSError`.

    `env` is laid over the environment, `cwd` takes the folder's place.
    """
    environ = initial_environment() | {
        os.fsencode(key): os.fsencode(text) for key, text in env.items()
    }
    their_stdin, stdin = os.pipe()
    try:
        stdout, their_stdout = os.pipe()
    except OSError:
        os.close(their_stdin)
        os.close(stdin)
        raise
    try:
        process = subprocess.Popen(  # noqa: S603 - the command is the user's own
            command,
            stdin=their_stdin,
            stdout=their_stdout,
            env=environ,
            cwd=cwd or None,
            close_fds=False,  # what the client hands on is the command's; ours is all close-on-exec
            process_group=0,
            preexec_fn=kill_with_parent(os.getpid()),
        )
    except BaseException:
        os.close(stdin)
        os.close(stdout)
        raise
    finally:
        os.close(their_stdin)
        os.close(their_stdout)
    return Child(process, stdin, stdout)


def missing(command: Sequence[str], env: Mapping[str, str], cwd: str) -> bool:
    """Return whether there is no program to run for a command: it would fail at its first call."""
    program = os.path.join(cwd, command[0]) if os.sep in command[0] else command[0]  # noqa: PTH118
    return which(program, path=env.get("PATH", os.environ.get("PATH"))) is None


def exit_code(error: OSError) -> int:
    """Return what a shell exits with when a command cannot be started for this reason."""
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE


def exit_as(code: int) -> int:
    """Return `code` to exit with; where a signal ended the command (below zero), die of the same."""
    if code >= 0:
        return code
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # that of SIGKILL cannot be changed
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code
