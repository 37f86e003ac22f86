"""The pins: how a tool and a server compare with turnlog.lock."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from msgspec import Struct, structs


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
