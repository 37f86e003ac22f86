"""`turnlog backup`, and the instructions of docs/backup.md carried out literally."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.stores import Call, fill, process, turnlog
from kit.beside import proxy_beside
from kit.clients import MCP_HEADERS, Client, call
from kit.proxy import Proxy, payloads, rows
from kit.upstreams import RawUpstream, echo

PAGE = Path(__file__).parents[2] / "docs" / "backup.md"
COPY, PUT_BACK = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def upstream() -> Iterator[RawUpstream]:
    with RawUpstream(echo) as running:
        yield running


def post(proxy: Proxy, mark: str) -> None:
    with Client(proxy.url) as client:
        body = call("write", {"mark": mark * 500})
        client.request("POST", "/mcp", body, headers=MCP_HEADERS)


def run(script: str, data: Path, backup: Path) -> None:
    """Run a script with the Python of these tests."""
    binaries = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-c", script],
        env={
            **os.environ,
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "DATA": str(data),
            "BACKUP": str(backup),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promise("STORE-10")
def test_a_store_is_copied_under_a_running_proxy_and_put_back(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    settings = {"upstreams": {"default": {"url": upstream.url}}}
    backup = tmp_path / "backup"
    with proxy_beside(tmp_path, settings=settings) as proxy:
        post(proxy, "before")
        run(COPY, proxy.data, backup)
        post(proxy, "after")
    assert [path for path in backup.rglob("*") if path.stat().st_mode & 0o077] == []
    assert backup.stat().st_mode & 0o777 == 0o700
    assert len(rows(proxy.data)) == 2
    shutil.rmtree(proxy.data)
    run(PUT_BACK, proxy.data, backup)
    assert [row.status for row in rows(proxy.data)] == ["ok"]
    assert any(b"before" in kept for kept in payloads(proxy.data))
    with proxy_beside(tmp_path, settings=settings) as proxy:
        post(proxy, "later")
        assert proxy.events("store.rekeyed") == []
    assert len(rows(proxy.data)) == 2
    assert process("verify", "--data", str(proxy.data)).returncode == 0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "data"
    fill(folder, [Call(tool="write_file", minute=n, output=bytes([n]) * 5000) for n in range(40)])
    return folder


def test_a_copy_has_the_whole_log_and_says_what_was_verified(data: Path, tmp_path: Path) -> None:
    done = turnlog("backup", str(tmp_path / "copy"), data=data)
    assert done.returncode == 0, done.stderr
    assert "verified 81 commits of 1 session" in done.stdout
    log = ("log", "--last", "999", "--json", "--payloads")
    assert turnlog(*log, data=tmp_path / "copy").stdout == turnlog(*log, data=data).stdout


@pytest.mark.parametrize("inside", ["copy", "blobs/copy", ""])
def test_a_folder_inside_the_store_is_refused(data: Path, inside: str) -> None:
    done = turnlog("backup", str(data / inside), data=data)
    assert (done.returncode, "name another folder" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "place",
    [
        "file/copy",
        pytest.param(
            "/proc/copy",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's"),
        ),
    ],
)
def test_a_folder_that_cannot_be_made_is_refused(data: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    done = turnlog("backup", str(tmp_path / place), data=data)
    assert (done.returncode, "; name another folder" in done.stderr) == (2, True)


def test_a_folder_that_holds_something_is_refused_and_an_empty_one_is_not(
    data: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    done = turnlog("backup", str(tmp_path / "mine"), data=data)
    assert (done.returncode, "name a new or an empty folder" in done.stderr) == (2, True)
    assert [entry.name for entry in (tmp_path / "mine").iterdir()] == ["file"]
    (tmp_path / "mine" / "file").unlink()
    assert turnlog("backup", str(tmp_path / "mine"), data=data).returncode == 0


def test_a_damaged_bucket_is_left_out_and_named(data: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(data, damaged)
    (bucket,) = (damaged / "blobs").glob("*-*/data.mdb")
    content = bytearray(bucket.read_bytes())
    content[2 * 4096 :] = b"\xff" * (len(content) - 2 * 4096)
    bucket.write_bytes(content)
    done = turnlog("backup", str(tmp_path / "copy"), data=damaged)
    assert done.returncode == 1
    assert f"blobs/{bucket.parent.name}" in done.stderr
    assert len(turnlog("log", "--json", data=tmp_path / "copy").stdout.splitlines()) == 40


def test_a_copy_of_what_was_altered_is_kept_and_its_flaw_is_named(
    data: Path, tmp_path: Path
) -> None:
    altered = tmp_path / "altered"
    shutil.copytree(data, altered)
    log = altered / "log" / "data.mdb"
    content = log.read_bytes()
    assert b"write_file" in content
    log.write_bytes(content.replace(b"write_file", b"wrote_file"))
    done = turnlog("backup", str(tmp_path / "copy"), data=altered)
    assert (done.returncode, "verified" in done.stdout) == (1, False)
    assert "bad" in done.stderr or "its hash" in done.stderr
    assert (tmp_path / "copy" / "format").exists()
