"""`turnlog export`, over a store that the real writer filled."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.stores import START, Call, fill, process, turnlog
from kit.terminals import on_a_terminal
from turnlog.core.commit import Lineage
from turnlog.core.kinds import Flag, Status, ValueOrigin
from turnlog.core.operation import Operation

pq: Final[Any] = import_module("pyarrow.parquet")
MANY = 2100
"""Attempts of one session: more than two pages."""


def change(number: int) -> tuple[Operation, ...]:
    return (Operation(field="files_modified", op="created", key=f"/srv/{number}.txt"),)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "data"
    calls = [
        Call(tool="write_file", minute=n, session="many", delta=change(n), output=b"x" * 10)
        for n in range(MANY)
    ]
    calls += [
        Call(tool="read_file", minute=MANY, session="few", flags=(Flag.NULL_RESULT,),
             lineage=(Lineage(pointer="/path", origin=ValueOrigin.UNVERIFIED),)),
        Call(tool="read_file", minute=MANY, session="few", status=Status.ERROR,
             error="timeout", error_kind="response_timeout"),
    ]  # fmt: skip
    fill(folder, calls, at_once=50)
    return folder


def exported(data: Path, *arguments: str) -> list[dict[str, Any]]:
    done = turnlog("export", *arguments, data=data)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_an_export_is_the_whole_log_as_log_prints_it(data: Path) -> None:
    whole = turnlog("log", "--last", "99999", "--json", data=data)
    assert turnlog("export", data=data).stdout == whole.stdout
    assert len(whole.stdout.splitlines()) == MANY + 2


@pytest.mark.parametrize(
    "options",
    [
        ("--tool", "write_*", "--path", "*/20??.txt", "--last", "99"),
        ("--last", "1500"),
        ("--after", "4000"),
        ("--around", "2001", "--last", "9"),
        ("--turns", "-3.."),
        ("--before", "2100", "--last", "2"),
        ("--since", "2026-11-28", "--payloads"),
    ],
    ids=" ".join,
)
def test_an_export_chooses_attempts_as_log_does(data: Path, options: tuple[str, ...]) -> None:
    wanted = turnlog("log", "many", *options, "--json", data=data)
    chosen = turnlog("export", "many", *options, data=data)
    assert chosen.stdout == wanted.stdout
    assert chosen.stdout.count("\n") > 1


def test_several_sessions_are_exported_one_after_the_other(data: Path) -> None:
    lines = exported(data, "few", "many", "few", "--last", "2")
    assert [line["tool"] for line in lines] == ["read_file"] * 2 + ["write_file"] * 2


def test_a_range_of_no_session_is_refused(data: Path) -> None:
    done = turnlog("export", "--after", "3", data=data)
    assert done.returncode == 2
    assert "--after needs a SESSION" in done.stderr


def test_a_file_is_private_and_replaced_whole(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_text("before")
    assert turnlog("export", "few", "-o", str(file), data=data).stdout == ""
    assert [json.loads(line)["kind"] for line in file.read_text().splitlines()] == [
        None,
        "response_timeout",
    ]
    assert file.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


def test_an_export_that_fails_leaves_the_file_as_it_was(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_text("before")
    assert turnlog("export", "nobody", "-o", str(file), data=data).returncode == 2
    assert file.read_text() == "before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("name", ["nowhere/out.jsonl", "."])
def test_a_file_that_cannot_be_written_is_named(data: Path, tmp_path: Path, name: str) -> None:
    done = turnlog("export", "-o", str(tmp_path / name), data=data)
    assert done.returncode == 2
    assert "name a file in a folder that exists" in done.stderr


def test_an_export_can_go_to_a_device(data: Path) -> None:
    done = process("export", "few", "-o", "/dev/stdout", "--data", str(data))
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)


def test_parquet_has_the_same_rows_in_typed_columns(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "calls.parquet"
    done = turnlog("export", "--format", "parquet", "--payloads", "-o", str(file), data=data)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    lines = exported(data, "--payloads")
    assert [row["hash"] for row in rows] == [line["hash"] for line in lines]
    assert [row["seq"] for row in rows] == [line["seq"] for line in lines]
    assert rows[0]["timestamp"] == datetime.fromtimestamp(START / 1e9, UTC)
    assert rows[7]["delta"][1]["key"] == "/srv/7.txt"
    assert rows[7]["delta"][1]["maybe"] is False
    assert rows[0]["output"]["text"] == "x" * 10
    assert [row["has_result"] for row in rows[-3:]] == [True, False, True]
    assert rows[-2]["flags"] == ["null_result"]
    assert rows[-2]["provenance_reasons"] == ["inputs: /path unverified"]


def test_parquet_without_payloads_has_the_same_columns(data: Path, tmp_path: Path) -> None:
    whole, bare = tmp_path / "whole.parquet", tmp_path / "bare.parquet"
    turnlog("export", "few", "--format", "parquet", "--payloads", "-o", str(whole), data=data)
    turnlog("export", "few", "--format", "parquet", "-o", str(bare), data=data)
    assert pq.read_schema(bare) == pq.read_schema(whole)
    assert pq.read_table(bare).to_pylist()[0]["input"] is None


def test_parquet_can_be_piped(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "piped.parquet"
    with file.open("wb") as out:
        subprocess.run(
            [sys.executable, "-m", "turnlog", "export", "few", "--format", "parquet"],
            env={"TURNLOG_DATA": str(data)},
            stdout=out,
            check=True,
            timeout=60,
        )
    assert pq.read_table(file).num_rows == 2


def test_parquet_without_pyarrow_says_what_to_install(data: Path, tmp_path: Path) -> None:
    missing = "raise ModuleNotFoundError(\"No module named 'pyarrow'\", name='pyarrow')\n"
    (tmp_path / "pyarrow.py").write_text(missing)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "turnlog",
            "export",
            "--format",
            "parquet",
            "-o",
            str(tmp_path / "x"),
        ],
        env={"TURNLOG_DATA": str(data), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "pip install 'turnlog[parquet]'" in done.stderr
    assert not (tmp_path / "x").exists()


def test_parquet_is_not_written_to_a_terminal(data: Path) -> None:
    with on_a_terminal(
        "export", "--format", "parquet", data=data, columns=80, environ={}
    ) as terminal:
        assert terminal.rest() == []
        assert terminal.process.wait() == 2
