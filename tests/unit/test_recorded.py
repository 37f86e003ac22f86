"""Which requests get rows, and what those rows are about."""

import pytest

from turnlog.core.recorded import OperationKind, is_call, is_of_mcp, operation_of

ROWS = [
    ("tools/call", OperationKind.TOOLS_CALL, True, True),
    ("resources/read", OperationKind.RESOURCES_READ, True, False),
    ("prompts/get", OperationKind.PROMPTS_GET, True, False),
    ("GET", OperationKind.HTTP, False, True),
    ("PROPFIND", OperationKind.HTTP, False, True),
]


@pytest.mark.parametrize(("method", "operation", "of_mcp", "call"), ROWS)
def test_the_operation_of_a_row_follows_from_its_method(
    method: str, operation: OperationKind, of_mcp: bool, call: bool
) -> None:
    assert (operation_of(method), is_of_mcp(method), is_call(method)) == (operation, of_mcp, call)
