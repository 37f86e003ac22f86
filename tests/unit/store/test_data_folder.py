"""`store.data_folder` and opening: what stands in the data folder, and who may use it."""

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from conformance.store.kit import intent, known, new_id, put, seqs, session
from kit.clients import wait_until
from kit.holding import nobody_writes
from turnlog.packs.lock import write_lock_note
from turnlog.sessions.overview import ServerHealth, write_health
from turnlog.store import data_folder
from turnlog.store.base import Blob, StoreAbsent, StoreError
from turnlog.store.lmdb import LmdbReader, LmdbStore
from turnlog.store.log.environment import open_environment
from turnlog.store.log.translate_errors import explained


async def make(path: Path) -> None:
    """Make an empty store."""
    store = LmdbStore.open(path)
    await store.close()


@pytest.mark.promise("SEC-7")
async def test_nobody_else_can_read_a_data_folder(tmp_path: Path) -> None:
    data = tmp_path / "deep" / "data"
    await make(data)
    assert data.stat().st_mode & 0o777 == 0o700
    files = [path for path in data.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o077 for path in files} == {0}
    assert (data / "format").read_text() == f"turnlog {data_folder.FORMAT}\n"


async def test_an_empty_folder_that_exists_becomes_private(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    (data / "token").write_text("made before by the proxy")
    await make(data)
    assert data.stat().st_mode & 0o777 == 0o700


@pytest.mark.promise("SEC-7")
async def test_a_store_that_was_opened_to_others_is_closed_to_them(tmp_path: Path) -> None:
    await make(tmp_path / "data")
    (tmp_path / "data").chmod(0o755)
    await make(tmp_path / "data")
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder away needs root")
async def test_a_store_of_somebody_else_that_is_open_to_others_is_refused(tmp_path: Path) -> None:
    await make(tmp_path / "data")
    (tmp_path / "data").chmod(0o750)
    os.chown(tmp_path / "data", 65534, 65534)
    with pytest.raises(StoreError, match=r"\(mode 750\) and belongs to user 65534"):
        LmdbStore.open(tmp_path / "data")


def test_a_store_that_a_proxy_would_make_is_absent_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "begun" / "log").mkdir(parents=True)
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "letter.txt").write_text("dear all")
    for name in ("nowhere", "begun"):
        with pytest.raises(StoreAbsent):
            LmdbReader.open(tmp_path / name)
    for name in ("strange", "strange/letter.txt"):
        with pytest.raises(StoreError) as refused:
            LmdbReader.open(tmp_path / name)
        assert not isinstance(refused.value, StoreAbsent)


async def test_a_folder_with_other_files_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear all")
    with pytest.raises(StoreError, match=r"holds other files \('letter.txt'\)"):
        LmdbStore.open(tmp_path)


async def test_turnlogs_own_files_in_a_folder_do_not_keep_it_from_being_a_store(
    tmp_path: Path,
) -> None:
    write_health(tmp_path, 1, [ServerHealth(server="a", missing="b")])
    write_lock_note(tmp_path, tmp_path / "turnlog.lock")
    await make(tmp_path)
    LmdbReader.open(tmp_path).close()


@pytest.mark.promise("STORE-12")
async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    await make(tmp_path / "data")
    (tmp_path / "data" / "format").write_text("turnlog 7\n")
    with pytest.raises(StoreError, match="format 7"):
        LmdbReader.open(tmp_path / "data")
    with pytest.raises(StoreError, match="install a newer turnlog"):
        LmdbStore.open(tmp_path / "data")


def test_a_reader_needs_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no data folder at"):
        LmdbReader.open(tmp_path / "nothing")
    with pytest.raises(StoreError, match="not a turnlog store"):
        LmdbReader.open(tmp_path)
    for other in (b"\xff\xff", b"something else", "turnlog \u00b2".encode()):
        (tmp_path / "format").write_bytes(other)
        with pytest.raises(StoreError, match="not a turnlog store"):
            LmdbReader.open(tmp_path)
    (tmp_path / "format").write_text(f"turnlog {data_folder.FORMAT}\n")
    with pytest.raises(StoreError, match="empty or missing"):
        LmdbReader.open(tmp_path)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.EAGAIN, "ulimit -u"),
        (errno.ENOMEM, "ulimit -v"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EROFS, "mount it for writing"),
        (errno.EIO, "the disk fails"),
        (errno.EACCES, "the user who owns the folder"),
        (errno.EXDEV, "check the disk and the folder's permissions"),
    ],
)
def test_the_advice_behind_an_error_of_the_system_fits_it(
    tmp_path: Path, code: int, advice: str
) -> None:
    by_number = explained("open", tmp_path, OSError(code, os.strerror(code)))
    assert advice in str(by_number)
    if code != errno.EIO:  # of LMDB this means that less was written than it asked for
        by_text = explained("open", tmp_path, lmdb.Error(f"mdb_put: {os.strerror(code)}"))
        assert advice in str(by_text)


