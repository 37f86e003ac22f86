import os
import subprocess
from pathlib import Path

import pytest

from e2e.stores import Call, fill, process
from kit.proxy import environment
from turnlog.store.default_folder import default_place


@pytest.mark.parametrize(
    ("environ", "platform", "expected"),
    [
        ({"HOME": "/home/me"}, "linux", "/home/me/.local/state/turnlog"),
        ({"HOME": "/home/me", "XDG_STATE_HOME": "/state"}, "linux", "/state/turnlog"),
        (
            {"HOME": "/home/me", "XDG_STATE_HOME": "state"},
            "linux",
            "/home/me/.local/state/turnlog",
        ),
        ({"HOME": "/Users/me"}, "darwin", "/Users/me/Library/Application Support/turnlog"),
        ({}, "linux", "/there/turnlog-data"),
    ],
)
def test_the_default_is_the_users_own_state_folder(
    environ: dict[str, str], platform: str, expected: str
) -> None:
    assert default_place(environ, Path("/there"), platform).path == Path(expected)


CALLS = [Call(tool="read_file", minute=0)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("TURNLOG_DATA", raising=False)
    return tmp_path


def test_a_store_of_the_release_before_is_used_until_it_is_moved(home: Path) -> None:
    fill(home / "turnlog-data", CALLS)
    found = default_place(os.environ, home)
    assert found.path == home / "turnlog-data"

    listed = process("log", "--json", environ=environment({"HOME": str(home / "home")}))

    assert listed.stdout.count("\n") == 1
    assert "Stop turnlog and move it: " in listed.stderr
    subprocess.run(found.hint.partition("move it: ")[2], shell=True, check=True)
    moved = process("log", "--json", environ=environment({"HOME": str(home / "home")}))
    assert (moved.stdout, moved.stderr) == (listed.stdout, "")
    assert not (home / "turnlog-data").exists()


def test_the_new_place_wins_where_it_has_a_store(home: Path) -> None:
    fill(home / "turnlog-data", CALLS)
    new = home / "home" / ".local" / "state" / "turnlog"
    fill(new, CALLS)

    assert default_place(os.environ, home).path == new


def test_a_store_that_others_may_have_put_there_is_not_used(home: Path) -> None:
    fill(home / "turnlog-data", CALLS)
    (home / "turnlog-data").chmod(0o755)
    assert default_place(os.environ, home).hint == ""

    (home / "turnlog-data").chmod(0o700)
    (home / "turnlog-data").rename(home / "elsewhere")
    (home / "turnlog-data").symlink_to(home / "elsewhere")
    assert default_place(os.environ, home).hint == ""
