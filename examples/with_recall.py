"""The model knows what it lost: python with_recall.py URL.

The agent's context has room for two results. What it evicts, it notes, with the reason. Asked later
about an order that it no longer sees, it finds out what it lost, and gets that back from the log,
without calling the tool again.
"""

import asyncio
import sys
from typing import Any
from urllib.parse import urlsplit

try:
    from mcp import Client
except ImportError as error:
    sys.exit(f"{error}; install what this needs: pip install 'mcp>=2.3'")

ROOM = 2
SESSION = "orders"


async def ask(own: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Use one of the agent's own tools."""
    result = await own.call_tool(tool, arguments)
    if result.is_error:
        raise RuntimeError(result.content[0].text)
    return result.structured_content


async def look_up(tools: Client, own: Client, seen: dict[str, str], order: int) -> None:
    """Call a tool; the context keeps its result under the call's id, and drops the oldest one."""
    result = await tools.call_tool("find_order", {"order": order})
    (row,) = (await ask(own, "log", limit=1))["items"]
    seen[row["call"]] = result.content[0].text
    print(f"sees: {', '.join(seen.values())}")
    if len(seen) > ROOM:
        key = next(iter(seen))
        await ask(own, "note", note={"kind": "evict", "keys": [key], "reason": "budget"})
        print(f"evicts: {seen.pop(key)}")


async def remember(own: Client, seen: dict[str, str]) -> None:
    """Find out what was lost, and get it back."""
    lost = (await ask(own, "state", field="evicted_keys"))["state"]["evicted_keys"]
    for key, evicted in lost.items():
        found = await ask(own, "recall", key=key)
        seen[key] = found["text"]
        print(f"lost to its {evicted['reason']}: what {found['tool']} said; it was: {seen[key]}")


async def main(url: str) -> None:
    """Look up three orders with room for two, then say what became of the first."""
    parts = urlsplit(url)
    session, seen = f"{parts.scheme}://{parts.netloc}/s/{SESSION}", dict[str, str]()
    async with Client(session + parts.path) as tools, Client(f"{session}/turnlog/mcp") as own:
        for order in (7, 8, 9):
            await look_up(tools, own, seen, order)
        await remember(own, seen)
        left = (await ask(own, "state", field="evicted_keys"))["state"]["evicted_keys"]
        used = (await ask(own, "state", field="tools_used"))["state"]["tools_used"]
        print(f"still lost: {len(left)}; calls: {[use['calls'] for use in used.values()]}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(
            "usage: python with_recall.py URL, as http://127.0.0.1:7411/mcp where turnlog listens"
        )
    asyncio.run(main(sys.argv[1]))
