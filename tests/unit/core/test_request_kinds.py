"""The requests that get rows, and the operations of these rows."""

import pytest

from turnlog.core.kinds import MCP_METHODS, RequestKind, is_tool_call, request_kind

ROWS = [
    ("tools/call", RequestKind.TOOLS_CALL, True, True),
    ("resources/read", RequestKind.RESOURCES_READ, True, False),
    ("prompts/get", RequestKind.PROMPTS_GET, True, False),
    ("GET", RequestKind.HTTP, False, True),
    ("PROPFIND", RequestKind.HTTP, False, True),
]


@pytest.mark.parametrize(("method", "operation", "of_mcp", "call"), ROWS)
def test_the_kind_of_a_request_follows_from_its_method(
    method: str, operation: RequestKind, of_mcp: bool, call: bool
) -> None:
    assert (request_kind(method), method in MCP_METHODS, is_tool_call(method)) == (
        operation,
        of_mcp,
        call,
    )
