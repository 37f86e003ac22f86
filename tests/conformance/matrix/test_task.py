"""A task on real files, with failures, an eviction and reasons: the log against the disk's truth."""

import asyncio
import json
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp import Client
from mcp.types import TextContent

from conformance.matrix import rig, scenes
from conformance.matrix.test_packs import tree

pytestmark = pytest.mark.matrix


async def call(client: Client, tool: str, why: str = "", **arguments: Any) -> None:
    meta: Any = {"turnlog/why": why} if why else None
    await client.call_tool(tool, arguments, meta=meta)


def note(url: str, data: Path, told: dict[str, Any], name: str) -> dict[str, Any]:
    """Write a note to the task's session over the API, under a name of its own."""
    parts = urlsplit(url)
    request = urllib.request.Request(
        f"{parts.scheme}://{parts.netloc}/turnlog/api/v1/sessions/task/notes?id={name}",
        json.dumps(told).encode(),
        {
            "Authorization": f"Bearer {(data / 'token').read_text().strip()}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=rig.READY) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


async def work(url: str, root: Path, data: Path) -> None:
    """Do the task: ten steps in two turns, three of which fail, one of them twice."""
    parts = urlsplit(url)
    mine = f"{parts.scheme}://{parts.netloc}/s/task{parts.path}"
    async with Client(mine) as client:
        await call(client, "read_text_file", path=f"{root}/a.txt")
        await call(client, "write_file", "a first draft", path=f"{root}/draft.txt", content="1")
        await call(client, "write_file", path="/etc/passwd", content="no")
        await call(client, "create_directory", path=f"{root}/kept")
        await asyncio.to_thread(note, url, data, {"kind": "turn", "name": "b"}, "t1")
        edit = [{"oldText": "one", "newText": "uno"}]
        await call(client, "edit_file", "in Italian", path=f"{root}/a.txt", edits=edit)
        await call(client, "edit_file", path=f"{root}/a.txt", edits=edit)
        await call(client, "write_file", path=f"{root}/draft.txt", content="2")
        move = {"source": f"{root}/draft.txt", "destination": f"{root}/kept/final.txt"}
        await call(client, "move_file", "it is done", **move)
        await call(client, "read_text_file", "it may be there by now", path=f"{root}/late.txt")
        await call(client, "read_text_file", path=f"{root}/kept/final.txt")
        (first, *_) = await asyncio.to_thread(rows, data)
        evicted = {"kind": "evict", "keys": [first["call"], "a summary"], "reason": "compaction"}
        given = [await asyncio.to_thread(note, url, data, evicted, "e1") for _ in range(2)]
        assert [one["known"] for one in given] == [False, True]


RULES = """
rules:
  - name: what is not there may come
    match: {tool: read_text_file}
    map_error: [{kind: upstream_unavailable, text: "^ENOENT: "}]
    retry: {on: [connection], max_attempts: 2, base_interval: 10ms}
"""


@contextmanager
def task(folder: Path) -> Generator[tuple[Path, str]]:
    """Run the filesystem server behind turnlog; yield its folder and its URL."""
    (folder / "retry.yaml").write_text(RULES)
    with (
        scenes.filesystem(folder) as scene,
        rig.turnlog(
            [scene.command], folder, packs=("filesystem",), rules=(folder / "retry.yaml",)
        ) as urls,
    ):
        yield scene.folder, urls[0]


async def recalled(url: str, key: str) -> str:
    """Ask turnlog itself for what a call once gave; return its text."""
    parts = urlsplit(url)
    async with Client(f"{parts.scheme}://{parts.netloc}/s/task/turnlog/mcp") as client:
        given = await client.call_tool("recall", {"key": key})
        assert not given.is_error, given.content
        (block,) = given.content
        assert isinstance(block, TextContent)
        return block.text


def rows(data: Path, *wanted: str) -> list[dict[str, Any]]:
    return rig.lines_of("log", "task", *wanted, "--last", "50", "--json", "--data", data)


def test_the_log_of_a_task_says_what_is_on_the_disk(tmp_path: Path) -> None:
    data = rig.data_of(tmp_path)
    with task(tmp_path) as (root, url):
        before = tree(root)
        asyncio.run(work(url, root, data))
        after = tree(root)
        (line,) = rig.lines_of("state", "task", "--json", "--data", data)
        state = line["state"]
        lost = {entry["retrievable"]: key for key, entry in state["evicted_keys"].items()}
        again = asyncio.run(recalled(url, lost[True]))
    files = {Path(path): change["op"] for path, change in state["files_modified"].items()}
    assert files == {
        root / "a.txt": "modified",
        root / "kept": "created",
        root / "kept" / "final.txt": "renamed",
    }
    assert set(files) == {path for path, _ in before.items() ^ after.items()}
    assert (line["at"]["turn"], line["at"]["turn_source"]) == (2, "explicit")
    used = state["tools_used"]
    assert sum(tool["calls"] for tool in used.values()) == 10
    assert used["up0.write_file"]["errors"] == {"auth": 1}
    assert used["up0.edit_file"]["errors"] == {"invalid": 1}
    read = used["up0.read_text_file"]
    assert (read["calls"], read["attempts"], read["errors"]) == (3, 4, {"connection": 2})
    # What the model lost comes back as it was then, not as the file is now.
    assert again.encode() == before[root / "a.txt"] != after[root / "a.txt"]
    (left,) = rig.lines_of("state", "task", "--field", "evicted_keys", "--json", "--data", data)
    assert list(left["state"]["evicted_keys"]) == [lost[False]] == ["a summary"]


def test_a_turn_of_a_task_is_told_with_its_reasons(tmp_path: Path) -> None:
    data = rig.data_of(tmp_path)
    with task(tmp_path) as (root, url):
        asyncio.run(work(url, root, data))
    changes = rig.lines_of("diff", "task", "1..2", "--json", "--data", data)
    told = {
        Path(change["key"]).name: [by["why"] for by in change["commits"]]
        for change in changes
        if change["field"] == "files_modified"
    }
    assert set(told) == {"a.txt", "draft.txt", "final.txt"}
    assert set(told["a.txt"]) == {"in Italian", ""}
    assert set(told["final.txt"]) == {"it is done"}
    changed = rows(data, "--turns", "-1..", "--field", "files_modified")
    assert [row["tool"] for row in changed] == ["edit_file", "write_file", "move_file"]
    # One question, one answer: the files of the last turns, by name.
    asked = rows(data, "--turns", "-5..", "--field", "files_modified", "--path", "*/draft.txt")
    assert [row["tool"] for row in asked] == ["write_file", "write_file", "move_file"]
    assert [row["turn"] for row in asked] == [1, 2, 2]
