"""Whether an LMDB file is sound, as py-lmdb's own verifier says. Nobody here knows the format.

The verifier reads the file without LMDB: a damaged page that would end this process, or be read for
ever, is a sentence.
"""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import lmdb
from lmdb import verify as verifier

_TRIES: Final = 5
# It has no types.
_check: Final[Callable[[str], list[str]]] = cast("Any", verifier).verify
_UNREADABLE: Final = (verifier.VerifyError, struct.error, ValueError, IndexError, RecursionError)


def problems(env: lmdb.Environment, file: Path) -> list[str]:
    """Return what is wrong with the file of an environment, while others may write to it.

    Raises `OSError`, `lmdb.Error`.
    """
    found: list[str] = []
    for _ in range(_TRIES):
        # While a snapshot is open, no page that it or a later one uses is used again. Its size and
        # its end are read one after the other, though: what is wrong is wrong again.
        with env.begin():
            before = env.info()["last_txnid"]
            found = at_rest(file)
            if not found or env.info()["last_txnid"] == before:
                return found
    return found


def at_rest(file: Path) -> list[str]:
    """Return what is wrong with a file that nobody writes to. Raises `OSError`."""
    try:
        return _check(str(file))
    except _UNREADABLE as error:
        return [str(error)]


def lacks(env: lmdb.Environment, file: Path) -> int:
    """Return how many bytes a file was cut by: reading them would end this process.

    Raises `OSError`, `lmdb.Error`.
    """
    with env.begin():
        page = env.stat()["psize"]
        short = (env.info()["last_pgno"] + 1) * page - file.stat().st_size
    # Pages that were taken and given back at once are never written: a file may be short and whole.
    return short if short > 0 and problems(env, file) else 0
