"""Rules about the sources of a call's inputs: looked up before the call is sent, for these calls alone."""

import asyncio
from typing import Final

from msgspec import structs

from turnlog.core.commit import Lineage
from turnlog.provenance.taint import carried
from turnlog.provenance.values import LOOKED_AT, MANY, Inputs, SessionValues, unsourced
from turnlog.rules.http_tools import has_unread_body, values_in
from turnlog.rules.model import BlockIf, KeepContent, RequiredInputs, Unmet
from turnlog.sessions.lineage.inputs import origin_of
from turnlog.store.base import StoreError
from turnlog.store.lmdb import LmdbStore
from turnlog.wire.jsonrpc import repeats_keys

from .attempt import Ask, InputGate
from .lineage import LineageTracker

_OVERLAP: Final = 4096
"""Bytes that two parts of long arguments share, so that a value at their border is whole in one of them."""
_NAMED: Final = 4
"""Values that a refusal names."""
_OFF: Final = "`provenance: {inputs: off}` keeps turnlog from looking up where inputs come from"
_LONG: Final = "the arguments are longer, or have more values, than are looked up"


async def gated(tracker: LineageTracker | None, store: LmdbStore, ask: Ask) -> Ask:
    """Return a call with what the rules about its inputs make of it."""
    policy = ask.policy
    if not policy.looks_at_inputs:
        return ask
    if tracker is None:
        return structs.replace(ask, gate=_unreadable(ask, _OFF))
    if not ask.is_mcp and (why := _unread_body(ask)):
        return structs.replace(ask, gate=_unreadable(ask, why))
    values, missing = await tracker.caught_up(ask.session)
    inputs = values.look_up(ask.arguments if ask.is_mcp else values_in(ask.arguments))
    if missing and not inputs.partial:
        inputs = structs.replace(inputs, partial=missing)
    is_barred = policy.block_if is BlockIf.TAINTED
    gate = await _without_taint(store, ask, values, inputs) if is_barred else InputGate()
    if policy.provenance.inputs is RequiredInputs.SOURCED:
        gate = _with_sources(gate, policy.provenance.then, _unsourced(ask, inputs))
    return structs.replace(ask, inputs=inputs, gate=gate)


async def _without_taint(
    store: LmdbStore, ask: Ask, values: SessionValues, inputs: Inputs
) -> InputGate:
    """Return the gate of a call that must not carry tainted values."""
    every = inputs if carried(inputs.lineage) else await _whole(values, ask.arguments, inputs)
    if entries := carried(every.lineage):
        return InputGate(tainted=_tainted(store, ask, entries))
    many = f"the arguments have {MANY}"
    return _unreadable(ask, many) if every.partial == MANY else InputGate()


def _unread_body(ask: Ask) -> str:
    """Return why the body of a plain HTTP call is not certain; empty if it is. Those of MCP are checked before."""
    if not ask.says_all:
        return "the body is too long to be read whole"
    if has_unread_body(ask.arguments):
        return "the body is not JSON"
    return "an object in the body repeats a key" if repeats_keys(ask.arguments) else ""


async def _whole(values: SessionValues, arguments: bytes, start: Inputs) -> Inputs:
    """Return the look-up of the first part of long arguments that has tainted values, or cannot be read whole."""
    found = start
    for begin in range(LOOKED_AT - _OVERLAP, len(arguments), LOOKED_AT - _OVERLAP):
        if found.partial == MANY or carried(found.lineage):
            break
        await asyncio.sleep(0)  # other calls go on meanwhile
        found = values.look_up(arguments[begin : begin + LOOKED_AT])
    return found


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


def _shown(ask: Ask, pointer: str) -> str:
    """Return a pointer as a refusal names it, which is recorded."""
    if ask.policy.redact or ask.policy.store is not KeepContent.FULL:
        return "a value"  # the names in it may be in what is not recorded
    return pointer or "(all)"
