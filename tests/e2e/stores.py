"""Real stores on disk with known content, and the command line on top of them."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import BytesIO, TextIOWrapper
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from kit import prefork
from turnlog.cli.main import main
from turnlog.core import ids
from turnlog.core.commit import CommitBody, Facts, Lineage
from turnlog.core.kinds import CommitKind, Effect, Executed, Flag, Phase, Rung, Status
from turnlog.core.note import Note
from turnlog.core.operation import Operation
from turnlog.observe.clock import Clock
from turnlog.redaction.redact import Redactor
from turnlog.sessions.notes import NoteWriter
from turnlog.store.base import Blob, Draft, SessionRef, Ticket, alias
from turnlog.store.lmdb import LmdbStore
from turnlog.store.write.engine import FLUSH_EVERY

START = 1_795_737_600 * 10**9
"""2026-11-27T00:00:00Z."""
MINUTE = 60 * 10**9


class Call(Struct, frozen=True, kw_only=True):
    """One call as a test wants it in the log; `minute` after the start, so turns part by gaps."""

    tool: str
    minute: int
    session: str = "work"
    server: str = "files"
    status: Status | None = Status.OK
    """`None` leaves the attempt in flight."""
    error: str = ""
    error_kind: str = ""
    flags: tuple[Flag, ...] = ()
    summary: str = ""
    input: bytes = b'{"path":"/tmp/a"}'
    output: bytes = b'{"content":[{"type":"text","text":"hello"}]}'
    input_hash: str = "sha256:" + "ab" * 32
    attempt: int = 1
    of: int | None = None
    """Place of the call that this is another attempt of."""
    effect: Effect = Effect.WRITE
    executed: Executed = Executed.YES
    delta: tuple[Operation, ...] = ()
    why: str = ""
    lineage: tuple[Lineage, ...] = ()
    partial: str = ""
    """Why the lineage is partial."""
    notes: tuple[Note, ...] = ()
    """Written after the call."""


def call_id(number: int) -> bytes:
    """Return the id of the call at place `number` in the list; all share few leading digits."""
    return ids.uuid7(START + number * 7919 * MINUTE, number.to_bytes(10, "big"))


def session_id(name: str) -> bytes:
    """Return the id of a named session."""
    return ids.uuid7(
        START + sum(name.encode()) * 65_537 * 10**9, name.encode()[:10].ljust(10, b"\0")
    )


def fill(data: Path, calls: Sequence[Call], *, at_once: int = 0) -> None:
    """Write calls to the store in folder `data`, with the writer that the proxy uses.

    Each commit is in a transaction of its own, unless so many calls may be written `at_once`.
    """
    asyncio.run(written(data, calls, at_once=at_once))


async def written(
    data: Path, calls: Sequence[Call], *, flush_every: int = FLUSH_EVERY, at_once: int = 0
) -> None:
    """Do what `fill` does, on a loop that runs."""
    store = LmdbStore.open(data, flush_every=flush_every)
    sessions = {name: _session(name) for name in {call.session for call in calls}}
    redactor = Redactor()
    try:
        for number, call in enumerate(calls):
            for ticket in _submitted(store, sessions[call.session], number, call):
                if at_once == 0 or number % at_once == 0:
                    await ticket.done()
            at = START + call.minute * MINUTE
            clock = Clock(wall=partial(int, at), monotonic=partial(int, at))
            noter = NoteWriter(store, redactor, clock)
            for note in call.notes:
                await noter.write(sessions[call.session], note)
    finally:
        await store.close()


def _session(name: str) -> SessionRef:
    return SessionRef(
        candidate=session_id(name),
        rung=Rung.EXPLICIT,
        aliases=(alias(Rung.EXPLICIT, name, "somebody"),),
        metadata={"client": "test-agent 1.0", "client_version": "1.0"},
    )


def _submitted(store: LmdbStore, session: SessionRef, number: int, call: Call) -> Iterator[Ticket]:
    """Submit the commits of a call, one after the other."""
    at = START + call.minute * MINUTE
    name = call_id(number if call.of is None else call.of)
    intent = store.submit(
        Draft(
            session=session,
            facts=Facts(
                kind=CommitKind.INTENT, at=at, clock=at, call=name, server=call.server, attempt=call.attempt,
                tool=call.tool, method="tools/call", effect=call.effect, protocol="2025-11-25",
                bytes_in=len(call.input),
            ),
            body=CommitBody(input_hash=call.input_hash, preview="path=/tmp/a", why=call.why),
            blob=Blob(call.input),
        ),
        wait=True,
    )  # fmt: skip
    yield intent
    if call.status is None:
        return
    yield store.submit(
        Draft(
            session=session,
            intent=intent,
            facts=Facts(
                kind=CommitKind.OUTCOME, at=at + 5_000_000, clock=at, call=name, attempt=call.attempt,
                phase=Phase.DONE, executed=call.executed, status=call.status, error=call.error,
                error_kind=call.error_kind, duration=5_000_000, bytes_out=len(call.output),
                flags=call.flags, protocol="2025-11-25", http_status=200,
            ),
            body=CommitBody(
                summary=call.summary,
                lineage=call.lineage,
                partial=call.partial,
                delta=tuple(Raw(msgspec.msgpack.encode(change)) for change in call.delta),
            ),
            blob=Blob(call.output) if call.output else None,
        ),
        wait=True,
    )  # fmt: skip


class Done(Struct, frozen=True):
    """How a command line ended."""

    returncode: int
    stdout: str
    stderr: str


def turnlog(*arguments: str, data: Path | None = None) -> Done:
    """Run a command line in this process, as the installed script would."""
    out, err = (TextIOWrapper(BytesIO(), encoding="utf-8", newline="\n") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*arguments, *(("--data", str(data)) if data else ())])
    texts: list[str] = []
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        texts.append(stream.read())
    return Done(code, *texts)


def process(*arguments: str, environ: dict[str, str] | None = None) -> Done:
    """Run a command line in a process of its own, with only `environ` of turnlog's variables."""
    known = {k: v for k, v in os.environ.items() if not k.startswith(("TURNLOG_", "COLUMNS"))}
    done = prefork.run(arguments, env=known | (environ or {}), bound=60)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())
