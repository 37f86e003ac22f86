"""Whether the store lets calls of a session pass, and which sessions were imported.

Any process may pause or close a session, so each call looks whether the store says something new.

Principals and targets are keyed digests, which differ from store to store. The secret of an imported
session comes with it; so its caller is known again, and so are repeats of its calls.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Final

from msgspec import Struct

from turnlog.core import ids
from turnlog.core.bounded_dict import BoundedDict
from turnlog.core.commit import Commit
from turnlog.core.kinds import Rung
from turnlog.core.lifecycle import (
    Action,
    SessionStage,
    Suspension,
    action_of,
    decode_lifecycle,
    is_move,
    suspension_of,
)
from turnlog.store.base import ALIAS_SEPARATOR, SessionRef, StoreError
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View

_MOST: Final = 65_536
_CREDENTIAL, _TARGET, _PROTOCOL_SESSION = b"credential\0", b"target\0", b"mcp-session\0"
_TRANSLATED: Final = (_CREDENTIAL, _TARGET, _PROTOCOL_SESSION)
"""How the data begins whose digests name a caller, a target or a protocol session."""
_CHARS: Final = 32
"""Of such a digest."""
_ENTROPY: Final = 10
"""Random bytes of a UUIDv7."""
_MERGES: Final = 8
"""Merges that are followed one after the other."""
_SUSPENDING: Final = frozenset(
    {
        Action.PAUSE,
        Action.CLOSE,
        Action.MERGE,
        Action.ARCHIVE,
        Action.PURGE,
    }
)
"""Actions after which calls are refused."""


class SessionGate:
    """Looks at the stage of sessions in the store."""

    def __init__(self, store: LmdbStore) -> None:
        self._store = store
        self.number = store.control_counter().read
        """Returns the number of control commits in the store: no stage changes without it."""

    def look(self, ref: SessionRef) -> SessionRef | None:
        """Return the session that a reference means now, with its `suspension`; `None` if the store cannot be read.

        Its names may lead to another session by now, and one that was merged goes on in another.
        """
        try:
            with self._store.view() as view:
                return _resolved(view, ref)
        except StoreError:
            return None


def _resolved(view: View, ref: SessionRef) -> SessionRef:
    named = session = view.session_of(ref)
    if session is None:
        return ref  # its first call opens it
    suspension: Suspension | None = None
    commit: Commit | None = None
    for _ in range(_MERGES):
        commit = _suspending(view, session)
        merged = _merged_into(commit) if commit is not None else None
        if merged is None:
            row = view.session(session)
            why = _reason(view, commit) if commit is not None else ""
            is_moved = commit is not None and is_move(commit.facts, commit.body)
            control = row.control if row is not None else None
            suspension = suspension_of(control, why, is_moved=is_moved)
            break
        session = merged
    else:
        suspension = Suspension(SessionStage.CLOSED, "the session was merged too often")
    is_same = session == named and ref.id in (session, None)
    found = ref if is_same else _reference(session, ref)
    found.suspension = suspension
    is_moved = suspension is not None and suspension.is_moved
    found.refusals = _refusals(session, commit) if commit is not None and is_moved else None
    return found


def _refusals(session: bytes, moved: Commit) -> SessionRef:
    """Return the session for the calls that are refused because their session was moved.

    In that one they would fork it from its continuation in the other store, which then could not come back.
    """
    drawn = sha256(b"refused calls" + session + moved.hash).digest()[:_ENTROPY]
    candidate = session[:6] + ids.uuid7(0, drawn)[6:]  # the same in each process
    return SessionRef(
        candidate=candidate, rung=Rung.IMPLICIT, metadata={"follows": ids.to_text(session)}
    )


def _suspending(view: View, session: bytes) -> Commit | None:
    """Return the commit that suspended a session; `None` if it goes on."""
    row = view.session(session)
    if row is None or suspension_of(row.control, "") is None:
        return None
    controls = view.controls(session, newest_first=True)
    return next((c for c in controls if action_of(c.facts) in _SUSPENDING), None)


def _reason(view: View, commit: Commit) -> str:
    """Return the reason of a commit that suspended its session; a repeated pause without one keeps that before."""
    same = (commit.facts.note, commit.facts.actor)
    for before in view.controls(commit.link.session, newest_first=True):
        if action_of(before.facts) is Action.RESUME:
            break
        if (before.facts.note, before.facts.actor) == same and before.body and before.body.detail:
            return before.body.detail
    return ""


def _merged_into(commit: Commit) -> bytes | None:
    """Return the session that has taken over another one by a merge."""
    if commit.body is None or action_of(commit.facts) is not Action.MERGE:
        return None
    content = decode_lifecycle(commit.body.note)
    return ids.from_text(content.into) if content.into else None


def _reference(session: bytes, before: SessionRef) -> SessionRef:
    found = SessionRef(candidate=session, rung=Rung.IMPLICIT, aliases=before.aliases)
    found.id = session
    return found


class ImportedName(Struct, frozen=True):
    """The name by which an imported session is known in this store."""

    session: bytes
    alias: str


class ImportedSessions:
    """The imported sessions of a store."""

    def __init__(self, store: LmdbStore) -> None:
        self._store = store
        self._known: BoundedDict[bytes, tuple[bytes, str]] = BoundedDict(_MOST)
        self._data: BoundedDict[str, bytes] = BoundedDict(_MOST)
        """The data of each digest; the one used last is at the end, as in `_known`."""

    def digest(self, data: bytes) -> bytes:
        """Return the digest of `data` under the store's key, which `translated` may translate later."""
        if not data.startswith(_TRANSLATED):
            return self._store.keyed(data)
        known = self._known.get(data)
        if known is None:
            digest = self._store.keyed(data)
            known = digest, digest.hex()[:_CHARS]
        self._known[data] = known
        self._data[known[1]] = data
        return known[0]

    def find(self, alias: str) -> ImportedName | None:
        """Return the imported session that an alias, made with this store's digests, means there.

        A session of this store that has the alias comes first. `None` if the store cannot be read.
        """
        try:
            secrets = self._store.secrets
            if not secrets:
                return None
            with self._store.view() as view:
                here = view.alias(alias)
                if here is not None:
                    # Without a credential the alias is the same in all stores.
                    return ImportedName(here, alias) if here in secrets else None
                for session in secrets:
                    name = self._alias(session, alias)
                    if view.alias(name) == session:
                        return ImportedName(session, name)
        except StoreError:
            return None  # the error is reported where the call is recorded
        return None

    def others(self, session: bytes | None) -> list[bytes | None]:
        """Return a session for each other secret with which digests in this store are keyed; `None` stands for
        the store's own."""
        found: list[bytes | None] = [None]
        with suppress(StoreError):  # the error is reported where the call is recorded
            found += self._store.secrets
        own = session if self._store.is_imported(session) else None
        return [one for one in found if one != own]

    def digests(self, what: str, target: str, value: bytes) -> tuple[bytes, ...]:
        """Return the digest of a value at a target as the store keys it, then as its imported sessions do."""
        sessions = (None, *self.others(None))
        return tuple(self.digest_in(session, what, target, value) for session in sessions)

    def digest_in(self, session: bytes | None, what: str, target: str, value: bytes) -> bytes:
        """Return the digest of a value at a target as a session's digests are keyed."""
        place = f"{what}\0{self.translated(session, target)}\0".encode()
        return self._store.keyed_for(session, place + value)

    def stream_digest(self, session: bytes | None, owner: Sequence[str], id_key: str) -> bytes:
        """Return the digest of a request on a resumable stream, as a session's digests are keyed."""
        of = "\0".join(("stream", *(self.translated(session, one) for one in owner), id_key))
        return self._store.keyed_for(session, of.encode("utf-8", "surrogatepass"))

    def stream_digests(self, owner: Sequence[str], id_key: str) -> Iterator[bytes]:
        """Yield the digest of a request on a resumed stream as the store keys it, then as its imported
        sessions do."""
        for session in (None, *self.others(None)):
            yield self.stream_digest(session, owner, id_key)

    def _alias(self, session: bytes, alias: str) -> str:
        rest, _, principal = alias.rpartition(ALIAS_SEPARATOR)
        name, _, rung = rest.rpartition(ALIAS_SEPARATOR)
        # A session that the protocol names is called SERVER/DIGEST.
        server, slash, own = name.rpartition("/")
        name = f"{server}{slash}{self.translated(session, own)}"
        return ALIAS_SEPARATOR.join((name, rung, self.translated(session, principal)))

    def translated(self, session: bytes | None, digest: str) -> str:
        """Return the digest of the same data under the key of an imported session."""
        data = self._data.get(digest)
        if data is None or not self._store.is_imported(session):
            return digest
        if data.startswith(_PROTOCOL_SESSION):
            label, target, rest = data.split(b"\0", 2)
            data = b"\0".join((label, self.translated(session, target.decode()).encode(), rest))
        return self._store.keyed_for(session, data).hex()[:_CHARS]
