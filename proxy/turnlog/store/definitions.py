"""Tool definitions by their hashes, and the tools that each server listed last.

They are in an LMDB environment of their own, DATA/definitions, which the first recorded tool list
creates. Each list with something new is written in one transaction.
"""

import threading
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

import lmdb
import msgspec
from msgspec import Struct, structs

from turnlog.core.pins import ServerIdentity
from turnlog.store.log.environment import Environment, Txn, is_begun, open_environment
from turnlog.store.log.tables import keys_with
from turnlog.store.log.translate_errors import translated
from turnlog.wire.tool_definition import KeptDefinition, Part, parts_changed

from .base import StoreError

FOLDER: Final = "definitions"
MOST: Final = 4096
"""Definitions that are kept; those that no server shows any more go first, the oldest first."""
MOST_SHOWN: Final = 1000
"""Tools of one server."""
_HOUR: Final = 3600 * 1_000_000_000
"""ns after which it is written again that something is still shown."""
_DAY: Final = 24 * _HOUR
_MAP: Final = 1 << 30
_UNSUMMED: Final = -1
"""In place of a checksum, when it is made."""


class Shown(Struct, frozen=True, array_like=True):
    """The definition that a server showed last for a tool."""

    server: str
    """Its name in turnlog.lock."""
    tool: str
    digest: bytes
    at: int
    """When, ns UTC, to the hour where it has not changed since."""
    by: str
    """Digest of the credential that asked."""
    check: int = 0
    """Checksum of the fields above, and of the record's key."""


class Listing(Struct, frozen=True, kw_only=True):
    """The tools on one page of a server's list."""

    server: str
    by: str
    at: int
    tools: Mapping[str, bytes]
    """Digests of the definitions on this page."""
    whole: frozenset[str] | None
    """All tools of the list that this page ends; `None` where it ends none."""


class Change(Struct, frozen=True):
    """A tool that had another definition when the same credential asked before."""

    tool: str
    before: bytes
    now: bytes


class _Stored(Struct, frozen=True, array_like=True):
    at: int
    text: bytes
    partial: bool
    check: int = 0


class ShownServer(Struct, frozen=True, array_like=True):
    """The identity of a server as it was seen last."""

    identity: ServerIdentity
    at: int
    """When, ns UTC."""
    check: int = 0
    """Checksum of the fields above, and of the record's key."""


class _Tables:
    """The tables in one transaction."""

    def __init__(self, env: Environment, txn: Txn, *, create: bool) -> None:
        self.txn = txn
        self.texts, self.shown, self.whole = (
            env.raw.open_db(name, txn=txn, create=create) for name in (b"texts", b"shown", b"whole")
        )
        self.servers: Any = None
        """`None` where turnlog up to 0.2 has made the tables."""
        with suppress(lmdb.NotFoundError, lmdb.ReadonlyError):
            self.servers = env.raw.open_db(b"servers", txn=txn, create=create)


_R = TypeVar("_R", "_Stored", "Shown", "ShownServer")
_encode = msgspec.msgpack.Encoder().encode


def keep(data: Path, listing: Listing, texts: Callable[[bytes], KeptDefinition]) -> list[Change]:
    """Write down what a list showed; return what differs from before. Blocks, raises `StoreError`.

    `texts` gives what to keep of a definition, asked only for those that are not there yet.
    """
    with _writing(data) as tables:
        _add(tables, listing.tools.values(), texts, listing.at)
        known = {one.tool: one for one in _all_shown(tables, listing.server)}
        for said in _said(listing, known):
            key = _key(said.server, said.tool)
            tables.txn.put(key, _checked(said, key), db=tables.shown)
        if listing.whole is not None:
            _forget(tables, listing, listing.whole, known.values())
            server = listing.server.encode()
            tables.txn.put(server, _sum_of(server), db=tables.whole, overwrite=False)
        return _changes(listing, known)


def add(data: Path, texts: Mapping[bytes, KeptDefinition], at: int) -> None:
    """Keep definitions that no server has shown here. Blocks, raises `StoreError`."""
    with _writing(data) as tables:
        _add(tables, texts, texts.__getitem__, at)


