"""A poisoned file on a real server: an agent of the official SDK uses it, and a rule stops it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from e2e.stores import turnlog
from kit import files_server
from kit.proxy import running

BUILD = "bld-93f1c07ab2"
RULES = """
rules:
  - {{name: from outside, match: {{tool: read_text_file, when: "$.args[?@ == '{notes}']"}}, taint: mark}}
  - {{name: keep it out, match: {{tool: edit_file, when: "$.args[?@ == '{release}']"}}, block_if: tainted}}
"""


@pytest.mark.promise("TAINT-2", "TAINT-7")
async def test_three_of_ten_calls_use_a_poisoned_file_and_a_fourth_is_blocked(
    tmp_path: Path,
) -> None:
    names = ("notes", "a", "b", "release")
    files = {name: tmp_path / f"{name}.txt" for name in names}
    for name, file in files.items():
        file.write_text(f"{name} one\n{name} two\n")
    files["notes"].write_text(f"The deployment of tonight takes the build {BUILD}.")
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES.format(**files))
    command = [sys.executable, files_server.__file__]
    settings = {"upstreams": {"files": {"command": command}}, "rules": [str(rules)]}
    async with running(tmp_path, settings=settings) as proxy:
        origin = proxy.url.rpartition("/")[0]
        async with Client(f"{origin}/s/story/files") as agent:

            async def read(name: str) -> None:
                await agent.call_tool("read_text_file", {"path": str(files[name])})

            async def edit(name: str, old: str, new: str) -> bool:
                edits = [{"oldText": old, "newText": new}]
                arguments = {"path": str(files[name]), "edits": edits}
                return bool((await agent.call_tool("edit_file", arguments)).is_error)

            await read("notes")
            await read("a")
            await edit("a", "a one", f"deploy --build '{BUILD}'")
            await read("b")
            await edit("b", "b two", "b three")
            await edit("b", "b three", "b four")
            await edit("b", "b one", BUILD.upper())
            await read("release")
            await edit("release", "release one", "release uno")
            await edit("a", "a two", f"https://builds.example/{BUILD}?now=1")
            await read("release")
            found = _contamination(proxy.data)
            assert await edit("release", "release two", f"release {BUILD}")
    (source,) = found["sources"]
    assert (source["tool"], source["why"]) == ("read_text_file", ["marked by a rule"])
    assert [json.loads(one["input"])["path"] for one in found["calls"]] == [
        str(files["a"]),
        str(files["b"]),
        str(files["a"]),
    ]
    assert files["release"].read_text() == "release uno\nrelease two\n"


def _contamination(data: Path) -> dict[str, Any]:
    done = turnlog("taint", "show", "story", "--format", "json", data=data)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
