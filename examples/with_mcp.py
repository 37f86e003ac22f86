"""Call tools with the official Python SDK: python with_mcp.py URL."""

import asyncio
import sys
from typing import Any

try:
    from mcp import Client
except ImportError as error:
    sys.exit(f"{error}; install what this needs: pip install 'mcp>=2.3'")

from turnlog.client import Outcome, Retry, outcome_of


async def call(client: Client, tool: str, arguments: dict[str, Any]) -> str:
    """Call a tool; again where that is safe, and look first where nobody knows what happened."""
    for _ in range(3):
        result = await client.call_tool(tool, arguments)
        match outcome_of(result):
            case None | Outcome(retry=None):
                return result.content[0].text
            case Outcome(retry=Retry.SAFE, kind=kind, retry_after=seconds):
                print(f"{tool}: {kind}, again after {seconds} s")
                await asyncio.sleep(seconds or 0.1)
            case Outcome(retry=Retry.NEVER, kind=kind):
                return f"given up, {kind}"
            case Outcome(kind=kind):
                print(f"{tool}: {kind}, so look first")
                return await call(client, "find_order", arguments)
    return "given up after three times"


async def main(url: str) -> None:
    """Ask for a price, place an order, want the money back."""
    async with Client(url) as client:
        for tool in ("quote", "place_order", "refund"):
            print(f"{tool}: {await call(client, tool, {'order': 7})}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(
            "usage: python with_mcp.py URL, as http://127.0.0.1:7411/mcp where turnlog listens"
        )
    asyncio.run(main(sys.argv[1]))
