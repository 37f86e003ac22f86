"""`store.pages`: a file that was cut is told from one that LMDB itself left short."""

import os
import random
from pathlib import Path

import lmdb
import pytest

from turnlog.store.pages import missing

PAGE = os.sysconf("SC_PAGE_SIZE")


def opened(folder: Path) -> lmdb.Environment:
    return lmdb.open(str(folder), map_size=1 << 30, max_dbs=2, sync=False)


def is_short(env: lmdb.Environment, file: Path) -> bool:
    return file.stat().st_size < (env.info()["last_pgno"] + 1) * PAGE


def lacks(env: lmdb.Environment, file: Path) -> int:
    with env.begin():
        return missing(file, PAGE)


def test_what_lmdb_writes_is_whole_after_each_commit(tmp_path: Path) -> None:
    dice = random.Random(1)
    file = tmp_path / "data.mdb"
    short = 0
    with opened(tmp_path) as env:
        for _ in range(300):
            with env.begin(write=True) as txn:
                _churn(txn, dice)
            short += is_short(env, file)
            assert lacks(env, file) == 0
    assert short > 100, "nothing was tried"


def _churn(txn: "lmdb.Transaction[bytes]", dice: random.Random) -> None:
    for _ in range(dice.randrange(1, 6)):
        key = b"%d" % dice.randrange(400)
        if dice.random() < 0.45:
            txn.delete(key)
        else:
            txn.put(key, dice.randbytes(dice.choice([10, 300, 3000, 30_000])))
    if dice.random() < 0.3:
        for key in (b"a", b"b", b"c"):
            txn.put(key, bytes(200_000))
        for key in (b"a", b"b", b"c"):
            txn.delete(key)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of which the first part is in use, and the rest, several lists long, is free."""
    with opened(tmp_path) as env:
        for values in (range(40), range(40, 900)):
            with env.begin(write=True) as txn:
                for n in values:
                    txn.put(b"%03d" % n, bytes(6000))
        for n in range(40, 900):
            with env.begin(write=True) as txn:
                txn.delete(b"%03d" % n)
    return tmp_path / "data.mdb"


def read_all(folder: Path) -> list[int]:
    with (
        lmdb.open(str(folder), map_size=1 << 30, readonly=True) as env,
        env.begin() as txn,
        txn.cursor() as cursor,
    ):
        return [len(value) for _, value in cursor]


def test_a_file_may_be_cut_as_far_as_its_pages_are_free(file: Path) -> None:
    size = file.stat().st_size
    assert missing(file, PAGE) == 0
    whole = size
    while True:
        os.truncate(file, whole - PAGE)
        if lack := missing(file, PAGE):
            break
        whole -= PAGE
    assert whole < size - 100 * PAGE, "nothing was tried"
    assert lack >= PAGE
    os.truncate(file, whole)
    assert read_all(file.parent) == 40 * [6000]
    os.truncate(file, whole - 1)
    assert missing(file, PAGE) > 0
    for cut in (2 * PAGE, 3 * PAGE, 10 * PAGE):
        os.truncate(file, cut)
        assert missing(file, PAGE) > 0


def test_a_list_of_free_pages_that_makes_no_sense_is_taken_for_a_cut(file: Path) -> None:
    content = file.read_bytes()
    for page in range(2 * PAGE, len(content), PAGE):
        file.write_bytes(content[:page] + bytes(PAGE) + content[page + PAGE : -PAGE])
        assert missing(file, PAGE) in range(len(content))
