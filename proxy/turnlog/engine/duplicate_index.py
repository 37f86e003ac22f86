"""The index of duplicate calls: those that equal a new one, in memory and in the store.

The index keys are keyed digests that are written with each intent, so they survive a restart and are seen by
other proxies on the same store. What follows from a duplicate is decided in `exchange.call`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from hashlib import sha256
from typing import Any, Final

from msgspec import Raw, Struct, structs

from turnlog.core import ids
from turnlog.core.bounded_dict import BoundedDict
from turnlog.core.canon import canonical
from turnlog.core.classify import failed
from turnlog.core.commit import ANSWERED_BY, EFFECT_BEFORE, Commit
from turnlog.core.kinds import CommitKind, Effect, ErrorKind, Flag, Gone, Phase, Rung
from turnlog.core.live_view import AfterDivergence
from turnlog.core.operation import LEDGER_EFFECTS, had_effect
from turnlog.exchange.coverage import Coverage
from turnlog.exchange.delivery import earlier_call, last_of, place_of
from turnlog.exchange.duplicates import (
    CANCELLED_LIFE,
    NOT_ALONE,
    UNANSWERABLE,
    DuplicateAction,
    EarlierCall,
    Likeness,
    NeverTwice,
    NewCall,
    after_replay,
    decide_duplicate,
    may_join_guessed_session,
    stops_replay,
)
from turnlog.exchange.events import Over, Stopped
from turnlog.exchange.replacement import SESSION_BREAKS, Replacements
from turnlog.observe.events import Log, SessionUncovered, StoreFailed
from turnlog.record.attempt import (
    NO_LINKS,
    PASSED,
    Ask,
    DuplicateLinks,
    GuessedCaller,
    StoredTicket,
    passed_by,
    source_of,
)
from turnlog.record.own_answers import OwnAnswer, retold_answer
from turnlog.record.recorder import OFF_LOOP, Recorder
from turnlog.sessions.control.effects import EffectLedger, WantedEffect
from turnlog.sessions.control.replay import Divergence, ParentRecords, Replay
from turnlog.sessions.notes import CHOSEN_BY
from turnlog.store.base import ALIAS_SEPARATOR, Corrupt, SessionRef, StoreError, Ticket
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View

from .call_driver import CallDriver
from .session_gate import ImportedSessions

KEPT: Final = 16 << 20
"""bytes: a larger answer is not replayed."""
_HELD: Final = 16 << 20
"""bytes of answers held in memory; others are read from the store."""
MOST: Final = 2_048
"""Bound of the calls in memory, and of the replayed calls of other processes (`_arrived`)."""
_WITH_PREFIX: Final = (ANSWERED_BY, EFFECT_BEFORE, PASSED, CHOSEN_BY)
"""What links begin with that are no digests."""


class DuplicateMatch(Struct, frozen=True, kw_only=True):
    """An earlier call that equals a new one: its state in this process, or its commits in the store."""

    earlier: EarlierCall
    call: bytes
    """Its id; the link it was found by, if its record is damaged."""
    across: bool = False
    """Whether it was made in a session that the new call's session has replaced."""
    by_source: bool = False
    """Whether it was found by the key of another call that was answered from it."""
    is_guessed: bool = False
    """Whether the match is by a guessed session."""
    running: CallDriver | None = None
    commits: Sequence[Commit] = ()
    seq: int | None = None
    """Where a discarded call began, if it has begun."""
    effect: Effect = Effect.UNKNOWN
    """Of a discarded call."""
    choice: bytes = b""
    """Link of the one call that somebody's choice about a discarded call lets through; empty for none."""
    is_redone: bool = False
    """Whether that one call runs on this branch."""
    divergence: bytes = b""
    """Link of the new call, if the replay of its session stops with it."""

    @property
    def outcome(self) -> Commit | None:
        """Its last outcome in the store."""
        return last_of(self.commits, CommitKind.OUTCOME)

    @property
    def delta(self) -> tuple[Raw, ...]:
        """Its changes, where they count by the new call only: it does not count on that call's branch."""
        if self.earlier.likeness not in (Likeness.DISCARDED, Likeness.RECORDED):
            return ()
        ended = self.outcome.facts if self.outcome is not None else None
        if ended is not None and not had_effect(ended.executed, ended.status, ended.error_kind):
            return ()
        told = self.outcome, last_of(self.commits, CommitKind.INTENT)
        return next((c.body.delta for c in told if c and c.body and c.body.delta), ())

    @property
    def may_be_passed(self) -> bool:
        """Whether it still counts if the new call is made and not sent."""
        earlier, is_known = self.earlier, bool(self.commits) or self.running is not None
        # A cancel may take the delivery back for a while.
        is_over = earlier.delivered and earlier.ended > CANCELLED_LIFE
        is_same = earlier.likeness is Likeness.SAME
        return is_known and is_same and not (is_over or earlier.is_unexecuted)

    def is_elsewhere(self, session: SessionRef) -> bool:
        """Return whether it was made in another session."""
        if self.running is not None:
            of = self.running.ask.session
            return (of.id or of.candidate) != (session.id or session.candidate)
        return bool(self.commits) and self.commits[0].link.session != session.id

    @property
    def named(self) -> str:
        """How a text names a discarded call."""
        done = "under way" if self.seq is None else f"done at commit {self.seq}"
        return f"call {ids.to_text(self.call)}, {done}"

    @property
    def source(self) -> Ticket | None:
        """The commit that a replayed call names as its source."""
        if self.running is not None and self.running.attempt is not None:
            return self.running.attempt.outcome or self.running.attempt.intent
        commit = self.outcome or last_of(self.commits, CommitKind.INTENT)
        return StoredTicket(commit) if commit is not None else None


