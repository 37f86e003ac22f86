"""Routes JSON-RPC messages between clients and one child process, rewriting ids.

Ids and progress tokens of several agents may be the same, so where they share a command each gets a
word of turnlog's own for its way there and back. What a command says without naming a request goes
to one agent where nobody else can be meant. With an agent of its own a command gets the bytes as
they came, and all that it says is that agent's.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, assert_never

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

from .client import CommandClient
from .pending import OpenRequest, PendingRequests
from .process import Process
from .questions import refusal
from .reply import CommandReply
from .startup import FRAMED, Startup

_TOKEN_ASKED: Final = ("params", "_meta", "progressToken")
_TOKEN_TOLD: Final = ("params", "progressToken")
_SUBSCRIPTION: Final = ("params", "_meta", mcp.SUBSCRIPTION_KEY)
_CALLS: Final = frozenset({"tools/call", "prompts/get", "resources/read", "tasks/result"})
"""For whose sake a command asks an agent something."""
_OF_ALL: Final = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
        "notifications/resources/updated",
    }
)
"""What is said of the command itself."""
_ANSWERS: Final = frozenset({Kind.RESPONSE, Kind.ERROR})
_LOGGED: Final = "notifications/message"
_NOBODY: Final = "several sessions share this command, and nothing tells which of them is asked"
_LEFT: Final = "the session has ended"


class Multiplexer:
    """The conversations of one command. `renames` tells whether several agents may talk to it."""

    def __init__(
        self, name: str, log: Log, recorder: Recorder, clean: Callable[[str], str], *, renames: bool
    ) -> None:
        self._name = name
        self._log = log
        self._clean = clean
        self._recorder = recorder
        self.renames = renames
        self.process: Process | None = None
        """What is talked to now."""
        self.seats: set[CommandClient] = set()
        self._pending = PendingRequests()
        self._startup = Startup(inf, lambda: None)
        """Of the latest process."""
        self._began = False
        self._began_anew = False
        """Whether there was another process before, whose questions may yet be answered."""

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for anything."""
        listens = any(seat.listener is not None for seat in self.seats)
        return not listens and not self._pending.is_awaited

    def is_quiet(self, seat: CommandClient) -> bool:
        """Return whether one client waits for nothing."""
        return seat.listener is None and not self._pending.waiting(seat)

    def begin(self, process: Process, startup: Startup) -> None:
        """Talk to a new process: it knows nothing of what another one asked."""
        self.process = process
        self._startup = startup
        self._pending.clear_late()
        self._began, self._began_anew = True, self._began
        for seat in self.seats:
            seat.questions.clear()

    def lost(self, process: Process, kind: ErrorKind, detail: str, phase: Phase | None) -> None:
        """End all open requests, as the process has ended.

        `phase` is how far its requests came, if not as far as it seemed.
        """
        if self.process is process:
            self.process = None
        for one in self._pending:
            if one.process is process:
                if one.reply is not None:
                    one.reply.mark(Flag.PROCESS_EXIT)
                self._fail(one, kind, detail, phase)

    def leave(self, seat: CommandClient) -> None:
        """Remove a client: its requests are cancelled, questions to it are answered by an error."""
        self.seats.discard(seat)
        for one in self._pending:
            if one.seat is seat:
                self._pending.leave(one)
                self._fail(one, ErrorKind.CANCELLED_BY_CALLER, _LEFT)
                self.write(mcp.cancellation(one.raw_id, _LEFT))
        for question in seat.questions:
            self.write(refusal(question.raw_id, _LEFT))
        if seat.listener is not None:
            seat.listener.end()

    def _fail(
        self, one: OpenRequest, kind: ErrorKind, detail: str, phase: Phase | None = None
    ) -> None:
        self._pending.take(id_key(one.raw_id))
        if one.reply is not None:
            one.reply.lift()
            one.reply.fail(kind, detail, phase)

    # -- to the command --------------------------------------------------------------------

    def ask(
        self, seat: CommandClient, reply: CommandReply, messages: Sequence[Message], line: bytes
    ) -> None:
        """Send requests whose answers belong to `reply`."""
        seat.drain(reply)
        if self.renames:
            line = self._outgoing(seat, reply, line)
        else:
            for message in messages:
                if message.kind is Kind.REQUEST:
                    token = mcp.wanted_progress(message)
                    self._await(seat, reply, message, message.id, token)
            line = self._answering(seat, messages, line)
        self.write(line)

    def tell(self, seat: CommandClient, messages: Sequence[Message], line: bytes) -> None:
        """Send what gets no answer."""
        if self.renames:
            line = self._outgoing(seat, None, line)
        else:
            for message in messages:
                if (key := mcp.cancelled_id(message)) is not None:
                    self._pending.cancelled(key)
            line = self._answering(seat, messages, line)
        self.write(line)

    def open(self, reply: CommandReply, handshake: bytes) -> None:
        """Send a request in no agent's name."""
        asked = Message(kind=Kind.REQUEST, id=b"0")
        self.write(self._renamed(CommandClient(), reply, asked, handshake))

    def left(self, reply: CommandReply) -> None:
        """Detach a reply that nobody reads any more; what it waits for goes on, as far as such requests
        are remembered: a question for the sake of one that was forgotten would be put to somebody else."""
        for one in self._pending.left(reply):
            self.write(mcp.cancellation(one.raw_id, _LEFT))

    def cancel(self, reply: CommandReply) -> None:
        """Cancel the requests of a reply that nobody reads any more."""
        for key in list(reply.awaited):
            if (one := self._pending.forget(key)) is not None:
                self.write(mcp.cancellation(one.raw_id))

    def write(self, line: bytes) -> None:
        """Write a line, if there is one and somebody to read it."""
        if self.process is not None and line:
            self.process.outbox.line(line + b"\n")

    def _outgoing(self, seat: CommandClient, reply: CommandReply | None, line: bytes) -> bytes:
        """Return what of a line goes to the command, as that is to read it."""
        return with_messages(line, lambda item, text: self._sent(seat, reply, item, text))

    def _answering(self, seat: CommandClient, messages: Sequence[Message], line: bytes) -> bytes:
        """Return what of a line goes to a command of the agent's own: all but an answer to a
        question of a process that is gone, whose id the next one may have given again."""
        if not self._began_anew or not any(message.kind in _ANSWERS for message in messages):
            return line

        def passing(message: Message, text: bytes) -> bytes | None:
            is_answer = message.kind in _ANSWERS
            return seat.questions.answer(message, text) if is_answer else text

        return with_messages(line, passing)

    def _sent(
        self, seat: CommandClient, reply: CommandReply | None, message: Message, text: bytes
    ) -> bytes | None:
        """Return a message of an agent's for the command; `None` where it must not get there."""
        match message.kind:
            case Kind.REQUEST:
                return self._renamed(seat, reply, message, text) if reply is not None else None
            case Kind.RESPONSE | Kind.ERROR:
                return seat.questions.answer(message, text)
            case Kind.NOTIFICATION if message.method == "notifications/cancelled":
                return self._taken_back(seat, message, text)
            case Kind.NOTIFICATION:
                # That the conversation is open has been said, once for all.
                return text if message.method != "notifications/initialized" else None
            case _:
                assert_never(message.kind)

    def _renamed(
        self, seat: CommandClient, reply: CommandReply, message: Message, text: bytes
    ) -> bytes:
        """Return a request with an id and a progress token of its own."""
        ours = self._recorder.new_request_id()
        token = self._recorder.new_request_id() if mcp.wanted_progress(message) else b""
        self._await(seat, reply, message, ours, token)
        if token:
            text = with_member(text, _TOKEN_ASKED, token) or text
        return with_id(text, ours) or text

    def _await(
        self,
        seat: CommandClient,
        reply: CommandReply,
        message: Message,
        raw_id: bytes,
        token: bytes,
    ) -> None:
        self._startup.ask()
        self._pending.add(
            OpenRequest(
                seat=seat,
                reply=reply,
                process=self.process,
                raw_id=raw_id,
                own_id=message.id,
                token=token,
                own_token=mcp.wanted_progress(message),
                is_call=message.method in _CALLS,
            )
        )

    def _taken_back(self, seat: CommandClient, message: Message, text: bytes) -> bytes | None:
        """Return a cancel with the id that the process knows."""
        key = mcp.cancelled_id(message)
        its = (one for one in self._pending if one.seat is seat and not one.is_cancelled)
        own = [one for one in its if id_key(one.own_id) == key]
        if key is None or len(own) != 1:
            return None
        self._pending.cancelled(id_key(own[0].raw_id))
        return with_cancelled_ids(text, {key: own[0].raw_id})

    # -- from the command ------------------------------------------------------------------

    def crowded(self) -> CommandReply | None:
        """Return an answer that its agent leaves too much of unread, where nobody else waits for it."""
        replies = () if self.renames else self._pending.replies
        return next((reply for reply in replies if reply.is_crowded), None)

    def take(self, process: Process, line: bytes) -> None:
        """Route one line of the process; a bug in reading it ends nothing else."""
        if self.process is not process and self.process is not None:
            return  # another one has its place, where ids begin anew
        try:
            # Between values, where alone it may stand, a CR would end an event's line.
            self._read(line.replace(b"\r", b" "))
        except Exception as error:  # noqa: BLE001 - it is logged
            self._recorder.faulted(error)

    def _read(self, line: bytes) -> None:
        content = parse(line)
        if not isinstance(content, Malformed):
            self._startup.hear()
        match content:
            case Malformed(reason=Defect.EMPTY):
                pass
            case Malformed():
                self._stray(line)
            case Batch() if self.renames or not _only_answers(content):
                for item, text in texts_of(content, line):
                    self._said(item, text)
            case Batch():
                self._answered_together(content, line)
            case Message():
                self._said(content, line)
            case _:
                assert_never(content)

    def _answered_together(self, batch: Batch, line: bytes) -> None:
        self._answer([id_key(message.id) for message, _ in texts_of(batch, line)], line)
        for message, text in texts_of(batch, line):
            self._pending.take_late(message, text)

    def _stray(self, line: bytes) -> None:
        """Note a line that is no message: something else in the server writes to its stdout."""
        for reply in self._pending.replies:
            reply.mark(Flag.STRAY_OUTPUT)
        if self._startup.is_foreign(line):
            self._log.emit(ProcessFailed(server=self._name, reason=FRAMED))
        self._log.emit(StrayOutput(server=self._name, size=len(line)))

    def _said(self, message: Message, line: bytes) -> None:
        match message.kind:
            case Kind.ERROR if message.id in (b"", b"null"):
                # It answers the only request there is (JSON-RPC 2.0 section 5.1).
                keys = [id_key(one.raw_id) for one in self._pending if one.reply is not None]
                self._answer(keys if len(keys) == 1 else (), line)
            case Kind.RESPONSE | Kind.ERROR:
                self._answer((id_key(message.id),), line)
                self._pending.take_late(message, line)
            case Kind.REQUEST:
                self._ask_back(message, line)
            case Kind.NOTIFICATION:
                self._pass_on(message, line)
            case _:
                assert_never(message.kind)

    def _answer(self, keys: Sequence[str], line: bytes) -> None:
        """Route a response to the client that asked."""
        meant = [meant_key(key, self._pending.has) for key in keys]
        answered = [one for key in meant if (one := self._pending.take(key)) is not None]
        one = next((one for one in answered if one.reply is not None), None)
        if one is None or one.reply is None:
            return
        one.reply.add((with_id(line, one.own_id) or line) if self.renames else line)
        if not one.reply.awaited:
            one.reply.end()

    def _ask_back(self, message: Message, line: bytes) -> None:
        """Route a request of the process to the client that it is for."""
        seat = self._meant()
        if seat is not None:
            self._hear(seat, self._asking(seat, message, line))
        elif message.method == "ping":
            # It asks whether anybody is there.
            self.write(b'{"jsonrpc":"2.0","id":%b,"result":{}}' % message.id)
        else:
            method = self._clean(message.method)
            self._log.emit(QuestionRefused(server=self._name, method=method))
            self.write(refusal(message.id, _NOBODY))

    def _asking(self, seat: CommandClient, message: Message, line: bytes) -> bytes:
        """Return a question as the agent gets it: with an id that no process before has given."""
        if not self._began_anew:
            if self.renames:
                seat.questions.add(message.id, message.id)
            return line
        own_id = self._recorder.new_request_id()
        seat.questions.add(own_id, message.id)
        return with_id(line, own_id) or line

    def _pass_on(self, message: Message, line: bytes) -> None:
        """Route a notification of the process."""
        if token := mcp.progress_token(message):
            self._report(token, line)
        elif (one := self._pending.find(mcp.subscription(message))) is not None:
            self._tell(one, _SUBSCRIPTION, one.own_id, line)
        elif message.method in _OF_ALL and len(self.seats) > 1:
            self._tell_all(line)
        elif (taken := self._taking_back(message, line)) is not None:
            self._hear(*taken)
        elif (seat := self._meant()) is not None:
            self._hear(seat, line)
        elif message.method == _LOGGED:
            self._tell_all(line)

    def _report(self, token: str, line: bytes) -> None:
        """Report progress to who wants it."""
        one = self._pending.reported(token)
        if one is not None and one.reply is not None and one.reply.streams:
            self._tell(one, _TOKEN_TOLD, one.own_token, line)
        elif not self.renames:
            for seat in self.seats:
                if (hearer := self._hearer(seat)) is not None:
                    self._give(seat, hearer, line)

    def _tell(self, one: OpenRequest, path: Sequence[str], own: bytes, line: bytes) -> None:
        """Send a client a notification about one of its requests, with its own id."""
        if one.reply is not None:
            told = (with_member(line, path, own) or line) if self.renames else line
            self._give(one.seat, one.reply, told)

    def _give(self, seat: CommandClient, reply: CommandReply, line: bytes) -> None:
        """Send a client what is no response."""
        reply.add(line)
        if self.renames or reply is seat.listener:
            reply.cut()

    def _tell_all(self, line: bytes) -> None:
        for seat in self.seats:
            if seat.listener is not None:
                self._give(seat, seat.listener, line)

    def _meant(self) -> CommandClient | None:
        """Return the only agent there is, else the only one that has a call open."""
        if len(self.seats) == 1:
            return next(iter(self.seats))
        calling = {one.seat for one in self._pending if one.is_call}
        return calling.pop() if len(calling) == 1 else None

    def _taking_back(self, message: Message, line: bytes) -> tuple[CommandClient, bytes] | None:
        """Return whom the command asked what it takes back, and that in the agent's words."""
        key = mcp.cancelled_id(message)
        if key is None:
            return None
        for seat in self.seats:
            if (asked := seat.questions.find(key)) is not None:
                return seat, with_cancelled_ids(line, {key: asked.own_id}) or line
        return None

    def _hear(self, seat: CommandClient, line: bytes) -> None:
        """Send a client a notification that names no request; it may be kept for later."""
        hearer = self._hearer(seat)
        if hearer is not None:
            self._give(seat, hearer, line)
        else:
            seat.keep(line)

    def _hearer(self, seat: CommandClient) -> CommandReply | None:
        """Return where an agent hears such things: the only answer to come, else its stream."""
        waiting = [reply for reply in self._pending.waiting(seat) if reply.streams]
        if len(waiting) == 1:
            return waiting[0]
        return seat.listener or (waiting[-1] if waiting else None)


def _only_answers(batch: Batch) -> bool:
    """Return whether a batch holds nothing but responses."""
    return all(isinstance(item, Message) and item.kind in _ANSWERS for item in batch.items)
