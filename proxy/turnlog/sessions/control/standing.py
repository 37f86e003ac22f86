"""The calls that a rewind or a fork leaves behind, and whose effects stand outside.

The commit of the rewind or fork carries what is needed to know such a call again.
"""

from collections.abc import Collection, Iterator, Sequence

from msgspec import structs

from turnlog.core.commit import HEAD, Commit
from turnlog.core.kinds import CommitKind, Executed, Status
from turnlog.core.live_view import LiveView, StandingEffect, decode_fork
from turnlog.exchange.delivery import last_of
from turnlog.sessions.live import SessionBranches, content_of
from turnlog.sessions.state.family import ancestry
from turnlog.store.read.view import View


def effects_of(
    view: View, session: bytes, seqs: Sequence[int], shown: Collection[int] = ()
) -> tuple[StandingEffect, ...]:
    """Return the calls of a session that began at `seqs` or `shown`; the latter count."""
    found = ((seq, view.get(session, seq)) for seq in (*seqs, *shown))
    return tuple(
        effect_of(view, begun, is_shown=seq in shown) for seq, begun in found if begun is not None
    )


def call_commits(view: View, session: bytes, call: bytes) -> list[Commit]:
    """Return the readable commits of a call; none if its intent is not among them."""
    commits = [c for c in view.readable(call) if c.link.session == session]
    return commits if last_of(commits, CommitKind.INTENT) is not None else []


def left_behind(view: View, session: bytes, until: int = HEAD) -> list[StandingEffect]:
    """Return the calls that a branch has left behind up to a commit, newest first.

    These are what its own rewinds discarded or kept, what its ancestors discarded or kept before it was
    forked, and what they made behind the branch point.
    """
    found = dict(_of_rewinds(view, session, until))
    child = session
    for point in ancestry(view, session):
        for one in _of_fork(view, child):
            found.setdefault((one.seq, one.session), one)
        for key, one in _of_rewinds(view, point.session, point.seq):
            found.setdefault(key, one)
        child = point.session
    return [found[key] for key in sorted(found, reverse=True)]


def _of_fork(view: View, fork: bytes) -> tuple[StandingEffect, ...]:
    opened = view.opened(fork)
    return decode_fork(opened.body.note).effects if opened and opened.body else ()


def _of_rewinds(
    view: View, session: bytes, until: int
) -> Iterator[tuple[tuple[int, bytes], StandingEffect]]:
    branches = SessionBranches(view, session)
    live = branches.live(until)
    for commit in reversed(branches.commits):
        if commit.link.seq > until:
            continue
        for one in content_of(commit).effects:
            yield (one.seq, session), _as_shown(one, live)


def _as_shown(one: StandingEffect, live: LiveView) -> StandingEffect:
    is_shown = live.has_call(one.seq)
    return one if one.is_shown is is_shown else structs.replace(one, is_shown=is_shown)


def effect_of(view: View, begun: Commit, *, is_shown: bool) -> StandingEffect:
    """Return a call by its first intent, as a commit carries it that leaves the call behind."""
    facts, body = begun.facts, begun.body
    outcome = last_of(
        call_commits(view, begun.link.session, facts.call) or [begun], CommitKind.OUTCOME
    )
    return StandingEffect(
        seq=begun.link.seq,
        session=begun.link.session,
        call=facts.call,
        server=facts.server,
        tool=facts.tool,
        effect=facts.effect,
        # If a rule names the effect, its digest is the last link; another one equals no effect's.
        link=body.links[-1] if body is not None and body.links else b"",
        input_hash=(body.input_hash or "") if body is not None else "",
        status=outcome.facts.status if outcome is not None else Status.UNKNOWN,
        executed=outcome.facts.executed if outcome is not None else Executed.MAYBE,
        is_shown=is_shown,
    )
