"""Reading and writing turnlog.lock: the tool definitions that an operator pinned.

It is JSON with sorted keys, so that two locks can be compared line by line. YAML is read as well.
"""

import json
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from turnlog.core.canon import SHA256, canonical
from turnlog.core.pins import ServerIdentity, ServerStatus, server_status
from turnlog.core.text.terminal import escape_unprintable
from turnlog.host import whole_file
from turnlog.wire.tool_definition import Json, KeptDefinition

from . import load
from .errors import ConfigError, SettingError

LOCK_NAME: Final = "turnlog.lock"
VERSION: Final = 1
LARGEST: Final = 64 << 20  # bytes
COMMAND: Final = "command:"
"""First part of a server's place if it is a command, not a URL."""
_PREFIX: Final = "sha256:"
_DIGEST_DIGITS: Final = 16
_SEPARATOR: Final = "@"  # not allowed in the name of an upstream
_NOTE: Final = "lock-path"
_ADVICE: Final = "restore the lock, or remove it and run `turnlog trust` again"


class Pin(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The pinned definition of one tool."""

    hash: str
    """`sha256:` and the hash of the whole definition in canonical form."""
    definition: Json
    partial: bool = False
    """Whether secrets or large parts of the definition are left out."""

    @property
    def digest(self) -> bytes:
        """The hash as bytes."""
        return bytes.fromhex(self.hash.removeprefix(_PREFIX))


class LockFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All pins, by server and tool."""

    version: int = VERSION
    servers: dict[str, dict[str, Pin]] = {}
    identities: dict[str, ServerIdentity] = {}
    """By server; those that turnlog up to 0.2 pinned have none."""

    def find(self, server: str, tool: str) -> Pin | None:
        """Return a tool's pin."""
        return self.servers.get(server, {}).get(tool)

    def status_of(
        self, server: str, seen: ServerIdentity, *, is_beside_configuration: bool
    ) -> ServerStatus:
        """Compare what was seen of a server with its pinned identity; `server` is its name in the lock."""
        # In the data folder several projects share a lock, and each calls its only server `default`.
        name = server_of(server) if is_beside_configuration else None
        elsewhere = (one for at, one in self.identities.items() if server_of(at) == name)
        return server_status(self.identities.get(server), seen, elsewhere)

    def pinned_server(self, server: str, status: ServerStatus) -> ServerIdentity | None:
        """Return the identity that a server differs from: its own, else that of its name at another place."""
        own = self.identities.get(server)
        if own is not None or not status.changes:
            return own
        name = server_of(server)
        return next((one for at, one in self.identities.items() if server_of(at) == name), None)


def pin(digest: bytes, kept: KeptDefinition) -> Pin:
    """Return the pin of a recorded definition."""
    return Pin(hash=_PREFIX + digest.hex(), definition=kept.value, partial=kept.partial)


def kept_definition(pin: Pin) -> KeptDefinition:
    """Return a pinned definition in the form of the store."""
    return KeptDefinition(canonical(msgspec.json.encode(pin.definition))[1], pin.partial)


def lock_file(config: Path | None, data: Path) -> Path:
    """Return the path of the lock: beside the configuration file, else in the data folder."""
    return (config.parent if config is not None else data) / LOCK_NAME


def is_beside_configuration(lock: Path, data: Path) -> bool:
    """Return whether a lock is that of a configuration, and not that of a data folder."""
    return lock.absolute().parent != data.absolute()


def write_lock_note(data: Path, lock: Path) -> None:
    """Write the path of the lock that a proxy reads into its data folder. Raises `OSError`."""
    (data / _NOTE).write_bytes(os.fsencode(lock))


def read_lock_note(data: Path) -> Path | None:
    """Return the lock of the last proxy on a data folder, if there was one."""
    try:
        noted = load.read_regular(data / _NOTE, LARGEST)
    except OSError:
        return None
    path = Path(os.fsdecode(noted))
    return path if path.parent.is_dir() else None  # the folder may have been moved since


def read_lock(path: Path) -> LockFile:
    """Return a lock; an empty one if there is no file. Raises `ConfigError`."""
    try:
        text = load.read_regular(path, LARGEST + 1)
    except FileNotFoundError:
        return LockFile()
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise ConfigError(str(path), 0, 0, f"{reason}, make it readable") from None
    if len(text) > LARGEST:
        raise ConfigError(str(path), 1, 1, f"larger than {LARGEST} bytes, pin fewer tools")
    if not text.strip():
        raise ConfigError(str(path), 1, 1, f"the file is empty, {_ADVICE}")
    lock = _read_canonical(text) or _read_yaml(path, len(text))
    if (wrong := _first_mistake(lock)) is not None:
        raise _error_at(path, len(text), *wrong)
    return lock


def _read_canonical(text: bytes) -> LockFile | None:
    """Return a lock that `write_lock` wrote; `None` for any other text."""
    if canonical(text)[0] != SHA256:
        return None  # for example a duplicate key
    try:
        return msgspec.json.decode(text, type=LockFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _read_yaml(path: Path, size: int) -> LockFile:
    if size > load.LARGEST_FILE:
        # The parser with line numbers would need minutes.
        raise ConfigError(str(path), 1, 1, f"not what `turnlog trust` writes, {_ADVICE}")
    try:
        return load.load(path, LockFile)
    except ConfigError as error:
        # A lock is rarely written by hand: most likely the file was damaged.
        message = f"{error.message} (or {_ADVICE})"
        raise ConfigError(error.path, error.line, error.column, message) from None


def _error_at(path: Path, size: int, steps: tuple[str, ...], message: str) -> ConfigError:
    if size > load.LARGEST_FILE:
        return ConfigError(str(path), 1, 1, f"{'/'.join(steps)}: {message}")
    return load.read(path).error(steps, message)


def _first_mistake(lock: LockFile) -> tuple[tuple[str, ...], str] | None:
    if lock.version != VERSION:
        return ("version",), f"version {lock.version} is not {VERSION}, install another turnlog"
    for server, tools in lock.servers.items():
        for tool, one in tools.items():
            if (message := _mistake(one)) is not None:
                return ("servers", server, tool, "hash"), message
    return None


def _mistake(one: Pin) -> str | None:
    digits = one.hash.removeprefix(_PREFIX)
    if digits == one.hash or len(digits) != 64 or not set(digits) <= set("0123456789abcdef"):
        return f"{one.hash[:80]!r} is no hash, {_ADVICE}"
    # A reviewer reads the definition, turnlog compares the hash: they must agree.
    if not one.partial and _digest(one.definition) != one.digest:
        return f"this is not the hash of the definition here, {_ADVICE}"
    return None


def _digest(definition: Json) -> bytes:
    if isinstance(definition, str):
        return sha256(definition.encode()).digest()
    return sha256(canonical(msgspec.json.encode(definition))[1]).digest()


def lock_text(lock: LockFile) -> str:
    """Return the text of a lock: sorted, one member a line, invisible characters escaped."""
    plain = msgspec.to_builtins(lock)
    if not lock.identities:
        del plain["identities"]  # so that turnlog 0.2 can read it
    text = json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False)
    return "\n".join(map(escape_unprintable, text.split("\n"))) + "\n"


def write_lock(path: Path, lock: LockFile) -> None:
    """Write a lock atomically. Raises `SettingError`."""
    path = path.resolve()
    try:
        with whole_file(path, replace=True, mode=0o666) as stream:
            stream.write(lock_text(lock).encode())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SettingError(str(path), f"cannot be written ({reason}), check its folder") from None


def lock_name(server: str, place: Sequence[str], folder: str) -> str:
    """Return the name of a server in a turnlog.lock in `folder`: `name@host-digest`.

    `place` is origin, path and query of a URL, or `command:`, program, arguments and working
    directory.
    """
    # A lock is compared across machines: so the digest has no key, and a working directory below
    # `folder` is taken relative to it.
    if place[0] == COMMAND:
        shown = place[1].rpartition("/")[2]
        place = (*place[:-1], _relative(place[-1], folder))
    else:
        shown = place[0].partition("://")[2]
    whole = "\0".join(place).encode("utf-8", "surrogatepass")
    return join_lock_name(server, f"{shown}-{sha256(whole).hexdigest()[:_DIGEST_DIGITS]}")


def join_lock_name(server: str, place: str) -> str:
    """Return the lock name that `server_of` and `place_of` take apart."""
    return f"{server}{_SEPARATOR}{place}" if place else server


def server_of(lock_name: str) -> str:
    """Return the server's name from a lock name."""
    return lock_name.partition(_SEPARATOR)[0]


def place_of(lock_name: str) -> str:
    """Return host or program and digest from a lock name; empty in a lock of turnlog 0.1."""
    return lock_name.partition(_SEPARATOR)[2]


def _relative(path: str, folder: str) -> str:
    inside = f"{path}/".removeprefix(f"{folder}/")
    return path if inside == f"{path}/" else f"./{inside}"
