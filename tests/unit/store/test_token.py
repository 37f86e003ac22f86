"""`store.data_folder`: who may use the API."""

from pathlib import Path

import pytest

from turnlog.store.base import StoreError
from turnlog.store.data_folder import read_token


@pytest.mark.promise("API-6")
def test_a_token_is_made_once_and_is_for_nobody_else(tmp_path: Path) -> None:
    token = read_token(tmp_path)
    file = tmp_path / "token"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_bytes() == token + b"\n"
    assert len(token) == 43  # 256 bits, 6 to a character
    file.chmod(0o644)
    assert read_token(tmp_path) == token
    assert file.stat().st_mode & 0o777 == 0o600
    (tmp_path / "other").mkdir()
    assert read_token(tmp_path / "other") != token


def test_a_token_that_could_be_guessed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"secret\n")
    with pytest.raises(StoreError, match="too short; delete it"):
        read_token(tmp_path)
