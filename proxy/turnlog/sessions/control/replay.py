"""Forks that replay their parent: calls are answered from its record, by identity and not by position.

What a fork has done counts as its live view shows it. So a rewind of the fork to before the call with which its
replay has stopped lets it go on, and what was answered behind that point can be answered again.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from turnlog.core.bounded_dict import BoundedDict
from turnlog.core.canon import input_hash
from turnlog.core.commit import HEAD, Commit
from turnlog.core.kinds import CommitKind, Executed, Phase, Status
from turnlog.core.live_view import AfterDivergence, ForkContent, ForkMode, LiveView, decode_fork
from turnlog.sessions.dangling import newest_attempt
from turnlog.sessions.live import SessionBranches
from turnlog.sessions.state.family import parent_of
from turnlog.store.base import SessionRef
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View

_MOST = 65_536
"""Sessions that are remembered."""
_DIVERGED: Final = b"diverged\0"
"""What the link begins with of a call with which a replay stops; its session's id follows."""
Identity = tuple[str, str, str]
"""Server, tool and hash of the input."""


class Divergence(Struct, frozen=True):
    """The call with which a replay has stopped: the record has no answer to it."""

    call: bytes
    seq: int | None = None
    """Where it began; `None` while it is not on disk."""


class Replay(Struct, kw_only=True):
    """A fork that replays its parent. It changes as answers are given."""

    then: AfterDivergence
    parent: bytes
    live: LiveView
    """Of the fork."""
    link: bytes
    """Link of the call with which it stops."""
    answers: dict[Identity, list[int]]
    """Where the parent's calls began that were not given yet, the newest first."""
    is_over: bool = False
    """Whether it has gone live."""
    stopped: Divergence | None = None


class ParentRecords:
    """The records from which forks are answered. Not thread-safe.

    What another process gives of the same record is seen once the store gets a control commit.
    """

    def __init__(self, store: LmdbStore) -> None:
        self._store = store
        # The gate of sessions has read the number for the same call.
        self._controls = store.control_counter()
        self._seen = 0
        self._forks: BoundedDict[bytes, Replay | None] = BoundedDict(_MOST)
        """By session; `None` for one that replays nothing."""

    def of(self, ref: SessionRef) -> Replay | None:
        """Return the replay of a session; `None` if its calls are sent. Raises `StoreError`."""
        number = self._controls.count
        if number != self._seen:
            self._forks.clear()
            self._seen = number
        session = ref.id
        if session is None or session not in self._forks:
            with self._store.view() as view:
                # Of a session that this process has not written to yet only its names are known.
                session = session or view.session_of(ref)
                if session is not None and session not in self._forks:
                    self._forks[session] = _read_replay(view, session)
        found = self._forks.get(session) if session is not None else None
        return None if found is None or found.is_over else found

    def stopped(self, view: View, replay: Replay) -> Divergence | None:
        """Return the call with which a replay has stopped, in this process or another; `None` if it goes on."""
        if replay.stopped is None or replay.stopped.seq is None:
            found = view.linked(replay.link)
            if found is not None and replay.live.has_call(found.link.seq):
                replay.stopped = Divergence(found.facts.call, found.link.seq)
        return replay.stopped

    def take(
        self, view: View, replay: Replay, server: str, tool: str, form: tuple[str, bytes]
    ) -> list[Commit]:
        """Return the commits of the next recorded call of this identity; each is returned once.

        `form` is the canonical input.
        """
        key = self._store.keyed_for(replay.parent, b"hashes of redacted content")
        for hashed in (input_hash(form), input_hash(form, key=key)):
            if left := replay.answers.get((server, tool, hashed)):
                begun = view.get(replay.parent, left.pop())
                return view.readable(begun.facts.call) if begun else []
        return []


def _read_replay(view: View, session: bytes) -> Replay | None:
    point, opened = parent_of(view, session), view.opened(session)
    content = decode_fork(opened.body.note) if opened and opened.body else ForkContent()
    if point is None or content.mode is not ForkMode.REPLAY:
        return None
    answers: defaultdict[Identity, list[int]] = defaultdict(list)
    for attempt in _ended(view.commits(point.session, after=point.seq)):
        if _is_answered(attempt[-1]):
            answers[_identity(attempt[0])].insert(0, attempt[0].link.seq)
    branches, link = SessionBranches(view, session), _DIVERGED + session
    live = branches.live(HEAD)
    replay = Replay(
        then=content.then, parent=point.session, live=live, link=link, answers=dict(answers)
    )
    for attempt in _ended(branches.filtered(live, view.commits(session))):
        begun, facts = attempt[0], attempt[-1].facts
        if begun.body is not None and link in begun.body.links and replay.stopped is None:
            replay.stopped = Divergence(begun.facts.call, begun.link.seq)
        if facts.status is Status.REPLAYED and answers.get(_identity(attempt[0])):
            answers[_identity(attempt[0])].pop()
        elif facts.executed is not Executed.NO and facts.status is not Status.REPLAYED:
            replay.is_over = content.then is AfterDivergence.LIVE
    return replay


def _ended(commits: Iterable[Commit]) -> list[list[Commit]]:
    """Return the newest attempts of the calls that began and ended among these commits, in order."""
    calls: dict[bytes, list[Commit]] = {}
    for commit in commits:
        facts = commit.facts
        if facts.call in calls or (facts.call and facts.kind is CommitKind.INTENT):
            calls.setdefault(facts.call, []).append(commit)
    found = map(newest_attempt, calls.values())
    return [attempt for attempt in found if len(attempt) > 1 and attempt[0].body is not None]


def _is_answered(outcome: Commit) -> bool:
    """Return whether a server answered a call, be it with an error."""
    facts, body = outcome.facts, outcome.body
    is_error = facts.status is Status.ERROR and facts.phase is Phase.DONE
    # What turnlog itself answered, as after a time limit, is no record of what the server says.
    return facts.status is Status.OK or (is_error and body is not None and bool(body.output_blob))


def _identity(intent: Commit) -> Identity:
    hashed = intent.body.input_hash if intent.body else None
    return intent.facts.server, intent.facts.tool, hashed or ""
