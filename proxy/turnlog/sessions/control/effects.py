"""Effects that a branch of a session does not show: discarded by a rewind, or made on another branch.

They were not undone, so `exchange.duplicates` decides whether a call that would repeat one is sent.
A session without rewinds costs one lookup each time the store gets a control commit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.bounded_dict import BoundedDict
from turnlog.core.canon import input_hash
from turnlog.core.classify import Ending
from turnlog.core.commit import EFFECT_BEFORE, HEAD, Commit
from turnlog.core.hints import Hint
from turnlog.core.kinds import Actor, CommitKind, Effect, Phase
from turnlog.core.lifecycle import SessionStage
from turnlog.core.live_view import LiveView, StandingEffect
from turnlog.core.note import EffectChoice, EffectNote, decode_note
from turnlog.core.operation import LEDGER_EFFECTS
from turnlog.exchange.delivery import earlier_call, last_of
from turnlog.exchange.duplicates import EarlierCall, Likeness
from turnlog.sessions.call_detail import find_call
from turnlog.sessions.errors import NoteError, NotFoundError
from turnlog.sessions.live import SessionBranches
from turnlog.sessions.notes import CHOSEN_BY, choice_of_effect
from turnlog.sessions.state.family import BranchPoint, ancestry, family
from turnlog.store.base import SessionRef
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View

from .standing import call_commits, effect_of, left_behind

_MOST: Final = 4096
"""Sessions that are remembered."""
_UNNAMED: Final = 1000
"""Of the newest calls of other branches it is known whether their effect was named."""
_LISTED: Final = 5
"""Branches that an error names."""
_ENDED: Final = frozenset({SessionStage.CLOSED, SessionStage.ARCHIVED, SessionStage.PURGED})


class WantedEffect(Struct, frozen=True, kw_only=True):
    """A call with a named effect, before it is sent."""

    session: SessionRef
    server: str
    tool: str
    target: str
    canonical: tuple[str, bytes]
    """Scheme and form of its input, see `core.canon`."""
    effect_link: bytes
    """Digest of the effect as a rule names it; empty if the input identifies it."""


class EarlierEffect(Struct, frozen=True, kw_only=True):
    """An earlier call with the same effect."""

    earlier: EarlierCall
    call: bytes
    seq: int
    """Where it began."""
    effect: Effect
    commits: Sequence[Commit] = ()
    """Empty if it is not in this store."""
    choice: bytes = b""
    """Link of the one call that somebody's choice lets through; empty for none."""
    is_shown: bool = False
    """Whether this branch shows it: then it decides nothing."""
    is_redone: bool = False
    """Whether the one call that a choice has let through runs on this branch, or was before this one."""


class _Branch(Struct, frozen=True):
    """A session that has other branches: it was rewound or forked, or is a fork."""

    session: bytes
    root: bytes
    """The session that its family began with."""
    shown: dict[bytes, LiveView]
    """Of itself and each session that it descends from: which commits it shows."""
    standing: Sequence[StandingEffect]
    """Calls that it has left behind and whose effects stand, newest first."""
    unnamed: frozenset[tuple[str, str, str]]
    """Server, tool and input hash of those whose effect no rule named."""


