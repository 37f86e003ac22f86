"""One provenance for a call, from what is known of its tool, server, result and inputs."""

import pytest

from turnlog.core.commit import Lineage
from turnlog.core.kinds import ValueOrigin
from turnlog.core.pins import UNCHANGED, Provenance, ServerStatus
from turnlog.provenance.values import Inputs
from turnlog.provenance.verdict import (
    MOST_INPUTS,
    NO_INPUTS,
    reasons,
    unmet_result,
    verdict,
)
from turnlog.rules.model import ProvenanceDemand, RequiredResult
from turnlog.wire.message import NO_CHECKS, ResultChecks

PINNED, MISMATCH, UNVERIFIED = Provenance.PINNED, Provenance.MISMATCH, Provenance.UNVERIFIED
SIGNED = ResultChecks(is_checked=True, is_verified=True)
FAILED = ResultChecks(("content-digest mismatch",))
SAME = ServerStatus(is_pinned=True)
NEWER = ServerStatus(is_pinned=True, changes=("version",))


def inputs(*origins: ValueOrigin, partial: str = "") -> Inputs:
    lineage = tuple(Lineage(pointer=f"/{n}", origin=origin) for n, origin in enumerate(origins))
    return Inputs(lineage, partial)


KNOWN = inputs(ValueOrigin.SOURCED, ValueOrigin.DECLARED)
UNSEEN = inputs(ValueOrigin.SOURCED, ValueOrigin.UNVERIFIED)


@pytest.mark.parametrize("tool", [PINNED, MISMATCH, UNVERIFIED])
def test_where_only_the_tool_is_known_its_provenance_counts(tool: Provenance) -> None:
    because = [] if tool is PINNED else [f"tool: {tool}"]
    for found in (verdict(tool), verdict(tool, SAME, NO_CHECKS, KNOWN)):
        assert (found.provenance, found.reasons) == (tool, because)


def test_of_a_call_whose_tool_is_not_known_nothing_is_said() -> None:
    assert reasons("", (), NO_INPUTS) == []


@pytest.mark.parametrize(
    ("tool", "server", "result", "found", "expected", "because"),
    [
        (PINNED, UNCHANGED, SIGNED, NO_INPUTS, Provenance.VERIFIED, ()),
        (PINNED, SAME, SIGNED, KNOWN, Provenance.VERIFIED, ()),
        (PINNED, SAME, ResultChecks(is_checked=True), KNOWN, PINNED, ()),
        (PINNED, SAME, SIGNED, UNSEEN, UNVERIFIED, ("inputs: /1 unverified",)),
        (UNVERIFIED, SAME, SIGNED, KNOWN, UNVERIFIED, ("tool: unverified",)),
        (PINNED, NEWER, SIGNED, KNOWN, MISMATCH, ("server: version changed",)),
        (PINNED, SAME, FAILED, KNOWN, MISMATCH, ("result: content-digest mismatch",)),
        (MISMATCH, SAME, SIGNED, KNOWN, MISMATCH, ("tool: mismatch",)),
        (
            UNVERIFIED,
            NEWER,
            FAILED,
            UNSEEN,
            MISMATCH,
            (
                "tool: unverified",
                "server: version changed",
                "result: content-digest mismatch",
                "inputs: /1 unverified",
            ),
        ),
    ],
)
def test_the_weakest_counts_and_all_reasons_are_named(
    tool: Provenance,
    server: ServerStatus,
    result: ResultChecks,
    found: Inputs,
    expected: Provenance,
    because: tuple[str, ...],
) -> None:
    of_call = verdict(tool, server, result, found)
    assert (of_call.provenance, of_call.reasons) == (expected, [*because])


def test_inputs_that_were_looked_at_in_part_say_so() -> None:
    found = inputs(partial="first 64 KiB")
    of_call = verdict(PINNED, inputs=found)
    assert (of_call.provenance, of_call.reasons) == (PINNED, ["inputs: partial (first 64 KiB)"])


def test_many_unverified_inputs_are_counted() -> None:
    found = inputs(*[ValueOrigin.UNVERIFIED] * (MOST_INPUTS + 3))
    of_call = verdict(PINNED, inputs=found)
    assert of_call.reasons[0] == "inputs: /0 unverified"
    assert of_call.reasons[MOST_INPUTS:] == ["inputs: 3 more unverified"]


def test_an_argument_with_several_unverified_parts_is_named_once() -> None:
    part = Lineage(pointer="/url", origin=ValueOrigin.UNVERIFIED)
    assert verdict(PINNED, inputs=Inputs((part, part))).reasons == ["inputs: /url unverified"]


@pytest.mark.promise("PROV-20")
@pytest.mark.parametrize(
    ("result", "checks", "why"),
    [
        (RequiredResult.ANY, ResultChecks(failures=("x",)), ""),
        (RequiredResult.CHECKED, ResultChecks(is_checked=True), ""),
        (RequiredResult.CHECKED, NO_CHECKS, "no digest or signature"),
        (RequiredResult.CHECKED, ResultChecks(("digest x",), is_checked=True), "digest x"),
        (RequiredResult.VERIFIED, ResultChecks(is_checked=True), "no signature"),
        (RequiredResult.VERIFIED, ResultChecks(is_checked=True, is_verified=True), ""),
    ],
)
def test_a_result_is_held_against_the_check_that_a_rule_demands(
    result: RequiredResult, checks: ResultChecks, why: str
) -> None:
    found = unmet_result(ProvenanceDemand(result=result), checks)
    assert (why in found) if why else found == ""
