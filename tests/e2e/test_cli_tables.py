"""Tables fit the terminal, and the ids in them work as arguments of other commands."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from e2e.stores import Call, call_id, fill, process, turnlog
from kit.terminals import columns_of, on_a_terminal, plain
from turnlog.core import ids
from turnlog.core.kinds import Status

UNKNOWN = Status.UNKNOWN
CALLS = [
    Call(tool="read_file", minute=0, summary="x" * 300),
    Call(tool="write_everything_there_is_into_one_file", minute=1, status=UNKNOWN,
         error="unknown", error_kind="outcome_unknown", output=b""),
    Call(tool="send", minute=2, session="a-name-that-is-rather-long", status=UNKNOWN,
         error="unknown", error_kind="outcome_unknown", output=b""),
]  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "data", CALLS)
    return tmp_path / "data"


INDIA = {"TZ": "IST-5:30"}


def printed(data: Path, columns: int, *command: str, **environ: str) -> list[str]:
    known = {"TERM": "xterm", **environ}
    with on_a_terminal(*command, data=data, columns=columns, environ=known) as run:
        return [plain(line) for line in run.rest()]


def local(row: dict[str, str]) -> str:
    """The beginning of an attempt as somebody in India writes it."""
    at = datetime.fromisoformat(row["timestamp"]) + timedelta(hours=5, minutes=30)
    return f"{at:%Y-%m-%d %H:%M:%S}"


@pytest.mark.promise("CLI-5")
@pytest.mark.parametrize("columns", [160, 100, 80, 60, 40])
@pytest.mark.parametrize(
    "command", [("log",), ("log", "work"), ("sessions",), ("dangling",), ("verify",)]
)
def test_no_table_is_wider_than_its_terminal(
    data: Path, columns: int, command: tuple[str, ...]
) -> None:
    lines = printed(data, columns, *command)
    assert len(lines) >= 3
    assert all(columns_of(line) <= columns for line in lines), lines


@pytest.mark.promise("CLI-5")
def test_narrow_tables_keep_the_verdict(data: Path) -> None:
    head, *rows = printed(data, 40, "verify")
    assert head.split()[:2] == ["SESSION", "VERDICT"]
    assert {row.split()[1] for row in rows} == {"ok"}


def test_the_table_of_pending_calls_fits_too(data: Path) -> None:
    lines = printed(data, 80, "status")
    table = lines[lines.index("") + 1 :]
    assert len(table) == 3
    assert all(columns_of(line) <= 80 for line in table), table


def test_the_call_shown_in_a_narrow_table_is_enough_to_resolve_it(data: Path) -> None:
    head, first, _ = printed(data, 80, "dangling")
    call = first[head.index("CALL") :].split()[0]
    assert len(call) < 36
    done = turnlog("resolve", call, "--happened", data=data)
    assert done.stdout.startswith(f"call {ids.to_text(call_id(1))} of files/write_everything")


def test_the_session_shown_in_a_narrow_table_is_enough_to_name_it(data: Path) -> None:
    head, *rows = printed(data, 80, "sessions")
    assert {"SESSION", "NAMES"} < set(head.split())
    for row in rows:
        assert turnlog("log", row.split()[0], data=data).returncode == 0


def test_a_time_without_a_zone_is_local_on_a_terminal_and_utc_elsewhere(data: Path) -> None:
    *_, newest = map(json.loads, turnlog("log", "--json", data=data).stdout.splitlines())
    since = local(newest)
    assert len(printed(data, 160, "log", "--since", since, **INDIA)) == 2  # the head and one row
    piped = process("log", "--since", since, "--data", str(data), environ=INDIA)
    assert piped.stdout == "no attempts\n"
    utc = newest["timestamp"][:19]
    piped = process("log", "--since", utc, "--data", str(data), environ=INDIA)
    assert len(piped.stdout.splitlines()) == 2


@pytest.mark.parametrize("command", [("show", "work:1"), ("state", "work")])
def test_show_and_state_print_local_times_on_a_terminal(
    data: Path, command: tuple[str, ...]
) -> None:
    first, *_ = map(json.loads, turnlog("log", "work", "--json", data=data).stdout.splitlines())
    text = "\n".join(printed(data, 200, *command, **INDIA))
    assert " IST" in text
    assert first["timestamp"][:11] not in text  # the form with a T in it is UTC's
    piped = process(*command, "--data", str(data), environ=INDIA).stdout
    assert first["timestamp"][:11] in piped
    assert "IST" not in piped
