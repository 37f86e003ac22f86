"""Find what somebody has to close: attempts of dead writers, parked legs past their time."""

from collections.abc import Callable, Iterator

from .flush import call_state_after
from .index import CallState, Entry, OpenAttempt, open_attempts
from .keys import number, unpack
from .tables import Tables, Txn, decode_open, read_log, tail


def abandoned(txn: Txn, tables: Tables, is_dead: Callable[[int], bool]) -> list[Entry]:
    """Return the intents without outcome of epochs that are dead, in order of position."""
    found: dict[tuple[bytes, int], OpenAttempt] = {}
    with txn.cursor(tables.open) as cursor:
        for key, value in cursor:
            found[key[:16], unpack(key[16:])] = decode_open(value)
    readable = [entry for entry in tail(txn, tables).entries if entry]
    for intent, attempt in open_attempts(readable).items():
        if attempt:
            found[intent] = attempt
        else:
            found.pop(intent, None)
    dead = {epoch for epoch in {attempt.epoch for attempt in found.values()} if is_dead(epoch)}
    positions = sorted(a.position for a in found.values() if a.epoch in dead)
    return [entry for position in positions if (entry := read_log(txn, tables, position))]


def overdue(txn: Txn, tables: Tables, now: int) -> list[tuple[CallState, Entry]]:
    """Return the calls that are parked past their time, each with the intent of its last leg."""
    segment = tail(txn, tables)
    calls = {*segment.calls, *_due_at_watermark(txn, tables, now)}
    found: list[tuple[CallState, Entry]] = []
    for call in sorted(calls):
        entries = segment.pick(segment.calls.get(call, ()))
        state = call_state_after(txn, tables, call, entries)
        if state and state.status.parked and 0 < state.expires <= now:
            intent = read_log(txn, tables, state.intent)
            if intent:
                found.append((state, intent))
    return found


def _due_at_watermark(txn: Txn, tables: Tables, now: int) -> Iterator[bytes]:
    limit = number(now + 1)
    with txn.cursor(tables.parked) as cursor:
        for key in cursor.iternext(keys=True, values=False):
            if key[:8] >= limit:
                return
            yield key[8:]
