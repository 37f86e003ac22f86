"""Make the calls that stdin names, with the official client, and say what an agent sees of each.

Run as `python -m turnlog.demo.agent URL`. It needs the extra `turnlog[demo]`. A line of stdin is a
call as JSON; an empty line of stdout ends what is said of it.
"""

import asyncio
import sys
from collections.abc import Callable

import msgspec
from mcp import Client
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import CallToolResult, TextContent

from turnlog.client import ErrorFamily, Executed, Outcome, RetryClass, outcome_of

from .scenes import RELIST, Call

_decode = msgspec.json.Decoder(Call).decode


async def main(url: str) -> None:
    """Make every call on one connection."""
    async with Client(url) as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            await _make(client, _decode(line))
            _say("")


async def _make(client: Client, call: Call) -> None:
    if call.tool == RELIST:
        listed = await client.list_tools(cache_mode="refresh")
        _say(f"{len(listed.tools)} tools")
        return
    steps: list[str] = []
    result = await client.call_tool(
        call.tool, call.arguments, progress_callback=_noting(steps.append)
    )
    if steps:
        _say(f"progress {' '.join(steps)}")
    _say(seen(result))


def _noting(note: Callable[[str], None]) -> ProgressFnT:
    async def noted(progress: float, total: float | None, message: str | None) -> None:
        note(f"{progress:.0f}/{total or 0:.0f}")

    return noted


def seen(result: CallToolResult) -> str:
    """Return which case a result is to an agent, and what the agent may do."""
    match outcome_of(result):
        case None:
            said = "error" if result.is_error else "answer"
            return f"case None: the server's own {said}, {_text(result)!r}"
        case Outcome(error=ErrorFamily.NULL_RESULT, kind=kind):
            return f"case Outcome(error=NULL_RESULT): nothing came, do not build on it ({kind})"
        case Outcome(executed=Executed.NO, kind=kind):
            return f"case Outcome(executed=NO): it never ran, may be made again ({kind})"
        case Outcome(retry=RetryClass.SAFE, kind=kind):
            return f"case Outcome(retry=SAFE): it only reads, may be made again ({kind})"
        case Outcome(executed=Executed.MAYBE, kind=kind):
            return f"case Outcome(executed=MAYBE): may have happened, look first ({kind})"
        case outcome:
            return f"case Outcome(): not again ({outcome.kind})"


def _text(result: CallToolResult) -> str:
    return " ".join(block.text for block in result.content if isinstance(block, TextContent))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
