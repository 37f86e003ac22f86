"""`store.epochs`: who lives."""

from pathlib import Path

from turnlog.store.epochs import lives, lock_epoch, sweep


def test_an_epoch_has_one_holder(tmp_path: Path) -> None:
    mine = lock_epoch(tmp_path, 7)
    assert mine is not None
    assert lock_epoch(tmp_path, 7) is None
    other = lock_epoch(tmp_path, 8)
    assert other is not None
    mine.release()
    again = lock_epoch(tmp_path, 7)
    assert again is not None
    again.release()
    other.release()
    assert list(tmp_path.iterdir()) == []


def test_an_epoch_lives_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    mine = lock_epoch(tmp_path, 7)
    assert mine is not None
    assert lives(tmp_path, 7)
    assert not lives(tmp_path, 8)
    mine.release()
    assert not lives(tmp_path, 7)
    (tmp_path / "9.lock").touch()  # whoever held it was killed
    assert not lives(tmp_path, 9)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "9.lock"]


def test_only_dead_epochs_that_count_already_are_swept(tmp_path: Path) -> None:
    living = lock_epoch(tmp_path, 2)
    assert living is not None
    for name in ("1.lock", "3.lock", "9.lock", "other", "x.lock"):
        (tmp_path / name).touch()
    sweep(tmp_path, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "2.lock",
        "9.lock",
        "other",
        "x.lock",
    ]
    living.release()
