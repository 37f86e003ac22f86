"""Call every tool of the feature server with the last 1.x Python SDK and print what came back.

Arguments: the URL that answers with event streams and the URL that answers with JSON; in place of
a URL may stand a stdio server's command, as a JSON array; a URL that ends with `/sse` speaks the old
HTTP+SSE transport. One JSON object is printed: scenario -> what the agent saw. The type checkers see
the 2.x SDK, so this file, which runs in an environment of its own, is checked without the SDK's types:
"""
# mypy: disable-error-code="attr-defined, call-arg, no-any-return, arg-type, misc, operator"
# pyright: reportAttributeAccessIssue=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportCallIssue=false, reportAssignmentType=false
# pyright: reportUnknownParameterType=false, reportArgumentType=false

import asyncio
import hashlib
import json
import os
import sys
from contextlib import AsyncExitStack
from typing import Any

from mcp import ClientSession, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

VALUE = {"text": "zürich \U0001f600", "half": 0.5, "large": 2**53 - 1, "list": [1, None, True]}
BIG = 10_000_000
"""Less than the longest line that the TypeScript clients read from a pipe."""


async def elicit(context: Any, params: Any) -> types.ElicitResult:
    """Answer an elicitation."""
    return types.ElicitResult(action="accept", content={"name": f"Ada, asked {params.message!r}"})


async def sample(context: Any, params: Any) -> types.CreateMessageResult:
    """Answer as a model would."""
    text = types.TextContent(type="text", text=f"a line within {params.maxTokens} tokens")
    return types.CreateMessageResult(role="assistant", content=text, model="scripted")


def seen(result: Any) -> dict[str, Any]:
    """Return what is worth comparing of a result; long texts as a digest."""
    text = "".join(block.text for block in result.content)
    digest = f"{len(text)} {hashlib.sha256(text.encode()).hexdigest()}"
    return {"error": result.isError, "text": text if len(text) < 1000 else digest}


async def count(session: ClientSession) -> dict[str, Any]:
    """Collect the progress of one call."""
    steps: list[list[Any]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        steps.append([progress, total, message])

    result = await session.call_tool("count", {"to": 5}, progress_callback=note)
    return {"progress": steps, **seen(result)}


async def cancel(session: ClientSession) -> dict[str, Any]:
    """Cancel a call once its tool has begun, then ask whether the tool stopped."""
    began = asyncio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        began.set()

    # The 1.x session numbers its requests from 0 and tells nobody: this is the next one.
    number = session._request_id
    call = asyncio.ensure_future(
        session.call_tool("hang", {"mark": "cancel"}, progress_callback=note)
    )
    await began.wait()
    params = types.CancelledNotificationParams(requestId=number, reason="enough")
    await session.send_notification(
        types.ClientNotification(types.CancelledNotification(params=params))
    )
    answer = await session.call_tool("stopped", {"mark": "cancel"})
    call.cancel()
    ended = (await asyncio.gather(call, return_exceptions=True))[0]
    return {"call": f"{type(ended).__name__}: {ended}", **seen(answer)}


async def session_to(stack: AsyncExitStack, url: str) -> ClientSession:
    """Open a session that can answer elicitations and sampling."""
    if url.startswith("["):
        command, *arguments = json.loads(url)
        server = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
        read, write = await stack.enter_async_context(stdio_client(server))
    elif url.endswith("/sse"):
        read, write = await stack.enter_async_context(sse_client(url))
    else:
        read, write, _ = await stack.enter_async_context(streamable_http_client(url))
    session = await stack.enter_async_context(
        ClientSession(read, write, sampling_callback=sample, elicitation_callback=elicit)
    )
    await session.initialize()
    return session


async def main(stream: str, whole: str) -> None:
    """Run every scenario and print what was seen."""
    found: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        session = await session_to(stack, stream)
        other = await session_to(stack, whole)
        tools = await session.list_tools()
        found["tools"] = sorted(tool.name for tool in tools.tools)
        found["elicitation"] = seen(await session.call_tool("greet", {}))
        found["sampling"] = seen(await session.call_tool("draft", {"topic": "tides"}))
        found["progress"] = await count(session)
        found["value"] = seen(await session.call_tool("echo", {"value": VALUE}))
        found["failure"] = seen(await session.call_tool("fail", {"reason": "no luck"}))
        found["10 MB"] = seen(await other.call_tool("big", {"size": BIG}))
        found["cancel"] = await cancel(session)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
