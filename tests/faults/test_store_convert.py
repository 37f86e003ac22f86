"""A store of release 0.2 is converted: whole, after a crash of the machine, killed, in use, on a full disk.

`golden/store-0.2.0.tar.xz` was made with release 0.2: `whole` is a store that was closed, `crashed`
the same one as a machine leaves it that went down while the flush of the newest two transactions'
meta pages was outstanding. `store-0.2.0.json` has the hashes of the commits that were acknowledged.
"""

import asyncio
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from itertools import pairwise
from pathlib import Path

import lmdb
import pytest

from conformance.store.kit import START, intent, new_id, put
from e2e.stores import turnlog
from golden.make import HERE
from kit.disks import disk_of, fill_disk
from turnlog.core.kinds import Rung, Status
from turnlog.store.base import SessionRef, StoreError, StoreFull, alias
from turnlog.store.convert import convert
from turnlog.store.data_folder import FORMAT
from turnlog.store.lmdb import DAY, LmdbReader, LmdbStore

SLOT = 512 << 10
MAGIC = b"turnred2an earlier start"
TOLD: dict[str, list[str]] = json.loads((HERE / "store-0.2.0.json").read_text())


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The folder with both stores of release 0.2."""
    return unpacked(tmp_path)


def unpacked(folder: Path) -> Path:
    with tarfile.open(HERE / "store-0.2.0.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    return folder


def held(data: Path) -> dict[str, list[str]]:
    """Return the hashes of all commits by the names of their sessions; chain and indexes are whole."""
    reader = LmdbReader.open(data)
    found: dict[str, list[str]] = {}
    with reader.view() as view:
        for row in view.sessions():
            commits = list(view.commits(row.session))
            assert all(after.link.prev == before.hash for before, after in pairwise(commits))
            found[row.aliases[0].partition("\x1f")[0]] = [commit.hash.hex() for commit in commits]
        assert list(view.flaws()) == []
        assert list(view.index_flaws()) == []
    assert reader.problems() == []
    reader.close()
    return found


def contents(data: Path) -> dict[Path, bytes]:
    files = (path for path in data.rglob("*") if path.is_file() and path.name != "lock.mdb")
    return {path.relative_to(data): path.read_bytes() for path in files}


@pytest.mark.promise("STORE-11")
@pytest.mark.parametrize("command", ["log", "status", "verify", "serve"])
def test_a_store_of_release_0_2_is_refused_with_the_command_that_converts_it(
    old: Path, command: str
) -> None:
    data = old / "whole"
    flags = ("--upstream", "http://127.0.0.1:9/mcp", "--listen", "127.0.0.1:0")
    said = turnlog(command, *(flags if command == "serve" else ()), data=data)
    assert said.returncode == 3
    assert said.stderr.count("\n") == 1
    assert f"run `turnlog convert --data {data}`" in said.stderr


def test_the_command_says_what_it_did(old: Path) -> None:
    data = old / "crashed"
    first, second = turnlog("convert", data=data), turnlog("convert", data=data)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == (
        f"converted 17 commits to format {FORMAT}\n"
        "recovered 3 commits that a crash of the machine had undone\n"
        f"kept the log as it was in {data / 'log.format-4'}; remove it once all is well\n"
    )
    assert (second.returncode, second.stdout) == (
        0,
        f"the store {data} has format {FORMAT} already\n",
    )
    assert turnlog("verify", data=data).returncode == 0


@pytest.mark.promise("STORE-11")
@pytest.mark.parametrize(("name", "replayed"), [("whole", 0), ("crashed", 3)])
async def test_a_converted_store_holds_what_was_acknowledged(
    old: Path, name: str, replayed: int
) -> None:
    data = old / name
    before = contents(data)
    converted = convert(data)
    assert converted is not None
    assert (converted.commits, converted.replayed) == (17, replayed)
    assert held(data) == TOLD
    after = contents(data)
    assert after[Path("log.format-4/data.mdb")] == before[Path("log/data.mdb")]
    assert (data / "format").stat().st_mode & 0o777 == 0o600
    store = LmdbStore.open(data)
    assert [commit.facts.status for commit in store.recovered] == [Status.UNKNOWN]
    named = alias(Rung.EXPLICIT, "alice", "me")
    ref = SessionRef(candidate=new_id(), rung=Rung.EXPLICIT, aliases=(named,))
    commit = await put(store, intent(ref, new_id(START + DAY)))
    assert commit.link.seq == len(TOLD["alice"])
    with store.view() as view:
        assert view.linked(b"k" * 32) is not None
    await store.close()


def test_what_no_slot_holds_whole_is_left_out(old: Path) -> None:
    image = (old / "crashed" / "log" / "data.mdb").read_bytes()
    slots = [image.find(MAGIC), image.rfind(MAGIC)]
    assert slots[1] - slots[0] == SLOT
    left: list[dict[str, list[str]]] = []
    for number, slot in enumerate(slots):
        torn = bytearray(image)
        torn[slot + 200 : slot + 260] = bytes(60)
        data = Path(shutil.copytree(old / "crashed", old / f"torn {number}"))
        (data / "log" / "data.mdb").write_bytes(bytes(torn))
        convert(data)
        left.append(held(data))
    # Without the newest slot its transaction is gone, without the other one both are.
    assert {"alice": TOLD["alice"]} in left
    assert {"alice": TOLD["alice"][:14]} in left


def test_slots_of_this_start_of_the_machine_undo_nothing(old: Path) -> None:
    converted = convert(old / "crashed", boot="an earlier start")
    assert converted is not None
    assert converted.replayed == 0
    assert held(old / "crashed") == {"alice": TOLD["alice"][:14]}


def test_release_0_2_cannot_open_a_converted_log_whatever_the_marker_says(old: Path) -> None:
    convert(old / "whole")
    env = lmdb.open(str(old / "whole" / "log"), max_dbs=32)
    with pytest.raises(lmdb.IncompatibleError), env.begin(write=True) as txn:
        env.open_db(b"redo", txn=txn, create=True)
    env.close()


def test_a_store_in_use_is_not_converted(old: Path) -> None:
    data = old / "whole"
    before = contents(data)
    with (data / "epochs" / "7.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(
            StoreError, match=r"in use by 1 running turnlog \(epoch 7\); stop every"
        ):
            convert(data)
        (data / "epochs" / "7.lock").unlink()
    assert contents(data) == before


def test_a_full_disk_changes_nothing(old: Path, tmp_path: Path) -> None:
    with disk_of(tmp_path / "disk", 16) as disk:
        data = Path(shutil.copytree(old / "crashed", disk / "data"))
        before = contents(data)
        filler = fill_disk(disk)
        with pytest.raises(StoreFull, match="free space on the disk"):
            convert(data)
        assert contents(data) == before
        filler.unlink()
        assert convert(data) is not None
        assert held(data) == TOLD


def test_a_copy_that_cannot_be_written_changes_nothing(old: Path) -> None:
    data = old / "crashed"
    before = contents(data)
    limited = (
        "import resource, sys\n"
        "from turnlog.cli.main import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, "convert", "--data", str(data)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 3
    assert "cannot convert" in done.stderr
    assert contents(data) == before
    convert(data)
    assert held(data) == TOLD


@pytest.mark.parametrize("step", ["copying", "swapping", "marking"])
def test_a_conversion_that_was_killed_is_carried_on(old: Path, step: str) -> None:
    data, done = old / "crashed", old / "done"
    shutil.copytree(data, done)
    convert(done)
    match step:
        case "copying":
            (data / "log.converting").mkdir()
            (data / "log.converting" / "data.mdb").write_bytes(b"half a file")
        case "swapping":
            (data / "log").rename(data / "log.format-4")
            (done / "log").rename(data / "log.converting")
        case _:
            (data / "log").rename(data / "log.format-4")
            (done / "log").rename(data / "log")
    with pytest.raises(StoreError, match="run `turnlog convert"):
        LmdbReader.open(data)
    assert convert(data) is not None
    assert held(data) == TOLD
    assert not (data / "log.converting").exists()


@pytest.mark.promise("STORE-11")
def test_kills_at_any_moment_lose_nothing(old: Path) -> None:
    data, dice = old / "crashed", random.Random(5)
    command = [sys.executable, "-m", "turnlog", "convert", "--data", str(data)]
    for _ in range(8):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
            begun = [data / "log.converting", data / "log.format-4"]
            while running.poll() is None and not any(path.exists() for path in begun):
                time.sleep(0)
            for _ in range(dice.randint(0, 2000)):
                time.sleep(0)
            running.send_signal(signal.SIGKILL)
        if not (data / "log.format-4").exists():
            continue
        break
    assert turnlog("convert", data=data).returncode == 0
    assert held(data) == TOLD


def test_an_earlier_copy_is_not_overwritten(old: Path) -> None:
    (old / "whole" / "log.format-4").mkdir()
    with pytest.raises(StoreError, match="is in the way; move it"):
        convert(old / "whole")


def test_a_damaged_log_is_not_converted(old: Path) -> None:
    file = old / "whole" / "log" / "data.mdb"
    with file.open("r+b") as stream:
        stream.seek(5 * os.sysconf("SC_PAGE_SIZE"))
        stream.write(os.urandom(64))
    before = contents(old / "whole")
    said = turnlog("convert", data=old / "whole")
    assert said.returncode == 3
    assert "is damaged" in said.stderr
    assert contents(old / "whole") == before


@pytest.mark.parametrize("version", [1, 3])
def test_other_formats_are_not_converted(old: Path, version: int) -> None:
    (old / "whole" / "format").write_text(f"turnlog {version}\n")
    with pytest.raises(StoreError, match=f"has format {version}; this turnlog converts format 4"):
        convert(old / "whole")


async def test_two_conversions_at_once_are_one(old: Path) -> None:
    command = (sys.executable, "-m", "turnlog", "convert", "--data", str(old / "crashed"))
    both = [await asyncio.create_subprocess_exec(*command) for _ in range(2)]
    async with asyncio.timeout(60):
        codes = [await one.wait() for one in both]
    assert 0 in codes
    assert held(old / "crashed") == TOLD
