"""`turnlog state`, `diff`, and `log` by what was changed."""

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import Call, call_id, fill, turnlog
from kit.commits import changed
from turnlog.core import ids
from turnlog.core.kinds import Flag, Status
from turnlog.core.note import Decision, Evict, EvictReason, Fact, FactAction, Metadata

CALLS = [
    Call(tool="write_file", minute=0, delta=(changed("modified", "/srv/a"),)),
    Call(
        tool="write_file",
        minute=10,
        delta=(changed("created", "/srv/b"),),
        why="the user asked\nfor it",
        notes=(
            Decision(text="keep it small", why="less to read"),
            Fact(id="port", action=FactAction.ASSERT, subject="port", value="80"),
            Evict(keys=(ids.to_text(call_id(0)), "gone"), reason=EvictReason.COMPACTION),
            Metadata(entries={"goal": "tidy up"}),
        ),
    ),
    Call(tool="move_file", minute=20, delta=(changed("renamed", "/srv/a", "/srv/c"),)),
    Call(tool="read_file", minute=30),
    Call(tool="write_file", minute=40, status=None),
    Call(tool="write_file", minute=0, session="other", delta=(changed("modified", "/x"),)),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    fill(folder, CALLS)
    return folder


def lines(data: Path, *arguments: str) -> list[dict[str, Any]]:
    done = turnlog(*arguments, "--json", data=data)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def text(data: Path, *arguments: str) -> list[str]:
    done = turnlog(*arguments, data=data)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_files_of_the_last_turns_are_one_call(data: Path) -> None:
    wanted = ("log", "work", "--turns", "-4..", "--field", "files_modified")
    rows = lines(data, *wanted)
    assert [(row["turn"], row["delta"][1]["op"]) for row in rows] == [
        (2, "created"),
        (3, "renamed"),
    ]
    head, *told = text(data, *wanted)
    assert head.split()[-1] == "CHANGED"
    assert [line.split("  ")[-1].strip() for line in told] == [
        "created /srv/b",
        "renamed /srv/a to /srv/c",
    ]


@pytest.mark.parametrize(
    ("path", "turns"),
    [("/srv/*", [1, 2, 3]), ("*/a", [1, 3]), ("/srv/c", [3]), ("files.*", []), ("/x", [])],
)
def test_attempts_are_found_by_what_they_changed(data: Path, path: str, turns: list[int]) -> None:
    assert [row["turn"] for row in lines(data, "log", "work", "--path", path)] == turns


def test_filters_by_change_go_with_all_others(data: Path) -> None:
    last = lines(data, "log", "work", "--path", "/srv/*", "--last", "1")
    assert [row["turn"] for row in last] == [3]
    around = lines(data, "log", "work", "--field", "files_modified", "--around", "4", "--last", "2")
    assert [row["turn"] for row in around] == [1, 2]
    assert len(lines(data, "log", "--field", "files_modified")) == 4
    assert len(lines(data, "log", "work", "--field", "tools_used")) == 5


def test_a_state_has_every_field(data: Path) -> None:
    (line,) = lines(data, "state", "work")
    state = line["state"]
    assert (line["at"]["seq"], line["at"]["turn"], line["at"]["turn_source"]) == (13, 5, "gap")
    assert line["state_hash"].startswith("sha256:")
    assert {path: change["op"] for path, change in state["files_modified"].items()} == {
        "/srv/b": "created",
        "/srv/c": "renamed",
    }
    assert state["files_modified"]["/srv/c"]["origin"] == "/srv/a"
    assert state["tools_used"]["files.write_file"]["calls"] == 3
    assert state["decisions_made"]["5"]["why"] == "less to read"
    assert state["facts"]["port"]["status"] == "asserted"
    assert state["pending_actions"][ids.to_text(call_id(4))]["status"] == "pending"
    assert [e["retrievable"] for e in state["evicted_keys"].values()] == [True, False]
    assert state["metadata"] == {
        "client": "test-agent 1.0",
        "client_version": "1.0",
        "goal": "tidy up",
    }
    assert state["usage"]["calls"] == 5


def test_a_state_is_printed_for_people(data: Path) -> None:
    told = text(data, "state", "work")
    assert "after commit 13, turn 5 (gap)" in told[0]
    for line in (
        "  files.write_file  3 calls, 2 ok, last seq 13",
        "  /srv/b  created, turn 2, seq 4, declared",
        "  /srv/c  renamed from /srv/a, turn 1-3, seq 2-10, declared",
        "  5  keep it small because less to read, seq 5",
        "  port  asserted: port = 80, seq 6",
        f"  {ids.to_text(call_id(0))}  compaction, seq 7, can be recalled",
        "  gone  compaction, seq 7, not in the log",
        "  goal  tidy up",
        "  calls  5",
    ):
        assert line in told
    assert any("pending: files.write_file, turn 5, seq 13, since 2026" in line for line in told)


@pytest.mark.promise("STATE-8")
def test_a_state_may_be_asked_for_at_a_commit_or_turn_and_by_field(data: Path) -> None:
    wanted = ("state", "work", "--field", "files_modified")
    assert text(data, *wanted, "--at", "1") == ["files_modified", "  nothing"]
    one = ["files_modified", "  /srv/a  modified, turn 1, seq 2, declared"]
    assert text(data, *wanted, "--turn", "1") == one
    assert text(data, *wanted, "--at", "3") == one
    (line,) = lines(data, *wanted, "--turn", "-1")
    assert (list(line["state"]), line["at"]["seq"]) == (["files_modified"], 13)


def test_the_diff_of_a_turn_shows_what_changed_and_why(data: Path) -> None:
    told = text(data, "diff", "work", "1..2")
    start = told.index("files_modified /srv/b")
    assert told[start : start + 3] == [
        "files_modified /srv/b",
        "  + created, turn 2, seq 4, declared",
        "    by 4 files.write_file: the user asked\\u000afor it",
    ]
    assert "metadata goal: nothing -> tidy up" in told
    assert "    by 5 decision: less to read" in told
    assert text(data, "diff", "work", "2") == told
    assert text(data, "diff", "work", "-4") == told


def test_the_commits_of_one_call_are_one_line_of_a_difference(data: Path) -> None:
    told = text(data, "diff", "work", "1..2")
    assert any(line.startswith("    by 3, 4 files.write_file") for line in told), told
    assert not any(line.endswith(" 0.0") for line in told)


def test_a_difference_is_one_line_for_each_change(data: Path) -> None:
    found = lines(data, "diff", "work", "--seq", "8..10")
    change = next(line for line in found if line["key"] == "/srv/c")
    assert (change["field"], change["before"], change["after"]["op"]) == (
        "files_modified",
        None,
        "renamed",
    )
    assert change["commits"] == [{"seq": 10, "what": "files.move_file", "why": ""}]
    assert (change["before_at"]["seq"], change["after_at"]["seq"]) == (8, 10)


@pytest.mark.parametrize(
    "span", [("2..",), ("-4..",), ("--seq", "8.."), ("--seq", "8..13"), ("-4..-1",)]
)
def test_ranges_may_be_open_or_count_from_the_newest(data: Path, span: tuple[str, ...]) -> None:
    assert text(data, "diff", "work", *span) == text(data, "diff", "work", "2..5")


def test_the_begin_of_a_range_is_the_session_s(data: Path) -> None:
    assert text(data, "diff", "work", "..1") == text(data, "diff", "work", "--seq", "..2")
    assert text(data, "diff", "work", "--seq", "3..3") == ["nothing changed"]


@pytest.mark.promise("DIFF-3")
def test_two_sessions_are_compared_with_each_other(data: Path) -> None:
    told = text(data, "diff", "work", "other")
    assert told[told.index("files_modified /x") + 1] == "  + modified, turn 1, seq 2, declared"
    assert told[told.index("files_modified /srv/b") + 1] == "  - created, turn 2, seq 4, declared"


def test_digits_that_begin_with_0_are_a_session(tmp_path: Path) -> None:
    fill(tmp_path, [Call(tool="a", minute=0), Call(tool="b", minute=0, session="0123")])
    told = text(tmp_path, "diff", "work", "0123")
    assert "tools_used files.b" in told
    assert told != text(tmp_path, "diff", "work", "1")


def test_each_attempt_is_compared_with_the_previous_one(tmp_path: Path) -> None:
    failed = Call(
        tool="read", minute=0, status=Status.ERROR, error="timeout", error_kind="response_timeout"
    )
    again = Call(tool="read", minute=1, of=0, attempt=2, flags=(Flag.RETRIED,))
    fill(tmp_path, [failed, again])
    call = ids.to_text(call_id(0))
    assert text(tmp_path, "diff", "--call", call) == [
        "attempt 1 (leg 0), seq 2: response_timeout",
        "attempt 2 (leg 0), seq 4",
        "difference  error_to_ok since the attempt before",
    ]
    (line,) = lines(tmp_path, "diff", "--call", call)
    assert (line["attempt"], line["seq"], line["kind"]) == (2, 4, None)
    assert line["difference"]["class"] == "error_to_ok"


@pytest.mark.parametrize("turn", ["6", "0", "-6"])
@pytest.mark.parametrize("command", ["state", "log", "diff"])
def test_a_turn_that_does_not_exist_is_an_error_everywhere(
    data: Path, command: str, turn: str
) -> None:
    how = {"state": ("--turn", turn), "log": ("--turns", turn), "diff": (turn,)}[command]
    done = turnlog(command, "work", *how, data=data)
    assert (done.returncode, done.stdout) == (2, "")
    known = "turns are counted from 1" if turn == "0" else "its newest is 5"
    assert done.stderr == f"turnlog: the session has no turn {turn}, {known}\n"


@pytest.mark.parametrize("turns", ["4..6", "..0", "..-6"])
def test_a_range_ends_at_turns_that_exist(data: Path, turns: str) -> None:
    for how in (("log", "work", "--turns", turns), ("diff", "work", turns)):
        assert "the session has no turn" in turnlog(*how, data=data).stderr


def test_the_last_turns_are_all_where_there_are_fewer(data: Path) -> None:
    assert lines(data, "log", "work", "--turns", "-99..") == lines(data, "log", "work")
    assert text(data, "diff", "work", "-99..") == text(data, "diff", "work")


def test_a_range_from_zero_begins_with_the_session(data: Path) -> None:
    assert lines(data, "log", "work", "--turns", "0..2") == lines(
        data, "log", "work", "--turns", "..2"
    )
    assert text(data, "diff", "work", "0..2") == text(data, "diff", "work", "..2")


def test_a_tool_is_found_by_the_name_that_the_state_has(data: Path) -> None:
    (line,) = lines(data, "state", "work", "--field", "tools_used")
    for name, used in line["state"]["tools_used"].items():
        found = lines(data, "log", "work", "--tool", name)
        assert len(found) == used["attempts"] > 0


def test_a_session_alone_is_compared_from_its_begin_to_its_newest_state(data: Path) -> None:
    assert text(data, "diff", "work") == text(data, "diff", "work", "--seq", "0..")


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("facts", "only notes do"),
        ("pending_actions", "open calls"),
        ("usage", "counts all of them"),
    ],
)
def test_fields_that_no_attempt_sets_are_said_to_be_none(data: Path, field: str, said: str) -> None:
    done = turnlog("log", "work", "--field", field, data=data)
    assert (done.returncode, done.stdout) == (0, "no attempts\n")
    assert done.stderr.startswith(f"turnlog: no attempt sets {field}, ")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("state", "nobody"), "no session is called 'nobody'"),
        (("state", "work", "--at", "1", "--turn", "1"), "exclude each other"),
        (("state", "work", "--at", "99"), "has no commit 99"),
        (("state", "work", "--turn", "9"), "has no turn 9"),
        (("state", "work", "--field", "files_modifed"), "did you mean 'files_modified'?"),
        (("log", "--field", "walls"), "no field is called 'walls', they are tools_used"),
        (("log", "--path", ""), "--path is empty"),
        (("diff",), "name a SESSION, then turns (4..5)"),
        (("diff", "work", "1", "2"), "'2' is too much, give SESSION"),
        (("diff", "work", "1", "--seq", "1..2"), "'1' and --seq exclude each other, give one"),
        (("diff", "work", "other", "--seq", "1..2"), "'other' and --seq exclude each other"),
        (("diff", "work", "nobody"), "no session is called 'nobody'"),
        (("diff", "work", "3..1"), "ends before it begins"),
        (("diff", "work", "-1..1"), "write the older one first"),
        (("diff", "work", "--seq", "9..4"), "write the older one first"),
        (("diff", "work", "--seq", "9"), "'9' is not a range of commits"),
        (("diff", "work", "--seq", "a..b"), "'a..b' is not a range of commits"),
        (("diff", "work", "--seq", "1..2", "--call", "0193"), "--call stands alone"),
        (("diff", "--call", "0193"), "no call begins with '0193'"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(
    data: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = turnlog(*arguments, data=data)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("turnlog: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
