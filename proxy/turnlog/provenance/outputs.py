"""The outputs of a session as they are indexed: which are tainted, and which are if their own input was."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from turnlog.core.commit import Facts
from turnlog.core.kinds import Flag, Gone, Phase, Status
from turnlog.core.pins import Provenance

from .values import LOOKED_AT, NOT_WHOLE, SessionValues, ValueSource, every_leaf

INPUT_CUT: Final = "its input may have had tainted values and was not looked at whole"
_CUT: Final = "it is not recorded whole"
_UNRECORDED: Final = "its content is not recorded"

_DOUBTFUL: Final = (
    Flag.NULL_RESULT,
    Flag.MALFORMED,
    Flag.NOT_JSON,
    Flag.ERROR_LIKE_TEXT,
    Flag.FORGED_OUTCOME,
)
"""Flags of an outcome whose output is a source."""


class RecordedOutput(Struct, frozen=True, gc=False):
    """The output of an attempt, as it is recorded."""

    source: ValueSource
    content: bytes
    """As far as it is looked at."""
    is_tainted: bool | None = False
    """`None`: it is tainted if `own_input` carries tainted values, which is looked up when it is indexed."""
    missing: str = ""
    """Why `content` lacks values that the agent was given; empty if it does not."""
    own_input: bytes = b""
    """The input of the same call, if its output is tainted or may be: what the output only repeats of it is
    not indexed."""
    is_input_cut: bool = False
    """Whether `own_input` is not the whole input."""


def doubts(facts: Facts) -> tuple[str, ...]:
    """Return why the output of an attempt is tainted in itself; empty for no reason."""
    found: list[str] = []
    if Flag.TAINT_MARKED in facts.flags:
        found.append("marked by a rule")
    # Of an answer that turnlog made, nothing came from the server.
    if facts.error and facts.bytes_out:
        found.append(f"error: {facts.error_kind or facts.error}")
    found += [flag.value for flag in _DOUBTFUL if flag in facts.flags]
    if facts.provenance == Provenance.MISMATCH:
        found.append("provenance: mismatch")
    return tuple(found)


def output_taint(facts: Facts, partial: str) -> bool | None:
    """Return whether an outcome says that its output is tainted; `None` if that depends on its input.

    `partial` is why values of the input were left out when it was looked up.
    """
    flags = facts.flags
    if flags and Flag.TAINT_ENDORSED in flags:
        return False
    # Most outcomes have nothing of this.
    may_be = flags or facts.error or facts.provenance == Provenance.MISMATCH
    if may_be and (Flag.TAINTED_OUT in flags or doubts(facts)):
        return True
    return None if facts.bytes_in > LOOKED_AT or partial in NOT_WHOLE else False


def indexing(values: SessionValues, output: RecordedOutput) -> Iterator[None]:
    """Return the steps in which an output is indexed."""
    if output.is_tainted is False:
        return values.adding(output.source, output.content)
    return _adding_tainted(values, output) if output.is_tainted else _deciding(values, output)


def _adding_tainted(values: SessionValues, output: RecordedOutput) -> Iterator[None]:
    if output.missing:
        values.miss(output.source, output.missing)
    return values.adding(output.source, output.content, tainted=True, own_input=output.own_input)


def _deciding(values: SessionValues, output: RecordedOutput) -> Iterator[None]:
    for found in values.carrying(every_leaf(output.own_input)):
        if found:
            yield from _adding_tainted(values, output)
            return
        yield
    if output.is_input_cut and values.has_tainted:
        values.miss(output.source, INPUT_CUT)
    yield from values.adding(output.source, output.content)


def missing_content(
    facts: Facts, *, is_recorded: bool, is_cut: bool = False, gone: Gone | None = None
) -> str:
    """Return why the recorded content of an outcome lacks something; empty if it does not.

    Purged content does not count: an operator removed it on purpose.
    """
    if gone is not None:
        return "" if gone is Gone.PURGED else f"its content is gone ({gone.value})"
    if is_recorded or facts.status is Status.REPLAYED:
        return _CUT if is_cut else ""
    # An answer that broke off may have had no content at all.
    had_content = facts.phase is Phase.DONE or Flag.TAINT_MARKED in facts.flags
    return _UNRECORDED if had_content and facts.bytes_out else ""
