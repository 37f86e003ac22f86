"""What every test of a store needs: an engine to open, and drafts to give it."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Protocol

from turnlog.core.commit import Commit, CommitBody, Facts
from turnlog.core.ids import uuid7
from turnlog.core.kinds import (
    Actor,
    CommitKind,
    Effect,
    Executed,
    Flag,
    NoteKind,
    Phase,
    Rung,
    Status,
    TurnSource,
)
from turnlog.core.lifecycle import Action
from turnlog.store.base import Blob, Draft, SessionRef, Ticket, alias
from turnlog.store.lmdb import LmdbReader, LmdbStore
from turnlog.store.read.view import View

START = 1_790_000_000_000_000_000
MINUTE = 60_000_000_000


class Engine(Protocol):
    """One implementation of the contract."""

    def open(self, path: Path, *, flush_every: int = 2000, limit: int = 1 << 30) -> LmdbStore: ...
    def read(self, path: Path) -> LmdbReader: ...


class Lmdb:
    """The LMDB engine."""

    def open(self, path: Path, *, flush_every: int = 2000, limit: int = 1 << 30) -> LmdbStore:
        return LmdbStore.open(path, flush_every=flush_every, limit=limit, now=lambda: START)

    def read(self, path: Path) -> LmdbReader:
        return LmdbReader.open(path)


ENGINES: dict[str, Callable[[], Engine]] = {"lmdb": Lmdb}

_numbers = count(1)


def new_id(at: int = START) -> bytes:
    """Return an id that no other call of this process returned."""
    return uuid7(at + next(_numbers) * 1_000_000, next(_numbers).to_bytes(10, "big"))


def session(*names: str, rung: Rung = Rung.EXPLICIT, principal: str = "me") -> SessionRef:
    """Return a session as its first caller sees it."""
    aliases = tuple(alias(rung, name, principal) for name in names)
    return SessionRef(candidate=new_id(), rung=rung, aliases=aliases, metadata={"client": "kit"})


def intent(
    ref: SessionRef,
    call: bytes,
    *,
    tool: str = "read_file",
    server: str = "files",
    effect: Effect = Effect.UNKNOWN,
    at: int = START,
    leg: int = 0,
    attempt: int = 1,
    method: str = "tools/call",
    turn: str = "",
    body: CommitBody | None = None,
    blob: Blob | None = None,
) -> Draft:
    """Return the draft of an attempt's begin."""
    facts = Facts(
        kind=CommitKind.INTENT,
        at=at,
        clock=at,
        call=call,
        leg=leg,
        attempt=attempt,
        server=server,
        tool=tool,
        method=method,
        effect=effect,
        turn_label=turn,
        turn_source=TurnSource.EXPLICIT if turn else TurnSource.GAP,
    )
    return Draft(session=ref, facts=facts, body=body, blob=blob)


def outcome(
    ref: SessionRef,
    call: bytes,
    ticket: Ticket | None = None,
    *,
    status: Status = Status.OK,
    error: str = "",
    kind: str = "",
    flags: tuple[Flag, ...] = (),
    tool: str = "read_file",
    server: str = "files",
    effect: Effect = Effect.UNKNOWN,
    at: int = START + 1_000_000,
    leg: int = 0,
    attempt: int = 1,
    n: int = 0,
    method: str = "tools/call",
    expires: int = 0,
    code: int | None = None,
    body: CommitBody | None = None,
    blob: Blob | None = None,
) -> Draft:
    """Return the draft of an attempt's end."""
    facts = Facts(
        kind=CommitKind.OUTCOME,
        at=at,
        clock=at,
        call=call,
        leg=leg,
        attempt=attempt,
        n=n,
        server=server,
        tool=tool,
        method=method,
        effect=effect,
        phase=Phase.DONE,
        executed=Executed.YES if status is Status.OK else Executed.MAYBE,
        status=status,
        error=error,
        error_kind=kind,
        flags=flags,
        expires=expires,
        code=code,
    )
    return Draft(session=ref, facts=facts, body=body, intent=ticket, blob=blob)


def note(
    ref: SessionRef, call: bytes, kind: NoteKind, ticket: Ticket, *, at: int = START + 2_000_000
) -> Draft:
    """Return the draft of a note that follows the commit of `ticket`."""
    facts = Facts(kind=CommitKind.NOTE, at=at, clock=at, call=call, note=kind)
    return Draft(session=ref, facts=facts, intent=ticket)


def control(
    ref: SessionRef,
    action: Action,
    head: int,
    *,
    actor: Actor = Actor.OPERATOR,
    at: int = START + 3_000_000,
    fence: int | None = None,
    expires: int = 0,
    target: int | None = None,
    names: dict[str, bytes] | None = None,
) -> Draft:
    """Return the draft of a control commit whose writer has seen the commit `head`."""
    own = action in (Action.REWIND, Action.COMPACT, Action.REDACT)
    facts = Facts(
        kind=CommitKind(action.value) if own else CommitKind.LIFECYCLE,
        at=at,
        clock=at,
        actor=actor,
        phase=Phase.DONE,
        status=Status.OK,
        expires=expires,
        note="" if own else action.value,
    )
    return Draft(
        session=ref,
        facts=facts,
        body=CommitBody(detail="why"),
        expected_head=head,
        fence=fence,
        target=target,
        names=names or {},
    )


async def put(store: LmdbStore, draft: Draft) -> Commit:
    """Write a draft and wait for the disk."""
    return await store.submit(draft, wait=True).done()


async def begin(store: LmdbStore, draft: Draft) -> Ticket:
    """Write an intent, wait for the disk, and return what its outcome needs."""
    ticket = store.submit(draft, wait=True)
    await ticket.done()
    return ticket


async def whole_call(
    store: LmdbStore,
    ref: SessionRef,
    *,
    tool: str = "read_file",
    server: str = "files",
    at: int = START,
    turn: str = "",
    status: Status = Status.OK,
    error: str = "",
    kind: str = "",
    flags: tuple[Flag, ...] = (),
) -> bytes:
    """Write a call with its outcome; return its id."""
    call = new_id()
    ticket = store.submit(intent(ref, call, tool=tool, server=server, at=at, turn=turn), wait=False)
    end = outcome(
        ref,
        call,
        ticket,
        tool=tool,
        server=server,
        at=at + 1,
        status=status,
        error=error,
        kind=kind,
        flags=flags,
    )
    await put(store, end)
    return call


def known(ref: SessionRef) -> bytes:
    """Return the id that a session got."""
    assert ref.id is not None
    return ref.id


def seqs(view: View, ref: SessionRef) -> list[int]:
    """Return the seqs of a session's commits."""
    return [commit.link.seq for commit in view.commits(known(ref))]
