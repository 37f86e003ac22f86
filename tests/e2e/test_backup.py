"""The instructions of docs/backup.md, carried out literally."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.stores import process
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
    assert [path.stat().st_mode & 0o077 for path in backup.rglob("*")] == [0] * len(
        [*backup.rglob("*")]
    )
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
