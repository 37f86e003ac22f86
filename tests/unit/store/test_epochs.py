"""`store.log.epochs`: who lives."""

from pathlib import Path

from turnlog.store.log.epochs import is_locked, lock_epoch, sweep


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


def test_whether_an_epoch_has_a_holder_is_seen_without_taking_it(tmp_path: Path) -> None:
    (tmp_path / "6.lock").touch()
    mine = lock_epoch(tmp_path, 7)
    assert mine is not None
    assert [is_locked(tmp_path, epoch) for epoch in (5, 6, 7)] == [False, False, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["6.lock", "7.lock"]
    mine.release()
    assert not is_locked(tmp_path, 7)