class EffectLedger:
    """The effects that the live views of sessions do not show. Not thread-safe."""

    def __init__(self, store: LmdbStore, wall: Callable[[], int], drain: float) -> None:
        """`wall` returns ns UTC; `drain` is the time in s for which abandoned calls run on."""
        self._store = store
        self._wall = wall
        self._drain = drain
        self._controls = store.control_counter()
        self._seen = 0
        self._branches: BoundedDict[bytes, _Branch | None] = BoundedDict(_MOST)
        """By session; `None` for one without rewinds."""

    def link(self, wanted: WantedEffect) -> bytes:
        """Return the link of a call's effect; empty if its session has only one branch.

        Raises `StoreError`.
        """
        branch = self._branch(wanted)
        return self._link(branch.root, wanted) if branch else b""

    def repeats_unnamed(self, wanted: WantedEffect) -> bool:
        """Return whether a call of unknown effect equals one of another branch. Raises `StoreError`."""
        branch = self._branch(wanted)
        if branch is None or not branch.unnamed:
            return False
        hashes = _hashes(self._store, branch.session, wanted)
        return any((wanted.server, wanted.tool, one) in branch.unnamed for one in hashes)

    def find(
        self, view: View, link: bytes, wanted: WantedEffect, since: int | None = None
    ) -> EarlierEffect | None:
        """Return the newest executed call with the effect of a call, if there is one.

        `since` is the position of the log at which the call was looked up before, if its intent was refused.
        """
        branch = self._branch(wanted)
        if branch is None:
            return None
        hashes, is_redone = _hashes(self._store, branch.session, wanted), False
        for one, commits in _newest_first(view, branch, link, wanted, hashes):
            earlier = self._earlier(view, one, commits)
            if earlier.is_unexecuted:
                continue
            if one.is_shown and _is_redone(commits, earlier, since):
                is_redone = True
                continue
            if one.is_shown:
                return EarlierEffect(
                    earlier=earlier, call=one.call, seq=one.seq, effect=one.effect, is_shown=True
                )
            chosen = self._choice(view, one, branch)
            earlier = structs.replace(
                earlier,
                likeness=Likeness.DISCARDED,
                # What no rule names is found by its input alone.
                same_input=not wanted.effect_link or one.input_hash in hashes,
                choice=chosen[0] if chosen else None,
            )
            return EarlierEffect(
                earlier=earlier,
                call=one.call,
                seq=one.seq,
                effect=one.effect,
                commits=commits,
                choice=chosen[1] if chosen else b"",
                is_redone=is_redone,
            )
        return None

    def _earlier(self, view: View, one: StandingEffect, commits: Sequence[Commit]) -> EarlierCall:
        if commits:
            return earlier_call(commits, self._wall(), view.is_alive, self._drain)
        # What came of it later is not known here: its session is in another store.
        ending = Ending(status=one.status, phase=Phase.DONE, executed=one.executed)
        return EarlierCall(ending=ending, began=0.0)

    def _branch(self, wanted: WantedEffect) -> _Branch | None:
        """Return the session of a call, once it is on disk, if it has other branches."""
        number = self._controls.read()
        if number != self._seen:
            self._branches.clear()
            self._seen = number
        if not number:
            return None
        session = wanted.session.id
        if session is None or session not in self._branches:
            with self._store.view() as view:
                # Of a session that this process has not written to yet only its names are known.
                session = session or view.session_of(wanted.session)
                if session is None:
                    return None
                self._branches[session] = _read_branch(view, session)
        return self._branches[session]

    def _link(self, session: bytes, wanted: WantedEffect) -> bytes:
        scheme, form = wanted.canonical
        what = wanted.effect_link or b"%b\0%b" % (scheme.encode(), form)
        tool = f"{wanted.server}\0{wanted.tool}\0{wanted.target}".encode("utf-8", "surrogatepass")
        return self._store.keyed_for(session, b"effect in family\0" + session + tool + b"\0" + what)

    def _choice(
        self, view: View, one: StandingEffect, branch: _Branch
    ) -> tuple[EffectChoice, bytes] | None:
        """Return the newest choice about a hidden call on a branch, if its author may make it, and no call
        has taken it.

        Beside it stands the link of the call that takes it; a replay holds for any number of calls.
        """
        session, live = branch.session, branch.shown[branch.session]
        said = view.linked(self._store.keyed_for(session, choice_of_effect(session, one.call)))
        # A rewind has voided it. An older one stays superseded: the call is decided as without a choice.
        if said is None or not live.has(said.link.seq):
            return None
        note = decode_note(said.body.note) if said.body is not None else None
        if not isinstance(note, EffectNote):
            return None
        is_agents = said.facts.actor is Actor.AGENT
        if is_agents and one.effect is Effect.IRREVERSIBLE:
            return None
        if note.choice is EffectChoice.REPLAY:
            return note.choice, b""
        link = CHOSEN_BY + said.hash
        return None if self._is_taken(view, link) else (note.choice, link)

    def _is_taken(self, view: View, link: bytes) -> bool:
        """Return whether a choice has let a call through; one that was not executed gives it back."""
        taker = view.linked(link)
        commits = call_commits(view, taker.link.session, taker.facts.call) if taker else []
        if not commits:
            return False
        taken = earlier_call(commits, self._wall(), view.is_alive, self._drain)
        return not taken.is_unexecuted


