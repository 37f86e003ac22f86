"""Which requests get rows in the log, and what kind of operation each row is about.

The call of a tool may change something, so rules, limits and answers of turnlog's own apply to it. The
other requests of MCP that are recorded only look something up: nothing is decided about them.
"""

from enum import StrEnum
from typing import Final


class RequestKind(StrEnum):
    """What was asked for, as the `operation` of a row says it."""

    TOOLS_CALL = "tools/call"
    RESOURCES_READ = "resources/read"
    PROMPTS_GET = "prompts/get"
    HTTP = "http"


_OF_MCP: Final = {
    kind.value: kind
    for kind in (
        RequestKind.TOOLS_CALL,
        RequestKind.RESOURCES_READ,
        RequestKind.PROMPTS_GET,
    )
}
LOOKUPS: Final = frozenset({"resources/read", "prompts/get"})
"""Methods of MCP that only look something up: they get rows, and are no calls of tools."""


def request_kind(method: str) -> RequestKind:
    """Return what a row with this method is about: every other method is that of an HTTP request."""
    return _OF_MCP.get(method, RequestKind.HTTP)


def is_mcp_method(method: str) -> bool:
    """Return whether a row with this method is about a request of MCP."""
    return method in _OF_MCP


def is_tool_call(method: str) -> bool:
    """Return whether a row with this method is about a call of a tool, over MCP or plain HTTP.

    Only calls count as uses of a tool, and only they can be refused.
    """
    return method not in LOOKUPS