def keep_servers(
    data: Path, seen: Mapping[str, ServerIdentity], at: int
) -> dict[str, tuple[ServerIdentity, ServerIdentity]]:
    """Write down the parts that were seen of servers, by their names in turnlog.lock; return the identities
    before and after for those with news. Blocks, raises `StoreError`."""
    news: dict[str, tuple[ServerIdentity, ServerIdentity]] = {}
    with _writing(data) as tables:
        for server, parts in seen.items():
            key = server.encode()
            stored = tables.txn.get(key, db=tables.servers)
            before = ServerIdentity() if stored is None else _decode(stored, ShownServer).identity
            # Another process may have seen other parts.
            now = before.with_parts(parts)
            if now != before:
                tables.txn.put(key, _checked(ShownServer(now, at), key), db=tables.servers)
                news[server] = (before, now)
    return news


def servers(data: Path) -> dict[str, ServerIdentity]:
    """Return what was seen last of each server, by its name in turnlog.lock. Raises `StoreError`."""
    with _reading(data) as tables:
        every = [] if tables is None else list(_records(tables, tables.servers, ShownServer))
    return {key.decode(): one.identity for key, one in every}


def find(data: Path, digests: Iterable[bytes]) -> dict[bytes, KeptDefinition]:
    """Return those of the definitions that are kept. Raises `StoreError`."""
    found: dict[bytes, KeptDefinition] = {}
    with _reading(data) as tables:
        for digest in digests:
            if tables and (value := tables.txn.get(digest, db=tables.texts)) is not None:
                stored = _decode(value, _Stored)
                found[digest] = KeptDefinition(stored.text, stored.partial)
    return found


def changed(data: Path, before: bytes, now: bytes) -> list[Part]:
    """Return what differs between two definitions; empty where one is not kept.

    Raises `StoreError`.
    """
    both = find(data, (before, now))
    if len(both) < 2:
        return []
    return parts_changed(both[before].value, both[now].value)


def shown(data: Path) -> list[Shown]:
    """Return what the servers showed last, sorted by server and tool. Raises `StoreError`."""
    with _reading(data) as tables:
        every = [] if tables is None else _all_shown(tables)
    return sorted(every, key=lambda one: (one.server, one.tool))


def listed_whole(data: Path) -> set[str]:
    """Return the servers whose list of tools was seen to its end. Raises `StoreError`."""
    with _reading(data) as tables:
        rows = [] if tables is None else list(tables.txn.cursor(tables.whole))
    return {server.decode() for server, _ in rows}


def copy(data: Path, target: Path) -> None:
    """Copy the definitions of a data folder into another. Raises `StoreError`, `OSError`, `lmdb.Error`."""
    if is_begun(data / FOLDER):
        (target / FOLDER).mkdir(mode=0o700)
        with _open(data / FOLDER, readonly=True) as env:
            env.copy(target / FOLDER)


def flaws(data: Path) -> Iterator[str]:
    """Yield the flaws of the stored definitions, as far as they can be found."""
    path = data / FOLDER
    if not is_begun(path):
        return
    try:
        with _turn, _open(path, readonly=True) as env, translated("read", path):
            # A file with flaws is not read through LMDB.
            found = env.problems()[:1]
            if not found:
                with env.read() as txn:
                    tables = _opened(env, txn)
                    found = [] if tables is None else list(_unreadable(tables))
    except StoreError as error:
        found = [str(error)]
    yield from found


def _unreadable(tables: _Tables) -> Iterator[str]:
    """Yield which records are not as they were written."""
    for digest, _ in _damaged(tables, tables.texts, _Stored):
        yield f"the definition sha256:{digest.hex()} is not what was written"
    for _, one in _damaged(tables, tables.shown, Shown):
        yield f"what {one.server!r} showed last for a tool is not what was written"
    for key, value in tables.txn.cursor(tables.whole):
        if not key or value not in (b"", _sum_of(key)):
            yield "a server whose list was seen whole is not what was written"
    for key, _ in _damaged(tables, tables.servers, ShownServer):
        yield f"what was seen last of the server {key.decode()!r} is not what was written"


def _damaged(tables: _Tables, table: Any, kind: type[_R]) -> Iterator[tuple[bytes, _R]]:
    return ((k, one) for k, one in _records(tables, table, kind) if one.check != _sum(one, k))


def _records(tables: _Tables, table: Any, kind: type[_R]) -> Iterator[tuple[bytes, _R]]:
    """Yield the records of a table, which may be `None`."""
    for key, value in () if table is None else tables.txn.cursor(table):
        yield key, _decode(value, kind)


def _sum_of(key: bytes) -> bytes:
    return zlib.crc32(key).to_bytes(4)


