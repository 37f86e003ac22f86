"""`store.saved_states`: saved states in files that may be thrown away."""

import os
import stat
from pathlib import Path

import pytest

from turnlog.core.ids import uuid7
from turnlog.store.saved_states import MOST_BYTES, SavedStates, size, trim

SESSION = uuid7(10**18, bytes(10))
OTHER = uuid7(10**18, bytes(9) + b"1")
HASH = bytes(range(32))


def seqs(saved: SavedStates, seq: int, session: bytes = SESSION) -> list[int]:
    return [found.seq for found in saved.newest(session, seq)]


def test_saved_states_come_back_newest_first(tmp_path: Path) -> None:
    saved = SavedStates(tmp_path, 1)
    for seq in (9, 1023, 100):
        saved.save(SESSION, seq, HASH, b"state %d" % seq)
    assert seqs(saved, 1023) == [1023, 100, 9]
    assert seqs(saved, 1022) == [100, 9]
    assert seqs(saved, 8) == []
    assert seqs(saved, 1023, OTHER) == []
    assert next(saved.newest(SESSION, 500)).read() == b"state 100"


def test_a_state_fits_the_commit_that_it_was_saved_after(tmp_path: Path) -> None:
    saved = SavedStates(tmp_path, 1)
    saved.save(SESSION, 9, HASH, b"state")
    (found,) = saved.newest(SESSION, 9)
    assert found.fits(HASH)
    assert not found.fits(HASH[::-1])


def test_states_of_another_version_are_passed_over(tmp_path: Path) -> None:
    SavedStates(tmp_path, 1).save(SESSION, 9, HASH, b"state")
    assert seqs(SavedStates(tmp_path, 2), 9) == []


def test_only_the_owner_may_read_them(tmp_path: Path) -> None:
    SavedStates(tmp_path, 1).save(SESSION, 9, HASH, b"state")
    made = list((tmp_path / "states").rglob("*"))
    assert len(made) == 2
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in made)


@pytest.mark.promise("STATE-7")
def test_damaged_and_strange_files_say_nothing(tmp_path: Path) -> None:
    saved = SavedStates(tmp_path, 1)
    saved.save(SESSION, 9, HASH, b"state")
    (found,) = saved.newest(SESSION, 9)
    (found.path.parent / "notes.txt").write_text("mine")
    found.path.write_bytes(b"no state")
    assert found.read() == b""
    found.path.unlink()
    assert found.read() == b""
    assert seqs(saved, 9) == []


def test_no_state_is_saved_if_the_store_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "states").write_text("in the way")
    saved = SavedStates(tmp_path, 1)
    assert not saved.save(SESSION, 9, HASH, b"state")
    assert seqs(saved, 9) == []


def test_a_state_that_is_too_large_is_not_saved(tmp_path: Path) -> None:
    saved = SavedStates(tmp_path, 1)
    noise = b"".join((n * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "big") for n in range(1 << 20))
    assert not saved.save(SESSION, 9, HASH, noise + noise[::-1])
    assert len(noise) * 2 > MOST_BYTES
    assert seqs(saved, 9) == []


def aged(path: Path, seconds: int) -> None:
    """Have a file be last touched so long after 1970."""
    os.utime(path, (seconds, seconds))


def test_those_that_nobody_asked_for_longest_go_first(tmp_path: Path) -> None:
    saved = SavedStates(tmp_path, 1)
    for seq in range(8):
        assert saved.save(SESSION if seq % 2 else OTHER, seq, HASH, b"state")
    for found in (*saved.newest(SESSION, 7), *saved.newest(OTHER, 7)):
        aged(found.path, found.seq)
    (asked,) = (found for found in saved.newest(SESSION, 1))
    assert asked.read() == b"state"
    folder = tmp_path / "states"
    whole = size(folder)
    assert trim(folder, whole) == whole
    assert trim(folder, whole // 2) <= whole // 2
    kept = sorted([*seqs(saved, 7), *seqs(saved, 7, OTHER)])
    assert kept == [1, 6, 7]
    assert trim(folder, 0) == size(folder) == 0
    assert list(folder.iterdir()) == []


def test_saving_keeps_all_states_within_their_bound(tmp_path: Path) -> None:
    most = 1 << 20
    saved = SavedStates(tmp_path, 1, most=most)
    for seq in range(100):
        assert saved.save(SESSION, seq, HASH, os.urandom(60_000))
    assert most // 2 < size(tmp_path / "states") <= most + most // 8
    assert seqs(saved, 100)[0] == 99
    again = SavedStates(tmp_path, 1, most=most // 4)
    again.save(OTHER, 1, HASH, b"state")
    assert size(tmp_path / "states") <= most // 4
