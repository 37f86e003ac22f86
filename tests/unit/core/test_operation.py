"""`core.operation`: changes, and which calls may have made any."""

import pytest

from turnlog.core.kinds import ErrorKind, Executed, Status
from turnlog.core.operation import Operation, had_effect, tool_use


def test_every_attempt_uses_its_tool() -> None:
    assert tool_use("files", "write") == Operation(
        field="tools_used", op="called", key="files.write"
    )


@pytest.mark.parametrize(
    ("executed", "status", "kind", "had"),
    [
        (Executed.YES, Status.OK, "", True),
        (Executed.MAYBE, Status.UNKNOWN, ErrorKind.CONNECTION_LOST, True),
        (Executed.YES, Status.ERROR, ErrorKind.NULL_RESULT, True),
        (Executed.NO, Status.ERROR, ErrorKind.CONNECT_FAILED, False),
        (Executed.YES, Status.REPLAYED, "", False),
        (Executed.MAYBE, Status.ERROR, ErrorKind.TOOL_FAILED, False),
    ],
)
def test_unexecuted_replayed_and_failed_calls_have_no_effect(
    executed: Executed, status: Status, kind: str, had: bool
) -> None:
    assert had_effect(executed, status, kind) is had
