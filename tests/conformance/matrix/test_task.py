"""A task on real files, with failures, an eviction and reasons: the log against the disk's truth."""

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp import Client

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
    """Do the task: ten steps in two turns, two of which fail."""
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
        await call(client, "list_directory", path=f"{root}")
        await call(client, "read_text_file", path=f"{root}/kept/final.txt")
        (first, *_) = await asyncio.to_thread(rows, data)
        evicted = {"kind": "evict", "keys": [first["call"], "a summary"], "reason": "compaction"}
        given = [await asyncio.to_thread(note, url, data, evicted, "e1") for _ in range(2)]
        assert [one["known"] for one in given] == [False, True]


def rows(data: Path, *wanted: str) -> list[dict[str, Any]]:
    return rig.lines_of("log", "task", *wanted, "--last", "50", "--json", "--data", data)


def test_the_log_of_a_task_says_what_is_on_the_disk(tmp_path: Path) -> None:
    data = rig.data_of(tmp_path)
    with (
        scenes.filesystem(tmp_path) as scene,
        rig.turnlog([scene.command], tmp_path, packs=("filesystem",)) as urls,
    ):
        before = tree(scene.folder)
        asyncio.run(work(urls[0], scene.folder, data))
        after = tree(scene.folder)
    root = scene.folder
    (line,) = rig.lines_of("state", "task", "--json", "--data", data)
    state = line["state"]
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
    assert [entry["retrievable"] for entry in state["evicted_keys"].values()] == [True, False]


def test_a_turn_of_a_task_is_told_with_its_reasons(tmp_path: Path) -> None:
    data = rig.data_of(tmp_path)
    with (
        scenes.filesystem(tmp_path) as scene,
        rig.turnlog([scene.command], tmp_path, packs=("filesystem",)) as urls,
    ):
        asyncio.run(work(urls[0], scene.folder, data))
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
