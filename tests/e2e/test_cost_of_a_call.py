"""How many functions and modules of turnlog one recorded read enters.

A function more is paid by each call, and time cannot be measured in a test. The numbers only fall: who
lowers one writes it down here. The aim is 25 modules and 130 functions.
"""

import asyncio
import sys
from pathlib import Path
from types import FrameType

import turnlog
from kit.clients import MCP_HEADERS, Client, call
from kit.proxy import here, rows
from kit.upstreams import RawUpstream

PACKAGE = str(Path(turnlog.__file__).parent)
RULES = "rules: [{name: reads, match: {tool: read_one}, effect: read}]"
MODULES = 50
FUNCTIONS = 213
CALLS = 20
"""So many that what the last one leaves for later does not count."""


async def test_a_recorded_read_enters_no_more_functions_and_modules_than_before(
    tmp_path: Path,
) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    settings = {"rules": [str(tmp_path / "rules.yaml")]}
    with RawUpstream() as upstream:
        async with here(tmp_path, upstream.url, settings=settings) as proxy:
            with Client(proxy.url) as client:
                await asyncio.to_thread(make_calls, client, CALLS)  # warm
                entered: dict[str, int] = {}

                def note(frame: FrameType, event: str, _: object) -> None:
                    name = frame.f_code.co_filename
                    if event == "call" and name.startswith(PACKAGE):
                        entered[name] = entered.get(name, 0) + 1

                sys.setprofile(note)
                try:
                    await asyncio.to_thread(make_calls, client, CALLS)
                finally:
                    sys.setprofile(None)
    assert {row.effect for row in rows(proxy.data)} == {"read"}
    used = [name for name, count in entered.items() if count >= CALLS]
    assert len(used) <= MODULES, sorted(used)
    assert sum(entered.values()) // CALLS <= FUNCTIONS


def make_calls(client: Client, count: int) -> None:
    for number in range(count):
        client.request("POST", "/mcp", call("read_one", request_id=number), headers=MCP_HEADERS)