class DuplicateIndex:
    """The guarded calls of one proxy, running or recently ended, and those in the store."""

    # A store that cannot be read must not stop calls: its errors are logged, and the lookup goes on in memory.

    def __init__(
        self,
        store: LmdbStore,
        recorder: Recorder,
        limits: NeverTwice,
        log: Log,
        stop: asyncio.Event,
        uncovered: Callable[[str], None] | None = None,
        replacements: Replacements | None = None,
        imported: ImportedSessions | None = None,
    ) -> None:
        """`stop` is set when turnlog begins to stop; `uncovered` is called with the server of a session
        in which duplicates cannot be found."""
        self.recorder = recorder
        self.limits = limits
        self.clock = recorder.clock
        self.stop = stop
        self._store = store
        self._controls = store.control_counter()
        """Counts the commits without which no session has another branch; each call reads the number."""
        self._log = log
        self._uncovered = uncovered
        self._coverage = Coverage()
        self._replacements = replacements or Replacements()
        self._imported = imported or ImportedSessions(store)
        self._ledger = EffectLedger(store, self.clock.wall, limits.drain)
        self._records = ParentRecords(store)
        self._known: OrderedDict[bytes, CallDriver] = OrderedDict()
        """The newest call for each link, oldest first."""
        self._guessed: BoundedDict[str, BoundedDict[int | str, float]] = BoundedDict(MOST)
        """By the pair of credential and client, when each connection made its latest call."""
        self._replayed: list[CallDriver] = []
        """Calls that were answered from an earlier one a moment ago."""
        self._given: list[tuple[bytes, asyncio.Event]] = []
        """Calls whose answers are being given again, each with an event that is set at the end of that."""
        self._under_way: set[CallDriver] = set()
        self._none_under_way = asyncio.Event()
        self._none_under_way.set()
        self._held = 0
        self._arrived: BoundedDict[bytes, None] = BoundedDict(MOST)
        """Calls of other processes whose answers were delivered by this one."""

    # -- links: the keys of the index ---------------------------------------------------------

    def linked(self, ask: Ask) -> Ask:
        """Return a call with the links that its duplicates share, if its session is known or it has a
        key, and with that of its effect, if its session has discarded some."""
        found = self._linked(ask)
        effect = self._effect_link(found) if self._controls.count else b""
        if not effect:
            return found
        return structs.replace(found, links=structs.replace(found.links, effect=effect))

    def _effect_link(self, ask: Ask) -> bytes:
        """Return the link of a call's effect; empty if its session has only one branch, or no rule names it."""
        wanted = self._wanted_effect(ask)
        try:
            return self._ledger.link(wanted) if wanted else b""
        except StoreError as error:
            self._log.emit(StoreFailed(reason=str(error)))
            return b""

    def _linked(self, ask: Ask) -> Ask:
        ref = ask.session
        named = ref.aliases[0] if ref.aliases and ask.is_named else ""
        if not (named or ask.key) or not (ask.complete and ask.says_all) or ask.leg:
            return ask
        before = self._replacements.predecessors(named) if ref.rung is Rung.TRANSPORT else ()
        scheme, form = canon = ask.canonical or canonical(ask.arguments)
        links = self._links(ask, named, before, b"%b\0%b" % (scheme.encode(), form))
        # A large canonical form would stay in memory beside the input while the call runs.
        kept = canon if len(form) <= OFF_LOOP else None
        return structs.replace(ask, canonical=kept, links=links)

    def _links(self, ask: Ask, named: str, before: Sequence[str], asks: bytes) -> DuplicateLinks:
        """Return the links of a call with the canonical input `asks`, in the session `named`, if any.

        `before` are the names of the sessions that its own has replaced.
        """
        session_id, translated = ask.session.id, self._imported.translated
        tool = f"{translated(session_id, ask.target)}\0{ask.tool}\0{ask.method}"
        digest, wanted = partial(self._digest, session_id), sha256(asks).digest()
        links: dict[str, Any] = {}
        if named:
            session = named.rpartition(ALIAS_SEPARATOR)[0]  # without the principal
            links["same"] = digest("call", f"{named}\0{tool}", wanted)
            links["anyone"] = digest("anyone's call", f"{session}\0{tool}", wanted)
            links["before"] = tuple(digest("call", f"{b}\0{tool}", wanted) for b in before)
        if ask.key:
            links["key"], links["keyed_input"] = self._key_links(session_id, ask, wanted)
            others = self._imported.others(session_id)
            links["elsewhere"] = tuple(self._key_links(one, ask, wanted) for one in others)
        return DuplicateLinks(**links)

    def _key_links(self, session: bytes | None, ask: Ask, wanted: bytes) -> tuple[bytes, bytes]:
        """Return `key` and `keyed_input` of a call as the digests of a session are keyed."""
        principal, target = (
            self._imported.translated(session, one) for one in (ask.principal, ask.target)
        )
        key = f"{principal}\0{target}\0{ask.tool}\0{ask.method}\0{ask.key}"
        keyed_input = self._digest(session, "key to target, input", key, wanted)
        return self._digest(session, "key to target", key), keyed_input

    def guess_link(self, ask: Ask) -> bytes:
        """Return the link shared by duplicates in a guessed session; empty for none."""
        guess = ask.guess
        if guess is None or not guess.pair or ask.leg or not (ask.complete and ask.says_all):
            return b""
        scheme, form = ask.canonical or canonical(ask.arguments)
        whose = f"{guess.pair}\0{guess.beside}\0{ask.target}\0{ask.tool}\0{ask.method}"
        asks = sha256(b"%b\0%b" % (scheme.encode(), form)).digest()
        return self._digest(None, "guessed call", whose, asks)

    def told(self, call: bytes) -> bytes:
        """Return the link of the record that a caller was told of a call's unknown outcome."""
        return self._digest(None, "told of unknown", "", call)

    def _digest(self, session: bytes | None, what: str, whose: str, value: bytes = b"") -> bytes:
        name = f"{what}\0{whose}\0".encode("utf-8", "surrogatepass")
        return self._store.keyed_for(session, name + value)

    # -- lookup -------------------------------------------------------------------------------

    def find(
        self, ask: Ask, guess_link: bytes, joined: CallDriver | None
    ) -> tuple[Ask, list[DuplicateMatch]]:
        """Return the call as it is recorded if it is sent, and its duplicates, at most four.

        In this order: a call with the same effect that its branch does not show; a call of a guessed session; the latest with the same key, else the latest with the
        same input; the latest with the same input of another principal. `joined` is the call that
        this one has joined.
        """
        if ask.replays and (recorded := self._recorded(ask)) is not None:
            return ask, [recorded]
        guessed, seen = self._guess(ask, guess_link, joined), None
        # Read before the store is: what is on disk by then, the store's view shows.
        beginning = self._beginning_elsewhere(ask) if ask.links.effect else None
        found: list[DuplicateMatch | None] = []
        looks = self._same, self._others
        hidden: DuplicateMatch | None = None
        try:
            with self._store.view() if ask.links is not NO_LINKS else nullcontext() as view:
                if view is not None and ask.effect is not Effect.READ:
                    seen = view.last
                    ask, hidden = self._hidden(view, ask, beginning)
                for look in looks:
                    found.append(look(view, ask.links))  # noqa: PERF401 - the first one stays if the second fails
        except StoreError as error:
            self._log.emit(StoreFailed(reason=str(error)))
            found += [look(None, ask.links) for look in looks[len(found) :]]
        # What somebody has chosen about an earlier call holds, whether its answer was delivered or not.
        chosen = hidden.call if hidden is not None and hidden.choice else b""
        kept = (match for match in found if match is not None and match.call != chosen)
        matches = [self._given_again(match) for match in kept]
        ask = _as_sent(ask, hidden, matches)
        if seen is not None:
            ask = structs.replace(ask, seen=_seen_by(matches, seen))
        return ask, _in_order(hidden, guessed, matches)

    def with_branches(self, ask: Ask, *, can_be_answered: bool) -> Ask:
        """Return a call with what the branches of its session mean for it: it replays a record, or is refused.

        `can_be_answered` is whether a recorded answer could be given to it: it is alone in its request.
        """
        # Forks are control commits: while there is none, no session replays a record or has another branch.
        if not self._controls.count or ask.leg or not ask.is_call or ask.is_blocked:
            return ask
        try:
            replay = self._records.of(ask.session)
            if replay is None:
                return self._on_branch(ask, can_be_answered)
            if can_be_answered and ask.complete and ask.says_all:
                return structs.replace(ask, replays=True)
            return self._unanswerable(ask, replay)
        except StoreError as error:
            self._log.emit(StoreFailed(reason=str(error)))
            return structs.replace(ask, replays=True, branch_refusal=UNANSWERABLE)

    def _unanswerable(self, ask: Ask, replay: Replay) -> Ask:
        """Return a call that a replay cannot answer, whatever the record has: it ends or stops the replay."""
        if replay.then is AfterDivergence.LIVE:
            replay.is_over = True
            return ask
        with self._store.view() as view:
            stopped = self._records.stopped(view, replay)
        if stopped is not None:
            said = after_replay(ids.to_text(stopped.call), stopped.seq)
            return structs.replace(ask, replays=True, branch_refusal=said)
        replay.stopped = Divergence(ask.call)
        links = DuplicateLinks(diverged=replay.link)
        said = stops_replay(UNANSWERABLE)
        return structs.replace(ask, replays=True, branch_refusal=said, links=links)

    def _on_branch(self, ask: Ask, can_be_answered: bool) -> Ask:
        """Return a call as it meets what other branches of its session had, before a single one is looked up."""
        link = b"" if can_be_answered else self._effect_link(ask)
        if not link:
            return self._flagged(ask)
        linked = structs.replace(ask, links=DuplicateLinks(effect=link))
        beginning = self._beginning_elsewhere(linked)
        try:
            with self._store.view() as view:
                linked = structs.replace(linked, seen=view.last)
                linked, hidden = self._hidden(view, linked, beginning)
        except StoreError as error:
            self._log.emit(StoreFailed(reason=str(error)))
            return ask
        if hidden is None or self._passes(linked, hidden):
            return linked
        return structs.replace(ask, branch_refusal=f"{NOT_ALONE} ({hidden.named})")

    def _passes(self, ask: Ask, hidden: DuplicateMatch) -> bool:
        """Return whether a call is sent whatever was chosen about the one on another branch."""
        asked = NewCall(effect=ask.effect, on_duplicate=ask.policy.on_duplicate)
        earlier = structs.replace(hidden.earlier, choice=None)
        return decide_duplicate(earlier, asked, self.limits) is DuplicateAction.FORWARD

    def _flagged(self, ask: Ask) -> Ask:
        """Return a call with a flag if its effect has no name, and it equals one of another branch."""
        if ask.effect is not Effect.UNKNOWN or not (ask.complete and ask.says_all):
            return ask
        try:
            if not self._ledger.repeats_unnamed(self._as_wanted(ask)):
                return ask
        except StoreError as error:
            self._log.emit(StoreFailed(reason=str(error)))
            return ask
        return structs.replace(ask, flags=(*ask.flags, Flag.REPEAT_OF_DISCARDED))

    def _recorded(self, ask: Ask) -> DuplicateMatch | None:
        """Return the call of the record that answers a call, or a match without one; `None` if it is sent."""
        nothing = EarlierCall(ending=None, began=0.0, likeness=Likeness.RECORDED, same_input=False)
        try:
            replay = self._records.of(ask.session)
            if replay is None:
                return None
            form = ask.canonical or canonical(ask.arguments)
            with self._store.view() as view:
                if (stopped := self._records.stopped(view, replay)) is not None:
                    return DuplicateMatch(earlier=nothing, call=stopped.call, seq=stopped.seq)
                commits = self._records.take(view, replay, ask.server, ask.tool, form)
                match = self._in_record(view, commits) if commits else None
        except StoreError as error:
            self._log.emit(StoreFailed(reason=str(error)))
            return DuplicateMatch(earlier=nothing, call=ask.call)
        # An answer that is not kept whole would be another one than the parent got.
        if match is not None and self.answer(match) is not None:
            return match
        if replay.then is AfterDivergence.LIVE:
            replay.is_over = True
            return None
        replay.stopped = Divergence(ask.call)
        return DuplicateMatch(earlier=nothing, call=ask.call, divergence=replay.link)

    def _in_record(self, view: View, commits: Sequence[Commit]) -> DuplicateMatch:
        """Return a call of the record that a session replays, by its commits."""
        earlier = structs.replace(
            earlier_call(commits, self.clock.wall(), view.is_alive, self.limits.drain),
            likeness=Likeness.RECORDED,
        )
        return DuplicateMatch(earlier=earlier, call=commits[0].facts.call, commits=commits)

    def _wanted_effect(self, ask: Ask) -> WantedEffect | None:
        """Return the effect of a call that the ledger knows of; `None` for another one."""
        is_named = ask.effect in LEDGER_EFFECTS and ask.is_named
        is_whole = ask.complete and ask.says_all and not ask.leg
        return self._as_wanted(ask) if is_named and is_whole else None

    def _as_wanted(self, ask: Ask) -> WantedEffect:
        return WantedEffect(
            session=ask.session,
            server=ask.server,
            tool=ask.tool,
            target=self._imported.translated(ask.session.id, ask.target),
            canonical=ask.canonical or canonical(ask.arguments),
            effect_link=ask.effect_link,
        )

    def _beginning_elsewhere(self, ask: Ask) -> CallDriver | None:
        """Return the call with the same effect that another branch begins in this process: its intent is
        not on disk yet."""
        link, session = ask.links.effect, ask.session.id or ask.session.candidate
        for running in self._under_way:
            other = running.ask.session
            is_others = (other.id or other.candidate) != session
            if is_others and running.ask.links.effect == link and not running.is_written:
                return running
        return None

    def _hidden(
        self, view: View, ask: Ask, beginning: CallDriver | None
    ) -> tuple[Ask, DuplicateMatch | None]:
        """Return a call, and the one with the same effect that its branch does not show, if any; one that the
        branch shows is noted in the call's links."""
        if beginning is not None and not view.readable(beginning.ask.call):
            same_input = (ask.canonical or canonical(ask.arguments)) == (
                beginning.ask.canonical or canonical(beginning.ask.arguments)
            )
            earlier = structs.replace(
                beginning.seen(), likeness=Likeness.DISCARDED, same_input=same_input
            )
            effect, call = beginning.ask.effect, beginning.ask.call
            return ask, DuplicateMatch(earlier=earlier, call=call, running=beginning, effect=effect)
        wanted = self._wanted_effect(ask) if ask.links.effect else None
        link, since = ask.links.effect, ask.refused_at
        found = self._ledger.find(view, link, wanted, since) if wanted else None
        if found is None:
            return ask, None
        if found.is_shown:
            links = structs.replace(ask.links, effect_before=found.call)
            return structs.replace(ask, links=links), None
        return ask, DuplicateMatch(
            earlier=found.earlier,
            call=found.call,
            commits=found.commits,
            seq=found.seq,
            effect=found.effect,
            choice=found.choice,
            is_redone=found.is_redone,
        )

    def _guess(self, ask: Ask, link: bytes, joined: CallDriver | None) -> DuplicateMatch | None:
        """Return the call of a guessed session that may be from the same caller."""
        running = self._known.get(link) if link else None
        if running is None:
            return None
        if running is joined:
            earlier = running.seen()
        else:
            earlier = running.seen_by_guess(is_alone=self._is_alone(ask, running))
        return DuplicateMatch(
            earlier=earlier, call=running.ask.call, running=running, is_guessed=True
        )

    def _is_alone(self, ask: Ask, running: CallDriver) -> bool:
        """Return whether no third connection of the same credential and client has made a call recently."""
        earlier = running.ask.guess
        assert ask.guess is not None  # it was found by that
        assert earlier is not None
        now, calls = asyncio.get_running_loop().time(), self._guessed.get(ask.guess.pair)
        if calls is None:  # forgotten, as others came: so is a third connection
            return False
        own = {ask.guess.connection, earlier.connection, *running.left_by}
        ago = {connection: now - at for connection, at in calls.items()}
        return may_join_guessed_session(ago, own, self.limits.cancel_grace)

    def _same(self, view: View | None, links: DuplicateLinks) -> DuplicateMatch | None:
        duplicate = self._by_key(view, links) if links.key else None
        if duplicate is None and links.same:
            duplicate = self._latest(view, links.same, links)
            running = duplicate.running if duplicate is not None else None
            if running is not None and _differ(running.ask.links.key, links.key):
                return None  # another idempotency key: its caller means another call
        is_sent = duplicate is not None and not duplicate.earlier.is_unexecuted
        for link in () if is_sent else links.before:
            if (before := self._latest(view, link, links)) is not None:
                return structs.replace(before, across=True)
        return duplicate

    def _by_key(self, view: View | None, links: DuplicateLinks) -> DuplicateMatch | None:
        """Return the latest call with the same idempotency key, of whichever session."""
        for key, keyed_input in ((links.key, links.keyed_input), *links.elsewhere):
            asked = structs.replace(links, key=key, keyed_input=keyed_input)
            if (found := self._latest(view, key, asked, keyed=True)) is not None:
                return found
        return None

    def _others(self, view: View | None, links: DuplicateLinks) -> DuplicateMatch | None:
        """Return the latest call with the same input of another principal."""
        return self._latest(view, links.anyone, links, Likeness.OTHERS) if links.anyone else None

    def _latest(
        self,
        view: View | None,
        link: bytes,
        links: DuplicateLinks,
        likeness: Likeness = Likeness.SAME,
        *,
        keyed: bool = False,
    ) -> DuplicateMatch | None:
        """Return the latest call with a link, of this process or another."""
        stored = self._in_store(view, link, links, likeness, keyed=keyed)
        here = self._known.get(link)
        while here is not None and likeness is Likeness.SAME and (passed := _passed_by(here)):
            if stored is not None and stored.call == here.ask.call:
                # Its outcome is not on disk yet.
                stored = self._in_store(view, link, links, likeness, keyed=keyed, call=passed)
            here = self._called(passed, link)
        if here is not None and likeness is Likeness.OTHERS and here.ask.links.same == links.same:
            return None  # it is the same principal's
        by_source = stored is not None and stored.by_source and here is None
        if stored and by_source:
            here = self._called(stored.call)
        if here is None or (stored and stored.commits and self._is_later(stored, here)):
            return stored
        mine = stored if stored is not None and stored.call == here.ask.call else None
        if mine is not None and mine.outcome and Flag.RESOLVED in mine.outcome.facts.flags:
            return mine  # an operator has resolved it; in memory its outcome is still unknown
        same_input = not keyed or here.ask.links.keyed_input == links.keyed_input
        if stored and by_source:
            same_input = stored.earlier.same_input
        earlier = structs.replace(
            here.seen(),
            same_input=same_input,
            keyed=keyed,
            likeness=likeness,
            warned=mine is not None and mine.earlier.warned,
        )
        commits = mine.commits if mine is not None else ()
        return DuplicateMatch(earlier=earlier, call=here.ask.call, running=here, commits=commits)

    def _is_later(self, stored: DuplicateMatch, here: CallDriver) -> bool:
        """Return whether the newest call in the log came after one that is remembered here."""
        if stored.call == here.ask.call or here.is_written:
            return stored.call != here.ask.call
        intent, seen = last_of(stored.commits, CommitKind.INTENT), here.ask.seen
        if intent is None or seen is None:
            return stored.call > here.ask.call  # ids say when calls came
        # Another process has begun it since the one here looked for it: that one will be refused.
        return intent.position > seen and intent.link.epoch != self._store.epoch

    def is_taken(self, key: bytes) -> bool:
        """Return whether a call can be found by the link of a key."""
        if key in self._known:
            return True
        try:
            with self._store.view() as view:
                return view.linked(key) is not None
        except StoreError as error:
            self._log.emit(StoreFailed(reason=str(error)))
            return False

    def _called(self, call: bytes, link: bytes = b"") -> CallDriver | None:
        """Return the running or remembered call with this id, and with `link` if that is given."""
        here = (*self._under_way, *self._known.values())
        found = next((running for running in here if running.ask.call == call), None)
        return found if found is None or not link or link in found.found_by else None

    def _in_store(
        self,
        view: View | None,
        link: bytes,
        links: DuplicateLinks,
        likeness: Likeness,
        *,
        keyed: bool = False,
        call: bytes = b"",
    ) -> DuplicateMatch | None:
        """Return the newest call with a link in the store that was, or may be sent; `call` is where to begin."""
        if view is None:
            return None
        try:
            intent = last_of(view.call(call), CommitKind.INTENT) if call else view.linked(link)
            stored = _links_of(intent)
            is_same_principals = likeness is Likeness.OTHERS and links.same in stored
            if intent is None or is_same_principals or (call and link not in stored):
                return None
            source = source_of(stored)
            if source:
                intent = _source_in(view, source)
            commits = _commits_of(view, intent)
            earlier = earlier_call(commits, self.clock.wall(), view.is_alive, self.limits.drain)
        except Corrupt as error:
            # The damaged record is still evidence of a call: its effect may have happened.
            self._log.emit(StoreFailed(reason=str(error)))
            unknown = failed(ErrorKind.OUTCOME_UNKNOWN, Phase.SENT, Effect.UNKNOWN)
            warned = self._is_warned(view, link)
            earlier = EarlierCall(ending=unknown, began=0.0, warned=warned, keyed=keyed)
            return DuplicateMatch(earlier=earlier, call=link)
        if not keyed and _has_other_key(links, stored):
            return None  # another idempotency key: its caller means another call
        arrived = intent.facts.call in self._arrived
        earlier = structs.replace(
            earlier,
            delivered=earlier.delivered or arrived,
            settling=earlier.settling and not arrived,
            same_input=not keyed or links.keyed_input in stored,
            keyed=keyed,
            likeness=likeness,
            warned=self._is_warned(view, intent.facts.call),
        )
        found = DuplicateMatch(
            earlier=earlier, call=intent.facts.call, by_source=bool(source), commits=commits
        )
        passed = passed_by(stored) if likeness is Likeness.SAME and earlier.is_unexecuted else b""
        if not passed:
            return found
        # It was not executed, so it must not hide the call beside or after which it was made.
        return self._in_store(view, link, links, likeness, keyed=keyed, call=passed) or found

    def _is_warned(self, view: View, call: bytes) -> bool:
        """Return whether a caller was told of the call's unknown outcome."""
        try:
            return view.linked(self.told(call)) is not None
        except Corrupt:
            return True  # the record is damaged, but there is one

    def answer(self, duplicate: DuplicateMatch) -> OwnAnswer | None:
        """Return the whole answer to an earlier call, from memory or else from the store; `None` if it is
        not kept whole."""
        if duplicate.running is not None and duplicate.running.kept is not None:
            return duplicate.running.kept
        outcome = duplicate.outcome
        if outcome is None or outcome.body is None or not outcome.body.output_blob:
            return None
        try:
            with self._store.view() as view:
                blob = view.blob(outcome.body.output_blob)
        except StoreError as error:
            self._log.emit(StoreFailed(reason=str(error)))
            return None
        if isinstance(blob, Gone) or blob.redacted or blob.cut:
            return None
        return retold_answer(outcome.facts, blob.data)

    def on_credited(self, call: bytes, *, delivered: bool) -> None:
        """Remember whether the answer to a call of another process was delivered, until its note is written."""
        if not delivered:
            self._arrived.pop(call, None)
            return
        self._arrived[call] = None

    # -- sessions ----------------------------------------------------------------------------

    def on_guessed_call(self, guess: GuessedCaller) -> None:
        """Remember when a connection of a guessed session made a call."""
        if not guess.pair:
            return
        calls = self._guessed.setdefault(guess.pair, BoundedDict(MOST))
        calls[guess.connection] = asyncio.get_running_loop().time()
        self._guessed.move_to_end(guess.pair)

    def on_attempt_ended(self, running: CallDriver) -> None:
        """Note that a session may be lost: its server broke the connection, or does not know it."""
        attempt, ask = running.attempt, running.ask
        ending = attempt.ending if attempt is not None else None
        is_broken = ending is not None and ending.kind in SESSION_BREAKS
        if is_broken and ask.client and ask.session.rung is Rung.TRANSPORT:
            now = self.clock.monotonic() / 1e9
            self._replacements.on_broken(_caller(ask), ask.session.aliases[0], now)

    def on_call(self, ask: Ask) -> None:
        """Report, once per caller and reason, that duplicates of a call would not be found."""
        if not ask.is_named or ask.links.key:
            return
        ref = ask.session
        session = ref.aliases[0] if ref.aliases else ref.candidate
        if (gap := self._coverage.on_call(_caller(ask), session, ref.rung)) is None:
            return
        if self._uncovered is not None:
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

    # -- calls in memory ----------------------------------------------------------------------

    def remember(self, running: CallDriver) -> None:
        """Index a call that is about to be recorded, so that later calls find it."""
        self._under_way.add(running)
        self._none_under_way.clear()
        for link in running.found_by:
            before = self._known.get(link)
            self._known[link] = running
            self._known.move_to_end(link)
            if before is not None and not self._remembers(before):
                self._let_go(before)

    def on_replayed(self, call: CallDriver) -> None:
        """Remember a replayed call for a moment: its caller may still cancel it."""
        self._replayed.append(call)
        asyncio.get_running_loop().call_later(CANCELLED_LIFE, self._replayed.remove, call)

    @contextmanager
    def giving(self, call: bytes) -> Generator[None]:
        """Keep repeats waiting, within the block, until it is known whether a call's answer, given again,
        was taken."""
        given = call, asyncio.Event()
        self._given.append(given)
        try:
            yield
        finally:
            self._given.remove(given)
            given[1].set()

    async def given(self, call: bytes) -> None:
        """Wait until it is known whether a call's answer, which is being given again, was taken."""
        for each, is_known in tuple(self._given):
            if each == call:
                await is_known.wait()

    def _given_again(self, match: DuplicateMatch) -> DuplicateMatch:
        if not any(call == match.call for call, _ in self._given):
            return match
        return structs.replace(match, earlier=structs.replace(match.earlier, is_given=True))

    def on_late_cancel(self, scope: tuple[str, str], kin: str, id_key: str) -> bool:
        """Mark the answer to a call as undelivered after a late cancel; return whether there is such a call."""
        # A caller ignores an answer that comes after its cancel (MCP, cancellation), and may repeat the call.
        # A call that was repeated since is no longer the newest for its link.
        newest = (*reversed(self._replayed), *reversed(self._known.values()), *self._under_way)
        for call in newest:
            if call.attempt is not None and call.attempt.is_of(scope, kin, id_key):
                return call.on_late_cancel()
        return False

    def over(self, running: CallDriver, kept: OwnAnswer | None = None) -> None:
        """Mark a call as over, also a second time; hold its answer while there is room."""
        self._held -= running.size
        running.kept = kept if self._remembers(running) else None
        running.feed(Over())
        running.shrink()
        self._on_ended(running)
        if running.attempt is None:
            self.forget(running)  # refused before it was recorded
        self._held += running.size
        while self._held > _HELD or len(self._known) > MOST:
            oldest = next((r for r in self._known.values() if r.machine.ending is not None), None)
            if oldest is None:
                break
            self.forget(oldest)

    def retract(self, running: CallDriver) -> None:
        """Remove a call whose intent was refused."""
        self.forget(running)
        self._on_ended(running)

    def _on_ended(self, running: CallDriver) -> None:
        self._under_way.discard(running)
        if not self._under_way:
            self._none_under_way.set()

    def forget(self, running: CallDriver) -> None:
        """Remove a call from the index, so that no later call finds it."""
        self._let_go(running)
        for link in running.found_by:
            if self._known.get(link) is running:
                del self._known[link]

    def runs(self, call: bytes) -> bool:
        """Return whether a guarded call with this id still runs, even if its caller was answered."""
        return any(running.ask.call == call for running in self._under_way)

    @property
    def under_way(self) -> int:
        """Number of guarded calls that have not ended."""
        return len(self._under_way)

    async def idle(self) -> None:
        """Wait until no guarded call runs."""
        await self._none_under_way.wait()

    async def end_all(self) -> None:
        """End all running guarded calls, and wait for that."""
        for running in list(self._under_way):
            if running.carrier is not None:
                running.feed(Stopped())
            else:
                self.over(running)
        await self.idle()

    def _remembers(self, running: CallDriver) -> bool:
        for link in running.found_by:  # noqa: SIM110 - any() takes seven times as long
            if self._known.get(link) is running:
                return True
        return False

    def _let_go(self, running: CallDriver) -> None:
        """Release the held answer of a call."""
        self._held -= running.size
        running.kept = None
        running.forgotten()


