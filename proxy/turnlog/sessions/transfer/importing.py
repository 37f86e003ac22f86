"""Import bundles: the commits of a checked bundle are appended in one transaction.

They stay byte for byte the same, with session, seq, hash and number of the process; so
the chain verifies, and a longer bundle of the same session can be appended later.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Final

from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.commit import (
    GENESIS,
    CommitBody,
    body_digest,
    decode_body,
    decode_header,
    decode_link,
    digest,
    encode_body,
    encode_facts,
    encode_header,
)
from turnlog.core.kinds import Actor, CommitKind
from turnlog.core.lifecycle import Action, encode_content
from turnlog.core.live_view import decode_rewind
from turnlog.observe.clock import Clock
from turnlog.sessions.overview import names_of
from turnlog.sessions.state.compacted import with_calls
from turnlog.store.base import Blob, Conflict, Draft, Incoming, SessionRef, session_facts
from turnlog.store.lmdb import LmdbStore
from turnlog.store.log.index import is_linked
from turnlog.store.read.view import View

from .bundle import BundleHead, CheckedBundle, PayloadPart, Watch, payload_handles

_AT_ONCE: Final = 4 << 20
"""Bytes of payloads that are stored at a time."""
_NO_PROCESS: Final = 0
"""An epoch that no store has: they begin at 1."""
_Stored = tuple[bytes, bytes]


class Relation(StrEnum):
    """The relation of a bundle to the session of the same id in a store."""

    NEW = "new"
    SAME = "same"
    """All of it is here already."""
    LONGER = "longer"
    DIVERGED = "diverged"


class Imported(Struct, frozen=True, kw_only=True):
    """The output of `turnlog import --json`."""

    session: str
    relation: Relation
    seq: int
    """Of the session's newest commit now."""
    hash: str
    commits: int = 0
    """How many were appended."""
    payloads: int = 0
    closed: int = 0
    """Open attempts that got the outcome `outcome_unknown`."""
    names_taken: list[str] = []
    """Names that stay with another session of this store."""
    origin: str | None = None
    """For a fork: the session in the bundle."""


def relation(view: View, bundle: CheckedBundle) -> tuple[Relation, int]:
    """Return how a bundle relates to the session in a store, and the newest seq that both have; -1 for none."""
    here = view.session(bundle.head.id)
    if here is None:
        return Relation.NEW, -1
    shared = _shared(view, bundle, here.head_seq)
    if shared == bundle.head.seq:
        return Relation.SAME, shared
    return (Relation.LONGER if shared == here.head_seq else Relation.DIVERGED), shared


def _shared(view: View, bundle: CheckedBundle, newest: int) -> int:
    """Return the newest seq at which a bundle has the same commit as the store."""
    session, shared = bundle.head.id, -1
    for (header, _), (_, stored, _) in zip(bundle.records(), view.headers(session), strict=False):
        if header != stored:
            break
        shared = decode_link(header).seq
    return min(shared, newest)


async def import_bundle(
    store: LmdbStore, bundle: CheckedBundle, clock: Clock, on_part: Watch, *, as_fork: bool = False
) -> Imported:
    """Import a bundle into a store. Raises `Conflict` where the session went another way here,
    `BundleError`, `StoreError`."""
    with store.view() as view:
        found, shared = relation(view, bundle)
        here = view.session(bundle.head.id)
    if as_fork:
        return await _import_fork(store, bundle, clock, on_part)
    if here is not None and found is Relation.SAME:
        return Imported(
            session=bundle.head.session,
            relation=found,
            seq=here.head_seq,
            hash=f"sha256:{here.head_hash.hex()}",
        )
    if found is Relation.DIVERGED:
        newest = shared if here is None else here.head_seq
        raise Conflict(
            f"session {bundle.head.session} went another way here after commit {shared}: here it has "
            f"{_commits(shared, newest)}, the bundle {_commits(shared, bundle.head.seq)}; nothing was "
            "imported; `--as-fork` imports it as a session of its own",
            shared,
        )
    head, session = bundle.head, bundle.head.id
    return await _adopt(
        store,
        bundle,
        Incoming(
            session=session,
            expected=None if here is None else (here.head_seq, here.head_hash),
            records=bundle.records,
            secret=head.secret,
            aliases=head.aliases,
            control=_control(session, head, "imported", clock),
        ),
        found,
        on_part,
    )


def _commits(after: int, until: int) -> str:
    """Return words for the commits behind `after`."""
    first = after + 1
    if until > first:
        return f"commits {first} to {until}"
    return f"commit {first}" if until == first else "no further one"


async def _adopt(
    store: LmdbStore, bundle: CheckedBundle, incoming: Incoming, found: Relation, on_part: Watch
) -> Imported:
    # Commits that are here already may well be of a process that still runs: the session came from here.
    after = -1 if incoming.expected is None else incoming.expected[0]
    size, epochs, named = 0, set[int](), set[bytes]()
    for header, body in incoming.records():
        link = decode_link(header)
        if link.seq > after:
            size += len(header) + len(body)
            epochs.add(link.epoch)
            named.update(payload_handles(body))
    store.check_room(size + sum(bundle.sizes.get(handle, 0) for handle in named))
    handles = await _store_all(store, bundle, on_part)
    on_part("the commits")
    made = await store.adopt(structs.replace(incoming, handles=handles, epochs=frozenset(epochs)))
    on_part("the end")
    return Imported(
        session=ids.to_text(incoming.session),
        relation=found,
        seq=made.seq,
        hash=f"sha256:{made.hash.hex()}",
        commits=made.commits,
        payloads=len(bundle.sizes),
        closed=made.closed,
        names_taken=names_of(made.taken),
    )


