"""Routes JSON-RPC messages between clients and one command, rewriting ids where several clients share it.

Several clients may use the same ids and progress tokens: then turnlog replaces both on the way there and
puts them back on the way out. A message that names no request goes to the one client that it can be for.
A command with a single client gets all bytes as they came. It knows no process: `engine.command.supervisor`
starts that, reads its lines and writes what comes from here.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, assert_never

import msgspec
from msgspec import Raw, Struct, structs

from turnlog.core.kinds import ErrorKind, Flag, Phase
from turnlog.exchange.duplicates import CANCELLED_LIFE
from turnlog.exchange.open_requests import GIVEN_UP, OpenRequests
from turnlog.observe.events import Log, QuestionRefused
from turnlog.record.deadlines import LateReader
from turnlog.wire import mcp
from turnlog.wire.jsonrpc import Batch, Kind, Message, id_key, texts_of
from turnlog.wire.splice import with_cancelled_ids, with_id, with_member, with_messages

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
_LONGEST_KEPT: Final = 64 * 1024
"""bytes: a longer message is not kept for a client without an open stream."""
_BACKLOG: Final = 256
"""Messages kept for a client without an open stream."""


class Question(Struct, frozen=True):
    """An open request of the command: its id as the client knows it, and as the command does."""

    own_id: bytes
    raw_id: bytes


class CommandClient:
    """One client as its command sees it: a protocol session, or one credential without one."""

    def __init__(self) -> None:
        self._backlog: deque[bytes] = deque(maxlen=_BACKLOG)
        self.listener: CommandReply | None = None
        """Its stream for messages that belong to no request."""
        self.questions: dict[str, Question] = {}
        """The command's open requests, oldest first, by the keys of the ids that the client knows."""
        self.used = asyncio.get_running_loop().time()

    def listen(self, reply: CommandReply) -> None:
        """Send messages that belong to no request to this stream."""
        self.listener = reply
        self.drain(reply)

    def on_listener_closed(self, _: CommandReply) -> None:
        """Mark the listening stream as closed."""
        self.listener = None

    def keep(self, line: bytes) -> None:
        """Keep a message for the next stream; the oldest are dropped first."""
        if len(line) <= _LONGEST_KEPT:
            self._backlog.append(line)

    def drain(self, reply: CommandReply) -> None:
        """Send the kept messages, if this response may hold several."""
        while self._backlog and reply.streams:
            reply.add(self._backlog.popleft())

    def ask(self, own_id: bytes, raw_id: bytes) -> None:
        """Add a question of the command."""
        self.questions[id_key(own_id)] = Question(own_id, raw_id)

    def answered(self, message: Message, text: bytes) -> bytes | None:
        """Return the client's answer to a question with the command's id, once; `None` for any other."""
        # Of two ids in one message the command might read the other one.
        if with_id(text, message.id) is None:
            return None
        question = self.questions.pop(id_key(message.id), None)
        if question is None:
            return None
        return text if question.own_id == question.raw_id else with_id(text, question.raw_id)


class OpenRequest(Struct, eq=False, kw_only=True):
    """A request that has no answer yet, or was given up."""

    key: str
    """Key of its id as the command knows it."""
    raw_id: bytes
    """Its id as the command knows it."""
    own_id: bytes
    """Its id as the client knows it."""
    client: CommandClient
    reply: CommandReply | None
    """The response for its answer; `None` once no client waits for it."""
    process: int
    """The number of the process that it was sent to."""
    token: str = ""
    """Key of the progress token that the command knows; empty for none."""
    own_token: bytes = b""
    """The progress token that the client knows."""
    is_call: bool = False
    """Whether the command may ask the client something on its behalf."""
    is_cancelled: bool = False
    """Whether its client cancelled it; a duplicate may still want its answer."""
    late: LateReader | None = None
    """Reads its answer, once no client waits for that."""

    def detach(self) -> CommandReply | None:
        """Leave its answer to the reader of late ones; return the response that waited for it."""
        reply, self.reply = self.reply, None
        if reply is not None:
            reply.awaited.discard(self.key)
            if reply.progress.late is not None:
                self.late = reply.progress.late()
        return reply