def test_a_limit_on_the_address_space_is_named_where_a_store_does_not_fit_in(
    tmp_path: Path,
) -> None:
    code = (
        "import asyncio, resource, sys\n"
        "from turnlog.store.base import StoreError\n"
        "from turnlog.store.lmdb import LmdbStore\n"
        "async def main():\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        "    try: LmdbStore.open(sys.argv[1])\n"
        "    except StoreError as error: print(error)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")], check=True, capture_output=True
    )
    assert b"ulimit -v" in done.stdout


async def test_a_damaged_file_is_said_to_be_damaged(tmp_path: Path) -> None:
    await make(tmp_path / "data")
    (tmp_path / "data" / "log" / "data.mdb").write_bytes(b"no database" * 4096)
    with pytest.raises(StoreError, match="restore it from a backup"):
        LmdbReader.open(tmp_path / "data")


@pytest.mark.parametrize("pages", [2, 3, 5])
async def test_a_file_that_was_cut_is_said_to_be_damaged(tmp_path: Path, pages: int) -> None:
    await make(tmp_path / "data")
    os.truncate(tmp_path / "data" / "log" / "data.mdb", pages * os.sysconf("SC_PAGE_SIZE"))
    with pytest.raises(StoreError, match="missing at its end; restore it"):
        LmdbReader.open(tmp_path / "data")
    with pytest.raises(StoreError, match="missing at its end; restore it"):
        LmdbStore.open(tmp_path / "data")


async def lose(data: Path, *, emptied: bool) -> None:
    """Make a store with content, and take its log."""
    store = LmdbStore.open(data)
    await put(store, intent(session(), new_id(), blob=Blob(b"content")))
    await store.close()
    log = data / "log" / "data.mdb"
    if emptied:
        os.truncate(log, 0)
    else:
        log.unlink()


@pytest.mark.parametrize("emptied", [True, False])
@pytest.mark.parametrize("marked", [True, False])
async def test_no_new_log_is_begun_beside_what_is_left_of_a_store(
    tmp_path: Path, emptied: bool, marked: bool
) -> None:
    data = tmp_path / "data"
    await lose(data, emptied=emptied)
    before = sorted(data.rglob("*"))
    if not marked:
        (data / "format").unlink()
        before.remove(data / "format")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"data\.mdb' is empty or missing.*from a backup"):
            LmdbStore.open(data)
    assert sorted(data.rglob("*")) == before
    if marked:
        with pytest.raises(StoreError, match="empty or missing") as refused:
            LmdbReader.open(data)
        # A folder that is being removed, or put back, may still become a store.
        assert isinstance(refused.value, StoreAbsent) is not emptied


@pytest.mark.parametrize("left", [(), ("key",), ("key", "token")])
async def test_a_folder_that_was_only_begun_becomes_a_store(
    tmp_path: Path, left: tuple[str, ...]
) -> None:
    data = tmp_path / "data"
    await make(data)
    (data / "format").unlink()
    os.truncate(data / "log" / "data.mdb", 0)
    (data / "epochs" / "1.lock").touch()
    for path in data.iterdir():
        if path.is_file() and path.name not in left:
            path.unlink()
    await make(data)
    LmdbReader.open(data).close()


@pytest.mark.parametrize(
    ("version", "advice"), [(1, "another folder"), (data_folder.FORMAT + 1, "newer turnlog")]
)
async def test_another_format_is_refused(tmp_path: Path, version: int, advice: str) -> None:
    await make(tmp_path / "data")
    (tmp_path / "data" / "format").write_text(f"turnlog {version}\n")
    with pytest.raises(StoreError, match=advice):
        LmdbStore.open(tmp_path / "data")


async def test_a_damaged_key_is_said_to_be_damaged(tmp_path: Path) -> None:
    await make(tmp_path / "data")
    (tmp_path / "data" / "key").write_bytes(b"short")
    with pytest.raises(StoreError, match="key"):
        LmdbStore.open(tmp_path / "data")


def test_another_user_is_told_to_be_the_owner(tmp_path: Path) -> None:
    data = tmp_path / "data"
    asyncio.run(make(data))
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from turnlog.store.base import StoreError\n"
        "from turnlog.store.lmdb import LmdbReader\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "else: Path(sys.argv[1]).chmod(0)\n"
        "try: LmdbReader.open(Path(sys.argv[1]))\n"
        "except StoreError as error: print(error)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(data)], capture_output=True, text=True, timeout=60
    )
    data.chmod(0o700)
    assert found.stderr == ""
    assert "run as the user who owns the folder" in found.stdout


