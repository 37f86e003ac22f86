"""Call the official reference servers, and hold what their packs say against what really happens."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance.matrix import rig, scenes
from conformance.matrix.callers import CALLERS, Asked, Caller, Target
from conformance.matrix.scenes import Call, Scene

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
    """A call, the folder before and after it, and whether the client saw it fail."""

    call: Call
    before: Tree
    after: Tree
    failed: bool


class Change(msgspec.Struct, frozen=True):
    """What a pack says that a call did."""

    op: str
    key: Path
    to: Path


@pytest.mark.promise("RULE-34")
@pytest.mark.parametrize("client", CALLERS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_pack_says_of_its_server_what_is_so(setting: str, client: str, tmp_path: Path) -> None:
    pack, make = SETTINGS[setting]
    with (
        make(tmp_path) as scene,
        rig.turnlog([scene.command], tmp_path, packs=(pack,), variables=scene.variables) as urls,
    ):
        tools, played = asyncio.run(play(CALLERS[client], urls[0], scene))
    assert_what_is_told(pack, scene, tools, played, tmp_path)


@pytest.mark.parametrize("client", CALLERS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_pack_says_the_same_of_its_server_wrapped(
    setting: str, client: str, tmp_path: Path
) -> None:
    pack, make = SETTINGS[setting]
    with make(tmp_path) as scene:
        command = rig.wrapped(scene.command, tmp_path, "--rules", pack)
        tools, played = asyncio.run(play(CALLERS[client], command, scene))
    assert_what_is_told(pack, scene, tools, played, tmp_path)


def assert_what_is_told(
    pack: str, scene: Scene, tools: set[str], played: list[Played], folder: Path
) -> None:
    """Hold what the log says of each call against what happened."""
    assert {call.tool for call in scene.calls} == tools, "each tool has to be called"
    # The last attempt of each call.
    rows = {row["call"]: row for row in rig.recorded(folder)}.values()
    for each, row in zip(played, rows, strict=True):
        call = each.call
        assert (row["tool"], row["effect"]) == (call.tool, effect_of(pack, call))
        assert (row["kind"] or "", "null_result" in row["flags"]) == (call.kind, call.null), call
        assert (row["status"] == "error", each.failed) == (bool(call.kind),) * 2, call
        assert_so(pack, changes(row), each)


@pytest.mark.promise("RULE-34")
@pytest.mark.parametrize("pack", ["filesystem", "git"])
def test_the_state_names_the_files_that_are_on_the_disk(pack: str, tmp_path: Path) -> None:
    make = SETTINGS[pack][1]
    with (
        make(tmp_path) as scene,
        rig.turnlog([scene.command], tmp_path, packs=(pack,), variables=scene.variables) as urls,
    ):
        before = tree(scene.folder)
        asyncio.run(play(CALLERS["python"], urls[0], scene))
        after = tree(scene.folder)
    (session,) = rig.lines_of("sessions", "--json", "--data", rig.data_of(tmp_path))
    data = ("--json", "--data", rig.data_of(tmp_path))
    (line,) = rig.lines_of("state", session["session"], "--field", "files_modified", *data)
    files = {Path(path): change for path, change in line["state"]["files_modified"].items()}
    assert files
    assert not any(change.get("maybe") for change in files.values())
    for path, change in files.items():
        assert path.exists() is (change["op"] != "deleted"), (path, change)
    gone = {Path(change["origin"]) for change in files.values() if "origin" in change}
    for path in {path for path, _ in before.items() ^ after.items()} - gone:
        named = any(path.is_relative_to(file) or file.is_relative_to(path) for file in files)
        assert named, f"changed and not in the state: {path}"


async def play(caller: Caller, target: Target, scene: Scene) -> tuple[set[str], list[Played]]:
    """Make every call; the names of all tools, and what happened."""
    played: list[Played] = []
    async with caller(target, scene.variables) as session:
        before = tree(scene.folder)
        for call in scene.calls:
            seen = await session.call(Asked(call.tool, call.arguments))
            after = tree(scene.folder)
            played.append(Played(call, before, after, seen.failed))
            before = after
    return {*session.tools}, played


def tree(folder: Path) -> Tree:
    """Read all files below a folder but those of git itself."""
    return {
        path: path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if ".git" not in path.parts
    }


def effect_of(pack: str, call: Call) -> str:
    """Return the effect that a call has."""
    return "read" if call.arguments.get("dryRun") else EFFECTS[pack].get(call.tool, "read")


def changes(row: dict[str, Any]) -> list[Change]:
    """Return what a row says of files."""
    return [
        Change(
            operation["op"], Path(operation["key"]), Path(operation.get("to") or operation["key"])
        )
        for operation in row["delta"]
        if operation["field"] == "files_modified"
    ]


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
