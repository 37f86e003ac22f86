"""Routes JSON-RPC messages between clients and one child process, rewriting ids.

Several clients may use the same ids and progress tokens, so where they share a command turnlog replaces
both on the way there and puts them back on the way out. A message that names no request goes to the one
client that it can be for. A command with a single client gets all bytes as they came.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, assert_never

import msgspec
from msgspec import Raw, structs

from turnlog.core.kinds import ErrorKind, Flag, Phase
from turnlog.observe.events import Log, ProcessFailed, QuestionRefused, StrayOutput
from turnlog.record.recorder import Recorder
from turnlog.wire import mcp
from turnlog.wire.jsonrpc import (
    Batch,
    Defect,
    Kind,
    Malformed,
    Message,
    id_key,
    meant_key,
    parse,
    texts_of,
)
from turnlog.wire.splice import with_cancelled_ids, with_id, with_member, with_messages

from .clients import CommandClient, OpenRequest, PendingRequests
from .process import FRAMED, Process
from .reply import CommandReply

_TOKEN_ASKED: Final = ("params", "_meta", "progressToken")
_TOKEN_TOLD: Final = ("params", "progressToken")
_SUBSCRIPTION: Final = ("params", "_meta", mcp.SUBSCRIPTION_KEY)
_CALLS: Final = frozenset({"tools/call", "prompts/get", "resources/read", "tasks/result"})
"""Requests on behalf of which a command asks a client something."""
_OF_ALL: Final = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
        "notifications/resources/updated",
    }
)
"""Notifications about the command itself: they are for every client."""
_ANSWERS: Final = frozenset({Kind.RESPONSE, Kind.ERROR})
_LOGGED: Final = "notifications/message"
_NOBODY: Final = "several sessions share this command, and nothing tells which of them is asked"
_LEFT: Final = "the session has ended"
_INTERNAL_ERROR: Final = -32603


class Multiplexer:
    """The conversations of one command. `renames` tells whether it may have several clients."""

    def __init__(
        self, name: str, log: Log, recorder: Recorder, clean: Callable[[str], str], *, renames: bool
    ) -> None:
        """`clean` cuts secrets."""
        self._name = name
        self._log = log
        self._clean = clean
        self._recorder = recorder
        self.renames = renames
        self.process: Process | None = None
        """The process that requests go to."""
        self.clients: set[CommandClient] = set()
        self.used = asyncio.get_running_loop().time()
        self._pending = PendingRequests()
        self._processes = 0
        """How many there were: the questions of an earlier one may yet be answered."""

    def is_quiet(self, client: CommandClient | None = None) -> bool:
        """Return whether nothing is waited for, by one client or by all."""
        clients = self.clients if client is None else (client,)
        listens = any(each.listener is not None for each in clients)
        return not listens and not self._pending.replies(client)

    def on_started(self, process: Process) -> None:
        """Use a new process, which knows nothing of the one before."""
        self.process = process
        self._processes += 1
        self._pending.on_new_process()
        for client in self.clients:
            client.questions.clear()

    def on_ended(self, process: Process, kind: ErrorKind, detail: str, phase: Phase | None) -> None:
        """Fail all open requests of a process; `phase` overrides how far they seem to have come."""
        if self.process is process:
            self.process = None
        for one in self._pending:
            if one.process is process:
                if one.reply is not None:
                    one.reply.progress.mark(Flag.PROCESS_EXIT)
                self._fail(one, kind, detail, phase)

    def remove(self, client: CommandClient) -> None:
        """Remove a client: its requests are cancelled, its questions answered by an error."""
        self.clients.discard(client)
        for one in self._pending:
            if one.client is client:
                self._pending.keep_late(one)
                self._fail(one, ErrorKind.CANCELLED_BY_CALLER, _LEFT)
                self.write(mcp.cancellation(one.raw_id, _LEFT))
        for question in client.questions.values():
            self.write(_refusal(question.raw_id, _LEFT))
        if client.listener is not None:
            client.listener.end()

    def _fail(
        self, one: OpenRequest, kind: ErrorKind, detail: str, phase: Phase | None = None
    ) -> None:
        self._pending.take(id_key(one.raw_id))
        if one.reply is not None:
            one.reply.lift()
            one.reply.fail(kind, detail, phase)

    # -- to the command --------------------------------------------------------------------

    def send(
        self,
        client: CommandClient,
        reply: CommandReply | None,
        messages: Sequence[Message],
        line: bytes,
    ) -> None:
        """Send a client's messages; `reply` gets the answers to the requests among them."""
        self.used = client.used = asyncio.get_running_loop().time()
        if reply is not None and self.process is None:
            reply.fail(ErrorKind.CONNECT_FAILED, "the command has ended", Phase.CONNECTING)
            return
        if reply is not None:
            client.drain(reply)
        if self.renames:
            line = with_messages(line, lambda item, text: self._sent(client, reply, item, text))
        else:
            line = self._unchanged(client, reply, messages, line)
        self.write(line)

    def open(self, reply: CommandReply, handshake: bytes) -> None:
        """Send a request of turnlog's own."""
        asked = Message(kind=Kind.REQUEST, id=b"0")
        self.write(self._renamed(CommandClient(), reply, asked, handshake))

    def on_left(self, reply: CommandReply) -> None:
        """Detach a response whose reader is gone; its requests go on."""
        # Beyond a bound they are cancelled: a question on behalf of one that is forgotten would go to
        # another client.
        for one in self._pending.on_left(reply):
            self.write(mcp.cancellation(one.raw_id, _LEFT))

    def cancel(self, reply: CommandReply) -> None:
        """Cancel the requests of a response whose reader is gone."""
        for key in list(reply.awaited):
            if (one := self._pending.forget(key)) is not None:
                self.write(mcp.cancellation(one.raw_id))

    def write(self, line: bytes) -> None:
        """Write a line, if there is one, and a process."""
        if self.process is not None and line:
            self.process.outbox.line(line + b"\n")

    def _unchanged(
        self,
        client: CommandClient,
        reply: CommandReply | None,
        messages: Sequence[Message],
        line: bytes,
    ) -> bytes:
        """Return a line for a command with one client: as it came, but for answers to a process that
        has ended, whose ids the next one may have given again."""
        for message in messages:
            if message.kind is Kind.REQUEST and reply is not None:
                token = mcp.wanted_progress(message)
                self._add(client, reply, message, message.id, token, token)
            elif (key := mcp.cancelled_id(message)) is not None:
                self._pending.on_cancelled(key)
        if self._processes < 2 or not any(message.kind in _ANSWERS for message in messages):
            return line
        return with_messages(
            line, lambda item, text: client.answered(item, text) if item.kind in _ANSWERS else text
        )

    def _sent(
        self, client: CommandClient, reply: CommandReply | None, message: Message, text: bytes
    ) -> bytes | None:
        """Return a client's message for a command that is shared; `None` where it must not get there."""
        match message.kind:
            case Kind.REQUEST:
                return self._renamed(client, reply, message, text) if reply is not None else None
            case Kind.RESPONSE | Kind.ERROR:
                return client.answered(message, text)
            case Kind.NOTIFICATION if message.method == "notifications/cancelled":
                return self._cancelled(client, message, text)
            case Kind.NOTIFICATION:
                # The handshake is turnlog's own, once for all clients.
                return text if message.method != "notifications/initialized" else None
            case _:
                assert_never(message.kind)

    def _renamed(
        self, client: CommandClient, reply: CommandReply, message: Message, text: bytes
    ) -> bytes:
        """Return a request with an id and a progress token of turnlog's own."""
        raw_id, own_token = self._recorder.new_request_id(), mcp.wanted_progress(message)
        token = self._recorder.new_request_id() if own_token else b""
        self._add(client, reply, message, raw_id, token, own_token)
        if token:
            text = with_member(text, _TOKEN_ASKED, token) or text
        return with_id(text, raw_id) or text

    def _add(
        self,
        client: CommandClient,
        reply: CommandReply,
        message: Message,
        raw_id: bytes,
        token: bytes,
        own_token: bytes,
    ) -> None:
        assert self.process is not None  # or nothing is sent
        self.process.startup.on_request()
        self._pending.add(
            OpenRequest(
                client=client,
                reply=reply,
                process=self.process,
                raw_id=raw_id,
                own_id=message.id,
                token=id_key(token) if token else "",
                own_token=own_token,
                is_call=message.method in _CALLS,
            )
        )

    def _cancelled(self, client: CommandClient, message: Message, text: bytes) -> bytes | None:
        """Return a cancel with the id that the process knows."""
        key = mcp.cancelled_id(message)
        its = (one for one in self._pending if one.client is client and not one.is_cancelled)
        own = [one for one in its if id_key(one.own_id) == key]
        if key is None or len(own) != 1:
            return None
        self._pending.on_cancelled(id_key(own[0].raw_id))
        return with_cancelled_ids(text, {key: own[0].raw_id})

    # -- from the command ------------------------------------------------------------------

    def crowded(self) -> CommandReply | None:
        """Return a response that its client leaves unread, where no other client waits for it."""
        replies = () if self.renames else self._pending.replies()
        return next((reply for reply in replies if reply.is_crowded), None)

    def on_line(self, process: Process, line: bytes) -> None:
        """Route one line of a process; a bug in reading it is logged and ends nothing else."""
        if self.process is not process and self.process is not None:
            return  # another one has its place, where ids begin anew
        try:
            # Between values, the only place for it in JSON, a CR would end an event's line.
            self._on_line(process, line.replace(b"\r", b" "))
        except Exception as error:  # noqa: BLE001 - it is logged
            self._recorder.faulted(error)

    def _on_line(self, process: Process, line: bytes) -> None:
        content = parse(line)
        if not isinstance(content, Malformed):
            process.startup.on_message()
        match content:
            case Malformed(reason=Defect.EMPTY):
                pass
            case Malformed():
                self._on_stray(process, line)
            case Batch() if self.renames or not _only_answers(content):
                for item, text in texts_of(content, line):
                    self._on_message(item, text)
            case Batch():
                self._on_answers(list(texts_of(content, line)), line)
            case Message():
                self._on_message(content, line)
            case _:
                assert_never(content)

    def _on_answers(self, answers: Sequence[tuple[Message, bytes]], line: bytes) -> None:
        """Send a batch of responses, as it came, to the client that asked."""
        taken = [self._take(id_key(message.id)) for message, _ in answers]
        one = next((one for one in taken if one is not None and one.reply is not None), None)
        self._on_answer(one, line, None)
        for message, text in answers:
            self._pending.take_late(message, text)

    def _take(self, key: str) -> OpenRequest | None:
        """Remove the request that an answer with this id is for."""
        return self._pending.take(meant_key(key, self._pending.has))

    def _on_stray(self, process: Process, line: bytes) -> None:
        """Flag and log a line that is no message: something else in the server writes to its stdout."""
        for reply in self._pending.replies():
            reply.progress.mark(Flag.STRAY_OUTPUT)
        if process.startup.is_foreign(line):
            self._log.emit(ProcessFailed(server=self._name, reason=FRAMED))
        self._log.emit(StrayOutput(server=self._name, size=len(line)))

    def _on_message(self, message: Message, line: bytes) -> None:
        match message.kind:
            case Kind.ERROR if message.id in (b"", b"null"):
                # It answers the only request there is (JSON-RPC 2.0 section 5.1).
                keys = [id_key(one.raw_id) for one in self._pending if one.reply is not None]
                self._on_answer(self._take(keys[0]) if len(keys) == 1 else None, line, message)
            case Kind.RESPONSE | Kind.ERROR:
                self._on_answer(self._take(id_key(message.id)), line, message)
                self._pending.take_late(message, line)
            case Kind.REQUEST:
                self._on_question(message, line)
            case Kind.NOTIFICATION:
                self._on_notification(message, line)
            case _:
                assert_never(message.kind)

    def _on_answer(self, one: OpenRequest | None, line: bytes, message: Message | None) -> None:
        """Send a response to the client that asked; `message` is what it says, unless it is a batch."""
        if one is None or one.reply is None:
            return
        if self.renames and message is not None and (renamed := with_id(line, one.own_id)):
            unchecked = renamed if message.unchecked else b""
            line, message = renamed, structs.replace(message, id=one.own_id, unchecked=unchecked)
        one.reply.add(line, message)
        if not one.reply.awaited:
            one.reply.end()

    def _on_question(self, message: Message, line: bytes) -> None:
        """Send a request of the process to the client that it is for."""
        client = self._only_client()
        if client is not None:
            self._deliver(client, self._as_question(client, message, line))
        elif message.method == "ping":
            self.write(b'{"jsonrpc":"2.0","id":%b,"result":{}}' % message.id)
        else:
            method = self._clean(message.method)
            self._log.emit(QuestionRefused(server=self._name, method=method))
            self.write(_refusal(message.id, _NOBODY))

    def _as_question(self, client: CommandClient, message: Message, line: bytes) -> bytes:
        """Return a question as its client gets it: with an id that no process before has given."""
        if self._processes < 2:
            if self.renames:
                client.ask(message.id, message.id)
            return line
        own_id = self._recorder.new_request_id()
        client.ask(own_id, message.id)
        return with_id(line, own_id) or line

    def _on_notification(self, message: Message, line: bytes) -> None:
        """Send a notification to the clients that it is for."""
        if token := mcp.progress_token(message):
            self._on_progress(token, line)
        elif (one := self._pending.find(mcp.subscription(message))) is not None:
            self._notify(one, _SUBSCRIPTION, one.own_id, line)
        elif message.method in _OF_ALL and len(self.clients) > 1:
            self._notify_listeners(line)
        elif (cancel := self._as_cancel(message, line)) is not None:
            self._deliver(*cancel)
        elif (client := self._only_client()) is not None:
            self._deliver(client, line)
        elif message.method == _LOGGED:
            self._notify_listeners(line)

    def _on_progress(self, token: str, line: bytes) -> None:
        """Send progress to the client that wants it."""
        one = self._pending.with_token(token)
        if one is not None and one.reply is not None and one.reply.streams:
            self._notify(one, _TOKEN_TOLD, one.own_token, line)
        elif not self.renames:
            for client in self.clients:
                if (stream := self._stream_of(client)) is not None:
                    self._add_to(stream, client, line)

    def _notify(self, one: OpenRequest, path: Sequence[str], own: bytes, line: bytes) -> None:
        """Send a notification about a request to its client, with the client's own id."""
        if one.reply is not None:
            changed = (with_member(line, path, own) or line) if self.renames else line
            self._add_to(one.reply, one.client, changed)

    def _add_to(self, reply: CommandReply, client: CommandClient, line: bytes) -> None:
        """Add a message that is no response."""
        reply.add(line)
        if self.renames or reply is client.listener:
            reply.cut_if_unread()

    def _notify_listeners(self, line: bytes) -> None:
        for client in self.clients:
            if client.listener is not None:
                self._add_to(client.listener, client, line)

    def _only_client(self) -> CommandClient | None:
        """Return the only client there is, else the only one with an open call."""
        if len(self.clients) == 1:
            return next(iter(self.clients))
        calling = {one.client for one in self._pending if one.is_call}
        return calling.pop() if len(calling) == 1 else None

    def _as_cancel(self, message: Message, line: bytes) -> tuple[CommandClient, bytes] | None:
        """Return the client whose question is cancelled, and the cancel with the id that it knows."""
        key = mcp.cancelled_id(message)
        if key is None:
            return None
        for client in self.clients:
            for asked in client.questions.values():
                if id_key(asked.raw_id) == key:
                    return client, with_cancelled_ids(line, {key: asked.own_id}) or line
        return None

    def _deliver(self, client: CommandClient, line: bytes) -> None:
        """Send a client a message that names no request; without a stream it is kept."""
        stream = self._stream_of(client)
        if stream is not None:
            self._add_to(stream, client, line)
        else:
            client.keep(line)

    def _stream_of(self, client: CommandClient) -> CommandReply | None:
        """Return the client's stream for such messages: its only open response, else the listener."""
        waiting = [reply for reply in self._pending.replies(client) if reply.streams]
        if len(waiting) == 1:
            return waiting[0]
        return client.listener or (waiting[-1] if waiting else None)


def _only_answers(batch: Batch) -> bool:
    """Return whether a batch holds nothing but responses."""
    return all(isinstance(item, Message) and item.kind in _ANSWERS for item in batch.items)


def _refusal(raw_id: bytes, why: str) -> bytes:
    """Return the error that answers a command's question."""
    error = {"code": _INTERNAL_ERROR, "message": why}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": Raw(raw_id), "error": error})
