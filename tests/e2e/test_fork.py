"""`turnlog fork` beside a running proxy: the fork is used under its name, and stands beside its parent."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.stores import Done, turnlog
from kit.beside import Rig, ruled
from kit.clients import call, wait_until

RULES = """
rules:
  - {match: {tool: "pay*"}, effect: irreversible, effect_key: [$.args.order]}
  - {match: {tool: "send*"}, effect: write}
  - match: {tool: "put*"}
    effect: idempotent_write
    delta: [{field: files_modified, op: modified, key: $.args.path}]
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


def cli(rig: Rig, *arguments: str) -> Done:
    return turnlog(*arguments, "--data", str(rig.proxy.data))


def found(rig: Rig, *arguments: str) -> list[Any]:
    done = cli(rig, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def ask(rig: Rig, session: str, tool: str, **arguments: Any) -> dict[str, Any]:
    """Make a call in a session; return its row."""
    rig.session = session
    before = len(rig.rows())
    rig.post(call(tool, arguments))
    rig.ended_rows(before + 1)
    (row,) = found(rig, "log", session, "--last", "1")
    answer: dict[str, Any] = row
    return answer


def forked(rig: Rig, parent: str, name: str) -> dict[str, Any]:
    """Fork a session whose answers are all noted as delivered."""
    rig.session = parent.partition(":")[0]
    rows = rig.rows()
    wait_until(lambda: rig.notes().count("delivered") >= len(rows), "answers are noted")
    (made,) = found(rig, "fork", parent, "--name", name)
    fork: dict[str, Any] = made
    return fork


@pytest.mark.promise("FORK-1")
def test_both_branches_are_there_and_go_on_under_their_names(rig: Rig) -> None:
    parent, fork = rig.session, f"{rig.session}-fork"
    ask(rig, parent, "put", path="/a")
    made = forked(rig, parent, fork)
    ask(rig, fork, "put", path="/b")
    ask(rig, parent, "put", path="/c")

    def files(session: str) -> set[str]:
        (state,) = found(rig, "state", session)
        return set(state["state"]["files_modified"])

    assert files(fork) == {"/a", "/b"}
    assert files(parent) == {"/a", "/c"}
    (line,) = [s for s in found(rig, "sessions") if s["names"] == [fork]]
    assert line["metadata"]["forked_from"] == f"{made['parent']}:{made['parent_seq']}"
    assert cli(rig, "verify", fork).returncode == 0
    assert cli(rig, "verify", parent).returncode == 0
    said = cli(rig, "diff", parent, fork).stdout
    assert f"parted at commit {made['parent_seq']} of {made['parent']}" in said


@pytest.mark.promise("LEDGER-1", "LEDGER-2")
def test_a_branch_does_not_run_again_what_another_one_has_done(rig: Rig) -> None:
    parent, fork = rig.session, f"{rig.session}-fork"
    ask(rig, parent, "send", to="before")
    seq = ask(rig, parent, "send", to="cut")["seq"]
    ask(rig, parent, "send", to="behind")
    forked(rig, f"{parent}:{seq}", fork)
    assert ask(rig, fork, "send", to="behind")["status"] == "replayed"
    assert ask(rig, fork, "send", to="before")["status"] == "ok"
    ask(rig, fork, "pay", order=1, amount=5)
    refused = ask(rig, parent, "pay", order=1, amount=6)
    assert (refused["kind"], refused["executed"]) == ("policy_blocked", "no")
    assert ask(rig, parent, "pay", order=2, amount=6)["status"] == "ok"
    assert len(rig.upstream.requests) == 6


@pytest.mark.promise("FORK-3")
def test_a_file_that_both_branches_changed_is_named_by_the_state_and_by_dangling(rig: Rig) -> None:
    parent, fork = rig.session, f"{rig.session}-fork"
    ask(rig, parent, "put", path="/a")
    forked(rig, parent, fork)
    ask(rig, fork, "put", path="/both")
    ask(rig, parent, "put", path="/both")
    (state,) = found(rig, "state", fork)
    assert [change["key"] for change in state["shared"]] == ["/both"]
    assert "changed on two branches: /both" in cli(rig, "state", parent).stdout
    assert "/both" in cli(rig, "dangling", parent).stderr


def test_the_api_forks_a_session(rig: Rig) -> None:
    ask(rig, rig.session, "put", path="/a")
    token = (rig.proxy.data / "token").read_text().strip()
    body = json.dumps({"name": f"{rig.session}-api"}).encode()
    headers = (("Authorization", f"Bearer {token}"),)
    path = f"/turnlog/api/v1/sessions/{rig.session}/fork"
    with rig.client() as client:
        made = client.request("POST", path, body, headers=headers)
        again = client.request("POST", path, body, headers=headers)
    assert (made.status, made.json()["mode"]) == (200, "live")
    assert (again.status, "choose another name" in again.json()["detail"]) == (400, True)
