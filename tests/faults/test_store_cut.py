"""Files of the store that were cut: no process ends by it, and what can be done goes on."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.stores import Call, fill
from kit import prefork
from kit.beside import proxy_beside
from kit.clients import MCP_HEADERS, Client, call
from kit.proxy import environment, payloads, rows
from kit.upstreams import RawUpstream, echo
from turnlog.store.log.environment import problems_at_rest

PAGE = os.sysconf("SC_PAGE_SIZE")
SERVE = ("serve", "--upstream", "http://127.0.0.1:9/mcp", "--listen", "127.0.0.1:0")
COMMANDS = (("log",), ("sessions",), ("status",), ("verify",), ("show", "01a2"), SERVE)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("filled") / "data"
    fill(data, [Call(tool="pay", minute=n, output=os.urandom(9000).hex().encode()) for n in (1, 2)])
    return data


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    return shutil.copytree(filled, tmp_path / "data")


def ran(data: Path, *command: str) -> tuple[int, str]:
    """Run a command in a process of its own; return its exit code and its complaint."""
    found = prefork.run([*command, "--data", str(data)], env=environment(), bound=60)
    return found.returncode, found.stderr.decode()


@pytest.mark.promise("STORE-9")
@pytest.mark.parametrize("pages", [1, 2, 8])
def test_a_cut_log_is_named_and_ends_no_command(data: Path, pages: int) -> None:
    os.truncate(data / "log" / "data.mdb", (_used(data) - pages) * PAGE)
    for command in COMMANDS:
        code, said = ran(data, *command)
        assert (command, code, said.count("\n")) == (command, 3, 1)
        assert "log/data.mdb' is damaged: " in said
        assert said.endswith("restore it from a backup\n")


def test_an_emptied_log_is_named_and_no_new_one_begun(data: Path) -> None:
    os.truncate(data / "log" / "data.mdb", 0)
    for command in (*COMMANDS, COMMANDS[0]):
        code, said = ran(data, *command)
        assert (command, code, said.count("\n")) == (command, 3, 1)
        assert "log/data.mdb' is empty or missing" in said


def test_a_log_that_lacks_nothing_but_free_pages_is_whole(data: Path) -> None:
    os.truncate(data / "log" / "data.mdb", _used(data) * PAGE)
    for command in COMMANDS[:4]:
        assert (command, ran(data, *command)) == (command, (0, ""))


def _used(data: Path) -> int:
    """Return how many pages of the log are needed."""
    copy = data.parent / "copy"
    shutil.copy(data / "log" / "data.mdb", copy)
    pages = copy.stat().st_size // PAGE
    while not problems_at_rest(copy):
        pages -= 1
        os.truncate(copy, pages * PAGE)
    return pages + 1


def bucket_of(data: Path) -> Path:
    (bucket,) = (data / "blobs").iterdir()
    return bucket / "data.mdb"


@pytest.fixture
def upstream() -> Iterator[RawUpstream]:
    with RawUpstream(echo) as running:
        yield running


def post(url: str, mark: str) -> None:
    with Client(url) as client:
        body = call("write", {"mark": mark * 5000})
        client.request("POST", "/mcp", body, headers=MCP_HEADERS)


@pytest.mark.parametrize("left", [0, 100, PAGE, 2 * PAGE, 3 * PAGE, -PAGE, -1])
def test_a_cut_bucket_loses_its_payloads_and_no_others(
    tmp_path: Path, upstream: RawUpstream, left: int
) -> None:
    with proxy_beside(tmp_path, upstream.url) as proxy:
        post(proxy.url, "before")
    bucket = bucket_of(proxy.data)
    os.truncate(bucket, left if left >= 0 else bucket.stat().st_size + left)
    for command in (("log",), ("status",), ("show", rows(proxy.data)[0].call)):
        assert (command, ran(proxy.data, *command)) == (command, (0, ""))
    assert ran(proxy.data, "verify") == (1, "")
    with proxy_beside(tmp_path, upstream.url) as proxy:
        post(proxy.url, "after")
        if left:
            assert proxy.told("store.failed")
    kept = b"".join(payloads(proxy.data))
    assert (b"before" in kept, b"after" in kept) == (False, True)
    assert [row.status for row in rows(proxy.data)] == ["ok", "ok"]


@pytest.mark.promise("STORE-9")
def test_a_damaged_page_of_a_bucket_ends_no_process_and_the_next_bucket_takes_what_comes(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    with proxy_beside(tmp_path, upstream.url) as proxy:
        post(proxy.url, "before")
    bucket = bucket_of(proxy.data)
    content = bucket.read_bytes()
    bucket.write_bytes(content[: 2 * PAGE] + bytes(len(content) - 2 * PAGE))
    assert ran(proxy.data, "show", rows(proxy.data)[0].call) == (0, "")
    with proxy_beside(tmp_path, upstream.url) as proxy:
        post(proxy.url, "after")
        assert "is damaged" in proxy.told("store.failed")[0]["error.message"]
    assert b"after" in b"".join(payloads(proxy.data))
    assert [row.status for row in rows(proxy.data)] == ["ok", "ok"]