async def _store_all(store: LmdbStore, bundle: CheckedBundle, on_part: Watch) -> dict[bytes, bytes]:
    """Store the payloads of a bundle; return the handle of each in the store, or why it is gone."""
    handles: dict[bytes, bytes] = {}
    payloads = (part for part in bundle.parts() if isinstance(part, PayloadPart))
    with_content: list[PayloadPart] = []
    for number, part in enumerate(payloads, 1):
        on_part(f"payload {number} of {len(bundle.sizes)}")
        if part.gone is not None:
            handles[part.handle] = part.gone.encode()
            continue
        with_content.append(part)
        if sum(len(one.data) for one in with_content[-64:]) >= _AT_ONCE or len(with_content) >= 64:
            handles |= await _store_batch(store, with_content)
            with_content = []
    return handles | await _store_batch(store, with_content)


async def _store_batch(store: LmdbStore, parts: list[PayloadPart]) -> dict[bytes, bytes]:
    if not parts:
        return {}
    blobs = [Blob(part.data, redacted=part.redacted, cut=part.cut) for part in parts]
    kept = await store.keep(blobs)
    return dict(zip((part.handle for part in parts), kept, strict=True))


async def _import_fork(
    store: LmdbStore, bundle: CheckedBundle, clock: Clock, on_part: Watch
) -> Imported:
    """Import a bundle as a session of its own: with other ids, so that the two share no call."""
    session = ids.uuid7(clock.wall(), clock.entropy(10))
    incoming = Incoming(
        session=session,
        expected=None,
        records=lambda: _forked(bundle, session),
        secret=bundle.head.secret,
        control=_control(session, bundle.head, "imported as a fork", clock),
    )
    made = await _adopt(store, bundle, incoming, Relation.NEW, on_part)
    return structs.replace(made, origin=bundle.head.session)


def _forked(bundle: CheckedBundle, session: bytes) -> Iterator[_Stored]:
    """Yield the commits of a bundle as those of another session, chained anew.

    No process has their epoch: the one that wrote the originals may be running here.
    """
    prev, calls = GENESIS, dict[bytes, bytes]()
    for header, body in bundle.records():
        link, facts = decode_header(header)
        content = decode_body(body) if body else None
        if facts.call:
            calls[facts.call] = _other_call(facts.call, session)
            facts = structs.replace(facts, call=calls[facts.call])
        if content is not None:
            # Repeats of its calls belong to the original session: links would find them here.
            content = structs.replace(_with_calls(content, facts.kind, calls, session), links=())
            if facts.kind is CommitKind.OPEN:
                content = _with_origin(content, bundle)
            body = encode_body(content)
        link = structs.replace(
            link,
            session=session,
            epoch=_NO_PROCESS,
            prev=prev,
            body_hash=body_digest(body) if body else link.body_hash,
            linked=content is not None and is_linked(content),
        )
        header = encode_header(link, encode_facts(facts))
        prev = digest(header)
        yield header, body


def _with_calls(
    content: CommitBody, kind: CommitKind, calls: Mapping[bytes, bytes], session: bytes
) -> CommitBody:
    """Return the body of a commit with the ids that calls of its session have in the fork."""
    if content.lineage:
        lineage = (
            structs.replace(one, call=calls.get(one.call, one.call)) for one in content.lineage
        )
        content = structs.replace(content, lineage=tuple(lineage))
    if kind is CommitKind.COMPACT:
        return with_calls(
            content, {ids.to_text(old): ids.to_text(new) for old, new in calls.items()}
        )
    if kind is not CommitKind.REWIND:
        return content
    said = decode_rewind(content.note)
    # Those of other sessions, as of the parent of a fork, keep theirs.
    effects = (
        structs.replace(one, call=calls[one.call], session=session) if one.call in calls else one
        for one in said.effects
    )
    return structs.replace(
        content, note=encode_content(structs.replace(said, effects=tuple(effects)))
    )


def _with_origin(content: CommitBody, bundle: CheckedBundle) -> CommitBody:
    head = bundle.head
    origin = f"session {head.session} up to commit {head.seq}, {head.hash}"
    return structs.replace(content, metadata={**content.metadata, "origin": origin})


def _other_call(call: bytes, session: bytes) -> bytes:
    """Return the id of a call in a fork: of the same time, and the same each time it is asked for."""
    return call[:6] + ids.uuid7(0, sha256(session + call).digest()[:10])[6:]


def _control(session: bytes, head: BundleHead, why: str, clock: Clock) -> Draft | None:
    """Return the commit that says that a session goes on here, if it was paused because of the move.

    If it was paused before, that pause goes on.
    """
    if head.fence is None:
        return None
    action = Action.PAUSE if head.was_paused else Action.RESUME
    return Draft(
        session=SessionRef.existing(session),
        facts=session_facts(CommitKind.LIFECYCLE, Actor.OPERATOR, clock, note=action.value),
        body=CommitBody(summary=action.value, detail=why),
    )
