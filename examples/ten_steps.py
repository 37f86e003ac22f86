"""A file task of ten steps that may be killed at any moment: python ten_steps.py URL JOURNAL.

Each step adds a line to the journal, through the reference filesystem server, and has an idempotency
key. Started again, also through another proxy to whose store the session was moved, the program just
makes all calls again. turnlog answers those that were made from the record. Of one that was cut off it
says that nobody knows its outcome; then the program looks.
"""

import asyncio
import sys
from typing import Any
from urllib.parse import urlsplit

try:
    from mcp import Client
except ImportError as error:
    sys.exit(f"{error}; install what this needs: pip install 'mcp>=2.3'")

from turnlog.client import Outcome, outcome_of

SESSION = "ten-steps"
END = "(end)"


async def add(files: Client, journal: str, step: int, key: str) -> Any:
    """Add the line of a step to the journal."""
    edit = {"oldText": END, "newText": f"step {step}\n{END}"}
    arguments = {"path": journal, "edits": [edit]}
    return await files.call_tool("edit_file", arguments, meta={"turnlog/key": key})


async def is_there(files: Client, journal: str, step: int) -> bool:
    """Return whether the journal has the line of a step."""
    result = await files.call_tool("read_text_file", {"path": journal})
    if result.is_error:
        sys.exit(f"cannot read {journal}: look before you go on")
    return f"step {step}" in result.content[0].text.splitlines()


async def take(files: Client, journal: str, step: int) -> str:
    """Take a step; return how that went."""
    result = await add(files, journal, step, f"step {step}")
    match outcome_of(result):
        case None:
            return "failed" if result.is_error else "done"
        case Outcome(status="replayed"):
            return "had failed" if result.is_error else "was done"
        case Outcome(kind="outcome_unknown"):
            if await is_there(files, journal, step):
                return "was done, as the journal says"
            result = await add(files, journal, step, f"step {step}, again")
            return "failed" if result.is_error else "done after all"
        case Outcome(kind=kind):
            return f"failed: {kind}"


async def main(url: str, journal: str) -> None:
    """Take ten steps."""
    parts = urlsplit(url)
    async with Client(f"{parts.scheme}://{parts.netloc}/s/{SESSION}{parts.path}") as files:
        for step in range(1, 11):
            print(f"step {step}: {await take(files, journal, step)}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python ten_steps.py URL JOURNAL, a file that ends in '(end)'")
    asyncio.run(main(sys.argv[1], sys.argv[2]))
