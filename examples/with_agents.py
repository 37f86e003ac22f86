"""Run an agent of the OpenAI Agents SDK, whose model is a script: python with_agents.py URL."""

import asyncio
import json
import logging
import sys

try:
    from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
    from agents.mcp import MCPServerStreamableHttp, MCPToolCustomDataContext
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )
except ImportError as error:
    sys.exit(f"{error}; install what this needs: pip install openai-agents 'mcp>=2.3'")

from turnlog.client import Outcome, Retry, outcome_of


def advice(said: object) -> str:
    """Say what turnlog knows of a call."""
    match outcome_of(said):
        case None | Outcome(retry=None):
            return "the server's own answer"
        case Outcome(retry=Retry.SAFE, kind=kind, retry_after=seconds):
            return f"{kind}, again after {seconds} s"
        case Outcome(retry=Retry.NEVER, kind=kind):
            return f"given up, {kind}"
        case Outcome(kind=kind):
            return f"{kind}, so look first"


def keep(context: MCPToolCustomDataContext) -> dict[str, str]:
    """Keep the advice beside a tool's output, where the model does not see it."""
    return {"advice": advice(context.result_meta)}


def failed(context: object, error: Exception) -> str:
    """Hand the advice to the model where a call raised."""
    return advice(error)


class Script(Model):
    """A model that calls each tool once, then says that it is done."""

    calls = ("quote", "quote", "place_order", "find_order", "cancel_order", "refund")

    async def get_response(self, *args: object, **kwargs: object) -> ModelResponse:
        """Return the next call."""
        if not self.calls:
            text = ResponseOutputText(text="done", type="output_text", annotations=[])
            item = ResponseOutputMessage(
                id="m", type="message", role="assistant", status="completed", content=[text]
            )
        else:
            name, self.calls = self.calls[0], self.calls[1:]
            item = ResponseFunctionToolCall(
                type="function_call",
                name=name,
                arguments=json.dumps({"order": 7}),
                call_id=f"call-{len(self.calls)}",
            )
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *args: object, **kwargs: object) -> None:
        """Refuse: nobody asks for it here."""
        raise NotImplementedError


async def main(url: str) -> None:
    """Run the agent; print what is kept of each call."""
    set_tracing_disabled(True)
    # The SDK warns on stderr of each call that is raised; what is raised is printed below.
    logging.getLogger("openai.agents").setLevel(logging.ERROR)
    async with MCPServerStreamableHttp({"url": url}, custom_data_extractor=keep) as shop:
        agent = Agent(
            name="buyer",
            model=Script(),
            mcp_servers=[shop],
            mcp_config={"failure_error_function": failed},
        )
        run = await Runner.run(agent, "buy it")
    names = {}
    for item in run.new_items:
        if item.type == "tool_call_item":
            names[item.raw_item.call_id] = item.raw_item.name
        if item.type == "tool_call_output_item":
            told = item.custom_data["advice"] if item.custom_data else f"raised: {item.output}"
            print(f"{names[item.raw_item['call_id']]}: {told}")
    print(run.final_output)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(
            "usage: python with_agents.py URL, as http://127.0.0.1:7411/mcp where turnlog listens"
        )
    asyncio.run(main(sys.argv[1]))
