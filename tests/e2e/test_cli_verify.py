"""`turnlog verify` on a store whose files were changed by something else than turnlog."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from e2e.stores import Call, fill, session_id, turnlog
from turnlog.core import ids
from turnlog.core.commit import CommitBody, encode_body
from turnlog.store.log.tables import Table

CALLS = [Call(tool=f"t{n}", minute=n, session="work" if n % 2 else "other") for n in range(6)]
WORK = ids.to_text(session_id("work"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "data", CALLS)
    return tmp_path / "data"


def _tamper(data: Path, table: str, change: Callable[[lmdb.Transaction, Table], None]) -> None:
    with lmdb.open(str(data / "log"), max_dbs=32, map_size=1 << 40) as env:
        database = env.open_db(table.encode(), create=False)
        with env.begin(write=True, db=database) as transaction:
            change(transaction, database)


def _verdicts(data: Path, *arguments: str) -> tuple[int, dict[str | None, dict[str, Any]]]:
    done = turnlog("verify", "--json", *arguments, data=data)
    assert done.stderr == ""
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {line["session"]: line for line in lines}


def test_an_untouched_store_is_ok(data: Path) -> None:
    code, lines = _verdicts(data)

    assert code == 0
    assert {line["verdict"] for line in lines.values()} == {"ok"}
    assert lines[WORK]["commits"] == 7


def test_a_changed_header_is_found_in_its_session_alone(data: Path) -> None:
    def rewrite(transaction: lmdb.Transaction, _: object) -> None:
        for key, value in list(transaction.cursor()):
            # As msgpack writes it: two letters alone may stand in a hash by chance.
            if b"\xa2t3" in bytes(value):
                transaction.put(key, bytes(value).replace(b"\xa2t3", b"\xa2zz"))

    _tamper(data, "log", rewrite)

    code, lines = _verdicts(data)

    assert code == 1
    assert (lines[WORK]["verdict"], lines[WORK]["bad_seq"]) == ("mutated", 3)
    assert sum(line["verdict"] == "ok" for line in lines.values()) == 1
    assert "mutated" in turnlog("verify", data=data).stdout


def test_a_changed_body_is_found(data: Path) -> None:
    def rewrite(transaction: lmdb.Transaction, _: object) -> None:
        key, _value = next(iter(transaction.cursor()))
        transaction.put(key, encode_body(CommitBody(summary="nothing happened")))

    _tamper(data, "bodies", rewrite)

    code, lines = _verdicts(data)

    assert code == 1
    assert sorted(line["verdict"] for line in lines.values()) == ["mutated", "ok"]


def test_one_session_may_be_checked_alone(data: Path) -> None:
    code, lines = _verdicts(data, "work")

    assert (code, list(lines)) == (0, [WORK])


@pytest.mark.promise("CHAIN-4")
def test_an_anchor_that_was_kept_elsewhere_finds_a_log_that_was_cut_off(
    data: Path, tmp_path: Path
) -> None:
    anchors = turnlog("sessions", "--json", data=data).stdout
    (tmp_path / "anchors.jsonl").write_text(anchors)
    fill(tmp_path / "shorter", CALLS[:4])

    whole, _ = _verdicts(data, "--anchor", str(tmp_path / "anchors.jsonl"))
    code, lines = _verdicts(tmp_path / "shorter", "--anchor", str(tmp_path / "anchors.jsonl"))

    assert whole == 0
    assert code == 1
    assert (lines[WORK]["verdict"], lines[WORK]["bad_seq"]) == ("truncated", 5)


def test_an_anchor_of_a_session_that_is_gone_is_truncated(data: Path, tmp_path: Path) -> None:
    anchors = turnlog("sessions", "--json", data=data).stdout
    (tmp_path / "anchors.jsonl").write_text(anchors)
    fill(tmp_path / "one", [CALLS[0]])

    code, lines = _verdicts(tmp_path / "one", "--anchor", str(tmp_path / "anchors.jsonl"))

    assert code == 1
    assert (lines[WORK]["verdict"], lines[WORK]["bad_seq"]) == ("truncated", 0)


@pytest.mark.parametrize("line", ["nonsense", '{"session":"x","seq":1,"hash":"sha256:00"}', "{}"])
def test_an_anchor_file_of_something_else_is_refused(data: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "anchors.jsonl").write_text(line + "\n")

    done = turnlog("verify", "--anchor", str(tmp_path / "anchors.jsonl"), data=data)

    assert done.returncode == 2
    assert "line 1 of the --anchor file is not an anchor" in done.stderr


def test_an_anchor_file_without_any_anchor_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "anchors.jsonl").touch()

    done = turnlog("verify", "--anchor", str(tmp_path / "anchors.jsonl"), data=data)

    assert (done.returncode, done.stdout) == (2, "")
    assert "the --anchor file holds no anchor" in done.stderr


def test_a_changed_payload_is_found_and_one_that_is_missing_without_a_reason(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    fill(data, [Call(tool="t", minute=0, input=b'{"argument":"as it was"}')])
    (bucket,) = (data / "blobs").iterdir()
    with lmdb.open(str(bucket), map_size=1 << 40) as env, env.begin(write=True) as transaction:
        for key, value in list(transaction.cursor()):
            transaction.put(key, bytes(value).replace(b"as it was", b"otherwise"))

    code, lines = _verdicts(data)
    shown = turnlog("show", "work:1", data=data)

    assert (code, lines[WORK]["verdict"], lines[WORK]["bad_seq"]) == (1, "mutated", 1)
    assert lines[WORK]["detail"] == "its stored input is damaged"
    assert "input       damaged: " in shown.stdout
    shutil.rmtree(bucket)
    code, lines = _verdicts(data)
    assert (code, lines[WORK]["detail"]) == (1, "its stored input is damaged")
    (data / "blobs" / f"trimmed-{bucket.name}").mkdir()
    code, lines = _verdicts(data)
    assert (code, lines[WORK]["detail"]) == (0, "2 payloads trimmed")
    assert lines[WORK]["gone"] == {"trimmed": 2}


def test_a_damaged_first_commit_hides_no_session(data: Path) -> None:
    def destroy(transaction: lmdb.Transaction, _: object) -> None:
        key, _value = next(iter(transaction.cursor()))
        transaction.put(key, b"no record")

    _tamper(data, "log", destroy)

    code, lines = _verdicts(data)

    assert code == 1
    assert sorted(line["verdict"] for line in lines.values()) == ["gap", "mutated", "ok"]
    assert lines[None]["detail"] == "positions 1 to 2 of the log cannot be read"
    assert turnlog("sessions", data=data).returncode == 0
