"""`docs/how-it-works.md` and the code agree: modules exist, and a call uses them in that order."""

import asyncio
import re
import sys
from pathlib import Path
from types import FrameType

import turnlog
from kit.clients import MCP_HEADERS, Client, call
from kit.proxy import here
from kit.upstreams import RawUpstream

PACKAGE = Path(turnlog.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "how-it-works.md").read_text("utf-8")
STEPS = re.findall(r"^\d+\. `([a-z_/]+\.py)`", PAGE, re.MULTILINE)


def test_every_module_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`((?!docs/)[a-z0-9_/]+/[a-z0-9_]+\.py)`", PAGE))
    assert len(named) > 40
    assert [name for name in sorted(named) if not (PACKAGE / name).is_file()] == []


async def test_a_call_goes_through_the_twelve_steps_in_order(tmp_path: Path) -> None:
    with RawUpstream() as upstream:
        async with here(tmp_path, upstream.url) as proxy:
            await asyncio.to_thread(make_calls, proxy.url, 5)  # warm
            entered: dict[str, None] = {}

            def note(frame: FrameType, event: str, _: object) -> None:
                if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
                    entered.setdefault(str(Path(frame.f_code.co_filename).relative_to(PACKAGE)))

            sys.setprofile(note)
            try:
                await asyncio.to_thread(make_calls, proxy.url, 1)
            finally:
                sys.setprofile(None)
    assert len(STEPS) == 12
    assert [name for name in entered if name in STEPS] == STEPS


def make_calls(url: str, count: int) -> None:
    with Client(url) as client:
        for _ in range(count):
            client.request("POST", "/mcp", call("read_one"), headers=MCP_HEADERS)
