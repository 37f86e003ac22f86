"""Calls that ask what an earlier one asked: find that one, and answer from it (semantics, section 5).

A call is found by keyed digests that stand in its intent, so that a restart forgets nothing, and a
proxy sees what another one has under way in the same store. What is decided is `exchange.duplicates`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from msgspec import structs

from turnlog.core import ids
from turnlog.core.commit import Commit
from turnlog.core.kinds import Flag, NoteKind, Rung
from turnlog.engine.call_driver import CallDriver, guarded_terms
from turnlog.exchange.coverage import Coverage
from turnlog.exchange.duplicates import (
    CANCELLED_LIFE,
    LEFT_WHILE_WAITING,
    DuplicateAction,
    Likeness,
    NeverTwice,
    NewCall,
    decide_duplicate,
    may_join_guessed_session,
    replayed_ending,
    unsent_ending,
)
from turnlog.exchange.replacement import SESSION_BREAKS, Replacements
from turnlog.observe.clock import Clock
from turnlog.observe.events import Log, SessionUncovered
from turnlog.record.attempt import (
    NO_LINKS,
    AnswerFacts,
    Ask,
    Attempt,
    DuplicateLinks,
    GuessedCaller,
    StoredTicket,
)
from turnlog.record.errors import in_time
from turnlog.record.own_answers import OwnAnswer
from turnlog.record.recorder import Recorder
from turnlog.rules.model import OnDuplicate
from turnlog.store.base import Conflict, SessionRef
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View

from .duplicate_index import DuplicateIndex
from .duplicate_match import DuplicateMatch, InDoubt, Joins, Repeated, RequestKey

KEPT: Final = 16 << 20
"""bytes: a larger answer is not given again."""
_HELD: Final = 16 << 20
"""bytes of answers that are held in memory; those of others are read from the store."""
MOST: Final = 2_048
"""Calls that are remembered in memory."""
_POLL: Final = 0.05
"""s between two looks at a call whose end this process is not told of: its end is noted as soon."""
_SAYS: Final = {
    DuplicateAction.UNKNOWN: "nobody knows whether the same call, made before, was executed; it was not "
    "sent again",
    DuplicateAction.CONFLICT: "this idempotency key was given before with another input; the call was not "
    "sent",
    DuplicateAction.BLOCK: "the same call is under way, and a rule allows no second one; it was not sent",
    DuplicateAction.LATE: "the same call, made before, did not end in time; it may have been executed, and "
    "was not sent again",
    DuplicateAction.REPLAY: "this call was already executed and its result is not available; it was not "
    "sent again",
}


_SAYS_UNTARGETED: Final = (
    "an earlier version of turnlog recorded the same call without saying to which server it went; "
    "nobody knows whether it was executed here; it was not sent again"
)


Waits = Callable[[Awaitable[None]], Awaitable[None]]
"""Waits for the end of an earlier call."""


async def _plainly(earlier: Awaitable[None]) -> None:
    await earlier


def _unnoticed(_: str) -> None:
    return


class Deduplicator:
    """The guarded calls of one proxy, under way and lately ended."""

    def __init__(
        self,
        store: LmdbStore,
        recorder: Recorder,
        limits: NeverTwice,
        clock: Clock,
        log: Log,
        stop: asyncio.Event,
        uncovered: Callable[[str], None] = _unnoticed,
        replacements: Replacements | None = None,
    ) -> None:
        """`stop` is set as soon as turnlog stops; `uncovered` learns of a server that never-twice does not
        hold for a session."""
        self._log = log
        self._coverage = Coverage()
        self._clock = clock
        self._replacements = replacements or Replacements()
        self._uncovered = uncovered
        self._stored = DuplicateIndex(store, limits, clock, log)
        self._recorder = recorder
        self._limits = limits
        self._stop = stop
        self._known: OrderedDict[bytes, CallDriver] = OrderedDict()
        """By what they are found by, the newest call for each, those that began first in front."""
        self._guessed: OrderedDict[str, OrderedDict[int | str, float]] = OrderedDict()
        """By what callers of guessed sessions look like, when each connection made its latest call."""
        self._told: list[Repeated] = []
        """Those that got an earlier answer a moment ago."""
        self._under_way: set[CallDriver] = set()
        self._held = 0

    async def admit(
        self, ask: Ask, *, stateless: bool, waits: Waits = _plainly
    ) -> tuple[Ask, CallDriver | None]:
        """Return what a call is recorded as, and what drives it where it must not happen twice.

        Waits for an earlier call that it joins, by way of `waits`. Raises `Repeated` where it is not
        sent.
        """
        before: Joins | None = None
        doubts = True
        while True:
            try:
                return self.admitted(ask, stateless=stateless, before=before, doubts=doubts)
            except Joins as joins:
                before = joins
                await waits(self.joined(joins))
            except InDoubt as doubt:
                doubts = False
                await waits(doubt.running.asked_beside())

    def admitted(
        self, ask: Ask, *, stateless: bool, before: Joins | None = None, doubts: bool = False
    ) -> tuple[Ask, CallDriver | None]:
        """Do what `admit` does, but raise `Joins` where it would wait.

        `before` is what it has waited for last, if it has. Where it goes on beside an earlier
        one, whose caller may have given it up, raise `InDoubt` if `doubts`.
        """
        ask = self._stored.linked(ask, self._sessions_before(ask))
        if ask.links is NO_LINKS and not ask.is_named:
            return ask, None
        self._look_at_session(ask)
        guessed = self._stored.guessed(ask)
        if guessed:
            ask = self._after_guessed(ask, guessed, before=before, doubts=doubts)
        with self._stored.view(ask) as view:
            seen = self._stored.position(view, ask)
            for found in self._find(view, ask):
                if found.across:
                    ask = structs.replace(ask, flags=(*ask.flags, Flag.SESSION_REPLACED))
                flags, ask = ask.flags, self._after(ask, found, before=before, doubts=doubts)
                if seen is not None and found.running and not found.running.is_written:
                    # What that one may yet meet in the log has to be seen here too.
                    seen = found.running.ask.seen
                if ask.flags != flags:
                    break  # it is said already that it may be a repeat
        if seen is not None:
            ask = structs.replace(ask, seen=seen)
        links = ask.links
        found_by = tuple(filter(None, (links.key, links.same, links.anyone, guessed)))
        terms = guarded_terms(
            ask,
            self._limits,
            waits=self._recorder.waits(ask),
            stateless=stateless,
            is_findable=bool(found_by),
        )
        running = CallDriver(ask, terms, self._recorder, self._clock, found_by=found_by)
        running.on_ended = self._notice_break
        self._remember(running)
        return ask, running

    def on_guessed_call(self, guess: GuessedCaller) -> None:
        """Remember a call in a session that is only guessed."""
        if not guess.pair:
            return
        calls = self._guessed.setdefault(guess.pair, OrderedDict())
        calls[guess.connection] = asyncio.get_running_loop().time()
        calls.move_to_end(guess.connection)
        self._guessed.move_to_end(guess.pair)
        for found in (calls, self._guessed):
            if len(found) > MOST:
                found.popitem(last=False)

    def _after_guessed(self, ask: Ask, link: bytes, *, before: Joins | None, doubts: bool) -> Ask:
        """Join a call to an abandoned one whose caller it may be. Raises as `admitted` does."""
        running = self._known.get(link)
        if running is None:
            return ask
        found = DuplicateMatch(
            earlier=running.seen(),
            call=running.ask.call,
            keyed=False,
            running=running,
            is_guessed=True,
        )
        if before is not None and before.found.running is running:
            return self._after(ask, found, before=before, doubts=False)
        if doubts and running.is_in_doubt and not running.is_over:
            raise InDoubt(running)
        if running.may_be_guessed and self._is_alone(ask, running):
            raise Joins(ask, found, asyncio.get_running_loop().time(), joined=True)
        return ask

    def _is_alone(self, ask: Ask, running: CallDriver) -> bool:
        """Return whether no third connection of the same credential and client has called lately."""
        earlier = running.ask.guess
        assert ask.guess is not None  # it was found by that
        assert earlier is not None
        now, calls = asyncio.get_running_loop().time(), self._guessed[ask.guess.pair]
        own = {ask.guess.connection, earlier.connection, *running.left_by}
        ago = {connection: now - at for connection, at in calls.items()}
        return may_join_guessed_session(ago, own, self._limits.cancel_grace)

    def _after(self, ask: Ask, found: DuplicateMatch, *, before: Joins | None, doubts: bool) -> Ask:
        """Return what a call is recorded as after an earlier one. Raises as `admitted` does."""
        since, joined = (before.since, before.joined) if before is not None else (None, False)
        verdict = self._verdict(ask, found, joined=joined, waited=_waited(since))
        match verdict:
            case DuplicateAction.FORWARD:
                passes = ask.policy.on_duplicate is OnDuplicate.PASS
                if doubts and found.running and not found.running.is_over and not passes:
                    raise InDoubt(found.running)
            case DuplicateAction.JOIN | DuplicateAction.WAIT:
                began = asyncio.get_running_loop().time() if since is None else since
                joined = joined or verdict is DuplicateAction.JOIN
                raise Joins(ask, found, began, joined=joined)
            case DuplicateAction.AGAIN:
                return structs.replace(ask, flags=(*ask.flags, Flag.REPEAT_OF_UNKNOWN))
            case (
                DuplicateAction.REPLAY
                | DuplicateAction.UNKNOWN
                | DuplicateAction.CONFLICT
                | DuplicateAction.BLOCK
                | DuplicateAction.LATE
            ):
                raise self._repeated(ask, found, verdict, since=since)
        return ask

    async def claimed(self, running: CallDriver, attempt: Attempt) -> bool:
        """Wait until a call that begins is the only one of its kind among all processes; false, and it is
        forgotten, where another process has begun the same since it was looked for.

        Raises `StoreError` where its intent cannot be written, and `Failure` where that takes too long.
        """
        if attempt.ask.seen is None:
            return True
        limits, now = attempt.ask.policy.timeout, asyncio.get_running_loop().time()
        try:
            await in_time(limits, now, now, self._recorder.on_disk(attempt))
        except Conflict:
            self._forget(running)
            self.over(running)
            return False
        except BaseException:
            # Nobody knows whether it was written: the log alone may say so.
            self._forget(running)
            raise
        return True

    async def joined(self, joins: Joins) -> None:
        """Wait for a call under way: here, in another process, or left to a stream to come. It may yet be
        under way then.

        Whoever leaves meanwhile is recorded. Raises `Repeated` where a rule allows no more time.
        """
        running = joins.found.running
        try:
            async with asyncio.timeout_at(joins.until):
                if running is not None and not running.is_over:
                    await running.joined()
                else:
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            late = self._repeated(joins.ask, joins.found, DuplicateAction.LATE, since=joins.since)
            raise late from None
        except asyncio.CancelledError:
            self._left(joins)
            raise

    def _left(self, joins: Joins) -> None:
        """Record a call that waits no more; where turnlog stops that is not its caller's doing."""
        if self._stop.is_set():
            ending = unsent_ending(DuplicateAction.UNKNOWN)
            detail = "turnlog stopped while the call it had joined ran"
        else:
            ending, detail = LEFT_WHILE_WAITING, "left while the call it had joined ran on"
        asked = structs.replace(joins.ask, links=_answered(joins.ask.links, joins.found))
        guessed = (Flag.INFERRED,) if joins.found.is_guessed else ()
        if guessed and joins.found.running is not None and joins.ask.guess is not None:
            joins.found.running.on_guess_left(joins.ask.guess.connection)
        reply = AnswerFacts(flags=(Flag.JOINED, *guessed), detail=detail)
        waited = _waited(joins.since)
        self._recorder.unsent(asked, ending, reply, joins.found.source, waited=waited)

    def unknown(self, joins: Joins) -> Repeated:
        """Record a call that will not learn how the one ended that it waited for."""
        return self._repeated(joins.ask, joins.found, DuplicateAction.UNKNOWN, since=joins.since)

    def arrived(self, repeated: Repeated) -> None:
        """Note that the earlier answer was handed to a caller whole: a further call is a new one."""
        found = repeated.found
        if repeated.answer is None or repeated.is_taken_back:
            return
        if found.running is not None:
            found.running.on_delivered()
        elif (outcome := found.outcome) is not None:
            self._note(NoteKind.DELIVERED, outcome)
            self._stored.arrived(found.call)

    def _note(self, kind: NoteKind, outcome: Commit) -> None:
        """Queue a note on an outcome that another process may have written."""
        session = SessionRef(candidate=outcome.link.session, rung=Rung.IMPLICIT)
        session.id = outcome.link.session
        self._recorder.note(kind, session, outcome.facts, StoredTicket(outcome))

    def on_late_cancel(self, by: RequestKey) -> bool:
        """Count a call's answer as not delivered, because its caller cancels right after it.

        A caller ignores what comes after its cancel (MCP, cancellation), and may make the call again.
        Returns whether there is such a call.
        """
        for repeated in reversed(self._told):
            if repeated.caller is not None and repeated.caller.is_same(by):
                self._take_back(repeated)
                return True
        # One that has been asked beside is not the newest any more.
        for running in (*reversed(self._known.values()), *self._under_way):
            attempt = running.attempt
            if attempt is None:
                continue
            if RequestKey(attempt.scope, attempt.kin, attempt.caller_key).is_same(by):
                return running.on_late_cancel()
        return False

    def _take_back(self, repeated: Repeated) -> None:
        repeated.is_taken_back = True
        found = repeated.found
        if found.running is not None:
            found.running.on_late_cancel()
        elif found.outcome is not None:
            self._note(NoteKind.ABANDONED, found.outcome)
            self._stored.forget_arrival(found.call)

    def tells(self, repeated: Repeated) -> None:
        """Remember for a while which caller gets an earlier answer: it may cancel right after it."""
        if repeated.answer is not None and repeated.caller is not None:
            self._told.append(repeated)
            asyncio.get_running_loop().call_later(CANCELLED_LIFE, self._told.remove, repeated)

    def over(self, running: CallDriver, kept: OwnAnswer | None = None) -> None:
        """Mark a call as over, or over anew; hold its answer while there is room."""
        self._held -= running.size
        running.kept = kept if self._remembers(running) else None
        running.on_over()
        running.shrink()
        self._under_way.discard(running)
        if running.attempt is None:
            self._forget(running)  # it was refused before it was recorded
        self._held += running.size
        while self._held > _HELD or len(self._known) > MOST:
            oldest = next((r for r in self._known.values() if r.ending is not None), None)
            if oldest is None:
                break
            self._forget(oldest)

    def runs(self, call: bytes) -> bool:
        """Return whether a call runs that must not happen twice, whatever its caller was told."""
        return any(running.ask.call == call for running in self._under_way)

    @property
    def under_way(self) -> int:
        """How many guarded calls have not ended."""
        return len(self._under_way)

    async def idle(self) -> None:
        """Wait until none is under way."""
        while self._under_way:
            await next(iter(self._under_way)).ended()

    async def stop(self) -> None:
        """End those under way, and wait for that."""
        for running in list(self._under_way):
            if running.is_carried:
                running.stop()
            else:
                self.over(running)
        await self.idle()

    def _sessions_before(self, ask: Ask) -> list[str]:
        """Return the names of the sessions that the call's own replaces."""
        if ask.session.rung is not Rung.TRANSPORT:
            return []
        return self._replacements.predecessors(ask.session.aliases[0])

    def _notice_break(self, running: CallDriver) -> None:
        """Notice that a session may be lost: its server broke off, or does not know it."""
        attempt, ask = running.attempt, running.ask
        ending = attempt.ending if attempt is not None else None
        if (
            ending is None
            or ending.kind not in SESSION_BREAKS
            or ask.session.rung is not Rung.TRANSPORT
        ):
            return
        if ask.client:
            now = self._clock.monotonic() / 1e9
            self._replacements.on_broken(_caller(ask), ask.session.aliases[0], now)

    def _look_at_session(self, ask: Ask) -> None:
        """Report once where a repeat of a call would not be found."""
        if not ask.is_named or ask.links.key:
            return
        ref = ask.session
        session = ref.aliases[0] if ref.aliases else ref.candidate
        if (gap := self._coverage.on_call(_caller(ask), session, ref.rung)) is None:
            return
        self._uncovered(ask.server)
        self._log.emit(
            SessionUncovered(
                session=ids.to_text(ref.id or ref.candidate),
                server=ask.server,
                tool=ask.tool,
                client=ask.client,
                reason=gap,
            )
        )

    # -- what came before ------------------------------------------------------------------

    def _verdict(
        self, ask: Ask, found: DuplicateMatch, *, joined: bool, waited: float
    ) -> DuplicateAction:
        """Return what an earlier call means for this one."""
        earlier = found.earlier
        if joined:
            # Who waited for an answer has not had it, whoever else has; and of several that waited
            # for a call which failed, one makes it anew.
            earlier = structs.replace(earlier, delivered=False, abandoned=True, settling=False)
        asked = NewCall(
            effect=ask.effect,
            on_duplicate=ask.policy.on_duplicate,
            keyed=found.keyed,
            slower_than=ask.policy.replay_if_slower_than,
            waited=waited,
        )
        return decide_duplicate(earlier, asked, self._limits)

    def _find(self, view: View | None, ask: Ask) -> Iterator[DuplicateMatch]:
        """Yield the latest call with the same key, else the latest that asked the same; then the latest
        that asked it for another principal."""
        links = ask.links
        found = self._same(view, links)
        if found is not None:
            yield found
        if links.anyone:
            others = self._latest(view, links.anyone, links, keyed=False, likeness=Likeness.OTHERS)
            if others is not None:
                yield others

    def _same(self, view: View | None, links: DuplicateLinks) -> DuplicateMatch | None:
        found = self._latest(view, links.key, links, keyed=True) if links.key else None
        if found is None and links.same:
            found = self._latest(view, links.same, links, keyed=False)
            if found and found.running and _differ(found.running.ask.links.key, links.key):
                return None  # by another key its caller says that it is another call
        for link in links.before if found is None else ():
            if (found := self._latest(view, link, links, keyed=False)) is not None:
                return structs.replace(found, across=True)
        untargeted = Likeness.UNTARGETED
        if found is None and links.former_key:
            found = self._stored.find(
                view, links.former_key, links, keyed=True, likeness=untargeted
            )
        if found is None and links.former_same:
            found = self._stored.find(
                view, links.former_same, links, keyed=False, likeness=untargeted
            )
        return found

    def _latest(
        self,
        view: View | None,
        link: bytes,
        links: DuplicateLinks,
        *,
        keyed: bool,
        likeness: Likeness = Likeness.SAME,
    ) -> DuplicateMatch | None:
        """Return the latest call with a link, be it of this process or of another."""
        stored = self._stored.find(view, link, links, keyed=keyed, likeness=likeness)
        here = self._known.get(link)
        if here is not None and likeness is Likeness.OTHERS and here.ask.links.same == links.same:
            return None  # it is the same principal's
        if stored and stored.by_source:
            here = self._called(stored.call)
        if here is None or (stored and stored.commits and _is_later(stored, here)):
            return stored
        mine = stored if stored is not None and stored.call == here.ask.call else None
        if mine is not None and mine.is_resolved:
            return mine  # what is remembered here is that nobody knows
        same_input = not keyed or here.ask.links.keyed_input == links.keyed_input
        if stored and stored.by_source:
            same_input = stored.earlier.same_input
        earlier = structs.replace(
            here.seen(),
            same_input=same_input,
            likeness=likeness,
            warned=mine is not None and mine.earlier.warned,
        )
        commits = mine.commits if mine is not None else ()
        return DuplicateMatch(
            earlier=earlier, call=here.ask.call, keyed=keyed, running=here, commits=commits
        )

    def _called(self, call: bytes) -> CallDriver | None:
        """Return a call that is under way here, or that is remembered."""
        here = (*self._under_way, *self._known.values())
        return next((running for running in here if running.ask.call == call), None)

    # -- the answer ------------------------------------------------------------------------

    def _repeated(
        self, ask: Ask, found: DuplicateMatch, verdict: DuplicateAction, *, since: float | None
    ) -> Repeated:
        """Record a call that is not sent; return what its caller gets.

        `since` is when it began to wait, on the loop's clock, if it did.
        """
        joined = since is not None
        answer: OwnAnswer | None = None
        flags: tuple[Flag, ...] = ()
        links = NO_LINKS
        if verdict is DuplicateAction.REPLAY:
            assert found.earlier.ending is not None
            answer = self._kept(found)
            whole = answer is not None
            ending = replayed_ending(found.earlier.ending, whole=whole)
            flags = (Flag.REPLAYED, Flag.JOINED) if joined else (Flag.REPLAYED,)
        else:
            ending = unsent_ending(verdict)
            flags = (Flag.JOINED,) if joined else ()
            if verdict is DuplicateAction.UNKNOWN:
                links = DuplicateLinks(told=self._stored.told(found.call))
        if verdict is DuplicateAction.REPLAY or verdict is DuplicateAction.LATE:
            links = _answered(ask.links, found)
        said = "" if answer is not None else _said(verdict, found)
        # It is not found by what it asks: nothing is answered from an answer.
        asked = structs.replace(ask, links=links)
        if found.is_guessed:
            flags = (*flags, Flag.INFERRED)
        reply = AnswerFacts(flags=flags, detail=said, said=said)
        attempt = self._recorder.unsent(asked, ending, reply, found.source, waited=_waited(since))
        return Repeated(attempt, answer, said, found)

    def _kept(self, found: DuplicateMatch) -> OwnAnswer | None:
        """Return the whole answer to an earlier call, from memory, else from the store."""
        if found.running is not None and found.running.kept is not None:
            return found.running.kept
        return self._stored.answer(found)

    # -- what is remembered ----------------------------------------------------------------

    def _remember(self, running: CallDriver) -> None:
        self._under_way.add(running)
        for link in running.found_by:
            before = self._known.get(link)
            self._known[link] = running
            self._known.move_to_end(link)
            if before is not None and not self._remembers(before):
                self._let_go(before)

    def _remembers(self, running: CallDriver) -> bool:
        for link in running.found_by:  # noqa: SIM110 - any() takes seven times as long
            if self._known.get(link) is running:
                return True
        return False

    def _let_go(self, running: CallDriver) -> None:
        """Hold the answer of a call no longer."""
        self._held -= running.size
        running.kept = None
        running.forgotten()

    def _forget(self, running: CallDriver) -> None:
        self._let_go(running)
        for link in running.found_by:
            if self._known.get(link) is running:
                del self._known[link]


def _caller(ask: Ask) -> tuple[str, str, str]:
    return ask.principal, ask.target, ask.client


def _said(verdict: DuplicateAction, found: DuplicateMatch) -> str:
    if found.earlier.likeness is Likeness.UNTARGETED:
        return _SAYS_UNTARGETED
    return _SAYS[verdict]


def _waited(since: float | None) -> float:
    return 0.0 if since is None else asyncio.get_running_loop().time() - since


def _answered(links: DuplicateLinks, found: DuplicateMatch) -> DuplicateLinks:
    """Return the links of a call that another one answers: its key stands for that one from now on."""
    if not links.key:
        return NO_LINKS
    return DuplicateLinks(key=links.key, keyed_input=links.keyed_input, source=found.call)


def _is_later(stored: DuplicateMatch, here: CallDriver) -> bool:
    """Return whether the newest call in the log came after one that is remembered here."""
    if stored.call == here.ask.call:
        return False
    # Ids say when calls came; one that was made after another had failed may have the older id.
    return here.is_written or stored.call > here.ask.call


def _differ(key: bytes, other: bytes) -> bool:
    return bool(key and other) and key != other
