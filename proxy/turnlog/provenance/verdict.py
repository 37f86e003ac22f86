"""The provenance of a finished call: one value for its tool, its server, its result and its inputs, with reasons."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from turnlog.core.pins import UNCHANGED, Provenance, ServerStatus
from turnlog.rules.model import ProvenanceDemand, RequiredResult
from turnlog.wire.message import NO_CHECKS, ResultChecks

from .values import Inputs, unsourced

MOST_INPUTS: Final = 8
"""Inputs of one call that are named in its reasons."""
NO_INPUTS: Final = Inputs()
"""The inputs of a call whose arguments hold no value to look up."""


class ProvenanceVerdict(Struct, frozen=True, gc=False):
    """The provenance of a call, and why it is no better."""

    provenance: Provenance
    reasons: tuple[str, ...] = ()
    """Short texts like `inputs: /path unverified`; empty if there is nothing to say."""


_CLEAR: Final = {
    Provenance.PINNED: ProvenanceVerdict(Provenance.PINNED),
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
    unseen = unsourced(inputs) if inputs.lineage else ()
    if result is NO_CHECKS and not (unseen or inputs.partial or server.changes):
        return clear
    reasons = (*clear.reasons, *_reasons(server, result, unseen, inputs.partial))
    if server.changes or result.failures or tool is Provenance.MISMATCH:
        return ProvenanceVerdict(Provenance.MISMATCH, reasons)
    if unseen or tool is not Provenance.PINNED:
        return ProvenanceVerdict(Provenance.UNVERIFIED, reasons)
    return ProvenanceVerdict(
        Provenance.VERIFIED if result.is_verified else Provenance.PINNED, reasons
    )


def unmet_result(demand: ProvenanceDemand, checks: ResultChecks) -> str:
    """Return why a result is not as a rule demands; empty if it is."""
    if demand.result is RequiredResult.ANY:
        return ""
    if checks.failures:
        return f"the result failed its check: {', '.join(checks.failures)}"
    if demand.result is RequiredResult.VERIFIED:
        return "" if checks.is_verified else "the result has no signature that was verified"
    return "" if checks.is_checked else "the result has no digest or signature that was checked"


def _reasons(
    server: ServerStatus, result: ResultChecks, unseen: Sequence[str], partial: str
) -> list[str]:
    reasons = [f"inputs: {pointer} unverified" for pointer in unseen[:MOST_INPUTS]]
    if len(unseen) > MOST_INPUTS:
        reasons.append(f"inputs: {len(unseen) - MOST_INPUTS} more unverified")
    if partial:
        reasons.append(f"inputs: partial ({partial})")
    if server.changes or result.failures:
        changed = [f"server: {part} changed" for part in server.changes]
        return [*changed, *(f"result: {failure}" for failure in result.failures), *reasons]
    return reasons
