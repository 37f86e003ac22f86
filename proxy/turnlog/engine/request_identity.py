"""Who is calling: the session of a call, and what is known of the client behind a connection."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Final

import msgspec
from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.identity import CallerEvidence, SessionIdentity, Vendor, identify
from turnlog.core.kinds import Rung
from turnlog.exchange.replacement import Replacements, SessionStart
from turnlog.observe.clock import Clock
from turnlog.store.base import SessionRef, alias

from .call_registry import Scope

IDLE_GAP: Final = 30 * 60 * 1_000_000_000
"""ns: an implicit session that was quiet this long is over."""
_SESSIONS: Final = 65_536
_CLIENTS: Final = 65_536
_NAME_CHARS: Final = 200
_IDENTITIES: Final = 4096
_NAMING: Final = frozenset({Rung.EXPLICIT, Rung.VENDOR})


class Client(Struct, frozen=True):
    """What a client said of itself at `initialize`, and what was negotiated."""

    name: str = ""
    version: str = ""
    revision: str = ""


UNKNOWN_CLIENT: Final = Client()


class _Info(Struct):
    name: str = ""
    version: str = ""


class SessionHint(Struct, frozen=True):
    """Which session some evidence means."""

    identity: SessionIdentity
    key: str
    """Its alias; of an implicit one, what all calls in it have in common."""
    kin: str
    """What agents of one credential and client name have in common; empty for neither."""
    is_implicit: bool


_decode_info: Final = msgspec.json.Decoder(_Info).decode


def read_client(client_info: bytes, revision: str = "") -> Client:
    """Return what a `clientInfo` object says; nothing where it is none."""
    try:
        info = _decode_info(client_info)
    except (ValueError, RecursionError):
        info = _Info()
    return Client(_shown(info.name), _shown(info.version), revision)


def _shown(name: str) -> str:
    """Return what a client calls itself, of moderate length and fit for a terminal."""
    return "".join(char for char in name[:_NAME_CHARS] if char.isprintable())


class Sessions:
    """The sessions that this process has met lately."""

    def __init__(
        self,
        clock: Clock,
        table: tuple[Vendor, ...],
        clean: Callable[[str], str],
        digest: Callable[[bytes], bytes],
    ) -> None:
        """`clean` cuts secrets out of a text, `digest` is keyed."""
        self._clock = clock
        self._clean = clean
        self._digest = digest
        self._table = table
        vendor_keys = {
            keys[0] for vendor in table for keys in (*vendor.session, *vendor.turn, *vendor.call)
        }
        self._telling_keys = frozenset({"turnlog/session", "turnlog/turn", *vendor_keys})
        """Keys of `_meta` that may name a session or a turn."""
        self._meant: dict[tuple[str | int, ...], SessionHint] = {}
        self._refs: OrderedDict[str, tuple[SessionRef, int]] = OrderedDict()
        """With when they were last met; those of late stand at the end."""
        self.replacements = Replacements()
        self._kin: dict[str, str] = {}
        """Whose each of them is, as far as credential and client name tell."""

    def find(self, meant: SessionHint, client: Client) -> SessionRef:
        """Return the session that is meant, a new one if need be."""
        key, now = meant.key, self._clock.monotonic()
        known = self._refs.get(key)
        if known is None or (meant.is_implicit and now - known[1] > IDLE_GAP):
            ref = self._open(meant.identity, client, () if meant.is_implicit else (key,))
            self._note_replaced(ref, key)
            self._kin[key] = meant.kin
        else:
            ref = known[0]
            if self.replacements.lost:
                self.replacements.on_used(key)
        self._refs[key] = (ref, now)
        self._refs.move_to_end(key)
        if len(self._refs) > _SESSIONS:
            self._kin.pop(self._refs.popitem(last=False)[0], None)
        return ref

    def begun(self, caller: Hashable, session: str) -> SessionStart:
        """Take in that a caller has begun the protocol session with this alias by `initialize`."""
        return self.replacements.on_initialized(caller, session, self._clock.monotonic() / 1e9)

    def _note_replaced(self, ref: SessionRef, key: str) -> None:
        """Write into a session's metadata which one it replaces, where that is known."""
        before = next(iter(self.replacements.predecessors(key)), None)
        replaced = self._refs.get(before) if before is not None else None
        if replaced is not None and replaced[0].id is not None:
            ref.metadata["replaces"] = ids.to_text(replaced[0].id)

    def own(self, evidence: CallerEvidence, client: Client) -> list[SessionRef]:
        """Return the sessions that an agent may mean who asks turnlog itself.

        That is the one it names, as in a call; else those of its credential and client name that
        were active of late, and are on disk.
        """
        meant = self.meant(evidence)
        if meant.identity.rung in _NAMING:
            return [self.find(meant, client)]
        kin, now = meant.kin, self._clock.monotonic()
        found: list[SessionRef] = []
        for key, (ref, met) in reversed(self._refs.items()):
            if now - met > IDLE_GAP:
                break
            if kin and self._kin.get(key) == kin and ref.id is not None:
                found.append(ref)
        return found

    def tells(self, meta: Mapping[str, bytes]) -> bool:
        """Tell whether `_meta` may name a session or a turn."""
        return not self._telling_keys.isdisjoint(meta)

    def meant(self, evidence: CallerEvidence) -> SessionHint:
        """Climb the ladder, or remember what came of it where `_meta` has no say."""
        if evidence.headers or evidence.environment or self.tells(evidence.meta):
            return self._climb(evidence, self._table)
        key = (
            evidence.path_session,
            evidence.header_session,
            evidence.header_turn,
            evidence.mcp_session_id,
            evidence.upstream,
            evidence.target,
            evidence.credential,
            evidence.client_name,
            evidence.connection,
        )
        meant = self._meant.get(key)
        if meant is None:
            if len(self._meant) >= _IDENTITIES:
                self._meant.clear()
            meant = self._meant[key] = self._climb(evidence, ())
        return meant

    def _climb(self, evidence: CallerEvidence, table: tuple[Vendor, ...]) -> SessionHint:
        identity, kin = self._recordable(identify(evidence, table)), _kin(evidence)
        if identity.rung is Rung.IMPLICIT:
            return SessionHint(identity, identity.implicit_key, kin, is_implicit=True)
        named = alias(identity.rung, identity.name, evidence.credential)
        return SessionHint(identity, named, kin, is_implicit=False)

    def _recordable(self, found: SessionIdentity) -> SessionIdentity:
        """Return an identity without secrets; a session whose name holds one goes by its digest."""
        name, turn, client = map(self._clean, (found.name, found.turn_label, found.client))
        if name != found.name:
            # Without the secret, other sessions would be called the same.
            name = f"hmac-sha256:{self._digest(b'session name' + bytes(1) + found.name.encode()).hex()}"
        elif turn == found.turn_label and client == found.client:
            return found
        return structs.replace(found, name=name, turn_label=turn, client=client)

    def _open(
        self, identity: SessionIdentity, client: Client, aliases: tuple[str, ...]
    ) -> SessionRef:
        metadata = {
            "why": identity.why,
            "confidence": identity.confidence,
            "client": identity.client or client.name,
            "client_version": client.version,
        }
        return SessionRef(
            candidate=ids.uuid7(self._clock.wall(), self._clock.entropy(10)),
            rung=identity.rung,
            aliases=aliases,
            metadata={
                name: self._clean(value[:_NAME_CHARS]) for name, value in metadata.items() if value
            },
        )


def _kin(evidence: CallerEvidence) -> str:
    """Return what agents of one credential and client name have in common; empty for neither."""
    if not (evidence.credential or evidence.client_name):
        return ""
    return f"{evidence.credential}\n{evidence.client_name}"


class Clients:
    """What clients said at `initialize`, by protocol session or connection."""

    def __init__(self) -> None:
        self.known: OrderedDict[Scope, Client] = OrderedDict()

    def learn(self, scope: Scope, client: Client) -> None:
        """Remember a client."""
        self.known[scope] = client
        self.known.move_to_end(scope)
        if len(self.known) > _CLIENTS:
            self.known.popitem(last=False)
