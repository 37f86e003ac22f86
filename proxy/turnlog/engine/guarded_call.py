"""The driver of a call that must not happen twice: a duplicate joins it or gets its answer.

`engine.duplicate_index` finds the duplicates; `exchange.call` decides what follows from one.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, ClassVar, Final

from msgspec import structs

from turnlog.core import ids
from turnlog.core.kinds import ErrorKind, Flag, NoteKind, Rung
from turnlog.exchange import events as ev
from turnlog.exchange.call import CallMachine, Stage
from turnlog.exchange.duplicates import (
    DuplicateAction,
    Likeness,
    after_replay,
    choice_advice,
    replayed_ending,
    stops_replay,
    unsent_detail,
    unsent_ending,
)
from turnlog.exchange.outcome import AnswerFacts
from turnlog.record.attempt import NO_LINKS, Ask, Attempt, DuplicateLinks, StoredTicket
from turnlog.record.deadlines import in_time
from turnlog.record.own_answers import OwnAnswer
from turnlog.record.unread import all_read
from turnlog.store.base import Conflict, SessionRef

from .call_driver import CallDriver, Unsent, guarded_terms
from .duplicate_index import DuplicateIndex, DuplicateMatch

_POLL: Final = 0.05
"""Seconds between two lookups of an earlier call whose end is not signalled in this process."""


_WITHOUT_CALLER: Final = frozenset({DuplicateAction.LEFT, DuplicateAction.STOPPED})
"""Actions after which no caller is left to answer."""
_WITHOUT_KEY: Final = frozenset(
    {
        DuplicateAction.CONFLICT,
        DuplicateAction.BLOCK,
        DuplicateAction.DISCARDED,
        DuplicateAction.DIVERGED,
    }
)
"""Actions that do not tie the call's key to the earlier call."""


def guarded(
    index: DuplicateIndex, ask: Ask, *, stateless: bool, is_piped: bool = False
) -> "GuardedCall | None":
    """Return the driver of a call that can have duplicates; `None` if it cannot."""
    ask = index.linked(ask)
    if ask.links is NO_LINKS and not (ask.is_named or ask.replays):
        return None
    index.on_call(ask)
    links, guess_link, recorder = ask.links, index.guess_link(ask), index.recorder
    found_by = tuple(filter(None, (links.key, links.same, links.anyone, guess_link)))
    terms = guarded_terms(
        ask,
        index.limits,
        waits=recorder.waits(ask),
        stateless=stateless,
        is_findable=bool(found_by),
        checks_earlier_caller=not is_piped,
    )
    now = recorder.clock.monotonic() / 1e9
    machine = CallMachine(terms, now, ask.number - 1, past=ask.past)
    return GuardedCall(
        ask,
        machine,
        recorder,
        is_guarded=True,
        found_by=found_by,
        index=index,
        guess_link=guess_link,
    )


