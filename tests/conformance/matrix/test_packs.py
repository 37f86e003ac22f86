"""Call the official reference servers, and hold what their packs say against what really happens."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp import Client

from conformance.matrix import rig, scenes
from conformance.matrix.scenes import Call, Scene
from turnlog.core.expression import Seen, select
from turnlog.core.policy import Policy, Subject, decide
from turnlog.core.rules import Expects, RuleFile, finds
from turnlog.packs.find import find_pack, packs_folder
from turnlog.packs.load import load

pytestmark = pytest.mark.matrix

Tree = dict[Path, bytes | None]
"""Each path below a folder, with the content of files."""
Setting = Callable[[Path], AbstractContextManager[Scene]]
SETTINGS: dict[str, tuple[str, Setting]] = {
    "filesystem": ("filesystem", scenes.filesystem),
    "memory": ("memory", scenes.memory),
    "git": ("git", scenes.git),
    "fetch": ("fetch", scenes.fetch),
    "fetch, no robots.txt": ("fetch", scenes.fetch_unasked),
    "fetch, public": ("fetch", scenes.fetch_public),
    "time": ("time", scenes.time),
}
EFFECTS = {
    "filesystem": {
        "write_file": "idempotent_write",
        "create_directory": "idempotent_write",
        "edit_file": "write",
        "move_file": "write",
    },
    "memory": {
        f"{verb}_{noun}": "idempotent_write"
        for verb, noun in [
            *(("create", "entities"), ("create", "relations"), ("add", "observations")),
            *(("delete", "entities"), ("delete", "relations"), ("delete", "observations")),
        ]
    },
    "git": {
        "git_add": "idempotent_write",
        "git_reset": "idempotent_write",
        "git_commit": "write",
        "git_create_branch": "write",
        "git_checkout": "write",
    },
    "fetch": {},
    "time": {},
}
"""The effects of tools that change something; all others read."""


class Played(msgspec.Struct, frozen=True):
    """A call, its result, and the folder before and after it."""

    call: Call
    result: dict[str, Any]
    before: Tree
    after: Tree


class Change(msgspec.Struct, frozen=True):
    """What a pack says that a call did."""

    op: str
    key: Path
    to: Path


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_pack_says_of_its_server_what_is_so(setting: str, tmp_path: Path) -> None:
    pack, make = SETTINGS[setting]
    with (
        make(tmp_path) as scene,
        rig.bridged(scene.command, tmp_path, **scene.variables) as upstream,
        rig.turnlog([upstream], tmp_path, packs=(pack,)) as urls,
    ):
        tools, played = asyncio.run(play(urls[0], scene))
    assert {call.tool for call in scene.calls} == tools, "each tool has to be called"
    # The last attempt of each call.
    rows = {row["call"]: row for row in rig.recorded(tmp_path)}.values()
    for each, row in zip(played, rows, strict=True):
        assert (row["tool"], row["effect"]) == (each.call.tool, effect_of(pack, each.call))
        policy = policy_for(pack, each.call)
        kind, null = ending(policy, each)
        assert (kind, null) == (each.call.kind, each.call.null), each
        told = [] if kind else changes(policy, each)
        assert_so(pack, told, each)


async def play(url: str, scene: Scene) -> tuple[set[str], list[Played]]:
    """Make every call; the names of all tools, and what happened."""
    played: list[Played] = []
    async with Client(url) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        before = tree(scene.folder)
        for call in scene.calls:
            result = await client.call_tool(call.tool, call.arguments)
            after = tree(scene.folder)
            shown = result.model_dump(mode="json", by_alias=True, exclude_none=True)
            played.append(Played(call, shown, before, after))
            before = after
    return tools, played


def tree(folder: Path) -> Tree:
    """Read all files below a folder but those of git itself."""
    return {
        path: path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if ".git" not in path.parts
    }


def policy_for(pack: str, call: Call) -> Policy:
    """Return what the pack comes to for a call."""
    rules = load(find_pack(pack, packs_folder()), RuleFile).rules
    subject = Subject(server="server", tool=call.tool, method="tools/call")
    return decide(rules, subject, lambda: call.arguments)


def effect_of(pack: str, call: Call) -> str:
    """Return the effect that a call has."""
    return "read" if call.arguments.get("dryRun") else EFFECTS[pack].get(call.tool, "read")


def seen(each: Played) -> Seen:
    """Return what the expressions of rules look at."""
    return Seen(args=each.call.arguments, result=each.result, status=200)


def ending(policy: Policy, each: Played) -> tuple[str, bool]:
    """Return the kind of error by the pack, and whether the result is null by it."""
    text = "".join(block.get("text", "") for block in each.result["content"])
    for entry in policy.map_error:
        fits = all(select(wanted, seen(each)) for wanted in entry.when)
        if fits and finds(entry.text, text):
            return entry.kind, False
    if each.result["isError"]:
        return "tool_failed", False
    said = text.strip() or "structuredContent" in each.result
    found = any(select(wanted, seen(each)) for wanted in policy.null_when)
    return "", found or not (said or policy.expects is Expects.NOTHING)


def changes(policy: Policy, each: Played) -> list[Change]:
    """Return what a call did by the pack."""
    found: list[Change] = []
    for extractor in policy.delta:
        if all(select(wanted, seen(each)) for wanted in extractor.when):
            (key,) = select(extractor.key, seen(each))
            (to,) = select(extractor.to, seen(each)) if extractor.to else (key,)
            found.append(Change(extractor.op, Path(str(key)), Path(str(to))))
    return found


def assert_so(pack: str, told: list[Change], each: Played) -> None:
    """Hold what a pack says that a call did against what happened to the folder."""
    if pack == "memory":
        assert not told
        return
    changed = {path for path, _ in each.before.items() ^ each.after.items()}
    for change in told:
        assert is_so(change, changed, each), f"{change} did not happen: {each.call}"
    unsaid = {path for path in changed if not any(covers(change, path) for change in told)}
    assert not unsaid, f"not said of {each.call}: {unsaid}"


def is_so(change: Change, changed: set[Path], each: Played) -> bool:
    """Tell whether something happened."""
    match change.op:
        case "created":
            return change.key in each.after and change.key not in each.before
        case "renamed":
            return (
                change.key not in each.after
                and change.to not in each.before
                and each.after[change.to] == each.before[change.key]
            )
        case _:
            gone = change.key in each.before and change.key not in each.after
            return not gone and any(path.is_relative_to(change.key) for path in changed)


def covers(change: Change, path: Path) -> bool:
    """Tell whether a change of a path is part of what was said: below it, or a folder above."""
    return (
        path.is_relative_to(change.key)
        or path.is_relative_to(change.to)
        or (change.op == "created" and change.key.is_relative_to(path))
    )
