"""A call as rules see it, made of what a person says of one: `rules explain`, and examples."""

from collections.abc import Sequence
from typing import Any, Final

from turnlog.core.kinds import Effect
from turnlog.rules.http_tools import http_effect, http_tool
from turnlog.rules.model import Rule
from turnlog.rules.policy import Policy, Subject, tool_of_path

MCP: Final = "tools/call"
"""The method of an MCP tool's call; any other is that of a plain HTTP tool."""


def call_subject(rules: Sequence[Rule], server: str, tool: str, method: str, path: str) -> Subject:
    """Return a call as it would be recorded: a path names the tool of a plain HTTP call."""
    if path:
        tool = tool_of_path(rules, server, method, path) or http_tool(method, path)
    return Subject(server=server, tool=tool, method=method, path=path)


def call_arguments(method: str, path: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return a call's input, as `{args}` of expressions has it."""
    return given if method == MCP else {"path": path, "query": "", "body": None, **given}


def effect_in_force(policy: Policy, call: Subject) -> Effect:
    """Return the effect in force: as a rule names it, else as the HTTP method suggests."""
    unnamed = Effect.UNKNOWN if call.method == MCP else http_effect(call.method)
    return policy.effect or unnamed
