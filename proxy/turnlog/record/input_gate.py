"""Rules about the sources of a call's inputs: looked up before the call is sent, for these calls alone."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final

from msgspec import structs

from turnlog.core import ids
from turnlog.core.commit import Lineage
from turnlog.provenance.values import (
    LOOKED_AT,
    MANY,
    MOST_MISSED,
    Inputs,
    SessionValues,
    ValueSource,
    carried,
    every_leaf,
    has_values,
    unsourced,
)
from turnlog.rules.http_tools import has_unread_body, values_in
from turnlog.rules.model import BlockIf, KeepContent, RequiredInputs, Unmet
from turnlog.sessions.lineage.history import is_purged
from turnlog.sessions.lineage.inputs import origin_of
from turnlog.sessions.rows import outcome_of
from turnlog.store.base import StoreError
from turnlog.store.lmdb import LmdbStore
from turnlog.wire.jsonrpc import repeats_keys

from .attempt import Ask, InputGate
from .lineage import LineageTracker
from .session_memory import SessionMemory

_NAMED: Final = 4
"""Values that a refusal names."""
_OFF: Final = "`provenance: {inputs: off}` keeps turnlog from looking up where inputs come from"
_LONG: Final = "the arguments are longer, or have more values, than are looked up"


async def gated(tracker: LineageTracker | None, store: LmdbStore, ask: Ask) -> Ask:
    """Return a call with the decision of the rules about its inputs."""
    policy = ask.policy
    if not policy.looks_at_inputs:
        return ask
    if tracker is None:
        return structs.replace(ask, gate=_unreadable(ask, _OFF))
    if not ask.is_mcp and (why := _unread_body(ask)):
        return structs.replace(ask, gate=_unreadable(ask, why))
    memory = await tracker.caught_up(ask.session)
    content = ask.arguments if ask.is_mcp else values_in(ask.arguments)
    inputs = memory.values.look_up(content)
    if memory.partial and not inputs.partial:
        inputs = structs.replace(inputs, partial=memory.partial)
    gate = InputGate()
    if policy.block_if is BlockIf.TAINTED:
        gate = await _without_taint(store, ask, memory, content, inputs)
    if policy.provenance.inputs is RequiredInputs.SOURCED:
        gate = _with_sources(gate, policy.provenance.then, _unsourced(ask, inputs))
    return structs.replace(ask, inputs=inputs, gate=gate)


async def _without_taint(
    store: LmdbStore, ask: Ask, memory: SessionMemory, content: bytes, inputs: Inputs
) -> InputGate:
    """Return the gate of a call that must not carry tainted values."""
    values = memory.values
    entries = carried(inputs.lineage)
    if not entries and (inputs.partial == MANY or len(content) > LOOKED_AT):
        entries = await _carried_further(values, content)
    if entries:
        return InputGate(tainted=_tainted(store, ask, entries))
    why = _missed(store, values.missed)
    if memory.unread:
        why = f"{memory.unread}; the next call tries it again"
    # What has no value that could be compared can have none that was missed.
    if not why or not await asyncio.to_thread(has_values, ask.arguments):
        return InputGate()
    rule = ask.policy.decided_by["block_if"]
    said = f"the rule {rule!r} refuses calls while tainted values may have been missed"
    return InputGate(tainted=f"{said}: {why}")


def _unread_body(ask: Ask) -> str:
    """Return why the body of a plain HTTP call is not certain; empty if it is. Those of MCP are checked before."""
    if not ask.says_all:
        return "the body is too long to be read whole"
    if has_unread_body(ask.arguments):
        return "the body is not JSON"
    return "an object in the body repeats a key" if repeats_keys(ask.arguments) else ""


async def _carried_further(values: SessionValues, arguments: bytes) -> tuple[Lineage, ...]:
    """Return the tainted values found first in arguments that have more than is looked up otherwise."""
    # 1 MiB of JSON takes 75 ms to parse, and arguments may have 16.
    texts = await asyncio.to_thread(every_leaf, arguments)
    for found in values.carrying(texts):
        if found:
            return found
        await asyncio.sleep(0)  # other calls go on meanwhile
    return ()


def _unreadable(ask: Ask, why: str) -> InputGate:
    """Return the gate of a call whose inputs cannot be looked up."""
    policy, gate = ask.policy, InputGate()
    if policy.block_if is BlockIf.TAINTED:
        gate = structs.replace(
            gate, tainted=f"the rule {policy.decided_by['block_if']!r} needs it: {why}"
        )
    is_demanded = policy.provenance.inputs is RequiredInputs.SOURCED
    return _with_sources(gate, policy.provenance.then, why if is_demanded else "")


def _with_sources(gate: InputGate, then: Unmet, why: str) -> InputGate:
    """Return the gate of a call whose inputs are not sourced because of `why`; empty if they are."""
    match then:
        case Unmet.BLOCK:
            return structs.replace(gate, unsourced=why)
        case Unmet.SURFACE:
            return structs.replace(gate, surfaced=why)
        case Unmet.FLAG:
            return gate  # the outcome gets the flag


def _unsourced(ask: Ask, inputs: Inputs) -> str:
    pointers = unsourced(inputs)
    if pointers:
        named = ", ".join(dict.fromkeys(_shown(ask, pointer) for pointer in pointers[:_NAMED]))
        more = f" and {len(pointers) - _NAMED} more" if len(pointers) > _NAMED else ""
        return f"values in the input were never seen in this session: {named}{more}"
    is_read = len(ask.arguments) <= LOOKED_AT and inputs.partial != MANY
    return "" if is_read else _LONG


def _tainted(store: LmdbStore, ask: Ask, entries: tuple[Lineage, ...]) -> str:
    named = ", ".join(_sources(store, ask, entries))
    rule = ask.policy.decided_by["block_if"]
    return f"the rule {rule!r} refuses calls with values of tainted outputs: {named}"


def _sources(store: LmdbStore, ask: Ask, entries: tuple[Lineage, ...]) -> list[str]:
    session, told = ask.session.id or ask.session.candidate, dict[str, None]()
    try:
        with store.view() as view:
            for entry in entries:
                found = origin_of(view, session, entry)
                commit = f"{found.session}:{found.seq}" if found.session else "an earlier call"
                told[f"{_shown(ask, entry.pointer)} of {commit} ({entry.evidence})"] = None
    except StoreError:
        return [f"{_shown(ask, e.pointer)} ({e.evidence})" for e in entries[:_NAMED]]
    return list(told)[:_NAMED]


def _missed(store: LmdbStore, missed: Mapping[ValueSource, str]) -> str:
    """Return of which tainted outputs values may have been missed, why, and what to do; empty for none."""
    found = list(islice(_outputs(store, missed), _NAMED + 1))
    if not found:
        return ""
    named = ", ".join(f"{commit or 'an earlier call'} ({why})" for commit, why in found[:_NAMED])
    more = " and more" if len(found) > _NAMED else ""
    first = next((commit for commit, _ in found if commit), "SESSION:SEQ")
    way_out = f"`turnlog taint endorse {first} --why TEXT`, or a rule with `taint: endorse`"
    return f"those of {named}{more}; {way_out}, vouches for an output"


def _outputs(store: LmdbStore, missed: Mapping[ValueSource, str]) -> Iterator[tuple[str, str]]:
    """Yield the commits of outputs, empty for unknown ones, with the reasons; without those purged since."""
    for source, why in missed.items():
        commit = ""
        with suppress(StoreError), store.view() as view:
            outcome = outcome_of(view, source.call, source.attempt)
            if outcome is not None:
                if is_purged(view, outcome) and len(missed) < MOST_MISSED:
                    continue
                commit = f"{ids.to_text(outcome.link.session)}:{outcome.link.seq}"
        yield commit, why


def _shown(ask: Ask, pointer: str) -> str:
    """Return a pointer as a refusal names it, which is recorded."""
    if ask.policy.redact or ask.policy.store is not KeepContent.FULL:
        return "a value"  # the names in it may be in what is not recorded
    return pointer or "(all)"
