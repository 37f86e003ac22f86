"""Files of a store that were changed behind its back: `verify` says so, and `serve` does not start on them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from e2e.stores import process, turnlog
from faults.mutations import PAGE, contents, make, tried
from turnlog.store.log.tables import NAMES

SERVE = ("serve", "--upstream", "http://127.0.0.1:9/mcp", "--listen", "127.0.0.1:0")
DERIVED = (
    "segments",
    "seqs",
    "calls",
    "postings",
    "links",
    "heads",
    "activity",
    "open",
    "unsettled",
    "parked",
)
Row = tuple[bytes, bytes]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("made") / "data"
    make(data)
    return data


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "data")


@pytest.mark.promise("CHAIN-6")
@pytest.mark.parametrize("tens", range(5))
def test_verify_ends_and_says_no_wrong_ok_whatever_is_changed(
    made: Path, tmp_path: Path, tens: int
) -> None:
    before = contents(made)
    found = [tried(made, before, tmp_path, seed) for seed in range(10 * tens, 10 * tens + 10)]
    assert [one for one in found if not one.is_right] == []


def change(data: Path, table: str, how: Callable[[list[Row]], list[Row]]) -> None:
    """Replace the rows of a table behind the store's back."""
    with lmdb.open(str(data / "log"), max_dbs=len(NAMES), map_size=1 << 40) as env:
        database = env.open_db(table.encode(), create=False)
        with env.begin(write=True, db=database) as txn:
            rows = [(bytes(key), bytes(value)) for key, value in txn.cursor()]
            txn.drop(database, delete=False)
            for key, value in how(rows):
                txn.put(key, value)


def _without_last(rows: list[Row]) -> list[Row]:
    return rows[:-1]


def _one_more(rows: list[Row]) -> list[Row]:
    key, value = rows[-1]
    return [*rows, (key[:-1] + bytes([key[-1] ^ 1]), value)]


def _another_value(rows: list[Row]) -> list[Row]:
    key, value = rows[0]
    other = value[:-1] + bytes([value[-1] ^ 1]) if value else b"x"
    return [(key, other), *rows[1:]]


@pytest.mark.parametrize("table", [*DERIVED, "aliases"])
@pytest.mark.parametrize("how", [_without_last, _one_more, _another_value])
def test_a_table_that_does_not_fit_the_log_is_named(
    data: Path, table: str, how: Callable[[list[Row]], list[Row]]
) -> None:
    if (table, how) == ("parked", _another_value):
        pytest.skip("its rows are keys alone")
    change(data, table, how)

    done = turnlog("verify", data=data)

    assert (done.returncode, done.stderr) == (1, "")
    assert "damaged" in done.stdout
    assert f"the index {table!r} does not fit the log" in done.stdout
    done = turnlog("verify", "--rebuild", data=data)
    assert done.returncode == (1 if table == "aliases" else 0), done.stdout


@pytest.mark.parametrize("table", ["seqs", "calls", "postings", "heads", "unsettled"])
def test_serve_does_not_start_where_the_newest_calls_would_not_be_found(
    data: Path, table: str
) -> None:
    change(data, table, lambda rows: [])

    done = process(*SERVE, "--data", str(data))

    assert (done.returncode, done.stdout) == (3, "")
    assert f"the index {table!r} does not fit the log" in done.stderr
    assert "`turnlog verify --rebuild`" in done.stderr
    assert process("verify", "--rebuild", "--data", str(data)).returncode == 0


@pytest.fixture
def unreadable(data: Path) -> Path:
    """A store whose log LMDB cannot read without ending the process, or fails to."""
    log = data / "log" / "data.mdb"
    content = log.read_bytes()
    log.write_bytes(content[: 2 * PAGE] + bytes(len(content) - 2 * PAGE))
    return data


@pytest.mark.parametrize("command", [("verify",), SERVE, ("wrap", "--", "cat")])
def test_a_log_that_would_end_the_process_is_named_instead(
    unreadable: Path, command: tuple[str, ...]
) -> None:
    at = 1 if command[0] == "wrap" else len(command)
    done = process(*command[:at], "--data", str(unreadable), *command[at:])
    assert done.returncode in (1, 3)
    assert "damaged" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_verify_names_a_key_that_is_not_the_one_used_last(data: Path) -> None:
    (data / "key").write_bytes(bytes(32))
    done = turnlog("verify", data=data)
    assert done.returncode == 1
    assert "key: it is not the one that was used last" in done.stdout
    (data / "key").unlink()
    assert turnlog("verify", data=data).returncode == 1


def test_serve_does_not_start_on_damaged_definitions_and_says_the_way_out(data: Path) -> None:
    file = data / "definitions" / "data.mdb"
    content = file.read_bytes()
    file.write_bytes(content[: 2 * PAGE] + bytes(len(content) - 2 * PAGE))

    done = process(*SERVE, "--data", str(data))

    assert (done.returncode, done.stdout) == (3, "")
    assert "move that folder away" in done.stderr