def _seen_by(matches: Sequence[DuplicateMatch], seen: int) -> int:
    """Return up to where a call has seen the log that has found these, and whose own view ends at `seen`."""
    for match in matches:
        running = match.running if match.earlier.likeness is Likeness.SAME else None
        if running is not None and not running.is_written and running.ask.seen is not None:
            # What that one may yet meet in the log has to be seen here too.
            return running.ask.seen
    return seen


def _as_sent(ask: Ask, hidden: DuplicateMatch | None, matches: Sequence[DuplicateMatch]) -> Ask:
    """Return a call as it is recorded if it is sent although there are these."""
    if any(match.across for match in matches):
        ask = structs.replace(ask, flags=(*ask.flags, Flag.SESSION_REPLACED))
    passed = next((m.call for m in matches if m.may_be_passed), b"")
    choice = hidden.choice if hidden is not None else b""
    if (passed, choice) == (ask.links.passed, ask.links.choice):
        return ask
    return structs.replace(ask, links=structs.replace(ask.links, passed=passed, choice=choice))


def _in_order(
    hidden: DuplicateMatch | None, guessed: DuplicateMatch | None, matches: list[DuplicateMatch]
) -> list[DuplicateMatch]:
    """Return the duplicates of a call in the order in which they decide about it."""
    if hidden is None or not hidden.is_redone:
        return [*filter(None, (hidden, guessed)), *matches]
    # Whoever repeats the call that a choice has let through gets its answer. Nothing else goes beside it,
    # so its end is not waited for if its caller is there.
    own = [_as_own(match) for match in matches if match.earlier.likeness is Likeness.SAME]
    others = (match for match in matches if match.earlier.likeness is not Likeness.SAME)
    return [*filter(None, (guessed, *own, hidden)), *others]


