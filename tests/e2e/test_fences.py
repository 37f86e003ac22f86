"""Every command and request that changes a session takes the number of the caller's lease, and refuses an old one."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import Done, turnlog
from kit.beside import Rig, ruled
from kit.clients import Response, call, wait_until
from kit.faults import ResetAfterRequest
from kit.upstreams import echo

RULES = "rules: [{match: {tool: send}, effect: write}, {match: {tool: read}, effect: read}]"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


@pytest.fixture
def leased(rig: Rig) -> Rig:
    """A rig whose session has a call of each kind, and a lease that replaced another one."""
    rig.post(call("read"))
    rig.post(call("send", {"to": "you"}))
    rig.upstream.script = ResetAfterRequest()
    rig.post(call("send", {"to": "them"}))
    rig.upstream.script = echo
    rig.ended_rows(3)
    return rig


def cli(rig: Rig, *words: str) -> Done:
    return turnlog(*words, data=rig.proxy.data)


def claim(rig: Rig) -> int:
    done = cli(rig, "sessions", "claim", rig.session, "--json")
    assert done.returncode == 0, done.stderr
    fence: int = json.loads(done.stdout)["lease"]["fence"]
    return fence


def leases(rig: Rig) -> tuple[int, int]:
    """Claim the session twice; return the number of the old and of the present lease."""
    old = claim(rig)
    assert cli(rig, "sessions", "unclaim", rig.session).returncode == 0
    return old, claim(rig)


def command(rig: Rig, name: str, folder: Path) -> tuple[str, ...]:
    """Return the words of a command that changes the test's session."""
    session, done, unknown = rig.session, *(row.call for row in rig.rows()[1:])
    return {
        "hold": ("sessions", "hold", session),
        "fork": ("fork", session, "--name", f"{session}-fork"),
        "effect": ("effect", done, "--redo"),
        "resolve": ("resolve", unknown, "--did-not"),
        "resume": ("resume", session, "--bundle", str(folder / "bundle")),
    }[name]


@pytest.mark.promise("SESS-14")
@pytest.mark.parametrize("name", ["hold", "fork", "effect", "resolve", "resume"])
def test_a_command_with_the_number_of_an_old_lease_is_refused(
    leased: Rig, name: str, tmp_path: Path
) -> None:
    old, present = leases(leased)
    words = command(leased, name, tmp_path)
    refused = cli(leased, *words, "--fence", str(old))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"the lease {old} is not the newest, {present} is" in refused.stderr
    done = cli(leased, *words, "--fence", str(present))
    assert done.returncode == 0, done.stderr


@pytest.mark.promise("SESS-14")
@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("hold", {}),
        ("fork", {}),
        ("effect", {"choice": "redo"}),
        ("resolve", {"verdict": "did_not"}),
    ],
)
def test_a_request_with_the_number_of_an_old_lease_is_refused(
    leased: Rig, name: str, body: dict[str, Any]
) -> None:
    old, present = leases(leased)
    done, unknown = (row.call for row in leased.rows()[1:])
    place = {"effect": f"calls/{done}", "resolve": f"calls/{unknown}"}
    path = f"/turnlog/api/v1/{place.get(name, f'sessions/{leased.session}')}/{name}"
    token = (leased.proxy.data / "token").read_text().strip()
    headers = (("Authorization", f"Bearer {token}"),)
    answers: list[Response] = []

    def is_given(fence: int) -> bool:
        # A call whose outcome is recorded may be under way for a moment.
        said = json.dumps({**body, "fence": fence}).encode()
        answers.append(client.request("POST", path, said, headers=headers))
        return b"in_flight" not in answers[-1].body

    with leased.client() as client:
        for fence in (old, present):
            wait_until(partial(is_given, fence), "the request is not refused for another reason")
            if fence == old:
                assert (answers[-1].status, answers[-1].json()["fence"]) == (409, present)
    assert answers[-1].status == 200, answers[-1].body
