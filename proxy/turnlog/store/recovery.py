"""Recovery: the attempts that can never be finished, and the outcomes written for them.

Attempts of dead writers, and parked legs past their time. What cannot be read is passed to `skip`
and left as it is: one damaged record must not keep the others open.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec

from turnlog.core import ids
from turnlog.core.call_status import CallState
from turnlog.core.classify import failed
from turnlog.core.commit import CommitBody, Facts
from turnlog.core.kinds import Actor, CommitKind, ErrorKind, Flag, Phase
from turnlog.store.log.environment import Txn
from turnlog.store.log.index import Entry, OpenAttempt, Segment, open_attempts
from turnlog.store.log.index_writer import call_state_after
from turnlog.store.log.keys import number, unpack
from turnlog.store.log.tables import Tables, decode_open, read_log


def closing(intent: Facts, *, at: int, clock: int, n: int, flags: tuple[Flag, ...]) -> Facts:
    """Return the outcome of an attempt whose answer will never be recorded.

    How far it came is not known: it may have been sent.
    """
    ending = failed(ErrorKind.OUTCOME_UNKNOWN, Phase.SENT, intent.effect)
    return msgspec.structs.replace(
        intent,
        kind=CommitKind.OUTCOME,
        at=at,
        clock=clock,
        actor=Actor.TURNLOG,
        n=n,
        phase=ending.phase,
        executed=ending.executed,
        status=ending.status,
        error=ending.error,
        error_kind=ending.kind,
        retry=ending.retry,
        duration=0,
        bytes_out=0,
        flags=flags,
        http_status=0,
        code=None,
        expires=0,
    )


CRASHED = CommitBody(detail="the writer ended before the answer was recorded")
EXPIRED = CommitBody(detail="no answer came before the call expired")


Skip = Callable[[str], None]
"""Called with what was left out, as the object of a sentence."""


def abandoned(
    txn: Txn, tables: Tables, tail: Segment, *, is_dead: Callable[[int], bool], skip: Skip
) -> list[Entry]:
    """Return the intents without outcome of epochs that are dead, in order of position.

    `tail` is the log behind the watermark of the same moment.
    """
    found = dict(_open_at_watermark(txn, tables, skip))
    readable = [entry for entry in tail.entries if entry]
    for intent, attempt in open_attempts(readable).items():
        if attempt:
            found[intent] = attempt
        else:
            found.pop(intent, None)
    dead = {epoch for epoch in {attempt.epoch for attempt in found.values()} if is_dead(epoch)}
    positions = sorted(a.position for a in found.values() if a.epoch in dead)
    intents = (_intent(txn, tables, position, skip) for position in positions)
    return [entry for entry in intents if entry]


def overdue(
    txn: Txn, tables: Tables, tail: Segment, now: int, *, skip: Skip
) -> list[tuple[CallState, Entry]]:
    """Return the calls that are parked past their time, each with the intent of its last leg.

    `tail` is the log behind the watermark of the same moment.
    """
    calls = {*tail.calls, *_due_at_watermark(txn, tables, now)}
    found: list[tuple[CallState, Entry]] = []
    for call in sorted(calls):
        state = _state(txn, tables, tail, call, skip)
        if state and state.status.parked and 0 < state.expires <= now:
            intent = _intent(txn, tables, state.intent, skip)
            if intent:
                found.append((state, intent))
    return found


def _open_at_watermark(
    txn: Txn, tables: Tables, skip: Skip
) -> Iterator[tuple[tuple[bytes, int], OpenAttempt]]:
    with txn.cursor(tables.open) as cursor:
        for key, value in cursor:
            session, seq = key[:16], unpack(key[16:])
            try:
                attempt = decode_open(value)
            except msgspec.DecodeError:
                skip(f"the open attempt at seq {seq} of session {ids.to_text(session)}")
            else:
                yield (session, seq), attempt


def _due_at_watermark(txn: Txn, tables: Tables, now: int) -> Iterator[bytes]:
    limit = number(now + 1)
    with txn.cursor(tables.parked) as cursor:
        for key in cursor.iternext(keys=True, values=False):
            if key[:8] >= limit:
                return
            yield key[8:]


def _state(txn: Txn, tables: Tables, tail: Segment, call: bytes, skip: Skip) -> CallState | None:
    entries = tail.pick(tail.calls.get(call, ()))
    try:
        return call_state_after(txn, tables, call, entries)
    except msgspec.DecodeError:
        skip(f"the state of call {ids.to_text(call)}")
        return None


def _intent(txn: Txn, tables: Tables, position: int, skip: Skip) -> Entry | None:
    with suppress(msgspec.DecodeError):
        if entry := read_log(txn, tables, position):
            return entry
    skip(f"the open attempt at position {position}")
    return None
