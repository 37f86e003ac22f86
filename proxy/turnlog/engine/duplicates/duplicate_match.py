"""An earlier call that is the same, and what it means for a later one."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from msgspec import Struct

from turnlog.core.classify import Ending, ending_of, failed
from turnlog.core.commit import Commit
from turnlog.core.kinds import CommitKind, Effect, ErrorKind, Flag, NoteKind, Phase
from turnlog.engine.call_driver import CallDriver
from turnlog.exchange.delivery import is_delivered, is_settling, runs_on
from turnlog.exchange.duplicates import EarlierCall
from turnlog.record.attempt import Ask, Attempt, StoredTicket
from turnlog.record.own_answers import OwnAnswer
from turnlog.store.base import Corrupt, Ticket
from turnlog.store.read.view import View

_NS: Final = 1_000_000_000


class DuplicateMatch(Struct, frozen=True, kw_only=True):
    """An earlier call: what is known of it here, or what stands of it in the store."""

    earlier: EarlierCall
    call: bytes
    """Its id; where that cannot be read, what it was found by."""
    keyed: bool
    """Whether it was found by its key."""
    across: bool = False
    """Whether it was made in a session that another one has replaced."""
    by_source: bool = False
    """Whether its key is that of another call, which it has answered."""
    is_guessed: bool = False
    """Whether its session is only guessed."""
    running: CallDriver | None = None
    commits: Sequence[Commit] = ()

    @property
    def outcome(self) -> Commit | None:
        """Its last outcome in the store."""
        return last_of(self.commits, CommitKind.OUTCOME)

    @property
    def is_resolved(self) -> bool:
        """Whether an operator said how it ended."""
        return self.outcome is not None and Flag.RESOLVED in self.outcome.facts.flags

    @property
    def source(self) -> Ticket | None:
        """The commit from which another call is answered."""
        if self.running is not None and self.running.attempt is not None:
            return self.running.attempt.outcome or self.running.attempt.intent
        commit = self.outcome or last_of(self.commits, CommitKind.INTENT)
        return StoredTicket(commit) if commit is not None else None


class Repeated(Exception):
    """A call is not sent: an earlier one decides what its caller gets."""

    def __init__(
        self, attempt: Attempt, answer: OwnAnswer | None, sentence: str, found: DuplicateMatch
    ) -> None:
        super().__init__(sentence)
        self.attempt = attempt
        """The call's only one, with its ending."""
        self.answer = answer
        """The earlier call's; `None` where turnlog says something itself."""
        self.sentence = sentence
        self.found = found
        self.caller: RequestKey | None = None
        """The caller that is answered, where it may cancel by an id."""
        self.is_taken_back = False
        """Whether it has cancelled: it does not read the answer."""


class RequestKey(Struct, frozen=True):
    """One request of one client: its scope, its kin, and its id."""

    scope: tuple[str, str]
    kin: str
    id_key: str

    def is_same(self, other: "RequestKey") -> bool:
        """Return whether both stand for one request."""
        known = self.scope == other.scope or (self.kin != "" and self.kin == other.kin)
        return known and self.id_key == other.id_key


class InDoubt(Exception):
    """The caller of an earlier call, which is under way, may be gone: then it is joined."""

    def __init__(self, running: CallDriver) -> None:
        super().__init__("the caller of the same call may be gone")
        self.running = running


class Joins(Exception):
    """A call waits first for an earlier one, which is under way."""

    def __init__(self, ask: Ask, found: DuplicateMatch, since: float, *, joined: bool) -> None:
        super().__init__("the same call is under way")
        self.ask = ask
        self.found = found
        self.since = since
        """When it began to wait, on the loop's clock."""
        self.joined = joined
        """Whether it gets the earlier call's answer; else it only waits for its end."""

    @property
    def until(self) -> float | None:
        """How long it may wait, as rules say; `None` for any time."""
        limits = self.ask.policy.timeout
        at = self.since + min(limits.response, limits.total)
        return at if at < inf else None


