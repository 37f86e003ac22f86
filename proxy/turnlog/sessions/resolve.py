"""Record an operator's statement whether a call of unknown outcome happened."""

from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.classify import MEANINGS
from turnlog.core.commit import Commit, CommitBody, Facts
from turnlog.core.hints import Hint
from turnlog.core.kinds import (
    Actor,
    CommitKind,
    ErrorKind,
    Executed,
    Flag,
    RetryClass,
    Status,
)
from turnlog.exchange.delivery import runs_on
from turnlog.observe.clock import Clock
from turnlog.store.base import Draft, SessionRef, StoreError
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View

from .errors import NotFoundError, UnresolvableError, UnresolvableReason
from .rows import Row, row_of


class Claim(Struct, frozen=True, kw_only=True):
    """An operator's statement about a call."""

    happened: bool
    why: str = ""
    """The reason, redacted, at most `LONGEST_WHY` characters."""
    clock: Clock = Clock()
    fence: int | None = None
    """The number of the lease that the operator holds."""


async def resolve(
    store: LmdbStore, name: str, claim: Claim, *, runs: Callable[[bytes], bool] = lambda _: False
) -> Row:
    """Append the outcome that an operator claims; return the attempt with it.

    `runs` returns whether a call is still running in this process without its caller, which the
    store may not know yet. Raises `NotFoundError`, `UnresolvableError`, `StoreError`.
    """
    # Attempts of dead processes become `outcome_unknown` first.
    await store.recover()
    with store.view() as view:
        call = find_resolvable(view, name)
        if runs(call):
            raise _in_flight(call)
        attempt = _open_attempt(view, call)
    draft = _draft(attempt, claim)
    placed = await store.submit(draft, wait=True).done()
    if placed.facts != draft.facts:
        # Another process appended its outcome first.
        raise _refused(call, placed)
    # Not read back: a failing read would report an error for a claim that was written.
    return row_of([*attempt, placed])


def find_resolvable(view: View, name: str) -> bytes:
    """Return the call with this id or beginning of an id. Raises `NotFoundError`.

    The beginning must be unique among all calls of the store, not only among the resolvable ones.
    """
    # Ids begin with the time: what is unique among few calls is easily meant for a neighbour.
    calls = view.find_calls(name)
    if len(calls) == 1:
        return calls[0]
    if not calls:
        if short := ids.too_short(name):
            raise NotFoundError(short)
        raise NotFoundError(f"no call begins with {name!r}", Hint.DANGLING)
    found = [ids.to_text(call) for call in _resolvable(view) if ids.has_prefix(call, name)]
    some = ", ".join(found[:5]) or "there is none"
    raise NotFoundError(
        f"{name!r} begins several calls, write the whole id of one that can be resolved: {some}"
    )


def _resolvable(view: View) -> list[bytes]:
    """Return the calls that are unknown or parked, or whose process is dead."""
    is_alive = lru_cache(maxsize=None)(view.is_alive)
    return [
        attempt[0].facts.call
        for attempt in view.unsettled()
        if len(attempt) > 1 or not is_alive(attempt[0].link.epoch)
    ]


def _open_attempt(view: View, call: bytes) -> list[Commit]:
    """Return the open attempt of a call: intent, then outcomes. Raises `UnresolvableError`."""
    attempt = view.unsettled_attempt(call)
    if not attempt:
        outcomes = [c for c in view.call(call) if c.facts.kind is CommitKind.OUTCOME]
        if not outcomes:
            name = ids.to_text(call)
            raise StoreError(f"the records of call {name} are damaged; run `turnlog verify`")
        raise _refused(call, outcomes[-1])
    last = attempt[-1]
    alive = view.is_alive(last.link.epoch)
    if runs_on(view.readable(call), last, alive=alive) or (alive and len(attempt) == 1):
        raise _in_flight(call)
    return attempt


def _draft(attempt: list[Commit], claim: Claim) -> Draft:
    intent, last = attempt[0], attempt[-1]
    return Draft(
        session=SessionRef.existing(intent.link.session),
        facts=_facts(intent.facts, last.facts, claim),
        body=CommitBody(
            summary="it happened" if claim.happened else "it did not happen",
            detail=claim.why,
        ),
        fence=claim.fence,
    )


def _facts(intent: Facts, last: Facts, claim: Claim) -> Facts:
    return structs.replace(
        intent,
        kind=CommitKind.OUTCOME,
        at=claim.clock.wall(),
        clock=claim.clock.monotonic(),
        actor=Actor.OPERATOR,
        n=last.n + 1 if last.kind is CommitKind.OUTCOME else 0,
        phase=last.phase,
        executed=Executed.YES if claim.happened else Executed.NO,
        status=Status.OK if claim.happened else Status.ERROR,
        error="" if claim.happened else MEANINGS[ErrorKind.OUTCOME_UNKNOWN].family,
        error_kind="" if claim.happened else ErrorKind.OUTCOME_UNKNOWN,
        retry="" if claim.happened else RetryClass.SAFE,
        flags=(Flag.RESOLVED,),
    )


def _in_flight(call: bytes) -> UnresolvableError:
    return UnresolvableError(
        UnresolvableReason.IN_FLIGHT,
        f"call {ids.to_text(call)} is in flight, a running turnlog waits for its answer",
    )


def _refused(call: bytes, newest: Commit) -> UnresolvableError:
    """Return the error for a call whose newest outcome is final."""
    facts, name = newest.facts, ids.to_text(call)
    if Flag.RESOLVED in facts.flags:
        how = "it happened" if facts.executed is Executed.YES else "it did not happen"
        return UnresolvableError(
            UnresolvableReason.RESOLVED, f"call {name} was resolved before: {how}"
        )
    how = facts.error_kind or facts.error or facts.status
    return UnresolvableError(
        UnresolvableReason.KNOWN, f"call {name} ended as {how}, only unknown calls are resolved"
    )
