"""The reading commands over a store that the real writer filled."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import Call, call_id, fill, process, session_id, turnlog
from turnlog.core import ids
from turnlog.core.kinds import Flag, Status

CALLS = [
    Call(tool="read_file", minute=0, summary="3 items"),
    Call(tool="write_file", minute=0, status=Status.ERROR, error="connection",
         error_kind="connection_lost", output=b""),
    Call(tool="list_files", minute=10, flags=(Flag.NULL_RESULT,)),
    Call(tool="search", minute=20, session="other", server="web", summary="two hits"),
    Call(tool="read_file", minute=30, status=Status.UNKNOWN, error="unknown",
         error_kind="outcome_unknown", output=b""),
    Call(tool="evil\x1b[2J\u202e", minute=40, summary="x\x9b31m\r\n", input=b'{"a":"\x1b]0;pwned\x07"}',
         output=b"\xff\xfe binary \x1b[2J"),
    Call(tool="slow", minute=50, status=None),
]  # fmt: skip
WORK = ids.to_text(session_id("work"))
OTHER = ids.to_text(session_id("other"))
WORK_TOOLS = ["read_file", "write_file", "list_files", "read_file", CALLS[5].tool, "slow"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "data"
    fill(folder, CALLS)
    return folder


def _lines(data: Path, *arguments: str) -> list[dict[str, Any]]:
    done = turnlog(*arguments, "--json", data=data)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _tools(data: Path, *arguments: str) -> list[str]:
    return [line["tool"] for line in _lines(data, "log", *arguments)]


def test_the_log_lists_every_attempt_newest_last(data: Path) -> None:
    lines = _lines(data, "log")

    assert [line["tool"] for line in lines] == [call.tool for call in CALLS]
    assert [line["status"] for line in lines] == [
        "ok", "error", "ok", "ok", "unknown", "ok", "pending",
    ]  # fmt: skip
    assert "tool_result" not in lines[0]
    assert lines[2]["tool_result"] is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["work"], WORK_TOOLS),
        ([WORK], WORK_TOOLS),
        ([WORK[:13]], WORK_TOOLS),
        (["--last", "2"], WORK_TOOLS[-2:]),
        (["work", "--last", "1"], ["slow"]),
        (["work", "--after", "4"], WORK_TOOLS[2:]),
        (["work", "--before", "5"], WORK_TOOLS[:2]),
        (["work", "--before", "5", "--last", "1"], ["write_file"]),
        (["work", "--around", "5", "--last", "3"], ["write_file", "list_files", "read_file"]),
        (["work", "--turns", "2..3"], ["list_files", "read_file"]),
        (["work", "--turns", "-2.."], WORK_TOOLS[-2:]),
        (["work", "--turns", "..1"], ["read_file", "write_file"]),
        (["work", "--turns", "4"], [WORK_TOOLS[4]]),
        (["--tool", "read_*"], ["read_file", "read_file"]),
        (["--tool", "files/read_*"], ["read_file", "read_file"]),
        (["--tool", "web/*"], ["search"]),
        (["--server", "web"], ["search"]),
        (["--error", "connection"], ["write_file"]),
        (["--kind", "outcome_unknown"], ["read_file"]),
        (["--flag", "null_result"], ["list_files"]),
        (["--since", "2026-11-27T00:40:00Z"], WORK_TOOLS[-2:]),
        (["--until", "2026-11-27T00:00:00Z"], ["read_file", "write_file"]),
        (["--since", "2026-11-27", "--until", "2026-11-27", "--server", "web"], ["search"]),
        (["--since", "2026-11-28"], []),
        (["--tool", "write_*", "--error", "timeout"], []),
    ],
)
def test_the_log_is_narrowed(data: Path, arguments: list[str], expected: list[str]) -> None:
    assert _tools(data, *arguments) == expected


def test_a_range_needs_a_session_unless_there_is_but_one(data: Path, tmp_path: Path) -> None:
    refused = turnlog("log", "--turns", "-1..", data=data)
    fill(tmp_path / "one", CALLS[:3])

    assert refused.returncode == 2
    assert "--turns needs a SESSION" in refused.stderr
    assert _tools(tmp_path / "one", "--turns", "-1..") == ["list_files"]


def test_the_newest_fifty_are_listed_unless_more_are_named(tmp_path: Path) -> None:
    fill(tmp_path / "data", [Call(tool=f"t{n}", minute=n) for n in range(60)])

    assert _tools(tmp_path / "data") == [f"t{n}" for n in range(10, 60)]
    assert len(_tools(tmp_path / "data", "--since", "2026-11-27")) == 60
    assert len(_tools(tmp_path / "data", "--last", "55")) == 55


def test_a_table_is_for_people(data: Path) -> None:
    done = turnlog("log", "work", data=data)

    header, first, second = done.stdout.splitlines()[:3]
    assert header.split() == [
        "TIME", "SEQ", "TURN", "TOOL", "STATUS", "RAN", "MS", "INPUT", "SUMMARY",
    ]  # fmt: skip
    assert first.split()[:7] == [
        "2026-11-27",
        "00:00:00.000",
        "2",
        "1.1",
        "files/read_file",
        "ok",
        "yes",
    ]
    assert "connection_lost" in second


def test_marks_come_first_so_that_cut_lines_keep_them(tmp_path: Path) -> None:
    marked = Call(tool="list", minute=0, flags=(Flag.NULL_RESULT,), attempt=2, summary="x" * 500)
    fill(tmp_path / "data", [marked])
    (line,) = turnlog("log", data=tmp_path / "data").stdout.splitlines()[1:]
    assert line.endswith("  [null_result] (attempt 2) " + "x" * 500)


def test_a_log_without_attempts_says_so(data: Path) -> None:
    assert turnlog("log", "--tool", "none", data=data).stdout == "no attempts\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["log", "--last", "abc"], "invalid value for '--last': 'abc' is not a whole number"),
        (["log", "work", "--turns", "2..1"], "invalid value for '--turns': '2..1' ends before"),
        (["log", "--since", "1h", "--until", "2h"], "--since lies after --until, exchange them"),
        (["sessions", "orders"], "no such command 'orders', `turnlog sessions` lists all"),
        (["state", "work", "--turn", "x"], "invalid value for '--turn': 'x' is not a whole number"),
        (["show", ":4"], "':4' is not a commit, write SESSION:SEQ like"),
        (["log", "--tool", ""], "--tool is empty, name something or leave it out"),
        (["tail", "--session", ""], "--session is empty, name something or leave it out"),
        (["show", "work:99"], "session 'work' has no commit 99, its newest is 11; `turnlog log"),
    ],
)
def test_a_filter_that_can_match_nothing_is_refused(
    data: Path, arguments: list[str], message: str
) -> None:
    done = turnlog(*arguments, data=data)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"turnlog: {message}")


def test_a_call_is_shown_with_its_input_and_output(data: Path) -> None:
    (shown,) = _lines(data, "show", ids.to_text(call_id(0)))

    assert shown["row"]["tool"] == "read_file"
    assert shown["input"] == {
        "kept": "whole",
        "redacted": False,
        "size": 17,
        "text": '{"path":"/tmp/a"}',
    }
    assert shown["output"]["text"] == CALLS[0].output.decode()
    assert [(c["seq"], c["kind"], c["ref"]) for c in shown["commits"]] == [
        (1, "intent", None), (2, "outcome", 1),
    ]  # fmt: skip


def test_a_call_without_output_has_none(data: Path) -> None:
    (shown,) = _lines(data, "show", ids.to_text(call_id(1)))

    assert shown["output"] == {"kept": "none", "redacted": False, "size": 0, "text": ""}


@pytest.mark.parametrize("seq", ["1", "2"])
def test_a_commit_is_shown_with_its_attempt(data: Path, seq: str) -> None:
    done = turnlog("show", f"work:{seq}", data=data)

    assert done.returncode == 0
    assert "files/read_file" in done.stdout
    assert '{"path":"/tmp/a"}' in done.stdout
    assert "hello" in done.stdout


def test_the_commit_that_opened_a_session_is_shown(data: Path) -> None:
    (shown,) = _lines(data, "show", f"{WORK}:0")

    assert shown["kind"] == "open"
    assert shown["metadata"]["client"] == "test-agent 1.0"
    lines = turnlog("show", f"{WORK}:0", data=data).stdout.splitlines()
    assert {"client         test-agent 1.0", "client_version 1.0", "names          work"} < set(
        lines
    )


def test_a_long_payload_is_cut_unless_it_is_wanted_in_full(tmp_path: Path) -> None:
    fill(tmp_path / "data", [Call(tool="big", minute=0, output=b"x" * 10_000)])
    name = ids.to_text(call_id(0))

    brief = turnlog("show", name, data=tmp_path / "data").stdout
    full = turnlog("show", name, "--full", data=tmp_path / "data").stdout

    assert "5904 characters more, --full shows them" in brief
    assert "x" * 10_000 in full


@pytest.mark.promise("STORE-8")
def test_a_payload_that_is_gone_says_so(tmp_path: Path) -> None:
    fill(tmp_path / "data", CALLS[:1])
    for bucket in sorted((tmp_path / "data" / "blobs").rglob("*"), reverse=True):
        bucket.rmdir() if bucket.is_dir() else bucket.unlink()

    (shown,) = _lines(tmp_path / "data", "show", ids.to_text(call_id(0)))

    assert (shown["input"]["kept"], shown["output"]["kept"]) == ("damaged", "damaged")
    text = turnlog("show", ids.to_text(call_id(0)), data=tmp_path / "data").stdout
    assert "damaged: path=/tmp/a" in text


@pytest.mark.parametrize("arguments", [["sessions"], ["sessions", "list"]])
def test_sessions_are_listed_the_most_recently_active_first(
    data: Path, arguments: list[str]
) -> None:
    lines = _lines(data, *arguments)

    assert [(line["session"], line["names"], line["seq"]) for line in lines] == [
        (WORK, ["work"], 11), (OTHER, ["other"], 2),
    ]  # fmt: skip
    assert lines[0]["metadata"]["client"] == "test-agent 1.0"
    assert (lines[0]["turn"], lines[0]["in_flight"]) == (5, 1)
    assert WORK in turnlog(*arguments, data=data).stdout


def test_a_name_from_the_names_column_finds_the_session(data: Path) -> None:
    header, *lines = turnlog("sessions", data=data).stdout.splitlines()

    assert header.split()[-2:] == ["NAMES", "CLIENT"]
    for line, session in zip(lines, (WORK, OTHER), strict=True):
        name, client, release = line.split()[-3:]
        assert (client, release) == ("test-agent", "1.0")
        assert {row["session"] for row in _lines(data, "log", name)} == {session}


def test_options_may_stand_before_a_subcommand(data: Path) -> None:
    done = turnlog("sessions", "--data", str(data), "--json", "list")

    assert [json.loads(line)["session"] for line in done.stdout.splitlines()] == [WORK, OTHER]


def test_status_shows_free_space_and_pending_calls(data: Path) -> None:
    (line,) = _lines(data, "status")

    assert line["usage"]["sessions"] == 2
    assert line["usage"]["commits"] == 15
    assert line["usage"]["pending"] == 2
    assert {row["tool"] for row in line["pending"]} == {"slow", "read_file"}
    assert line["writers"] == []
    text = turnlog("status", data=data).stdout
    assert "holds       15 commits in 2 sessions\n" in text
    assert "pending     2" in text
    assert "proxies     none running" in text


def test_status_counts_one_session_as_one(tmp_path: Path) -> None:
    fill(tmp_path / "data", [Call(tool="read_file", minute=0)])
    assert "commits in 1 session\n" in turnlog("status", data=tmp_path / "data").stdout


@pytest.mark.promise("CLI-6")
@pytest.mark.parametrize(
    "arguments",
    [["log"], ["log", "--json"], ["show", "work:10"], ["show", "work:10", "--json"], ["sessions"],
     ["status"], ["verify"]],
)  # fmt: skip
def test_control_characters_of_tools_never_reach_the_terminal(
    data: Path, arguments: list[str]
) -> None:
    done = turnlog(*arguments, data=data)

    assert done.returncode == 0
    assert all(c.isprintable() for c in done.stdout.replace("\n", "").replace("\ufffd", ""))


def test_a_terminal_of_another_encoding_ends_no_listing(data: Path) -> None:
    environ = {"PYTHONIOENCODING": "ascii", "TURNLOG_DATA": str(data)}

    done = process("show", "work:10", environ=environ)

    assert (done.returncode, done.stderr) == (0, "")
    assert "binary" in done.stdout


def test_the_folder_may_come_from_the_environment(data: Path) -> None:
    assert WORK in process("sessions", environ={"TURNLOG_DATA": str(data)}).stdout


@pytest.mark.promise("CLI-2")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["log", "nobody"], "no session is called 'nobody'; `turnlog sessions` lists them"),
        (["log", "--since", "yesterday"], "'yesterday' is not a time, write 10m"),
        (["log", "work", "--turns", "x"], "'x' is not a range of turns"),
        (["log", "--last", "0"], "'0' is out of range, 1 is the least"),
        (["log", "--last", "many"], "'many' is not a whole number"),
        (["log", "--flag", "nul_result"], "did you mean 'null_result'?"),
        (["log", "--flag", "zzz"], "no flag is called 'zzz'"),
        (
            ["log", "--trace", "abc"],
            "'abc' is not a trace id, write its 32 hex digits, as in 4bf92",
        ),
        (["log", "--trace", "0" * 32], "is not a trace id"),
        (["tail", "--trace", "g" * 32], "is not a trace id"),
        (["log", "--trace", ""], "--trace is empty, name something or leave it out"),
        (["log", "--error", "time"], "no error family is called 'time', did you mean 'timeout'?"),
        (["log", "--kind", "zzz"], "no error kind is called 'zzz', they are queue_timeout, "),
        (["log", "--after", "1", "--before", "2"], "--after and --before exclude each other"),
        (["log", "work", "--after", "1", "--last", "2"], "leave out --last"),
        (["log", "--colour"], "no such option"),
        (["log", "a", "b"], "unexpected extra argument"),
        (["show"], "missing argument"),
        (["show", "0000"], "no call begins with '0000'"),
        (["show", "01"], "'01' is too short, write at least 4 digits of the id"),
        (["show", "work:99"], "session 'work' has no commit 99"),
        (["show", "work:x"], "'work:x' is not a commit, write SESSION:SEQ"),
        (["show", "work:" + "9" * 23], "is not a commit, write SESSION:SEQ"),
        (["show", "nobody:1"], "no session is called 'nobody'"),
        (["verify", "nobody"], "no session is called 'nobody'"),
        (["verify", "--anchor", "/nowhere/anchors"], "No such file or directory"),
        (["sessions", "burn"], "no such command 'burn'"),
        (["sessions", "state", "work"], "write `turnlog log work` or `turnlog state work`"),
        (["rules", "chek"], "no such command 'chek', did you mean 'check'? (see `turnlog rules"),
        (["sessions", "pasue", "x"], "no such command 'pasue', did you mean 'pause'?"),
        (["fly"], "no such command 'fly'"),
        (["lgo"], "no such command 'lgo', did you mean 'log'? (see `turnlog --help`)"),
        (["log", "--flag", "lat"], "no flag is called 'lat', did you mean 'late'?"),
        (["log", "--error", "zzz"], "no error family is called 'zzz', they are "),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    data: Path, arguments: list[str], message: str
) -> None:
    done = turnlog(*arguments, data=data)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("turnlog: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def _nothing(path: Path) -> None:
    assert not path.exists()


def _empty(path: Path) -> None:
    path.mkdir()


def _newer(path: Path) -> None:
    fill(path, CALLS[:1])
    (path / "format").write_text("turnlog 999\n")


def _damaged(path: Path) -> None:
    fill(path, CALLS[:1])
    (path / "log" / "data.mdb").write_bytes(b"no database" * 1000)


def _file(path: Path) -> None:
    path.write_text("no folder")


@pytest.mark.promise("CLI-2")
@pytest.mark.parametrize("command", ["log", "sessions", "status", "verify"])
@pytest.mark.parametrize("make", [_nothing, _empty, _newer, _damaged, _file])
def test_a_store_that_cannot_be_used_is_one_line_and_exit_code_3(
    tmp_path: Path, command: str, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "data")

    done = turnlog(command, data=tmp_path / "data")

    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("turnlog: ")
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "data") in done.stderr


def test_a_pipe_that_closes_early_ends_quietly(tmp_path: Path) -> None:
    fill(
        tmp_path / "data",
        [Call(tool="t" * 400, minute=n, output=b"x" * 900) for n in range(300)],
        at_once=50,
    )
    command = [sys.executable, "-m", "turnlog", "log", "--last", "300", "--json"]

    with subprocess.Popen(
        [*command, "--data", str(tmp_path / "data")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        errors = process.stderr.read()

    assert (process.returncode, errors) == (141, b"")


_LOADED = """
import sys
from turnlog.cli.main import main
for command in ("log", "show", "sessions", "status", "verify"):
    if main([command, *(["work:1"] if command == "show" else []), "--data", sys.argv[1]]):
        sys.exit(f"{command} failed")
