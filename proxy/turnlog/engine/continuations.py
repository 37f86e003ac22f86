"""Matches a later leg with its call: more input for it, or the end of its task.

A leg is recognised by what only its call can bring: the `requestState` it was handed, the id of
its task, or, where there is no state, the same tool and arguments with `inputResponses`. Keys are
digests under the store's key; they stand in the log, so that a restart forgets nothing.
"""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from turnlog.core.canon import canonical
from turnlog.core.commit import Commit
from turnlog.core.kinds import CommitKind, Flag, NoteKind, Rung, Status
from turnlog.core.pins import UNVERIFIED, PinStatus, Provenance
from turnlog.engine.call_registry import CallRegistry
from turnlog.engine.session_gate import ImportedSessions
from turnlog.exchange.delivery import lacks_answer
from turnlog.exchange.outcome import Circumstances, answered, judged, unwrapped
from turnlog.observe.events import Log, StoreFailed
from turnlog.record.attempt import Ask, Attempt, StoredTicket
from turnlog.record.recorder import Recorder
from turnlog.store.base import SessionRef, StoreError, Ticket
from turnlog.store.lmdb import LmdbStore
from turnlog.wire import mcp
from turnlog.wire.json_stream import Outline
from turnlog.wire.jsonrpc import Message
from turnlog.wire.message import MessageReader
from turnlog.wire.tool_result import CallAnswer, read_task_poll

_NOT_KEPT: Final = b"{}"
_TASK, _STATE, _SAME = "task", "state", "same"
"""What a later leg is recognised by."""
_OF_ATTEMPTS: Final = frozenset({CommitKind.INTENT, CommitKind.OUTCOME})