def damaged(link: bytes, *, keyed: bool, warned: bool) -> DuplicateMatch:
    """Return an earlier call of which the log says no more than that it was made."""
    unknown = failed(ErrorKind.OUTCOME_UNKNOWN, Phase.SENT, Effect.UNKNOWN)
    earlier = EarlierCall(ending=unknown, began=0.0, warned=warned)
    return DuplicateMatch(earlier=earlier, call=link, keyed=keyed)


def commits_of(view: View, intent: Commit) -> list[Commit]:
    """Return the commits of a call, by its newest intent. Raises `Corrupt` where they do not tell how
    it stands."""
    call = intent.facts.call
    try:
        commits = view.call(call)
    except Corrupt:
        commits = view.readable(call)
        outcome = last_of(commits, CommitKind.OUTCOME)
        if outcome is None or _place(outcome)[:2] != _place(intent)[:2]:
            raise  # maybe it is the outcome that cannot be read
    if last_of(commits, CommitKind.INTENT) is None:
        at = intent.position
        said = f"the record at position {at} is not what is known of it; run `turnlog verify`"
        raise Corrupt(said, at)
    return commits


def source_in(view: View, call: bytes) -> Commit:
    """Return the newest intent of the call that has answered another one. Raises `Corrupt`."""
    intent = last_of(view.call(call), CommitKind.INTENT)
    if intent is None:
        raise Corrupt("the call that answered another one is not there; run `turnlog verify`", 0)
    return intent


def last_of(commits: Sequence[Commit], kind: CommitKind) -> Commit | None:
    """Return the newest commit of a kind of the last attempt."""
    found = [commit for commit in commits if commit.facts.kind is kind]
    return max(found, key=_place, default=None)


def _place(commit: Commit) -> tuple[int, int, int]:
    return commit.facts.leg, commit.facts.attempt, commit.facts.n


def earlier_of(
    commits: Sequence[Commit], now: int, lives: Callable[[int], bool], drain: float
) -> EarlierCall:
    """Return what the commits of a call tell; `now` in ns, `drain` in s.

    `lives` tells whether the writer with an epoch runs.
    """
    intent, outcome = last_of(commits, CommitKind.INTENT), last_of(commits, CommitKind.OUTCOME)
    assert intent is not None  # `commits_of` has seen to it
    if outcome is not None and _place(outcome)[:2] < _place(intent)[:2]:
        outcome = None
    notes = {commit.facts.note: commit.facts.at for commit in commits if commit.facts.note}
    abandoned, cancelled = NoteKind.ABANDONED in notes, notes.get(NoteKind.CANCEL_FORWARDED)
    alive = lives((outcome or intent).link.epoch)
    ended = (now - outcome.facts.at) / _NS if outcome is not None else 0.0
    over = cancelled or notes.get(NoteKind.UNANSWERED)
    given_up = ended if over is None else min(ended, (now - over) / _NS)
    goes_on = outcome is not None and runs_on(commits, outcome, alive=alive) and ended < drain
    began = min(c.facts.at for c in commits if c.facts.kind is CommitKind.INTENT)
    return EarlierCall(
        ending=None if goes_on else _ending(intent, outcome, alive=alive),
        began=(now - began) / _NS,
        ended=given_up,
        abandoned=abandoned,
        cancelled=None if cancelled is None else (now - cancelled) / _NS,
        repeats=Flag.REPEAT_OF_UNKNOWN in intent.facts.flags,
        elsewhere=True,
        delivered=is_delivered(commits, outcome),
        settling=is_settling(commits, outcome, alive=alive, ended=ended),
    )


def _ending(intent: Commit, outcome: Commit | None, *, alive: bool) -> Ending | None:
    """Return how a call ended; `None` while a process is at it."""
    if outcome is None:
        unknown = failed(ErrorKind.OUTCOME_UNKNOWN, Phase.SENT, intent.facts.effect)
        return None if alive else unknown
    return ending_of(outcome.facts)
