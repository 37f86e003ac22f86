"""Operations: the changes that a call made, as recorded in the log."""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from .kinds import Effect, ErrorKind, Executed, Status

TOOLS_USED: Final = "tools_used"
LEDGER_EFFECTS: Final = frozenset({Effect.WRITE, Effect.IRREVERSIBLE})
"""Named effects that other branches of a session do not have again without a word. A second idempotent
write does no harm, and its recorded answer could be out of date."""


class ChangedField(StrEnum):
    """The fields of session state that a tool's call may change."""

    FILES_MODIFIED = "files_modified"


class OperationType(StrEnum):
    """The type of a change."""

    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"
    RENAMED = "renamed"


class Evidence(StrEnum):
    """The source that an operation is known from."""

    DECLARED = "declared"
    """The arguments ask for it."""
    OBSERVED = "observed"
    """The result reports it."""


class Operation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change: `op` on `key` in a field of the state."""

    # Plain strings, so that this version can read what a newer one wrote.

    field: str
    op: str
    key: str
    to: str = ""
    """The new name after a rename."""
    evidence: str = ""
    """An `Evidence`; empty if the commit itself is the evidence."""
    maybe: bool = False
    """Whether it is unknown if it happened."""


def had_effect(executed: Executed, status: Status, kind: str) -> bool:
    """Return whether a call with this ending may have had an effect."""
    if executed is Executed.NO or status is Status.REPLAYED:
        return False
    return kind != ErrorKind.TOOL_FAILED


def tool_use(server: str, tool: str) -> Operation:
    """Return the use of a tool as an operation; it is derived from an attempt's header."""
    return Operation(field=TOOLS_USED, op="called", key=f"{server}.{tool}")
