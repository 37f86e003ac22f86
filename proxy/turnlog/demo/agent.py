"""The agent of the demo: makes calls with the official MCP client and prints what it sees.

Run as `python -m turnlog.demo.agent URL`; needs the extra `turnlog[demo]`. It reads calls from
stdin, one JSON object per line, and ends the output of each with an empty line.
"""

import asyncio
import sys
from collections.abc import Callable

import msgspec
from mcp import Client
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import CallToolResult, TextContent

from turnlog.client import ErrorFamily, Executed, Outcome, Retry, outcome_of

from .scenes import RELIST, ScriptedCall

_decode = msgspec.json.Decoder(ScriptedCall).decode


async def main(url: str) -> None:
    """Make the calls from stdin on one connection."""
    async with Client(url) as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            await _make(client, _decode(line))
            _print("")


async def _make(client: Client, call: ScriptedCall) -> None:
    if call.tool == RELIST:
        listed = await client.list_tools(cache_mode="refresh")
        _print(f"{len(listed.tools)} tools")
        return
    steps: list[str] = []
    result = await client.call_tool(
        call.tool, call.arguments, progress_callback=_progress_to(steps.append)
    )
    if steps:
        _print(f"progress {' '.join(steps)}")
    _print(seen(result))


def _progress_to(note: Callable[[str], None]) -> ProgressFnT:
    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        note(f"{progress:.0f}/{total or 0:.0f}")

    return on_progress


def seen(result: CallToolResult) -> str:
    """Return which case of `match` a result is, and what an agent may do next."""
    match outcome_of(result):
        case None:
            said = "error" if result.is_error else "answer"
            return f"case None: the server's own {said}, {_text(result)!r}"
        case Outcome(error=ErrorFamily.NULL_RESULT, kind=kind):
            return f"case Outcome(error=NULL_RESULT): nothing came, do not build on it ({kind})"
        case Outcome(executed=Executed.NO, kind=kind):
            return f"case Outcome(executed=NO): it never ran, may be made again ({kind})"
        case Outcome(retry=Retry.SAFE, kind=kind):
            return f"case Outcome(retry=SAFE): it only reads, may be made again ({kind})"
        case Outcome(executed=Executed.MAYBE, kind=kind):
            return f"case Outcome(executed=MAYBE): may have happened, look first ({kind})"
        case outcome:
            return f"case Outcome(): not again ({outcome.kind})"


def _text(result: CallToolResult) -> str:
    return " ".join(block.text for block in result.content if isinstance(block, TextContent))


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
