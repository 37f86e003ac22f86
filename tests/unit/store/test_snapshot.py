"""`store.read.snapshot`: what is read of the tail, and what its writer knows of it."""

import os
from pathlib import Path

import pytest
from msgspec import structs

from conformance.store.kit import intent, new_id, session
from turnlog.core.commit import CommitBody
from turnlog.store import data_folder
from turnlog.store.log.environment import Txn, open_environment
from turnlog.store.log.index import Segment
from turnlog.store.log.tables import NAMES, Tables
from turnlog.store.read.snapshot import Snapshot, TailCache
from turnlog.store.write.drafts import prepare
from turnlog.store.write.ledger import Ledger


def append(ledger: Ledger, txn: Txn, link: bytes) -> None:
    draft = structs.replace(intent(session(), new_id()), body=CommitBody(links=(link,)))
    ledger.begin(txn)
    ledger.append(txn, prepare(draft, bytes))
    ledger.put(txn)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    data_folder.create(tmp_path / "data")
    return tmp_path / "data" / "log"


def test_a_writer_does_not_read_its_own_commits_again(log: Path) -> None:
    with open_environment(log, readonly=False, tables=len(NAMES)) as env:
        tables = Tables.of(env, create=True)
        ledger = Ledger(tables, 1, os.urandom)
        with env.write() as txn:
            append(ledger, txn, b"first")
        snapshot = Snapshot(env, tables, TailCache(lambda: ledger.tail))
        with env.write() as txn:
            append(ledger, txn, b"second")
        assert snapshot.tail is ledger.tail
        assert (snapshot.last, snapshot.linked(b"first"), snapshot.linked(b"second")) == (
            2,
            2,
            None,
        )
        snapshot.close()


def test_a_failed_write_is_not_mistaken_for_that_of_another_writer(log: Path) -> None:
    with open_environment(log, readonly=False, tables=len(NAMES)) as env:
        tables = Tables.of(env, create=True)
        failed, other = Ledger(tables, 1, os.urandom), Ledger(tables, 2, os.urandom)
        with env.write() as txn:
            append(failed, txn, b"never written")
            txn.abort()
        with env.write() as txn:
            append(other, txn, b"written")
        snapshot = Snapshot(env, tables, TailCache(lambda: failed.tail))
        assert (snapshot.linked(b"written"), snapshot.linked(b"never written")) == (2, None)
        snapshot.close()


@pytest.mark.parametrize("knows", [0, 5])
def test_a_writer_that_knows_less_or_more_of_the_log_is_not_asked(log: Path, knows: int) -> None:
    with open_environment(log, readonly=False, tables=len(NAMES)) as env:
        tables = Tables.of(env, create=True)
        with env.write() as txn:
            append(Ledger(tables, 1, os.urandom), txn, b"link")
        snapshot = Snapshot(env, tables, TailCache(lambda: Segment(knows)))
        assert (snapshot.last, snapshot.linked(b"link")) == (2, 2)
        snapshot.close()
