"""Change files of a store at random, and hold `turnlog verify` to what can be read afterwards.

`verify` may say that something is wrong of what makes no difference (a counter, a page's header). It
must not end by a signal, run for ever, or say `ok` where a reader finds something else than before.
"""

import asyncio
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

import lmdb
from msgspec import Struct

from conformance.store import kit
from e2e.stores import Call, turnlog, written
from turnlog.core.commit import CommitBody
from turnlog.core.kinds import Flag, Status
from turnlog.core.note import Decision, Fact, FactAction
from turnlog.core.operation import Operation
from turnlog.store import definitions
from turnlog.store.bounded_process import Send, Worker, WorkerFailed
from turnlog.store.lmdb import LmdbStore
from turnlog.store.log.tables import NAMES
from turnlog.wire.tool_definition import KeptDefinition

PAGE: Final = 4096
SECTOR: Final = 512
FINE, FAILED, NO_STORE = 0, 1, 3
_ANY: Final = {"redo"}
"""Tables whose content is no record: what a power cut undid, for the next start."""
_PASSING: Final = {b"epoch", b"limit", b"redo mark", b"redo offset"}
"""Rows of `meta` that the next start writes again, or checks itself."""


class Tried(Struct, frozen=True):
    """What came of one change."""

    file: str
    how: str
    at: int
    code: int
    """Of `turnlog verify`."""
    is_same: bool
    """Whether everything can be read as before; not looked at where `verify` found something."""

    @property
    def is_right(self) -> bool:
        """Whether `verify` came to an end, and said no wrong `ok`."""
        return self.code in (FAILED, NO_STORE) or (self.code == FINE and self.is_same)


_TEXTS: Final = tuple(b'{"name":"tool%d","description":"%s"}' % (n, b"x" * 300) for n in range(8))
Change = Callable[[random.Random, bytearray, int], int]
"""Changes the content of a file, of which the last argument is a place; returns where."""


def make(data: Path, calls: int = 60) -> None:
    """Make a store that has something in all its files and tables."""
    made = [
        Call(
            tool=f"tool{n % 5}",
            minute=3 * n,
            session=f"session{n % 4}",
            status=None if n % 9 == 8 else Status.OK,
            error="timeout" if n % 7 == 6 else "",
            flags=(Flag.LATE,) if n % 5 == 4 else (),
            output=b'{"content":[{"type":"text","text":"%d"}]}' % n + bytes(n % 3 * 2000),
            delta=(Operation(field="files_modified", op="created", key=f"/tmp/{n}"),),
            notes=(
                Decision(text=f"decision {n}"),
                Fact(id=f"fact{n}", action=FactAction.ASSERT, subject="port", value=str(n)),
            )
            if n % 10 == 3
            else (),
        )
        for n in range(calls)
    ]
    asyncio.run(written(data, made, flush_every=20))
    asyncio.run(_more(data))
    texts = {sha256(text).digest(): KeptDefinition(text, partial=False) for text in _TEXTS}
    listing = definitions.Listing(
        server="files",
        by="somebody",
        at=kit.START,
        tools={f"tool{n}": digest for n, digest in enumerate(texts)},
        whole=frozenset(f"tool{n}" for n in range(len(texts))),
    )
    definitions.keep(data, listing, texts.__getitem__)
    _settle(data)
    done = turnlog("verify", data=data)
    assert (done.returncode, done.stderr) == (FINE, ""), done.stdout


async def _more(data: Path) -> None:
    """Write what links, and what is parked."""
    store = LmdbStore.open(data, flush_every=20)
    ref = kit.session("parked")
    for n in range(30):
        call = kit.new_id()
        await kit.put(store, kit.intent(ref, call, body=CommitBody(links=(b"link%d" % (n % 7),))))
        await kit.put(store, kit.outcome(ref, call, status=Status.ACCEPTED, expires=2**62 + n))
    for _ in range(5):
        await kit.put(store, kit.intent(ref, kit.new_id()))
    await store.close()


def _settle(data: Path) -> None:
    """Write twice what says nothing: of a changed newest meta page LMDB falls back to the one before."""
    with lmdb.open(str(data / "log"), max_dbs=len(NAMES), map_size=1 << 40) as env:
        meta = env.open_db(b"meta", create=False)
        for _ in range(2):
            with env.begin(write=True, db=meta) as txn:
                txn.put(b"limit", txn.get(b"limit", b""))


# -- changes -----------------------------------------------------------------------------


def _bit(dice: random.Random, content: bytearray, at: int) -> int:
    content[at] ^= 1 << dice.randrange(8)
    return at


def _zeros(dice: random.Random, content: bytearray, at: int) -> int:
    start = at // SECTOR * SECTOR
    content[start : start + SECTOR] = bytes(len(content[start : start + SECTOR]))
    return start


def _zero_page(dice: random.Random, content: bytearray, at: int) -> int:
    start = at // PAGE * PAGE
    content[start : start + PAGE] = bytes(len(content[start : start + PAGE]))
    return start