class Multiplexer:
    """The conversations of one command."""

    def __init__(
        self,
        name: str,
        log: Log,
        clean: Callable[[str], str],
        new_id: Callable[[], bytes],
        write: Callable[[bytes], None],
        *,
        renames: bool,
    ) -> None:
        """`clean` cuts secrets, `new_id` makes a request id, `write` sends the command a line; `renames`
        is whether it may have several clients."""
        self._name = name
        self._log = log
        self._clean = clean
        self._new_id = new_id
        self.write = write
        self.renames = renames
        self.clients: set[CommandClient] = set()
        self._requests: OpenRequests[OpenRequest] = OpenRequests(lambda one: one.reply is not None)
        self._unawaited: dict[OpenRequest, None] = {}
        """Open requests without a client that waits, in the order in which their clients left."""
        self._process = 0
        """The number of the process: the questions of an earlier one may yet be answered."""

    def replies(self, client: CommandClient | None = None) -> list[CommandReply]:
        """Return the responses that are waited for, of one client or of all."""
        found = (one.reply for one in self._requests if client is None or one.client is client)
        return list(dict.fromkeys(reply for reply in found if reply is not None))

    def is_quiet(self, client: CommandClient | None = None) -> bool:
        """Return whether nothing is waited for, by one client or by all."""
        clients = self.clients if client is None else (client,)
        return not (any(each.listener is not None for each in clients) or self.replies(client))

    def on_started(self) -> int:
        """Use a new process, which knows nothing of the one before; return its number."""
        self._process += 1
        self._requests.forget_late()
        for client in self.clients:
            client.questions.clear()
        return self._process

    def on_ended(self, process: int, kind: ErrorKind, detail: str, phase: Phase | None) -> None:
        """Fail all open requests of a process; `phase` overrides how far they seem to have come."""
        for one in self._requests:
            if one.process == process:
                if one.reply is not None:
                    one.reply.progress.mark(Flag.PROCESS_EXIT)
                self._fail(one, kind, detail, phase)

    def remove(self, client: CommandClient) -> None:
        """Remove a client: its requests are cancelled, its questions answered by an error."""
        self.clients.discard(client)
        for one in self._requests:
            if one.client is client:
                self._fail(one, ErrorKind.CANCELLED_BY_CALLER, _LEFT)
                self.write(mcp.cancellation(one.raw_id, _LEFT))
        for question in client.questions.values():
            self.write(_refusal(question.raw_id, _LEFT))
        if client.listener is not None:
            client.listener.end()

    def _give_up(self, one: OpenRequest) -> CommandReply | None:
        """Regard the answer to an open request as late; return the response that waited for it."""
        self._requests.give_up(one.key, one)
        self._unawaited.pop(one, None)
        return one.detach()

    def _fail(
        self, one: OpenRequest, kind: ErrorKind, detail: str, phase: Phase | None = None
    ) -> None:
        if (reply := self._give_up(one)) is not None:
            reply.end_wait()
            reply.fail(kind, detail, phase)

    def _forget(self, one: OpenRequest) -> None:
        """Remove an open request; ends its response if that waits for nothing else."""
        reply = self._give_up(one)
        if reply is not None and not reply.awaited:
            reply.end_wait()
            reply.end()

    # -- to the command --------------------------------------------------------------------

    def send(
        self,
        client: CommandClient,
        reply: CommandReply | None,
        messages: Sequence[Message],
        line: bytes,
    ) -> None:
        """Send a client's messages; `reply` gets the answers to the requests among them."""
        if reply is not None:
            client.drain(reply)
        sent: bytes | None
        if line.lstrip().startswith(b"["):
            sent = with_messages(line, lambda item, text: self._sent(client, reply, item, text))
        else:
            sent = self._sent(client, reply, messages[0], line)
        if sent:
            self.write(sent)

    def open(self, reply: CommandReply, handshake: bytes) -> None:
        """Send a request of turnlog's own."""
        asked = Message(kind=Kind.REQUEST, id=b"0")
        self.write(self._asked(CommandClient(), reply, asked, handshake, renames=True))

    def on_left(self, reply: CommandReply) -> None:
        """Detach a response whose reader is gone; its requests go on, unless they were cancelled."""
        for one in self._of(reply):
            if one.is_cancelled:
                self._give_up(one)
            else:
                one.detach()
                self._unawaited[one] = None
        reply.end_wait()
        # Beyond a bound they are cancelled: a question on behalf of one that is forgotten would go to
        # another client.
        for one in list(self._unawaited)[: max(len(self._unawaited) - GIVEN_UP, 0)]:
            self._give_up(one)
            self.write(mcp.cancellation(one.raw_id, _LEFT))

    def cancel(self, reply: CommandReply) -> None:
        """Cancel the requests of a response whose reader is gone."""
        for one in self._of(reply):
            self._forget(one)
            self.write(mcp.cancellation(one.raw_id))

    def _of(self, reply: CommandReply) -> list[OpenRequest]:
        """Return the open requests of a response."""
        found = (self._requests.find(key) for key in reply.awaited)
        return [one for one in found if one is not None]

    @property
    def _is_checked(self) -> bool:
        """Whether an answer of a client may be to another client's question, or to an earlier process's."""
        return self.renames or self._process > 1

    def _sent(
        self, client: CommandClient, reply: CommandReply | None, message: Message, text: bytes
    ) -> bytes | None:
        """Return a client's message as the command gets it; `None` where it must not get there."""
        match message.kind:
            case Kind.REQUEST:
                if reply is None:
                    return None
                return self._asked(client, reply, message, text, renames=self.renames)
            case Kind.RESPONSE | Kind.ERROR:
                return client.answered(message, text) if self._is_checked else text
            case Kind.NOTIFICATION if message.method == "notifications/cancelled":
                return self._cancelled(client, message, text)
            case Kind.NOTIFICATION:
                # With several clients the handshake is turnlog's own, once for all.
                is_ours = self.renames and message.method == "notifications/initialized"
                return None if is_ours else text
            case _:
                assert_never(message.kind)

    def _asked(
        self,
        client: CommandClient,
        reply: CommandReply,
        message: Message,
        text: bytes,
        *,
        renames: bool,
    ) -> bytes:
        """Return a request as the command gets it, `renames` with an id and a progress token of turnlog's."""
        raw_id, own_token = message.id, mcp.wanted_progress(message)
        token = own_token
        if renames:
            raw_id, token = self._new_id(), self._new_id() if own_token else b""
            text = (with_member(text, _TOKEN_ASKED, token) if token else None) or text
            text = with_id(text, raw_id) or text
        key = id_key(raw_id)
        if (replaced := self._requests.take(key)) is not None:
            self._replace(replaced)
        reply.awaited.add(key)
        one = OpenRequest(
            key=key,
            raw_id=raw_id,
            own_id=message.id,
            client=client,
            reply=reply,
            process=self._process,
            token=id_key(token) if token else "",
            own_token=own_token,
            is_call=message.method in _CALLS,
        )
        self._requests.add(key, one)
        return text

    def _replace(self, one: OpenRequest) -> None:
        """Remove a request whose id is used again: the next answer is the newer request's."""
        self._unawaited.pop(one, None)
        reply = one.detach()
        if reply is not None and not reply.awaited:
            reply.end_wait()
            reply.fail(ErrorKind.CONNECTION_LOST, "its id was used again")

    def _cancelled(self, client: CommandClient, message: Message, text: bytes) -> bytes | None:
        """Return a cancel with the id that the command knows."""
        key = mcp.cancelled_id(message)
        its = (one for one in self._requests if one.client is client and not one.is_cancelled)
        own = [one for one in its if id_key(one.own_id) == key]
        if self.renames and len(own) != 1:
            return None
        for one in own:
            self._on_cancelled(one)
        if not self.renames or key is None:
            return text
        return with_cancelled_ids(text, {key: own[0].raw_id})

    def _on_cancelled(self, one: OpenRequest) -> None:
        """Remove a request that its client cancelled; a guarded one only after a grace."""
        if one.reply is None or not one.reply.progress.may_continue:
            self._forget(one)
        else:
            one.is_cancelled = True
            asyncio.get_running_loop().call_later(CANCELLED_LIFE, self._on_grace_over, one)

    def _on_grace_over(self, one: OpenRequest) -> None:
        if one in self._requests:
            self._forget(one)

    # -- from the command ------------------------------------------------------------------

    def crowded(self) -> CommandReply | None:
        """Return a response that its client leaves unread, where no other client waits for it."""
        replies = () if self.renames else self.replies()
        return next((reply for reply in replies if reply.is_crowded), None)

    def on_content(self, content: Message | Batch, line: bytes) -> None:
        """Route one line of the command."""
        match content:
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
        reply: CommandReply | None = None
        for message, text in answers:
            if (one := self._answered(message, text)) is not None:
                reply = reply or one.reply
        if reply is not None:
            _deliver_answer(reply, line, None)

    def _answered(self, message: Message, text: bytes) -> OpenRequest | None:
        """Remove and return the request that an answer is for, if a client waits for it."""
        one = self._requests.take(self._requests.key_of(message))
        if one is not None and one.reply is not None:
            one.reply.awaited.discard(one.key)
            return one
        if one is not None:
            self._unawaited.pop(one, None)
            if one.late is not None:
                one.late(id_key(one.own_id), message, text)
        return None

    def _on_message(self, message: Message, line: bytes) -> None:
        match message.kind:
            case Kind.RESPONSE | Kind.ERROR:
                self._on_answer(message, line)
            case Kind.REQUEST:
                self._on_question(message, line)
            case Kind.NOTIFICATION:
                self._on_notification(message, line)
            case _:
                assert_never(message.kind)

    def _on_answer(self, message: Message, line: bytes) -> None:
        """Send a response to the client that asked."""
        one = self._answered(message, line)
        if one is None or (reply := one.reply) is None:
            return
        if one.own_id != one.raw_id and (renamed := with_id(line, one.own_id)):
            unchecked = renamed if message.unchecked else b""
            line, message = renamed, structs.replace(message, id=one.own_id, unchecked=unchecked)
        _deliver_answer(reply, line, message)

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
        if not self._is_checked:
            return line
        own_id = self._new_id() if self._process > 1 else message.id
        client.ask(own_id, message.id)
        return with_id(line, own_id) or line

    def _on_notification(self, message: Message, line: bytes) -> None:
        """Send a notification to the clients that it is for."""
        if token := mcp.progress_token(message):
            self._on_progress(token, line)
        elif (one := self._requests.find(mcp.subscription(message))) is not None:
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
        one = next((one for one in reversed(list(self._requests)) if one.token == token), None)
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
        calling = {one.client for one in self._requests if one.is_call}
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
        waiting = [reply for reply in self.replies(client) if reply.streams]
        if len(waiting) == 1:
            return waiting[0]
        return client.listener or (waiting[-1] if waiting else None)


def _only_answers(batch: Batch) -> bool:
    """Return whether a batch holds nothing but responses."""
    return all(isinstance(item, Message) and item.kind in _ANSWERS for item in batch.items)


def _deliver_answer(reply: CommandReply, line: bytes, message: Message | None) -> None:
    """Add a response, which ends the reply if it waits for nothing else; `message` is what it says."""
    reply.add(line, message)
    if not reply.awaited:
        reply.end()


def _refusal(raw_id: bytes, why: str) -> bytes:
    """Return the error that answers a command's question."""
    error = {"code": _INTERNAL_ERROR, "message": why}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": Raw(raw_id), "error": error})
