"""The identities of servers as they are seen, compared with turnlog.lock: what they say they are, keys, programs."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from os import environ
from pathlib import Path
from shutil import which
from typing import Final

from msgspec import structs

from turnlog.core.bounded_dict import BoundedDict
from turnlog.core.pins import UNCHANGED, ServerIdentity, ServerStatus
from turnlog.packs.lock import COMMAND, LockFile

from .pin_set import PinSet

_SERVERS: Final = 4096
"""Most servers that are remembered; one with several places counts once for each."""
_UNKNOWN: Final = ServerIdentity()


class SeenServer:
    """One server at one place, with its identity as far as it was seen (`record.attempt.KnownServer`)."""

    def __init__(self, name: str, pins: PinSet, identity: ServerIdentity) -> None:
        """`name` is what it is called in turnlog.lock."""
        self.name = name
        self.identity = identity
        self._pins = pins
        self._compared_with: LockFile | None = None
        self._status = UNCHANGED

    @property
    def status(self) -> ServerStatus:
        """Its identity compared with turnlog.lock."""
        lock = self._pins.lock  # another one after each reading
        if self._compared_with is not lock:
            self._compared_with = lock
            self._status = self._pins.server_status(self.name, self.identity)
        return self._status

    def add(self, seen: ServerIdentity) -> bool:
        """Add parts that were seen; return whether any of them is new."""
        known = self.identity.with_parts(seen)
        if known == self.identity:
            return False
        self.identity, self._compared_with = known, None
        return True

    def with_target(self, seen: ServerIdentity) -> ServerIdentity:
        """Return parts that were seen with the target of the server, as they are stored."""
        # Not the other parts: another process may have seen newer ones since.
        return structs.replace(seen, target=self.identity.target)


class ServerIdentities:
    """The servers of this process."""

    def __init__(self, pins: PinSet, keep: Callable[[Mapping[str, ServerIdentity]], None]) -> None:
        """`keep` writes down the parts that were seen of servers, by their names in turnlog.lock."""
        self._pins = pins
        self._keep = keep
        self._servers: BoundedDict[tuple[str, tuple[str, ...]], SeenServer] = BoundedDict(_SERVERS)
        self._shared: dict[str, ServerIdentity] = {}
        """What was seen of an upstream at all its places: its TLS key, its program."""
        self._certificates: dict[str, bytes] = {}
        """The certificate that was read last, by upstream."""

    def find(self, server: str, place: Sequence[str]) -> SeenServer:
        """Return the server of an upstream at a place."""
        key = (server, tuple(place))
        found = self._servers.get(key)
        if found is None:
            target = ServerIdentity(target=place[1] if place[0] == COMMAND else place[0])
            shared = self._shared.get(server, _UNKNOWN)
            name = self._pins.name_of(server, place)
            found = SeenServer(name, self._pins, target.with_parts(shared))
            self._servers[key] = found
            if shared != _UNKNOWN:
                self._keep({name: found.identity})
        return found

    def on_server_info(self, server: str, place: Sequence[str], name: str, version: str) -> None:
        """Note the name and the version that a server gives."""
        found, seen = self.find(server, place), ServerIdentity(name=name, version=version)
        found.add(seen)
        self._keep({found.name: found.with_target(seen)})

    def on_seen(self, server: str, seen: ServerIdentity) -> None:
        """Note the TLS key of an upstream, or its program."""
        self._shared[server] = self._shared.get(server, _UNKNOWN).with_parts(seen)
        places = [each for (name, _), each in self._servers.items() if name == server]
        if news := {each.name: each.with_target(seen) for each in places if each.add(seen)}:
            self._keep(news)

    async def on_started(
        self, server: str, command: Sequence[str], path: str | None, cwd: str
    ) -> None:
        """Note the program of a command that was started; nothing waits for that."""
        self.on_seen(server, await asyncio.to_thread(program_of, command, path, cwd))

    def on_certificate(self, server: str, certificate: bytes) -> None:
        """Note the public key in the certificate of an upstream, DER."""
        if self._certificates.get(server) == certificate:
            return
        self._certificates[server] = certificate
        if key := key_of(certificate):
            self.on_seen(server, ServerIdentity(tls_key=f"sha256:{key}"))


def key_of(certificate: bytes) -> str:
    """Return the sha256 of a certificate's SubjectPublicKeyInfo; empty for a kind of key that is not known."""
    from cryptography import x509  # an extra
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    try:
        key = x509.load_der_x509_certificate(certificate).public_key()
    except (ValueError, UnsupportedAlgorithm):
        return ""
    info = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(info).hexdigest()


def program_of(command: Sequence[str], path: str | None, cwd: str) -> ServerIdentity:
    """Return the program that a command runs, and its digest. Blocks.

    `path` is the variable PATH of the command; nothing is known of a program that cannot be read.
    """
    named = Path(cwd, command[0]) if "/" in command[0] else command[0]
    found = which(named, path=path if path is not None else environ.get("PATH"))
    if found is None:
        return _UNKNOWN
    program = Path(found).resolve()
    try:
        with program.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return _UNKNOWN
    return ServerIdentity(program=str(program), program_digest=f"sha256:{digest}")