def _noise(dice: random.Random, content: bytearray, at: int) -> int:
    length = min(len(content) - at, dice.randrange(1, 200))
    content[at : at + length] = dice.randbytes(length)
    return at


def _swap(dice: random.Random, content: bytearray, at: int) -> int:
    """Swap two pages, or two sectors of a file of few."""
    size = PAGE if len(content) >= 4 * PAGE else 16
    one = at // size * size
    other = dice.randrange(len(content) // size) * size if len(content) >= size else one
    first, second = content[one : one + size], content[other : other + size]
    if len(first) == len(second) == size:
        content[one : one + size], content[other : other + size] = second, first
    return one


def _cut(dice: random.Random, content: bytearray, at: int) -> int:
    del content[at:]
    return at


CHANGES: Final[dict[str, Change]] = {
    "a bit": _bit,
    "512 zeros": _zeros,
    "a page of zeros": _zero_page,
    "noise": _noise,
    "two swapped": _swap,
    "cut": _cut,
}


def files(data: Path) -> list[Path]:
    """Return the files whose content counts: no locks, no logs, and not the API's token."""
    found = (path for path in sorted(data.rglob("*")) if path.is_file() and path.stat().st_size)
    return [
        path
        for path in found
        if path.name not in ("lock.mdb", "token", "format") and path.parent.name != "epochs"
    ]


def tried(data: Path, before: str, scratch: Path, seed: int) -> Tried:
    """Change a copy of a store once, and say what comes of it. `seed` decides all; `before` is what
    `contents` says of the store."""
    dice = random.Random(seed)
    copy = shutil.copytree(data, scratch / str(seed))
    # Half of the changes are for the log, which holds the most.
    log = copy / "log" / "data.mdb"
    file = log if seed % 2 else dice.choice(files(copy))
    how = dice.choice(sorted(CHANGES))
    content = bytearray(file.read_bytes())
    at = CHANGES[how](dice, content, dice.choice(_places(content)))
    file.write_bytes(content)
    try:
        code = turnlog("verify", data=copy).returncode
        is_same = code != FINE or contents(copy) == before
    finally:
        shutil.rmtree(copy)
    return Tried(str(file.relative_to(copy)), how, at, code, is_same)


def _places(content: bytearray) -> list[int]:
    """Return the places of a file that hold something."""
    used = [at for at in range(0, len(content), 64) if any(content[at : at + 64])]
    return [at + n for at in used for n in range(min(64, len(content) - at))]


# -- what a reader finds -----------------------------------------------------------------


def contents(data: Path) -> str:
    """Return a digest of all that can be read, or how reading failed, from a process of its own."""

    def work(send: Send) -> None:
        digest = sha256()
        for row in _read(data):
            digest.update(repr(row).encode())
        send(digest.hexdigest().encode())

    try:
        (found,) = Worker(work, 60).messages(240)
    except (WorkerFailed, RuntimeError) as error:
        return str(error)
    return found.decode()


def _read(data: Path) -> Iterator[tuple[str, bytes, bytes]]:
    for file in files(data):
        name = str(file.relative_to(data))
        if file.name == "data.mdb":
            yield from _rows(file.parent, name)
        else:
            yield name, b"", file.read_bytes()


def _rows(folder: Path, name: str) -> Iterator[tuple[str, bytes, bytes]]:
    is_log = folder.name == "log"
    with lmdb.open(str(folder), max_dbs=len(NAMES), map_size=1 << 40, readonly=True) as env:
        with env.begin() as txn:
            main = [(bytes(key), bytes(value)) for key, value in txn.cursor()]
        tables = [key for key, _ in main] if folder.parent.name != "blobs" else []
        for key, value in main:
            if key == b"newest seal" or not tables:
                yield name, key, value
        for table in tables:
            if table == b"newest seal" or (is_log and table.decode() in _ANY):
                continue
            with env.begin(db=(handle := env.open_db(table, create=False))) as txn:
                for key, value in txn.cursor(handle):
                    if not (table == b"meta" and bytes(key) in _PASSING):
                        yield f"{name}/{table.decode()}", bytes(key), bytes(value)


def run(count: int, first: int = 0) -> Iterator[Tried]:
    """Yield what comes of so many changes of one store."""
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "data"
        make(data)
        before = contents(data)
        for seed in range(first, first + count):
            yield tried(data, before, Path(scratch), seed)


def main(count: int) -> int:
    """Try so many changes; return the exit code."""
    codes: Counter[int] = Counter()
    wrong = 0
    for seed, one in enumerate(run(count)):
        codes[one.code] += 1
        if not one.is_right:
            wrong += 1
            print(f"seed {seed}: {one.how} at {one.at} of {one.file}: exit code {one.code}")
    print(f"{count} changes: {codes[FINE]} made no difference, {wrong} went wrong")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
