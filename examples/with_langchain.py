"""Call LangChain tools of an MCP server: python with_langchain.py URL."""

import asyncio
import sys

try:
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from langchain_mcp_adapters.interceptors import MCPToolCallRequest, MCPToolCallResult
    from mcp.types import CallToolResult, TextContent
except ImportError as error:
    sys.exit(f"{error}; install what this needs: pip install langchain-mcp-adapters")

from turnlog.client import Outcome, Retry, outcome_of


async def decide(request: MCPToolCallRequest, handler) -> MCPToolCallResult:
    """Call a tool; again where that is safe, and look first where nobody knows what happened."""
    for _ in range(3):
        result = await handler(request)
        match outcome_of(result):
            case None | Outcome(retry=None):
                return result
            case Outcome(retry=Retry.SAFE, kind=kind, retry_after=seconds):
                print(f"{request.name}: {kind}, again after {seconds} s")
                await asyncio.sleep(seconds or 0.1)
            case Outcome(retry=Retry.NEVER, kind=kind):
                return said(f"given up, {kind}")
            case Outcome(kind=kind):
                print(f"{request.name}: {kind}, so look first")
                return await decide(request.override(name="find_order"), handler)
    return said("given up after three times")


def said(text: str) -> CallToolResult:
    """Return a result for the model."""
    return CallToolResult(content=[TextContent(type="text", text=text)])


async def main(url: str) -> None:
    """Ask for a price, place an order, want the money back, as an agent's model would."""
    servers = {"shop": {"transport": "streamable_http", "url": url}}
    tools = await MultiServerMCPClient(servers, tool_interceptors=[decide]).get_tools()
    by_name = {tool.name: tool for tool in tools}
    for name in ("quote", "place_order", "refund"):
        ((block),) = await by_name[name].ainvoke({"order": 7})
        print(f"{name}: {block['text']}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(
            "usage: python with_langchain.py URL, as http://127.0.0.1:7411/mcp where turnlog listens"
        )
    asyncio.run(main(sys.argv[1]))