def _is_redone(commits: Sequence[Commit], earlier: EarlierCall, since: int | None) -> bool:
    """Return whether a choice has let a call through, and it still runs or was begun behind `since`.

    No other call goes beside it. Once it has ended its effect is one of its branch.
    """
    intent = last_of(commits, CommitKind.INTENT)
    if intent is None or intent.body is None:
        return False
    is_beside = earlier.ending is None or (since is not None and commits[0].position > since)
    return is_beside and any(link.startswith(CHOSEN_BY) for link in intent.body.links)


def _newest_first(
    view: View, branch: _Branch, link: bytes, wanted: WantedEffect, hashes: Sequence[str]
) -> Iterator[tuple[StandingEffect, Sequence[Commit]]]:
    """Yield the earlier calls with the effect of a call, each with its commits."""
    linked: set[bytes] = set()
    for commits in _linked(view, link):
        begun = commits[0]
        linked.add(begun.facts.call)
        known = (one for one in branch.standing if one.call == begun.facts.call)
        yield next(known, effect_of(view, begun, is_shown=_counts(branch.shown, begun))), commits
    for one in branch.standing:
        if one.call not in linked and _has_effect(one, wanted, hashes):
            yield one, call_commits(view, one.session, one.call)


def _linked(view: View, link: bytes) -> Iterator[Sequence[Commit]]:
    """Yield the commits of the newest call with the link of an effect, and of the one that its branch had before."""
    newest = view.linked(link)
    if newest is None:
        return
    links = newest.body.links if newest.body is not None else ()
    befores = (one.removeprefix(EFFECT_BEFORE) for one in links if one.startswith(EFFECT_BEFORE))
    places = [(newest.link.session, newest.facts.call)]
    places += [(first.link.session, call) for call in befores for first in view.readable(call)[:1]]
    for session, call in places:
        if commits := call_commits(view, session, call):
            yield commits


def _read_branch(view: View, session: bytes) -> _Branch | None:
    parents = ancestry(view, session)
    own = SessionBranches(view, session)
    if not own.rewinds and not parents and next(iter(view.forks(session)), None) is None:
        return None
    left = left_behind(view, session)
    root = parents[-1].session if parents else session
    shown = _shown(view, session, parents)
    return _Branch(session, root, shown, left, frozenset(_unnamed(left)))


def _shown(view: View, session: bytes, parents: Sequence[BranchPoint]) -> dict[bytes, LiveView]:
    """Return which commits a branch shows, of itself and of each session that it descends from."""
    points = (BranchPoint(session, HEAD), *parents)
    return {p.session: SessionBranches(view, p.session).live(p.seq) for p in points}


def _unnamed(left: Sequence[StandingEffect]) -> Iterator[tuple[str, str, str]]:
    """Yield server, tool and input hash of the calls of unknown effect that a branch does not show."""
    for one in left[:_UNNAMED]:
        if one.effect is Effect.UNKNOWN and one.input_hash and not one.is_shown:
            yield one.server, one.tool, one.input_hash


def _has_effect(one: StandingEffect, wanted: WantedEffect, hashes: Sequence[str]) -> bool:
    """Return whether a call that was left behind has the effect of a call."""
    if one.effect not in LEDGER_EFFECTS or (one.server, one.tool) != (wanted.server, wanted.tool):
        return False
    is_named = bool(wanted.effect_link) and one.link == wanted.effect_link
    return is_named or one.input_hash in hashes


def _hashes(store: LmdbStore, session: bytes, wanted: WantedEffect) -> tuple[str, ...]:
    """Return the hashes that the input of a call may have in the record: of one with secrets it is keyed."""
    key = store.keyed_for(session, b"hashes of redacted content")
    return input_hash(wanted.canonical), input_hash(wanted.canonical, key=key)


class ChosenEffect(Struct, frozen=True):
    """A choice about an effect, as it is written."""

    note: EffectNote
    session: bytes
    """The branch that it is for: the note goes to it, so its rewinds void it."""
    server: str
    tool: str
    is_shown: bool
    """Whether the branch shows the call, so that the choice changes nothing."""


