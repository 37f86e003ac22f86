"""The commits of one session in memory, linked as a store would link them."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw

from turnlog.core import ids
from turnlog.core.commit import Commit, CommitBody, Facts, Link
from turnlog.core.kinds import CommitKind, ErrorKind, Executed, Flag, Status, TurnSource
from turnlog.core.note import Note, encode_note, note_kind
from turnlog.core.operation import Operation
from turnlog.core.state.state_view import FieldChange, StateField, Table

AT = 1_790_000_000_000_000_000
SESSION = ids.uuid7(AT, bytes(10))


def call_id(name: str) -> bytes:
    """Return the id of a call that a test calls so."""
    return ids.uuid7(AT, name.encode().rjust(10, b"\0"))


def call_text(name: str) -> str:
    """Return the same id as text."""
    return ids.to_text(call_id(name))


def changed(op: str, key: str, to: str = "", **more: Any) -> Operation:
    """Return an operation on a file."""
    told: dict[str, Any] = {"field": "files_modified", "evidence": "declared"} | more
    return Operation(op=op, key=key, to=to, **told)


def delta(*operations: Operation) -> tuple[Raw, ...]:
    """Return operations as a body holds them."""
    return tuple(Raw(msgspec.msgpack.encode(operation)) for operation in operations)


def applied(before: Table, changes: Iterable[FieldChange]) -> Table:
    """Return a table with changes applied."""
    entries = {field.value: dict(getattr(before, field)) for field in StateField}
    for change in changes:
        field = entries[change.field]
        field.pop(change.key, None)
        if change.after is not None:
            field[change.key] = change.after
    return msgspec.convert(entries, Table)


class Log:
    """A session that grows by what its methods are told."""

    def __init__(self, **metadata: str) -> None:
        self.commits: list[Commit] = []
        self.turn = 1
        self._intents: dict[tuple[bytes, int, int], int] = {}
        body = CommitBody(metadata={"rung": "explicit", "aliases": "[]", **metadata})
        self.add(Facts(kind=CommitKind.OPEN, at=AT, clock=0), body)

    @property
    def seq(self) -> int:
        """Of the newest commit."""
        return self.commits[-1].link.seq

    def add(self, facts: Facts, body: CommitBody | None = None, ref: int | None = None) -> int:
        """Append a commit; return its seq."""
        seq = len(self.commits)
        link = Link(
            session=SESSION,
            seq=seq,
            epoch=1,
            turn=self.turn if ref is None else self.commits[ref].link.turn,
            step=1,
            turn_source=TurnSource.GAP,
            ref=ref,
            body_hash=b"h" if body is not None else b"",
            prev=bytes(32),
        )
        commit = Commit(position=100 + seq, link=link, facts=facts, hash=bytes(32), body=body)
        self.commits.append(commit)
        return seq

    def begin(
        self,
        name: str,
        tool: str = "write",
        *done: Operation,
        leg: int = 0,
        attempt: int = 1,
        why: str = "",
        method: str = "tools/call",
    ) -> int:
        """Append an intent."""
        facts = Facts(
            kind=CommitKind.INTENT,
            at=AT + len(self.commits) * 1_000_000,
            clock=0,
            call=call_id(name),
            leg=leg,
            attempt=attempt,
            server="files",
            tool=tool,
            method=method,
            bytes_in=10,
        )
        seq = self.add(facts, CommitBody(delta=delta(*done), why=why))
        self._intents[call_id(name), leg, attempt] = seq
        return seq

    def end(
        self,
        name: str,
        *done: Operation,
        status: Status = Status.OK,
        executed: Executed = Executed.YES,
        error: str = "",
        kind: ErrorKind | None = None,
        flags: tuple[Flag, ...] = (),
        n: int = 0,
        leg: int = 0,
        attempt: int = 1,
        code: int | None = None,
    ) -> int:
        """Append an outcome."""
        ref = self._intents.get((call_id(name), leg, attempt))
        begun = self.commits[ref].facts if ref is not None else None
        facts = Facts(
            kind=CommitKind.OUTCOME,
            at=AT + len(self.commits) * 1_000_000,
            clock=0,
            call=call_id(name),
            leg=leg,
            attempt=attempt,
            n=n,
            server="files",
            tool=begun.tool if begun else "write",
            method=begun.method if begun else "tools/call",
            status=status,
            executed=executed,
            error=error,
            error_kind=kind or "",
            flags=flags,
            bytes_out=20,
            duration=3_000_000,
            code=code,
        )
        return self.add(facts, CommitBody(delta=delta(*done)), ref)

    def timed_out(self, name: str, *done: Operation, **more: Any) -> int:
        """Append the outcome of an attempt of which nobody knows what it did."""
        told: dict[str, Any] = {
            "status": Status.UNKNOWN,
            "executed": Executed.MAYBE,
            "error": "timeout",
            "kind": ErrorKind.RESPONSE_TIMEOUT,
        }
        return self.end(name, *done, **told | more)

    def call(self, name: str, *done: Operation, tool: str = "write", why: str = "") -> int:
        """Append a call that went well; return the seq of its outcome."""
        self.begin(name, tool, why=why)
        return self.end(name, *done)

    def note(self, note: Note) -> int:
        """Append a note."""
        facts = Facts(
            kind=CommitKind.NOTE,
            at=AT + len(self.commits) * 1_000_000,
            clock=0,
            note=note_kind(note),
        )
        return self.add(facts, CommitBody(note=encode_note(note)))

    def rewind(self, to: int) -> int:
        """Append a rewind to a commit."""
        facts = Facts(kind=CommitKind.REWIND, at=AT + len(self.commits) * 1_000_000, clock=0)
        return self.add(facts, ref=to)

    def notes(self, notes: Iterable[Note]) -> None:
        """Append several notes."""
        for note in notes:
            self.note(note)