class Continuations(Struct, frozen=True):
    """The legs of calls, and the calls whose streams are resumed."""

    _store: LmdbStore
    _recorder: Recorder
    _calls: CallRegistry
    _imported: ImportedSessions
    _log: Log

    def links(self, target: str, ask: Ask, said: CallAnswer) -> tuple[bytes, ...]:
        """Return the keys under which the next leg of a call will be found."""
        match said.status:
            case Status.ACCEPTED if said.task_id:
                what, value = _TASK, _task(said.task_id)
            case Status.INPUT_REQUIRED if said.request_state:
                what, value = _STATE, said.request_state
            case Status.INPUT_REQUIRED:
                what, value = _SAME, _same(ask.session, ask.tool, ask.arguments)
            case _:
                return ()
        return (self._imported.digest_in(ask.session.id, what, target, value),)

    def park(self, target: str, attempt: Attempt, said: CallAnswer) -> tuple[bytes, ...]:
        """Keep an attempt that waits for another leg; return the keys under which that will be found."""
        links = self.links(target, attempt.ask, said)
        if links:
            self._calls.park(links, attempt)
        return links

    def continued(self, target: str, said: mcp.ToolCall, session: SessionRef) -> Ask | None:
        """Return what was asked before, if this call goes on with that."""
        if said.request_state:
            found = self._found(target, _STATE, said.request_state)
        elif said.has_input_responses:
            found = self._found(target, _SAME, _same(session, said.name, bytes(said.arguments)))
        else:
            return None
        return found.ask if found is not None else None

    def finished_task(self, target: str, task_id: str) -> Attempt | None:
        """Return the attempt that waits for this task, ready for its last outcome."""
        attempt = self._found(target, _TASK, _task(task_id))
        if attempt is not None:
            self._recorder.reopen(attempt)
        return attempt

    def polled(
        self,
        target: str,
        asked: Message,
        message: Message | Outline,
        body: MessageReader,
        revision: str,
        around: Callable[[Ask], Circumstances],
    ) -> Sequence[Ticket]:
        """Read the answer to a poll of a task; record the end of the call that began it."""
        poll = read_task_poll(asked.method, asked.params, message, revision=revision)
        if poll is None or not poll.terminal:
            return ()
        attempt = self.finished_task(target, poll.task_id)
        if attempt is None:
            return ()
        ending, reply = answered(poll.answer, message, body, around(attempt.ask))
        if asked.method != "tasks/result":
            reply = unwrapped(reply)
        ticket = self._recorder.end(attempt, *judged(attempt.ask, ending, reply))
        return () if ticket is None else (ticket,)

    def note_resumable(self, attempt: Attempt, owner: Sequence[str], id_key: str) -> None:
        """Write a note by which another process can match a resumed answer, if this one dies."""
        kind, session = NoteKind.RESUMABLE, attempt.ask.session
        link = self._imported.stream_digest(session.id, owner, id_key)
        self._recorder.note(kind, session, attempt.facts, attempt.intent, (link,))

    def resumed(self, owner: Sequence[str], id_key: str) -> Attempt | None:
        """Return the unanswered attempt of any process whose stream is resumed, ready for its outcome."""
        links = self._imported.stream_digests(owner, id_key)
        known = (linked for linked in map(self._linked, links) if linked[0] is not None)
        found, leg = next(known, (None, list[Commit]()))
        its = [each for each in leg if found and each.facts.attempt == found.facts.attempt]
        if not its or its[0].facts.kind is not CommitKind.INTENT or not lacks_answer(its):
            return None
        attempt = self._rebuilt(its[0], its[-1])
        attempt.facts = its[0].facts
        if len(its) > 1:
            attempt.marks.add(Flag.LATE)
            self._recorder.reopen(attempt)
        else:
            attempt.ended = False
        return attempt

    def _found(self, target: str, what: str, value: bytes) -> Attempt | None:
        """Return the attempt that waits for a leg, which then waits no more."""
        # Its session may have come from another store.
        links = self._imported.digests(what, target, value)
        parked = self._calls.parked(links)
        self._calls.unpark(links)
        return parked or next(filter(None, map(self._stored, links)), None)

    def _stored(self, link: bytes) -> Attempt | None:
        """Rebuild a parked attempt of an earlier process from the log."""
        _, leg = self._linked(link)
        # It waits, or was given up because time passed.
        if not leg or not (leg[-1].facts.status.parked or Flag.EXPIRED in leg[-1].facts.flags):
            return None
        return self._rebuilt(leg[0], leg[-1])

    def _linked(self, link: bytes) -> tuple[Commit | None, list[Commit]]:
        """Return the commit with a link, and the intents and outcomes of its leg; nothing where there is none."""
        try:
            with self._store.view() as view:
                found = view.linked(link)
                commits = view.call(found.facts.call) if found is not None else []
        except StoreError as error:
            # The call goes on as one of its own.
            self._log.emit(StoreFailed(reason=str(error)))
            return None, []
        of_leg = [each for each in commits if found and each.facts.leg == found.facts.leg]
        return found, [each for each in of_leg if each.facts.kind in _OF_ATTEMPTS]

    def _rebuilt(self, intent: Commit, outcome: Commit) -> Attempt:
        facts, link = intent.facts, intent.link
        session = SessionRef(candidate=link.session, rung=Rung.IMPLICIT)
        session.id = link.session
        ask = Ask(
            session=session,
            turn_label=facts.turn_label,
            turn_source=facts.turn_source,
            call=facts.call,
            leg=facts.leg,
            server=facts.server,
            tool=facts.tool,
            method=facts.method,
            effect=facts.effect,
            definition=facts.definition,
            arguments=_NOT_KEPT,
            size=facts.bytes_in,
            flags=facts.flags,
            trace=facts.trace,
            protocol=facts.protocol,
            number=facts.attempt,
            standing=_standing(facts.provenance),
        )
        return self._recorder.taken_up(ask, StoredTicket(intent), n=outcome.facts.n)


def _task(task_id: str) -> bytes:
    return task_id.encode("utf-8", "surrogatepass")


def _same(session: SessionRef, tool: str, arguments: bytes) -> bytes:
    # A name means the same session in every process; an id is known to this one alone.
    name = session.aliases[0].encode() if session.aliases else session.id or session.candidate
    return b"\0".join((name, tool.encode(), canonical(arguments)[1]))


def _standing(provenance: str) -> PinStatus:
    # A newer turnlog may have written a word that this one does not know.
    known = provenance in set(Provenance)
    return PinStatus(Provenance(provenance)) if known else UNVERIFIED