print("LOADED", *{name.partition(".")[0] for name in sys.modules})
"""


@pytest.mark.promise("CLI-1")
def test_a_reading_command_loads_none_of_the_server(data: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, str(data)], capture_output=True, text=True, check=True
    )

    loaded = set(done.stdout.partition("LOADED")[2].split())
    assert "click" in loaded
    assert not loaded & {"aiohttp", "structlog", "ruamel", "rich", "yarl", "brotli", "rfc8785"}


def test_help_and_version_are_given() -> None:
    for arguments in (
        ["--help"],
        ["log", "-h"],
        ["serve", "--help"],
        ["sessions", "list", "--help"],
    ):
        done = turnlog(*arguments)
        assert done.returncode == 0
        assert done.stdout.startswith("Usage: turnlog")
    assert process("--version").stdout == f"turnlog {version('turnlog')}\n"


def test_no_command_shows_the_help() -> None:
    done = turnlog()

    assert done.returncode == 2
    assert "Commands:" in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_stream_is_no_error(data: Path, closed: str) -> None:
    command = f"{sys.executable} -m turnlog log --last 2 --data {data} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_commit_has_none_around_it(data: Path) -> None:
    done = turnlog("log", "work", "--around", "300", data=data)
    assert done.returncode == 2
    assert "the session has no commit 300, its newest is " in done.stderr


@pytest.mark.parametrize("option", ["--last", "--before", "--after", "--around"])
def test_a_number_beyond_all_numbers_is_wrong_use(data: Path, option: str) -> None:
    done = turnlog("log", option, "9" * 23, data=data)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
