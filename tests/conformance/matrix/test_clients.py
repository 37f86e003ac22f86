"""Compare what clients of other versions and languages see, direct and through turnlog."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.matrix import rig

pytestmark = pytest.mark.matrix

CLIENTS = {
    "python-2-legacy": ("python_two.py", "2025-11-25"),
    "python-2-modern": ("python_two.py", "2026-07-28"),
    "python-1": ("python_one.py", "2025-11-25"),
    "typescript-1": ("typescript_one.mjs", "2025-11-25"),
    "typescript-2-legacy": ("typescript_two.mjs", "2025-11-25"),
    "typescript-2-modern": ("typescript_two.mjs", "2026-07-28"),
}
# The calls that each client makes, in order.
CALLS = ["greet", "draft", "count", "echo", "fail", "big", "hang", "stopped"]


@pytest.mark.promise("WIRE-31")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_sees_the_same_server_through_turnlog(client: str, tmp_path: Path) -> None:
    script, revision = CLIENTS[client]
    with rig.feature_server(tmp_path) as upstreams:
        direct = rig.run_client(script, *upstreams, revision)
    with rig.feature_server(tmp_path) as upstreams, rig.turnlog(upstreams, tmp_path) as urls:
        through = rig.run_client(script, *urls, revision)
    assert_expected(direct)
    differing = [
        f"{scenario}: direct {wanted}, through turnlog {through.get(scenario)}"
        for scenario, wanted in direct.items()
        if wanted != through.get(scenario)
    ]
    assert not differing, "\n".join(differing)
    assert_recorded(rig.recorded(tmp_path), legs=2 if revision > "2026" else 1)


@pytest.mark.promise("PIPE-11")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_sees_the_same_command_wrapped(client: str, tmp_path: Path) -> None:
    script, revision = CLIENTS[client]
    command = rig.feature_command()
    direct = rig.run_client(script, *2 * [target(command)], revision)
    through = rig.run_client(script, *2 * [target(rig.wrapped(command, tmp_path))], revision)
    assert_expected(direct, whole=script.endswith(".py"))
    assert_expected(through, whole=script.endswith(".py"))
    assert differences(direct, through) <= {"progress"}
    assert_recorded(rig.recorded(tmp_path), legs=2 if revision > "2026" else 1)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_sees_the_same_server_where_turnlog_starts_it(client: str, tmp_path: Path) -> None:
    script, revision = CLIENTS[client]
    command = rig.feature_command()
    direct = rig.run_client(script, *2 * [target(command)], revision)
    with rig.turnlog([command], tmp_path) as urls:
        through = rig.run_client(script, *2 * urls, revision)
    assert_expected(through)
    assert differences(direct, through) <= {"cancel", "progress"}
    assert_recorded(rig.recorded(tmp_path), legs=2 if revision > "2026" else 1)


# The 2.x Python SDK reads events of 1 MiB at most there.
@pytest.mark.parametrize("client", ["python-1", "typescript-1", "typescript-2-legacy"])
@pytest.mark.parametrize("name", ["/sse", "/up0/sse"])
def test_a_client_sees_the_same_server_over_the_old_transport(
    client: str, name: str, tmp_path: Path
) -> None:
    script, revision = CLIENTS[client]
    with rig.sse_server(tmp_path) as upstreams:
        direct = rig.run_client(script, *2 * upstreams, revision)
    with rig.sse_server(tmp_path) as upstreams, rig.turnlog(upstreams, tmp_path) as (url,):
        through = rig.run_client(script, *2 * [url.removesuffix("/sse") + name], revision)
    assert_expected(direct, whole=script.endswith(".py"))
    assert_expected(through, whole=script.endswith(".py"))
    assert differences(direct, through) <= {"progress"}
    assert_recorded(rig.recorded(tmp_path), legs=1)


def target(command: Sequence[str | Path]) -> str:
    """Return what a client's script takes for a command."""
    return json.dumps(list(map(str, command)))


def differences(direct: dict[str, Any], through: dict[str, Any]) -> set[str]:
    """Name the scenarios that came out differently."""
    return {name for name, wanted in direct.items() if wanted != through.get(name)}


def assert_expected(found: dict[str, Any], *, whole: bool = True) -> None:
    """Check that the scenarios themselves did what they are for; `whole` where all is reported."""
    assert found["tools"] == sorted(CALLS)
    assert found["elicitation"]["text"] == "hello, Ada, asked 'What is your name?'"
    assert found["sampling"]["text"] == "tides: a line within 50 tokens"
    steps = [[n, 5, f"step {n}"] for n in range(1, 6)]
    # From a pipe, and from the old transport, the TypeScript clients drop reports that they read together with the answer.
    seen = found["progress"]["progress"]
    assert seen == steps if whole else seen == steps[: len(seen)]
    assert found["failure"] == {"error": True, "text": "Error executing tool fail: no luck"}
    assert found["10 MB"]["text"].startswith("10000000 ")
    assert found["cancel"]["text"] == "stopped"
    assert found["cancel"]["call"] != "returned"


def assert_recorded(rows: list[dict[str, Any]], *, legs: int) -> None:
    """Check that each call is in the log as often as it has legs, each with its end."""
    seen = [row["tool"] for row in rows]
    asked = {"greet": legs, "draft": legs}
    assert sorted(seen) == sorted(tool for tool in CALLS for _ in range(asked.get(tool, 1)))
    by_tool = {row["tool"]: row for row in rows}
    for tool in ("count", "echo", "big", "stopped"):
        assert by_tool[tool]["status"] == "ok", by_tool[tool]
    assert by_tool["fail"]["status"] == "error"
    assert by_tool["hang"]["status"] not in {"ok", "pending"}, by_tool["hang"]
