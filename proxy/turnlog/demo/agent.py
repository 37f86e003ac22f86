"""Make a handful of tool calls with the official client and print what an agent sees of each.

Run as `python -m turnlog.demo.agent URL`. It needs the extra `turnlog[demo]`.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from mcp import Client
from mcp.types import CallToolResult, TextContent

from turnlog.client import Executed, outcome_of

_TEXT = "The log remembers what the transcript forgets"
_PAUSE = 0.7
_TRIES = 20

SCRIPT: list[tuple[str, dict[str, Any]]] = [
    ("write_note", {"name": "plan", "text": _TEXT}),
    ("read_note", {"name": "plan"}),
    ("count_words", {"text": _TEXT}),
    ("fail", {"reason": "the disk is full"}),
    ("crash_after_writing", {"name": "order", "text": "one pizza"}),
    ("read_note", {"name": "order"}),
]
"""The calls, in order. The last one tells what the crash left open: the order was placed."""


async def main(url: str, say: Callable[[str], None]) -> None:
    """Make every call of the script on one connection."""
    async with Client(url) as client:
        for tool, arguments in SCRIPT:
            shown = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
            say(f"  {tool}({shown})")
            await settle(client, tool, arguments, say)


async def settle(
    client: Client, tool: str, arguments: dict[str, Any], say: Callable[[str], None]
) -> None:
    """Make a call, again only if turnlog says that the tool did not run."""
    before = ""
    for _ in range(_TRIES):
        result = await client.call_tool(tool, arguments, progress_callback=teller(say))
        if (line := seen(result)) != before:
            say(f"    -> {line}")
        outcome = outcome_of(result)
        if outcome is None or outcome.executed is not Executed.NO:
            return
        before = line
        await asyncio.sleep(_PAUSE)


def teller(say: Callable[[str], None]) -> Callable[..., Any]:
    """Return a callback that says how far a call is."""

    async def note(progress: float, total: float | None, message: str | None) -> None:
        say(f"    .. {progress:.0f} of {total or 0:.0f}")

    return note


def seen(result: CallToolResult) -> str:
    """Return a result's text, and what turnlog says of the call if it had to answer itself."""
    text = " ".join(block.text for block in result.content if isinstance(block, TextContent))
    if not result.is_error:
        return repr(text)
    outcome = outcome_of(result)
    if outcome is None:
        return f"failed: {text}"
    told = ", ".join(f"{name}: {getattr(outcome, name)}" for name in _TOLD)
    return f"failed: {text} ({told})"


_TOLD = ("status", "kind", "executed", "retry")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], _print))
