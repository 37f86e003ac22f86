"""`store.states`: saved states in files that may be thrown away."""

import stat
from pathlib import Path

from turnlog.core.ids import uuid7
from turnlog.store.states import MOST_BYTES, SavedStates

SESSION = uuid7(10**18, bytes(10))
OTHER = uuid7(10**18, bytes(9) + b"1")
HASH = bytes(range(32))


def seqs(saved: SavedStates, seq: int, session: bytes = SESSION) -> list[int]:
    return [found.seq for found in saved.newest(session, seq)]


def test_what_was_saved_comes_back_the_newest_first(tmp_path: Path) -> None:
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


def test_where_nothing_can_be_written_nothing_is_saved(tmp_path: Path) -> None:
    (tmp_path / "states").write_text("in the way")
    saved = SavedStates(tmp_path, 1)
    saved.save(SESSION, 9, HASH, b"state")
    assert seqs(saved, 9) == []


def test_a_state_that_is_too_large_is_not_saved(tmp_path: Path) -> None:
    saved = SavedStates(tmp_path, 1)
    noise = b"".join((n * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "big") for n in range(1 << 20))
    saved.save(SESSION, 9, HASH, noise + noise[::-1])
    assert len(noise) * 2 > MOST_BYTES
    assert seqs(saved, 9) == []
