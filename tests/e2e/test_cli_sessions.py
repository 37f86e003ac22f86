"""`turnlog sessions pause` and its like, as an operator uses them."""

import json
from pathlib import Path

import pytest

from e2e.stores import Call, fill, turnlog


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path, [Call(tool="read", minute=0), Call(tool="send", minute=1, session="other")])
    return tmp_path


def listed(data: Path, *flags: str) -> list[str]:
    """Return stage and name of the sessions in the table."""
    lines = turnlog("sessions", *flags, data=data).stdout.splitlines()[1:]
    cells = [line.split() for line in lines]
    return [f"{line[1]} {'work' if 'work' in line else 'other'}" for line in cells]


def test_a_change_says_what_the_session_is_now(data: Path) -> None:
    done = turnlog("sessions", "pause", "work", "--why", "for the backup", data=data)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(" is paused after commit 3\n")
    shown = turnlog("show", "work:3", data=data).stdout
    assert "why         for the backup" in shown
    (row,) = turnlog("log", "work", "--json", data=data).stdout.splitlines()
    assert json.loads(row)["tool"] == "read"
    assert turnlog("verify", data=data).returncode == 0


def test_a_further_name_and_a_merge_are_said(data: Path) -> None:
    named = turnlog("sessions", "alias", "work", "wörk", data=data).stdout
    assert named.endswith(" is active after commit 3, and also called wörk\n")
    merged = turnlog("sessions", "merge", "wörk", "other", data=data).stdout
    other = turnlog("log", "other", "--json", data=data).stdout
    assert (
        f" is closed after commit 4; its names and calls go to {json.loads(other)['session']}\n"
        in merged
    )


def test_the_folder_may_be_given_before_the_command(data: Path) -> None:
    done = turnlog("sessions", "--data", str(data), "close", "work")
    assert (done.returncode, done.stderr) == (0, "")
    assert "is closed after commit 3" in done.stdout


def test_an_archived_session_is_left_out_of_the_table_and_not_of_json(data: Path) -> None:
    for action in ("close", "archive"):
        assert turnlog("sessions", action, "work", data=data).returncode == 0
    assert listed(data) == ["active other"]
    assert sorted(listed(data, "--all")) == ["active other", "archived work"]
    assert sorted(listed(data, "list", "--all")) == ["active other", "archived work"]
    lines = turnlog("sessions", "--json", data=data).stdout.splitlines()
    assert {json.loads(line)["stage"] for line in lines} == {"active", "archived"}


@pytest.mark.promise("SESS-14")
def test_a_lease_is_claimed_and_an_older_number_is_refused(data: Path) -> None:
    def run(*words: str, fence: int | None = None) -> str:
        more = () if fence is None else ("--fence", str(fence))
        done = turnlog("sessions", *words, *more, data=data)
        return done.stdout if done.returncode == 0 else f"{done.returncode}: {done.stderr}"

    assert ", lease 3 ends at " in run("claim", "work", "--ttl", "1h", "--holder", "planner")
    line = json.loads(turnlog("sessions", "--json", data=data).stdout.splitlines()[0])
    assert (line["lease"]["fence"], line["lease"]["holder"]) == (3, "planner")
    until = line["lease"]["until"][:19].replace("T", " ")
    assert f" planner until {until} " in turnlog("sessions", data=data).stdout
    refused = run("claim", "work")
    assert refused.startswith("2: turnlog: lease 3 holds until 20")
    assert refused.endswith(
        " (its holder is 'planner'); wait, or end it by `turnlog sessions unclaim`\n"
    )
    assert run("renew", "work").startswith("2: turnlog: the number of the lease is missing")
    assert "after commit 4, lease 3" in run("renew", "work", fence=3)
    assert "lease" not in run("unclaim", "work", fence=3)
    assert " until " not in turnlog("sessions", data=data).stdout
    assert ", lease 6 ends at " in run("claim", "work", "--ttl", "1h")
    assert " lease 6 until 20" in turnlog("sessions", data=data).stdout
    assert run("close", "work", fence=3).startswith("2: turnlog: the lease 3 is not the newest, 6")
    assert "is closed" in run("close", "work", fence=6)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("pause", "nobody"), "no session is called 'nobody'"),
        (("resume", "work"), "'resume' is not possible while the session is active (its newest"),
        (("archive", "work"), "while the session is active; close it first"),
        (("pause", "work", "--expect", "1"), "the session's newest commit is 2, not 1"),
        (("pause", "work", "--expect", "x"), "'x' is not a whole number"),
        (("pause", "work", "--why", "x" * 2001), "it has 2001 characters, 2000 are kept"),
        (("alias", "work", "other"), "'other' means session"),
        (("merge", "work", "work"), "cannot be merged into itself"),
        (("claim", "work", "--ttl", "soon"), "'soon'"),
    ],
)
def test_a_change_that_cannot_be_made_says_why(
    data: Path, words: tuple[str, ...], told: str
) -> None:
    done = turnlog("sessions", *words, data=data)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert sorted(listed(data)) == ["active other", "active work"]
