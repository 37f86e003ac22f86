"""One change that a call made, as it stands in the log and in a row."""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from .kinds import ErrorKind, Executed, Status

TOOLS_USED: Final = "tools_used"


class ChangedField(StrEnum):
    """The fields of session state that a tool's call may change (semantics, section 7)."""

    FILES_MODIFIED = "files_modified"


class OperationType(StrEnum):
    """What a call does to what a key names."""

    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"
    RENAMED = "renamed"


class Evidence(StrEnum):
    """What an operation is known by."""

    DECLARED = "declared"
    """The arguments: the call was to do it."""
    OBSERVED = "observed"
    """The result: the tool says that it did."""


class Operation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change: `op` to what `key` names in a field of the state.

    Words are strings on disk, so that this version reads what a newer one wrote.
    """

    field: str
    op: str
    key: str
    to: str = ""
    """The new name of what was renamed."""
    evidence: str = ""
    """See `Evidence`; empty where the record itself is the evidence."""
    maybe: bool = False
    """Whether nobody knows if it happened."""


def had_effect(executed: Executed, status: Status, kind: str) -> bool:
    """Tell whether a call that ended so may have had an effect of its own (semantics, section 7)."""
    if executed is Executed.NO or status is Status.REPLAYED:
        return False
    return kind != ErrorKind.TOOL_FAILED


def tool_use(server: str, tool: str) -> Operation:
    """Return the operation that every attempt is: it stands in its header, and nowhere else."""
    return Operation(field=TOOLS_USED, op="called", key=f"{server}.{tool}")
