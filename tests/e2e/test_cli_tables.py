"""Tables on a terminal: none is wider, and what they name can be given to other commands."""

from pathlib import Path

import pytest

from e2e.stores import Call, call_id, fill, turnlog
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


def printed(data: Path, columns: int, *command: str) -> list[str]:
    with on_a_terminal(*command, data=data, columns=columns, environ={"TERM": "xterm"}) as run:
        return [plain(line) for line in run.rest()]


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


def test_narrow_tables_keep_the_verdict(data: Path) -> None:
    head, *rows = printed(data, 40, "verify")
    assert head.split()[:2] == ["SESSION", "VERDICT"]
    assert {row.split()[1] for row in rows} == {"ok"}


def test_the_table_of_what_is_pending_fits_as_well(data: Path) -> None:
    lines = printed(data, 80, "status")
    table = lines[lines.index("") + 1 :]
    assert len(table) == 3
    assert all(columns_of(line) <= 80 for line in table), table


def test_what_a_narrow_table_shows_of_a_call_settles_it(data: Path) -> None:
    head, first, _ = printed(data, 80, "dangling")
    call = first[head.index("CALL") :].split()[0]
    assert len(call) < 36
    done = turnlog("resolve", call, "--happened", data=data)
    assert done.stdout.startswith(f"call {ids.to_text(call_id(1))} of files/write_everything")


def test_what_a_narrow_table_shows_of_a_session_names_it(data: Path) -> None:
    head, *rows = printed(data, 80, "sessions")
    assert {"SESSION", "NAMES"} < set(head.split())
    for row in rows:
        assert turnlog("log", row.split()[0], data=data).returncode == 0
