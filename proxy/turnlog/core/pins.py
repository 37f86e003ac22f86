"""Provenance: how a tool compares with turnlog.lock, the names of servers in that file, and checks of results."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Final

from msgspec import Struct, structs

COMMAND: Final = "command:"
"""First part of a server's place if it is a command, not a URL."""
_DIGEST_DIGITS: Final = 16
_SEPARATOR: Final = "@"  # not allowed in the name of an upstream


class Provenance(StrEnum):
    """How a tool's definition compares with turnlog.lock; of a finished call, all that is known of it."""

    PINNED = "pinned"
    """It is the one in turnlog.lock."""
    MISMATCH = "mismatch"
    """turnlog.lock has another for this tool."""
    UNVERIFIED = "unverified"
    """turnlog.lock has none for this tool, or its definition has not been seen yet."""
    VERIFIED = "verified"
    """Of a finished call: pinned, and a signature of its result holds."""


class PinStatus(Struct, frozen=True, gc=False):
    """The provenance of a tool, with the pinned hash if it differs."""

    provenance: Provenance = Provenance.UNVERIFIED
    pinned: bytes = b""
    """sha256 of the definition in the lock if it is another one."""


UNVERIFIED: Final = PinStatus()
_PINNED: Final = PinStatus(Provenance.PINNED)


class ServerIdentity(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """The parts by which one server is told from another; empty where one is not known."""

    target: str = ""
    """Scheme, host and port of its URL; of a command the program as it is configured."""
    name: str = ""
    """As the server says (`serverInfo`)."""
    version: str = ""
    tls_key: str = ""
    """`sha256:` and the hash of its public key (SubjectPublicKeyInfo)."""
    program: str = ""
    """Path of the program that a command runs, links resolved."""
    program_digest: str = ""
    """`sha256:` and the hash of that file."""

    def with_parts(self, seen: "ServerIdentity") -> "ServerIdentity":
        """Return this identity with the parts that were seen since."""
        return structs.replace(self, **{f: text for f in _PARTS if (text := getattr(seen, f))})

    @property
    def parts(self) -> dict[str, str]:
        """The parts that are known, by what they are called."""
        return {shown: text for field, shown in _PARTS.items() if (text := getattr(self, field))}


_PARTS: Final = {
    "target": "target",
    "name": "name",
    "version": "version",
    "tls_key": "TLS key",
    "program": "program",
    "program_digest": "program digest",
}


class ServerStatus(Struct, frozen=True, gc=False):
    """How a server compares with its identity in turnlog.lock."""

    is_pinned: bool = False
    """Whether turnlog.lock has an identity of the server."""
    changes: tuple[str, ...] = ()
    """The parts that differ from it, such as `version`."""

    @property
    def provenance(self) -> Provenance:
        """The result of the comparison: a part that differs is a mismatch."""
        if self.changes:
            return Provenance.MISMATCH
        return Provenance.PINNED if self.is_pinned else Provenance.UNVERIFIED


UNCHANGED: Final = ServerStatus()
"""Of a server without a pinned identity: most servers."""


class ResultChecks(Struct, frozen=True, gc=False):
    """The checks that a server's answer allowed: of its digests and signatures."""

    failures: tuple[str, ...] = ()
    """What failed, such as `content-digest mismatch`; empty if nothing did."""
    is_checked: bool = False
    """Whether a digest or a signature holds."""
    is_verified: bool = False
    """Whether a signature holds."""

    def with_others(self, others: "ResultChecks") -> "ResultChecks":
        """Return these and other checks of the same answer together."""
        return ResultChecks(
            self.failures + others.failures,
            self.is_checked or others.is_checked,
            self.is_verified or others.is_verified,
        )


NO_CHECKS: Final = ResultChecks()
"""Of an answer that had nothing to check, or did not come whole: most answers."""


def server_status(
    pinned: ServerIdentity | None, seen: ServerIdentity, elsewhere: Iterable[ServerIdentity]
) -> ServerStatus:
    """Compare what was seen of a server with its pinned identity.

    `elsewhere` are the identities that are pinned for its name at other places.
    """
    if pinned is not None:
        return ServerStatus(is_pinned=True, changes=changed_parts(pinned, seen))
    targets = {each.target for each in elsewhere}
    # One server may have several endpoints, and a command several folders.
    if not targets or seen.target in targets:
        return UNCHANGED
    return ServerStatus(changes=("target",))


def changed_parts(pinned: ServerIdentity, seen: ServerIdentity) -> tuple[str, ...]:
    """Return which pinned parts of a server were seen to be others; what was not seen has not changed."""
    before, now = pinned.parts, seen.parts
    return tuple(part for part in before if part in now and before[part] != now[part])


def pin_status(pinned: bytes | None, definition: bytes) -> PinStatus:
    """Compare the sha256 of a tool's definition (empty: not seen) with the pinned one."""
    if pinned is None or not definition:
        return UNVERIFIED
    return _PINNED if definition == pinned else PinStatus(Provenance.MISMATCH, pinned)


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