def _sum(record: "_Stored | Shown | ShownServer", key: bytes) -> int:
    """Return the checksum of a record and its key, without its own checksum field."""
    return zlib.crc32(_encode(structs.replace(record, check=_UNSUMMED)), zlib.crc32(key))


def _checked(record: _R, key: bytes) -> bytes:
    """Return the bytes of a record with its checksum."""
    return _encode(structs.replace(record, check=_sum(record, key)))


def _decode(value: bytes, kind: type[_R]) -> _R:
    return msgspec.msgpack.decode(value, type=kind)


def _add(
    tables: _Tables, digests: Iterable[bytes], text: Callable[[bytes], KeptDefinition], at: int
) -> None:
    wanted, added = set(digests), False
    for digest in wanted:
        if tables.txn.get(digest, db=tables.texts) is None:
            made = text(digest)
            value = _checked(_Stored(at, made.text, made.partial), digest)
            added = tables.txn.put(digest, value, db=tables.texts)
    if added:
        _make_room(tables, wanted)


def _make_room(tables: _Tables, wanted: set[bytes]) -> None:
    over = tables.txn.stat(tables.texts)["entries"] - MOST
    if over <= 0:
        return
    used = wanted | {one.digest for one in _all_shown(tables)}
    kept = _records(tables, tables.texts, _Stored)
    ages = [(digest in used, stored.at, digest) for digest, stored in kept]
    for _, _, digest in sorted(ages)[:over]:
        tables.txn.delete(digest, db=tables.texts)


def _all_shown(tables: _Tables, server: str = "") -> list[Shown]:
    rows = keys_with(tables.txn, tables.shown, _prefix(server))
    return [_decode(value, Shown) for _, value in rows]


def _prefix(server: str) -> bytes:
    return server.encode() + b"\0" if server else b""


def _key(server: str, tool: str) -> bytes:
    return _prefix(server) + sha256(tool.encode()).digest()


def _said(listing: Listing, known: Mapping[str, Shown]) -> list[Shown]:
    """Return the records to write: new ones as far as there is room, and those last written long ago."""
    room = MOST_SHOWN - len(known)
    written: list[Shown] = []
    for tool, digest in listing.tools.items():
        said = Shown(listing.server, tool, digest, listing.at, listing.by)
        old = known.get(tool)
        if old is None:
            room -= 1
        if room >= 0 if old is None else _is_news(old, said):
            written.append(said)
    return written


def _changes(listing: Listing, known: Mapping[str, Shown]) -> list[Change]:
    olds = ((known.get(tool), tool, digest) for tool, digest in listing.tools.items())
    return [
        Change(tool, old.digest, digest)
        for old, tool, digest in olds
        if old is not None and old.by == listing.by and old.digest != digest
    ]


def _is_news(old: Shown, said: Shown) -> bool:
    return (old.digest, old.by) != (said.digest, said.by) or said.at - old.at > _HOUR


def _forget(
    tables: _Tables, listing: Listing, whole: frozenset[str], known: Iterable[Shown]
) -> None:
    """Forget the tools that are gone.

    What another credential was shown stays for a day: it may be for its eyes only. Then it goes,
    because credentials change by the hour where they are tokens.
    """
    for one in known:
        if one.tool in whole:
            continue
        if one.by == listing.by or listing.at - one.at > _DAY:
            tables.txn.delete(_key(one.server, one.tool), db=tables.shown)


def _open(path: Path, *, readonly: bool) -> Environment:
    return open_environment(path, readonly=readonly, map_size=_MAP, tables=4)


_turn: Final = threading.Lock()
"""Held by each transaction of this process: each opens the tables, and LMDB mixes up tables that two
transactions open at once (lmdb.h, mdb_dbi_open)."""


@contextmanager
def _writing(data: Path) -> Generator[_Tables]:
    path = data / FOLDER
    with (
        _turn,
        _open(path, readonly=False) as env,
        translated("write", path),
        env.write() as txn,
    ):
        yield _Tables(env, txn, create=True)


@contextmanager
def _reading(data: Path) -> Generator[_Tables | None]:
    """Open a snapshot; `None` where no list has been written down yet."""
    path = data / FOLDER
    if not is_begun(path):
        yield None
        return
    with _turn, _open(path, readonly=True) as env, translated("read", path), env.read() as txn:
        yield _opened(env, txn)


def _opened(env: Environment, txn: Txn) -> _Tables | None:
    try:
        return _Tables(env, txn, create=False)
    except (lmdb.NotFoundError, lmdb.ReadonlyError):
        return None  # made by a process that died before its first list was written