async def test_a_reader_in_the_writers_process_shares_its_files(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = LmdbStore.open(data)
    reader = LmdbReader.open(data)
    reader.close()
    with store.view() as view:
        assert view.usage().commits == 0
    await store.close()


async def test_a_writer_does_not_start_behind_a_reader_of_its_process(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await make(data)
    reader = LmdbReader.open(data)
    with pytest.raises(StoreError, match="close the reader first"):
        LmdbStore.open(data)
    reader.close()
    await make(data)


def test_processes_that_make_a_key_at_once_get_the_same(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from turnlog.store.data_folder import read_key\n"
        "sys.stdin.readline()\n"
        "print(read_key(Path(sys.argv[1])).hex())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    keys = {child.communicate(timeout=60)[0] for child in children}
    assert len(keys) == 1
    assert len(bytes.fromhex(keys.pop())) == 32
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    assert data_folder.read_key(tmp_path) == (tmp_path / "key").read_bytes()


def test_a_store_does_not_work_in_a_forked_child(tmp_path: Path) -> None:
    code = (
        "import asyncio, os, sys, warnings\n"
        "from pathlib import Path\n"
        "from conformance.store.kit import intent, new_id, session\n"
        "from turnlog.store.base import StoreClosed\n"
        "from turnlog.store.lmdb import LmdbStore\n"
        "async def main():\n"
        "    store = LmdbStore.open(Path(sys.argv[1]))\n"
        "    if os.fork() == 0:\n"
        "        try: store.submit(intent(session(), new_id()), wait=True)\n"
        "        except StoreClosed as error: print(error, flush=True)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "    await store.close()\n"
        "asyncio.run(main())\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "opened before a fork" in found.stdout


@pytest.mark.promise("STORE-3")
async def test_a_commit_waits_for_its_pages_and_for_the_page_that_makes_them_count(
    tmp_path: Path,
) -> None:
    await make(tmp_path / "data")
    with open_environment(tmp_path / "data" / "log", readonly=False) as env:
        flags = env.raw.flags()
    assert (flags["sync"], flags["metasync"], flags["writemap"]) == (True, True, False)


@pytest.mark.promise("STORE-3")
async def test_what_is_submitted_is_not_done_before_it_is_committed(tmp_path: Path) -> None:
    data, ref = tmp_path / "data", session("alice")
    store = LmdbStore.open(data)
    await put(store, intent(ref, new_id()))
    with nobody_writes(data):
        ticket = store.submit(intent(ref, new_id()), wait=True)
        await asyncio.to_thread(wait_until, lambda: waits_to_write(data), "the writer waits")
        assert ticket.placed is None
    commit = await ticket.done()
    reader = LmdbReader.open(data)
    with reader.view() as view:
        assert view.get(known(ref), commit.link.seq) is not None
    reader.close()
    await store.close()


def waits_to_write(data: Path) -> bool:
    """Return whether a thread waits for the lock on the log (proc_locks(5): `->` is a waiting one)."""
    number = f":{(data / 'log' / 'data.mdb').stat().st_ino} "
    locks = Path("/proc/locks").read_text().splitlines()
    return any(" -> " in line and number in line for line in locks)


@pytest.mark.parametrize("boot", ["", "first"])
async def test_a_store_works_where_the_machine_does_not_tell_its_starts(
    tmp_path: Path, boot: str
) -> None:
    data, ref = tmp_path / "data", session("alice")
    for _ in range(2):
        store = LmdbStore.open(data, boot=boot)
        await put(store, intent(ref, new_id(), blob=Blob(b"content")))
        await store.close()
    reader = LmdbReader.open(data)
    with reader.view() as view:
        assert seqs(view, ref) == [0, 1, 2, 3]
        commit = view.get(known(ref), 3)
        assert commit is not None
    reader.close()


HOLDS = """
import lmdb, sys
with lmdb.open(sys.argv[1], max_dbs=64, map_size=1 << 40) as env, env.begin(write=True):
    print(flush=True)
    sys.stdin.read()
"""
READS_BESIDE = """
import asyncio, subprocess, sys
from pathlib import Path
from turnlog.store.lmdb import LmdbReader, LmdbStore
async def main():
    data = Path(sys.argv[1])
    store = LmdbStore.open(data)
    holds = (sys.executable, "-c", sys.argv[2], str(data / "log"))
    with subprocess.Popen(holds, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        LmdbReader.open(data).close()
        holder.communicate()
    await store.close()
asyncio.run(main())
"""


def test_a_reader_beside_the_writer_of_its_process_waits_for_no_write_lock(tmp_path: Path) -> None:
    command = (sys.executable, "-c", READS_BESIDE, str(tmp_path / "data"), HOLDS)
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
