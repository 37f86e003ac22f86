"""The tools for one session over stdin and stdout; proxies may be running.

The store is opened anew for each call, so that an idle agent holds no snapshot or lock.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from turnlog.api.agent_tools import NoSessionError
from turnlog.core import ids
from turnlog.core.identity import session_name
from turnlog.core.kinds import Actor, Rung
from turnlog.core.note import Note
from turnlog.observe.clock import Clock
from turnlog.redaction.redact import Redactor
from turnlog.sessions.control.lifecycle import SessionChange, operation_of
from turnlog.sessions.control.writer import ControlRequest, ControlWriter, OperationResult
from turnlog.sessions.notes import NoteWriter, WrittenNote
from turnlog.sessions.state.state_at import saved_states
from turnlog.store.base import SessionRef, StoreAbsent, StoreError, alias
from turnlog.store.lmdb import LmdbReader, LmdbStore
from turnlog.store.read.view import View
from turnlog.wire.endpoint import RpcRefusal, is_stateless_request
from turnlog.wire.jsonrpc import BATCH_LIMIT, Defect, Malformed, Message, parse
from turnlog.wire.mcp import PARSE_ERROR, STATELESS_SINCE

from .server import HANDSHAKES, McpServer, agreed_revision, is_initialize, refused

T = TypeVar("T")

_LINE: Final = 1 << 20
"""bytes of a message."""


class Conversation:
    """The messages of one client, in order."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._revision = HANDSHAKES[0]
        """Negotiated by the handshake; before it the newest one."""

    async def answer(self, line: bytes) -> bytes:
        """Return the answer to a line; empty if it gets none."""
        content = parse(line, most=BATCH_LIMIT)
        if isinstance(content, Malformed) and content.reason is Defect.EMPTY:
            return b""
        if isinstance(content, Message) and is_stateless_request(content, {}):
            reply = await self._server.answer(content, STATELESS_SINCE)
        else:
            if is_initialize(content):
                self._revision = agreed_revision(content)
            reply = await self._server.answer(content, self._revision)
        return reply.body if reply is not None else b""


class StoredSession:
    """One session of a store, named by its id, the beginning of its id, or a name.

    An unknown name becomes that of a new explicit session, as with `turnlog wrap --session`.
    """

    def __init__(
        self,
        data: Path,
        session: str,
        clock: Clock,
        redactor: Redactor,
        report: Callable[[StoreError], None],
    ) -> None:
        """`report` receives errors that no caller sees. Raises `ValueError` for an invalid `session`."""
        if redactor.text(session)[1]:
            raise ValueError("this holds a secret, give the id that `turnlog sessions` shows")
        self._data = data
        self._named = session
        self._name = session_name(session)
        self._clock = clock
        self._redactor = redactor
        self._report = report
        self.saved = saved_states(data)

    @property
    def now(self) -> int:
        """ns UTC."""
        return self._clock.wall()

    async def read(self, work: Callable[[View, bytes], T]) -> T:
        """Return the result of `work` on a snapshot and the session's id."""
        return await asyncio.to_thread(self._read, work)

    def _read(self, work: Callable[[View, bytes], T]) -> T:
        with self._view() as view:
            found = self._session_id(view) if view is not None else None
            if view is None or found is None:
                raise NoSessionError(
                    f"nothing is recorded yet of the session {self._named!r}; call a tool in it or "
                    "write a note, or correct the --session of turnlog mcp"
                )
            return work(view, found)

    async def note(self, note: Note, note_id: str, head: int | None) -> WrittenNote:
        """Append a note, and wait for the disk."""
        ref = await asyncio.to_thread(self._session)
        async with self._writing() as store:
            noter = NoteWriter(store, self._redactor, self._clock)
            return await noter.write(ref, note, note_id=note_id, head=head)

    async def change(self, change: SessionChange) -> OperationResult:
        """Carry out an operation on the session as its agent."""

        def prepared(view: View, session: bytes) -> tuple[bytes, ControlRequest]:
            operation = operation_of(
                view, session, change, Actor.AGENT, lambda text: self._redactor.text(text)[0]
            )
            return session, operation

        session, operation = await self.read(prepared)
        async with self._writing() as store:
            writer = ControlWriter(store, self._redactor, self._clock)
            return await writer.write(session, operation)

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[LmdbStore]:
        """Open the store for writing."""
        async with LmdbStore.open(self._data, report=self._report) as store:
            if store.rekeyed:
                self._report(StoreError(store.rekeyed))
            yield store

    def _session(self) -> SessionRef:
        """Return the session to write to."""
        with self._view() as view:
            found = self._session_id(view) if view is not None else None
        if found is None:
            candidate = ids.uuid7(self._clock.wall(), self._clock.entropy(10))
            names = (alias(Rung.EXPLICIT, self._name, ""),)
            metadata = {"why": "turnlog mcp --session", "confidence": "given"}
            return SessionRef(
                candidate=candidate, rung=Rung.EXPLICIT, aliases=names, metadata=metadata
            )
        return SessionRef.existing(found)

    def _session_id(self, view: View) -> bytes | None:
        found = view.find_sessions(self._name)
        if len(found) > 1:
            some = ", ".join(map(ids.to_text, found[:5]))
            raise NoSessionError(
                f"{self._named!r} means {len(found)} sessions, start turnlog mcp with one of: {some}"
            )
        return found[0] if found else None

    @contextmanager
    def _view(self) -> Generator[View | None]:
        """Open a snapshot; `None` if there is no store yet."""
        try:
            reader = LmdbReader.open(self._data)
        except StoreAbsent:
            yield None
            return
        with reader, reader.view() as view:
            yield view


def serve(
    session: StoredSession, agent: BinaryIO, answers: BinaryIO, report: Callable[[StoreError], None]
) -> None:
    """Answer each line of the agent until its output ends."""
    conversation = Conversation(McpServer(lambda _: session, report))
    with asyncio.Runner() as runner:
        for line in iter(partial(agent.readline, _LINE), b""):
            if len(line) == _LINE and not line.endswith(b"\n"):
                _skip(agent)
                why = RpcRefusal(PARSE_ERROR, f"a message has at most {_LINE} bytes")
                answer = refused(b"", why).body
            else:
                answer = runner.run(conversation.answer(line))
            if answer:
                answers.write(answer + b"\n")
                answers.flush()


def _skip(agent: BinaryIO) -> None:
    """Read the rest of a line that is too long."""
    while (rest := agent.readline(_LINE)) and not rest.endswith(b"\n"):
        pass
