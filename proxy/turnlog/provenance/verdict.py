"""The provenance of a finished call: one value for its tool, its server, its result and its inputs, with reasons."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from turnlog.core.kinds import ValueOrigin
from turnlog.core.pins import NO_CHECKS, UNCHANGED, Provenance, ResultChecks, ServerStatus

from .values import Inputs

MOST_INPUTS: Final = 8
"""Inputs of one call that are named in its reasons."""
_UNSEEN: Final = ValueOrigin.UNVERIFIED
_PINNED: Final = Provenance.PINNED
NO_INPUTS: Final = Inputs()
"""The inputs of a call whose arguments hold no value to look up."""


class ProvenanceVerdict(Struct, frozen=True, gc=False):
    """The provenance of a call, and why it is no better."""

    provenance: Provenance
    reasons: tuple[str, ...] = ()
    """Short texts like `inputs: /path unverified`; empty if there is nothing to say."""


_CLEAR: Final = {
    _PINNED: ProvenanceVerdict(_PINNED),
    Provenance.MISMATCH: ProvenanceVerdict(Provenance.MISMATCH, ("tool: mismatch",)),
    Provenance.UNVERIFIED: ProvenanceVerdict(Provenance.UNVERIFIED, ("tool: unverified",)),
}
"""Verdicts where only the tool is known: of most calls."""


def verdict(
    tool: Provenance,
    server: ServerStatus = UNCHANGED,
    result: ResultChecks = NO_CHECKS,
    inputs: Inputs = NO_INPUTS,
) -> ProvenanceVerdict:
    """Return the provenance of a call: the weakest of what is known of it."""
    clear = _CLEAR[tool]
    if server is UNCHANGED and result is NO_CHECKS and not (inputs.lineage or inputs.partial):
        return clear
    changed = tuple(f"server: {part} changed" for part in server.changes)
    failed = tuple(f"result: {failure}" for failure in result.failures)
    reasons = (*clear.reasons, *changed, *failed, *_reasons_of_inputs(inputs))
    return ProvenanceVerdict(_weakest(tool, server, result, inputs), reasons)


def _weakest(
    tool: Provenance, server: ServerStatus, result: ResultChecks, inputs: Inputs
) -> Provenance:
    if server.changes or result.failures or tool is Provenance.MISMATCH:
        return Provenance.MISMATCH
    if tool is not _PINNED or any(each.origin is _UNSEEN for each in inputs.lineage):
        return Provenance.UNVERIFIED
    return Provenance.VERIFIED if result.is_verified else _PINNED


def _reasons_of_inputs(inputs: Inputs) -> Iterator[str]:
    # A value may be known by several of its parts.
    unseen = [*dict.fromkeys(each.pointer for each in inputs.lineage if each.origin is _UNSEEN)]
    for pointer in unseen[:MOST_INPUTS]:
        yield f"inputs: {pointer} unverified"
    if (more := len(unseen) - MOST_INPUTS) > 0:
        yield f"inputs: {more} more unverified"
    if inputs.partial:
        yield f"inputs: partial ({inputs.partial})"
