"""The rules that a case asks for: its tools name effects, its settings name limits and retries."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from conformance.cases.reports import Case

_TIMEOUTS: Final[Mapping[str, str]] = {
    "deadline_s": "total",
    "attempt_s": "response",
    "idle_s": "idle",
}
"""A case's word for a limit, and the rules'."""
_RETRIED: Final = ("connection", "timeout", "rate_limited", "tool_error")


def write_rules(case: Case, folder: Path) -> list[str]:
    """Write the case's rules below `folder`; return the files, none where it asks for nothing."""
    rules = list(_rules(case))
    if not rules:
        return []
    file = folder / "rules.yaml"
    # JSON is YAML.
    file.write_bytes(msgspec.json.encode({"rules": rules}))
    return [str(file)]


def _rules(case: Case) -> Iterator[dict[str, Any]]:
    for tool, effect in case.tools.items():
        match = {"path": f"/tools/{tool}"} if case.transport == "http-json" else {"tool": tool}
        yield {"name": f"what {tool} does", "match": match, "effect": effect}
    given = case.proxy_settings
    if limits := {_TIMEOUTS[word]: given[word] for word in _TIMEOUTS if word in given}:
        yield {"name": "how long calls may take", "timeout": limits}
    if again := given.get("retries", 0):
        retry = {"on": _RETRIED, "max_attempts": again + 1, "base_interval": "10ms"}
        yield {"name": "what is tried again", "retry": retry}