def chosen_effect(
    view: View,
    name: str,
    choice: EffectChoice,
    why: str,
    actor: Actor,
    branch: bytes | None = None,
) -> ChosenEffect:
    """Return a choice about the effect of a call, as it is to be written.

    `name` is the call's id or a beginning of it; of one that is not in this store also the hash of its
    input. With a `branch` only what that session or its relatives have made is found, and the choice is
    for it; else for the only one that does not show the effect.
    Raises `NotFoundError`, and `NoteError` if there is nothing to choose, or it is an operator's to choose.
    """
    one, session = _named_effect(view, name, branch)
    call = ids.to_text(one.call)
    if one.effect not in LEDGER_EFFECTS:
        raise NoteError(
            f"call {call} has the effect {one.effect.value!r}, so calls that repeat it are sent anyway; "
            "only calls with the effect write or irreversible can be decided about"
        )
    if actor is Actor.AGENT and one.effect is Effect.IRREVERSIBLE:
        raise NoteError(f"call {call} is irreversible: an operator chooses, by `turnlog effect`")
    note = EffectNote(call=call, choice=choice, why=why)
    return ChosenEffect(note, session, one.server, one.tool, one.is_shown)


def _named_effect(view: View, name: str, branch: bytes | None) -> tuple[StandingEffect, bytes]:
    """Return the effect of a call, and the branch that a choice about it is for."""
    try:
        call = find_call(view, name)
    except NotFoundError as error:
        if carried := _left_behind(view, name, branch):
            return carried
        said = f"{error}, and no rewind or fork here has left one behind"
        raise NotFoundError(said, error.hint, error.about) from None
    begun = next((c for c in view.readable(call) if c.facts.kind is CommitKind.INTENT), None)
    if begun is None:
        shown = ids.to_text(call)
        raise NoteError(f"the records of call {shown} are damaged; run `turnlog verify`")
    session = begun.link.session
    row = view.session(session)
    is_kept = row is not None and row.stage is not SessionStage.PURGED
    relatives = list(family(view, session)) if is_kept else []
    if is_kept and branch in (None, *relatives):
        own = branch or _only(view, call, _hiding(view, relatives, begun)) or session
        is_shown = _counts(_shown(view, own, ancestry(view, own)), begun)
        return effect_of(view, begun, is_shown=is_shown), own
    # A purged session takes no content.
    if carried := _left_behind(view, ids.to_text(call), branch):
        return carried
    whose = "of another session" if is_kept else "of a purged session"
    raise NoteError(f"call {ids.to_text(call)} is {whose}, and no branch has left it behind")


def _hiding(view: View, branches: Iterable[bytes], begun: Commit) -> Iterator[bytes]:
    """Yield the branches that do not show the call that began with a commit."""
    for one in branches:
        if not _counts(_shown(view, one, ancestry(view, one)), begun):
            yield one


def _counts(shown: Mapping[bytes, LiveView], begun: Commit) -> bool:
    """Return whether the call that began with a commit counts, by what a branch shows."""
    live = shown.get(begun.link.session)
    return live is not None and live.has_call(begun.link.seq)


def _only(view: View, call: bytes, branches: Iterable[bytes]) -> bytes | None:
    """Return the branch in which calls can go on; `None` for none. Raises `NoteError` for several."""
    rows = filter(None, map(view.session, branches))
    found = [row.session for row in rows if row.stage not in _ENDED]
    if len(found) > 1:
        some = ", ".join(map(ids.to_text, found[:_LISTED]))
        raise NoteError(
            f"{len(found)} branches do not show call {ids.to_text(call)}: {some}", Hint.BRANCH
        )
    return found[0] if found else None


def _left_behind(
    view: View, name: str, branch: bytes | None
) -> tuple[StandingEffect, bytes] | None:
    """Return a call that a rewind or fork has left behind, and the branch.

    Raises `NotFoundError`, and `NoteError` for several branches.
    """
    rows = (row for row in view.sessions() if branch is None or row.session == branch)
    found: dict[bytes, dict[bytes, StandingEffect]] = {}
    for row in rows:
        # Rewinds are control commits, and so is the second commit of a fork.
        if row.control is None or row.stage is SessionStage.PURGED:
            continue
        for one in left_behind(view, row.session):
            if name == one.input_hash or (
                not ids.too_short(name) and ids.has_prefix(one.call, name)
            ):
                found.setdefault(one.call, {})[row.session] = one
    if len(found) > 1:
        some = ", ".join(map(ids.to_text, found))
        raise NotFoundError(f"{name!r} means {len(found)} calls, name one of: {some}")
    for call, effects in found.items():
        session = _only(view, call, effects) or next(iter(effects))
        return effects[session], session
    return None