def _as_own(match: DuplicateMatch) -> DuplicateMatch:
    """Return an earlier call as if this process made it."""
    return structs.replace(match, earlier=structs.replace(match.earlier, elsewhere=False))


def _caller(ask: Ask) -> tuple[str, str, str]:
    return ask.principal, ask.target, ask.client


def _differ(key: bytes, other: bytes) -> bool:
    return bool(key and other) and key != other


def _has_other_key(links: DuplicateLinks, stored: Sequence[bytes]) -> bool:
    """Return whether a call found by its input had an idempotency key other than that of `links`."""
    if not links.key or links.key in stored:
        return False
    # The first two are of the input. Of the other digests a key makes two, the effect that a rule names one.
    others = (link for link in stored[2:] if link != links.effect)
    return sum(not link.startswith(_WITH_PREFIX) for link in others) > 1


def _passed_by(running: CallDriver) -> bytes:
    """Return the id of the call that counts in place of one that was not executed; empty for none."""
    return running.ask.links.passed if running.seen().is_unexecuted else b""


def _links_of(intent: Commit | None) -> tuple[bytes, ...]:
    return intent.body.links if intent is not None and intent.body is not None else ()


def _commits_of(view: View, intent: Commit) -> list[Commit]:
    """Return the commits of a call, by its newest intent. Raises `Corrupt` if its state cannot be read
    from them."""
    call = intent.facts.call
    try:
        commits = view.call(call)
    except Corrupt:
        commits = view.readable(call)
        outcome = last_of(commits, CommitKind.OUTCOME)
        if outcome is None or place_of(outcome)[:2] != place_of(intent)[:2]:
            raise  # the damaged record may be the outcome
    if last_of(commits, CommitKind.INTENT) is None:
        at = intent.position
        said = f"the record at position {at} is not what is known of it; run `turnlog verify`"
        raise Corrupt(said, at)
    return commits


def _source_in(view: View, call: bytes) -> Commit:
    """Return the newest intent of the call from which another was answered. Raises `Corrupt`."""
    intent = last_of(view.call(call), CommitKind.INTENT)
    if intent is None:
        raise Corrupt("the call that answered another one is not there; run `turnlog verify`", 0)
    return intent