class GuardedCall(CallDriver, eq=False, kw_only=True, weakref=True):
    """The driver of one guarded call, from before it is decided whether it is sent."""

    index: DuplicateIndex
    guess_link: bytes
    """Its key by which calls of guessed callers are found."""
    _earlier: DuplicateMatch | None = None
    """The earlier call that it waits or waited for, or is answered from."""
    _found: Sequence[DuplicateMatch] = ()
    _admitted: Ask | None = None
    """The call as it is recorded if it is sent."""
    _looked_up: Ask | None = None
    """The call as it was looked up, while its intent may be refused."""
    _woken: asyncio.Event | None = None
    """Set when the wait for an earlier call may be over."""
    _joined: CallDriver | None = None
    """The call in this process that it has joined, also once that has ended."""
    _poll: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Look up duplicates."""
        if self.machine.stage is Stage.NEW:
            self.feed(ev.Begin())

    async def decided(self) -> None:
        """Wait until it is decided whether the call is sent; if it is not, `unsent` is set."""
        self.begin()
        try:
            while self.machine.is_undecided:
                if self.machine.stage is Stage.CHECKING_EARLIER:
                    await self._check_earlier_caller()
                    continue
                assert self._woken is not None  # it joins
                await self._woken.wait()
                if self.machine.stage is Stage.JOINING:
                    # Meanwhile this session may have replaced another one.
                    self.ask = self.index.linked(self.ask)
                    self.feed(ev.EarlierEnded())
        except asyncio.CancelledError:
            self.give_up()
            raise

    async def _check_earlier_caller(self) -> None:
        duplicate = self._earlier
        assert duplicate is not None  # it was found
        if duplicate.earlier.is_given:
            await self.index.given(duplicate.call)
        elif duplicate.running is not None:
            await duplicate.running.checked_for_duplicate()
        else:  # it was made elsewhere
            await all_read()
        if self.machine.stage is Stage.CHECKING_EARLIER:
            self.feed(ev.EarlierCallerChecked())

    def give_up(self) -> None:
        """Stop waiting for an earlier call, because its caller is gone or turnlog stops."""
        if self.machine.is_undecided:
            self.feed(ev.Stopped() if self.index.stop.is_set() else ev.Left())

    def on_server_gone(self) -> None:
        """Wait for no further earlier call, because the server is gone."""
        if self.machine.is_undecided:
            self.feed(ev.ServerGone())

    async def intent_accepted(self) -> bool:
        """Wait until its intent is on disk; false if it is to be decided again whether it is sent.

        Raises `StoreError` if the intent cannot be written, and `Failure` if that takes too long.
        """
        attempt = self.attempt
        assert attempt is not None  # it has begun
        if attempt.ask.seen is None:
            return True
        limits, now = attempt.ask.policy.timeout, asyncio.get_running_loop().time()
        try:
            await in_time(limits, now, now, self._recorder.on_disk(attempt))
        except Conflict:
            self.feed(ev.Conflicted())
            return False
        except BaseException:
            # It is unknown whether it was written: later calls must ask the log, not this index.
            self.index.forget(self)
            raise
        self._looked_up = None
        return True

    def on_judged(self, attempt: Attempt, *, is_own_answer: bool) -> ev.AppendOutcome:
        """Decide what follows the end of an attempt; return the outcome to record."""
        is_told = self._failure is not None
        outcome = super().on_judged(attempt, is_own_answer=is_own_answer)
        if not is_told:
            self.index.on_attempt_ended(self)
        return outcome

    def _on_bug(self, happened: str, stage: str) -> None:
        super()._on_bug(happened, stage)
        self.do_stop_waiting(ev.StopWaiting())

    # -- commands ----------------------------------------------------------------------------

    def do_look_up(self, _: ev.LookUp) -> None:
        """Look up the duplicates and feed them to the machine."""
        self._admitted, self._found = self.index.find(self.ask, self.guess_link, self._joined)
        self.feed(ev.LookedUp(tuple(match.earlier for match in self._found)))

    def do_check_earlier_caller(self, command: ev.CheckEarlierCaller) -> None:
        """Set the earlier call whose caller, or the caller of this one, may have left."""
        self._earlier = self._found[command.place]

    def do_join(self, command: ev.Join) -> None:
        """Wait for the end of an earlier call: by an event if it runs here, else by polling."""
        self._earlier = self._found[command.place]
        woken = self._woken = asyncio.Event()
        loop = asyncio.get_running_loop()
        if command.delay < inf:
            expired = ev.Expired(ErrorKind.RESPONSE_TIMEOUT)
            self._timer = loop.call_later(command.delay, self.feed, expired)
        running = self._earlier.running
        if running is not None and not running.is_over:
            self._joined = running
            running.join(woken)
        else:
            self._poll = loop.call_later(_POLL, woken.set)

    def do_stop_waiting(self, _: ev.StopWaiting) -> None:
        """Stop waiting for the earlier call."""
        self.do_disarm(ev.Disarm())
        if self._poll is not None:
            self._poll.cancel()
        if self._woken is not None:
            self._woken.set()
            if self._joined is not None:
                is_guessed = self._earlier is not None and self._earlier.is_guessed
                has_left = is_guessed and self.machine.has_left
                self._joined.leave(self._woken, self.ask.guess if has_left else None)
        self._poll = None

    def do_append_intent(self, command: ev.AppendIntent) -> None:
        """Add the call to the index of duplicates; its carrier appends the intent."""
        if self._admitted is None:
            return  # a retry: it is in the index already
        ask = self._admitted
        if command.is_repeat:
            ask = structs.replace(ask, flags=(*ask.flags, Flag.REPEAT_OF_UNKNOWN))
        self._looked_up = self.ask if ask.seen is not None else None
        self.ask, self._admitted, self._found = ask, None, ()
        self._earlier = self._joined = None
        self.index.remember(self)

    def do_retract_intent(self, _: ev.RetractIntent) -> None:
        """Remove the call from the index of duplicates; wake its joiners."""
        assert self._looked_up is not None  # only such an intent is refused
        self.index.retract(self)
        # What the first lookup added to the call does not hold for the next one.
        before, self._looked_up = self.index.linked(self._looked_up), None
        before = structs.replace(before, refused_at=self.ask.seen)
        self.ask, self._admitted = before, self.ask
        self.attempt = None
        self.do_close(ev.Close())

    def do_withhold(self, command: ev.Withhold) -> None:
        """Record a call that is not sent, and set the result for its caller."""
        assert self._admitted is not None  # it was looked up
        if command.action is DuplicateAction.GIVEN_UP:
            self._record_given_up(self._admitted)
            return
        action, duplicate = command.action, self._found[command.place]
        self._earlier = duplicate
        flags: tuple[Flag, ...] = () if command.waited is None else (Flag.JOINED,)
        answer: OwnAnswer | None = None
        if action is DuplicateAction.REPLAY:
            assert duplicate.earlier.ending is not None
            answer = self.index.answer(duplicate)
            ending = replayed_ending(duplicate.earlier.ending, whole=answer is not None)
            flags = (Flag.REPLAYED, *flags)
        else:
            ending = unsent_ending(action, self.ask.effect)
        detail = "" if answer is not None else unsent_detail(action)
        if detail and duplicate.earlier.likeness is Likeness.DISCARDED:
            detail += _discarded(action, duplicate)
        elif action is DuplicateAction.DIVERGED:
            detail = _diverged(detail, duplicate, self.ask.call)
        is_told = action not in _WITHOUT_CALLER
        if duplicate.is_guessed:
            flags = (*flags, Flag.INFERRED)
        # Its own links are dropped: a replayed answer must not be replayed in turn.
        asked = structs.replace(
            self._admitted, links=self._unsent_links(action, duplicate), seen=None
        )
        reply = AnswerFacts(flags=flags, detail=detail, said=detail if is_told else "")
        waited = command.waited or 0.0
        delta = duplicate.delta if action is DuplicateAction.REPLAY else ()
        attempt = self._recorder.unsent(
            asked,
            ending,
            reply,
            duplicate.source,
            waited=waited,
            delta=delta,
            # A rewind that follows the answer must find what the replay has given.
            is_durable=duplicate.earlier.likeness is Likeness.RECORDED,
            is_elsewhere=self._is_given_elsewhere(action, duplicate),
        )
        if is_told:
            self.attempt = attempt
            self.unsent = Unsent(attempt, answer, detail, duplicate.call)
        if answer is not None:
            self.index.on_replayed(self)

    def _record_given_up(self, asked: Ask) -> None:
        """Record a call that was given up before it was sent, as if there were no earlier one."""
        asked = structs.replace(asked, links=NO_LINKS, seen=None)
        ending = unsent_ending(DuplicateAction.GIVEN_UP, asked.effect)
        reply = AnswerFacts(detail=unsent_detail(DuplicateAction.GIVEN_UP))
        waited = self._recorder.clock.monotonic() / 1e9 - self.machine.began
        self._recorder.unsent(asked, ending, reply, None, waited=waited)

    def _unsent_links(self, action: DuplicateAction, duplicate: DuplicateMatch) -> DuplicateLinks:
        """Return the links of a call that was not sent."""
        links = self.ask.links
        if action is DuplicateAction.UNKNOWN:
            return DuplicateLinks(told=self.index.told(duplicate.call))
        if action is DuplicateAction.DIVERGED:
            return DuplicateLinks(diverged=duplicate.divergence)
        if not links.key or action in _WITHOUT_KEY or self._is_taken(links.key, duplicate):
            is_given = self._is_given_elsewhere(action, duplicate)
            return DuplicateLinks(source=duplicate.call) if is_given else NO_LINKS
        # From now on its key leads to the call that answered it.
        return DuplicateLinks(key=links.key, keyed_input=links.keyed_input, source=duplicate.call)

    def _is_given_elsewhere(self, action: DuplicateAction, duplicate: DuplicateMatch) -> bool:
        """Return whether it is answered with the answer of a call of another session."""
        return action is DuplicateAction.REPLAY and duplicate.is_elsewhere(self.ask.session)

    def _is_taken(self, key: bytes, duplicate: DuplicateMatch) -> bool:
        """Return whether a call is found by a key already, that it must not be taken from."""
        # While this one waited for a call that failed, another may have been made under the key.
        return duplicate.earlier.keyed or (not duplicate.is_guessed and self.index.is_taken(key))

    def do_credit_earlier(self, command: ev.CreditEarlier) -> None:
        """Record on the earlier call whether its answer was delivered, if there was an answer."""
        duplicate = self._earlier
        if self.unsent is None or self.unsent.answer is None or duplicate is None:
            return
        if duplicate.earlier.likeness is Likeness.RECORDED:
            return  # nothing is noted in the session that is replayed
        if duplicate.running is not None:
            if command.delivered:
                duplicate.running.on_delivered()
            else:
                duplicate.running.on_late_cancel(at_any_time=True)
        elif (outcome := duplicate.outcome) is not None:
            session = SessionRef(candidate=outcome.link.session, rung=Rung.IMPLICIT)
            session.id = outcome.link.session
            kind = NoteKind.DELIVERED if command.delivered else NoteKind.ABANDONED
            # The outcome is in the store only: another process may have written it.
            self._recorder.note(kind, session, outcome.facts, StoredTicket(outcome))
            self.index.on_credited(duplicate.call, delivered=command.delivered)

    ACTIONS: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        **CallDriver.ACTIONS,
        ev.LookUp: do_look_up,
        ev.CheckEarlierCaller: do_check_earlier_caller,
        ev.Join: do_join,
        ev.StopWaiting: do_stop_waiting,
        ev.Withhold: do_withhold,
        ev.CreditEarlier: do_credit_earlier,
        ev.AppendIntent: do_append_intent,
        ev.RetractIntent: do_retract_intent,
    }


def _discarded(action: DuplicateAction, duplicate: DuplicateMatch) -> str:
    """Return which discarded call a call was not sent for, and how to choose about it."""
    named = f" ({duplicate.named})"
    if action is not DuplicateAction.DISCARDED:
        return named
    return named + choice_advice(ids.to_text(duplicate.call), duplicate.effect)


def _diverged(detail: str, duplicate: DuplicateMatch, call: bytes) -> str:
    """Return why a call of a replay was not answered: the record has no answer to it, or to one before."""
    if duplicate.divergence:
        return stops_replay(detail)
    is_stopped = duplicate.call != call  # else the record could not be read
    return after_replay(ids.to_text(duplicate.call), duplicate.seq) if is_stopped else detail
