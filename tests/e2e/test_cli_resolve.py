"""`turnlog dangling` lists calls without an answer, `turnlog resolve` settles the unknown ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import Call, call_id, fill, process, turnlog
from turnlog.core import ids
from turnlog.core.kinds import Status

UNKNOWN: dict[str, Any] = {
    "status": Status.UNKNOWN, "error": "unknown", "error_kind": "outcome_unknown", "output": b"",
}  # fmt: skip
CALLS = [
    Call(tool="read_file", minute=0),
    Call(tool="send\x1b[2J", minute=1, **UNKNOWN),
    Call(tool="ask", minute=2, status=Status.INPUT_REQUIRED, session="other"),
    Call(tool="write_file", minute=3, status=None),
]


def name(number: int) -> str:
    return ids.to_text(call_id(number))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "data", CALLS)
    return tmp_path / "data"


def lines(data: Path, *arguments: str) -> list[dict[str, Any]]:
    done = turnlog(*arguments, "--json", data=data)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.promise("OPEN-1")
def test_calls_without_an_answer_are_listed_with_what_is_known(data: Path) -> None:
    found = lines(data, "dangling")
    assert [(one["row"]["call"], one["standing"]) for one in found] == [
        (name(1), "unknown"),
        (name(2), "parked"),
        (name(3), "unknown"),
    ]
    # Nobody has opened the store since: the log says pending, and what that comes to stands here.
    assert lines(data, "log", "--tool", "write_file")[0]["status"] == "pending"
    last = found[2]["row"]
    assert (last["status"], last["kind"], last["executed"], last["retry"]) == (
        "unknown", "outcome_unknown", "maybe", "unsafe",
    )  # fmt: skip
    assert found[1]["output"]["text"] == CALLS[2].output.decode()


def test_the_table_of_dangling_calls_holds_no_terminal_escapes(data: Path) -> None:
    done = turnlog("dangling", data=data)
    head, *rows = done.stdout.splitlines()
    assert head.split()[:5] == ["SINCE", "SESSION", "CALL", "TOOL", "STANDING"]
    assert [row.split()[3] for row in rows] == [name(1), name(2), name(3)]
    assert "\x1b" not in done.stdout


def test_one_session_and_a_time_narrow_the_list(data: Path) -> None:
    assert [one["row"]["call"] for one in lines(data, "dangling", "other")] == [name(2)]
    assert lines(data, "dangling", "work", "--since", "2026-11-27T00:02:00Z")[0]["row"][
        "call"
    ] == name(3)
    assert turnlog("dangling", "--since", "2026-12-01", data=data).stdout == "no call dangles\n"
    assert turnlog("dangling", "nobody", data=data).returncode == 2


@pytest.mark.promise("OPEN-2")
def test_an_operators_statement_becomes_the_outcome(data: Path) -> None:
    done = turnlog("resolve", name(1), "--happened", "--why", "she has it", data=data)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"call {name(1)} of files/send\\u001b[2J: it happened\n"
    (row,) = lines(data, "resolve", name(3), "--did-not")
    assert (row["status"], row["executed"], row["retry"]) == ("error", "no", "safe")
    assert [one["row"]["call"] for one in lines(data, "dangling")] == [name(2)]
    log = {row["call"]: row for row in lines(data, "log")}
    assert (log[name(1)]["status"], log[name(1)]["flags"]) == ("ok", ["resolved"])
    assert log[name(3)] == row
    assert [row["call"] for row in lines(data, "log", "--flag", "resolved")] == [name(1), name(3)]


@pytest.mark.promise("OPEN-2")
def test_other_commands_show_who_resolved_a_call(data: Path) -> None:
    turnlog("resolve", name(1), "--happened", "--why", "she has it", data=data)
    shown = turnlog("show", name(1), data=data).stdout
    assert " by operator\n" in shown
    assert "detail      she has it\n" in shown
    assert "[resolved] it happened" in turnlog("log", data=data).stdout
    assert turnlog("verify", data=data).returncode == 0
    status = turnlog("status", data=data).stdout
    assert "dangling    1 parked, 1 unknown (`turnlog dangling` lists them)\n" in status
    assert lines(data, "status")[0]["dangling"] == {"parked": 1, "unknown": 1}


def test_a_secret_in_the_reason_is_not_kept(data: Path) -> None:
    secret = "ghp_" + "a1B2" * 9
    turnlog("resolve", name(1), "--happened", "--why", f"with {secret}", data=data)
    assert secret not in turnlog("show", name(1), data=data).stdout
    assert all(secret.encode() not in file.read_bytes() for file in data.rglob("*.mdb"))


@pytest.mark.promise("OPEN-2")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((name(0), "--happened"), "ended as ok, only unknown calls are resolved"),
        (("ffff0000", "--happened"), "no call begins with 'ffff0000'"),
        ((name(1)[:4], "--happened"), "begins several calls, write the whole id of one that can"),
        ((name(1), "--happened", "--did-not"), "--happened and --did-not exclude each other"),
        ((name(1),), "give --happened or --did-not"),
        ((name(1), "--happened", "--why", "x" * 2001), "2000 are kept: cut it"),
    ],
)
def test_everything_else_is_refused_in_one_line(
    data: Path, arguments: tuple[str, ...], said: str
) -> None:
    before = lines(data, "log")
    done = turnlog("resolve", *arguments, data=data)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert [row["status"] for row in lines(data, "log")][:3] == [row["status"] for row in before][
        :3
    ]


def test_a_second_argument_is_refused(data: Path) -> None:
    turnlog("resolve", name(1), "--did-not", data=data)
    done = turnlog("resolve", name(1), "--happened", data=data)
    assert done.returncode == 2
    assert done.stderr == (f"turnlog: call {name(1)} was resolved before: it did not happen\n")


def test_no_store_is_made_to_settle_a_call(tmp_path: Path) -> None:
    done = turnlog("resolve", name(1), "--happened", data=tmp_path / "none")
    assert done.returncode == 3
    assert not (tmp_path / "none").exists()


def test_the_limit_of_the_store_stays_what_a_proxy_set(data: Path) -> None:
    before = lines(data, "status")[0]["usage"]["limit"]
    turnlog("resolve", name(1), "--happened", data=data)
    assert lines(data, "status")[0]["usage"]["limit"] == before


def test_a_process_of_its_own_does_the_same(data: Path) -> None:
    done = process("resolve", name(1), "--happened", "--data", str(data))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.promise("SEC-1")
def test_configured_secrets_are_removed_from_a_reason(data: Path, tmp_path: Path) -> None:
    config = tmp_path / "turnlog.yaml"
    config.write_text("data: ./data\nredact: {patterns: ['AB-[0-9]+']}\n")
    said = ("--happened", "--why", "as AB-123456 says", "--json")
    done = turnlog("resolve", name(1), *said, "--config", str(config))
    assert (done.returncode, done.stderr) == (0, "")
    shown = turnlog("show", name(1), data=data).stdout
    assert "as [redacted] says" in shown
    assert not any(b"AB-123456" in path.read_bytes() for path in data.rglob("*") if path.is_file())


def test_the_beginning_of_an_id_needs_four_digits(data: Path) -> None:
    for command in (("resolve", "01", "--happened"), ("effect", "0", "--redo"), ("show", "01-")):
        done = turnlog(*command, data=data)
        assert (done.returncode, done.stdout) == (2, "")
        assert "is too short, write at least 4 digits of the id" in done.stderr, command
