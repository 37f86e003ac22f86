"""What a call is for: an upstream, and the path and query there (semantics, section 5, Same).

Pure. A place is a tuple of texts: origin, path and query of a URL, or `command:`, program,
arguments and working directory.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

COMMAND: Final = "command:"
"""What a place begins with that is a command."""
_DIGITS: Final = 16
_SEPARATOR: Final = "@"
"""No name of an upstream has it."""


def lock_name(server: str, place: Sequence[str], folder: str) -> str:
    """Return what a server is called in a turnlog.lock that lies in `folder`: its name, and its place
    as host or program and a digest.

    The digest is not keyed, and a working directory in `folder` counts from there: a lock is
    compared across machines.
    """
    if place[0] == COMMAND:
        shown = place[1].rpartition("/")[2]
        place = (*place[:-1], _relative(place[-1], folder))
    else:
        shown = place[0].partition("://")[2]
    whole = "\0".join(place).encode("utf-8", "surrogatepass")
    return join_lock_name(server, f"{shown}-{sha256(whole).hexdigest()[:_DIGITS]}")


def server_of(lock_name: str) -> str:
    """Return the server's name alone."""
    return lock_name.partition(_SEPARATOR)[0]


def place_of(lock_name: str) -> str:
    """Return host or program and the digest; empty where turnlog 0.1 pinned."""
    return lock_name.partition(_SEPARATOR)[2]


def join_lock_name(server: str, target: str) -> str:
    """Return the name in a lock again of what `server_of` and `place_shown` have taken apart."""
    return f"{server}{_SEPARATOR}{target}" if target else server


def has_place(lock_name: str) -> bool:
    """Return whether the place is known: turnlog 0.1 wrote none down."""
    return _SEPARATOR in lock_name


def _relative(path: str, folder: str) -> str:
    """Return an absolute path as it counts from `folder`, where it lies in there."""
    inside = f"{path}/".removeprefix(f"{folder}/")
    return path if inside == f"{path}/" else f"./{inside}"
