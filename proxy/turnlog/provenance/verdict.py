"""The provenance of a finished call: one value for its tool, its server, its result and its inputs, with reasons."""

from collections.abc import Iterable
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
    """The provenance of a call, and what it follows from."""

    provenance: Provenance
    tool: Provenance
    """Of its tool alone."""
    failures: tuple[str, ...] = ()
    """What differs in its server, and which checks of its result failed: `server: version changed`."""
    inputs: Inputs = NO_INPUTS

    @property
    def reasons(self) -> list[str]:
        """Why it is no better: short texts like `inputs: /path unverified`; empty if there is nothing to say."""
        return reasons(self.tool, self.failures, self.inputs)


def verdict(
    tool: Provenance,
    server: ServerStatus = UNCHANGED,
    result: ResultChecks = NO_CHECKS,
    inputs: Inputs = NO_INPUTS,
) -> ProvenanceVerdict:
    """Return the provenance of a call: the weakest of what is known of it."""
    failures = _failures(server, result) if server.changes or result.failures else ()
    if failures or tool is Provenance.MISMATCH:
        found = Provenance.MISMATCH
    elif tool is not Provenance.PINNED or unsourced(inputs):
        found = Provenance.UNVERIFIED
    else:
        found = Provenance.VERIFIED if result.is_verified else Provenance.PINNED
    return ProvenanceVerdict(found, tool, failures, inputs)


def _failures(server: ServerStatus, result: ResultChecks) -> tuple[str, ...]:
    changed = (f"server: {part} changed" for part in server.changes)
    return (*changed, *(f"result: {failure}" for failure in result.failures))


def reasons(tool: str, failures: Iterable[str], inputs: Inputs) -> list[str]:
    """Return why the provenance of a call is no better. `tool` is that of its tool, empty if not known."""
    found = [] if tool in ("", Provenance.PINNED) else [f"tool: {tool}"]
    found += failures
    unseen = unsourced(inputs)
    found += [f"inputs: {pointer} unverified" for pointer in unseen[:MOST_INPUTS]]
    if len(unseen) > MOST_INPUTS:
        found.append(f"inputs: {len(unseen) - MOST_INPUTS} more unverified")
    if inputs.partial:
        found.append(f"inputs: partial ({inputs.partial})")
    return found


def unmet_result(demand: ProvenanceDemand, checks: ResultChecks) -> str:
    """Return why a result is not as a rule demands; empty if it is."""
    if demand.result is RequiredResult.ANY:
        return ""
    if checks.failures:
        return f"the result failed its check: {', '.join(checks.failures)}"
    if demand.result is RequiredResult.VERIFIED:
        return "" if checks.is_verified else "the result has no signature that was verified"
    return "" if checks.is_checked else "the result has no digest or signature that was checked"
