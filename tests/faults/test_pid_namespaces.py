"""Several containers on one volume: processes in different pid namespaces that have the same ids."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import msgspec
import pytest

from e2e.stores import Call, fill
from kit import namespaces, stdio_server
from kit.clients import MCP_HEADERS, Client, call, message, wait_until
from kit.processes import has_opened
from kit.proxy import Proxy, environment
from kit.upstreams import RawUpstream, echo

pytestmark = pytest.mark.skipif(bool(namespaces.refusal()), reason=namespaces.refusal())

WRITER = Path(__file__).with_name("namespace_writer.py")
TURNLOG = [*namespaces.UNSHARE, sys.executable, "-m", "turnlog"]
KILLS = 5
THREAD = 77
"""An id that no process of a fresh namespace has yet."""


def run(data: Path, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a command as the first process of a namespace."""
    given = [*TURNLOG, *arguments, "--data", str(data)]
    return subprocess.run(given, check=False, capture_output=True, env=environment(), timeout=60)


@contextmanager
def proxy_in_a_namespace(folder: Path, data: Path, upstream: str) -> Generator[Proxy]:
    """Run `turnlog serve` as the first process of a namespace."""
    folder.mkdir()
    arguments = ["serve", "--upstream", upstream, "--listen", "127.0.0.1:0", "--data", str(data)]
    with (folder / "proxy-0.out").open("wb") as out, (folder / "proxy-0.err").open("wb") as err:
        process = subprocess.Popen([*TURNLOG, *arguments], stdout=out, stderr=err)
    proxy = Proxy(process, folder, 0)
    try:
        proxy.urls = proxy.told("proxy.ready")[0]["turnlog.urls"]
        yield proxy
    finally:
        process.kill()
        process.wait()


@pytest.mark.promise("REC-26")
def test_two_proxies_and_all_commands_work_on_one_store_with_the_same_process_id(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with (
        RawUpstream(echo) as upstream,
        proxy_in_a_namespace(tmp_path / "one", data, upstream.url) as one,
        proxy_in_a_namespace(tmp_path / "two", data, upstream.url) as two,
    ):
        for number in range(6):
            with Client((one, two)[number % 2].url) as client:
                answer = client.request(
                    "POST", "/mcp", call("pay", request_id=number), headers=MCP_HEADERS
                )
            assert answer.status == 200
        for command in ("log", "sessions", "status", "verify", "dangling"):
            done = run(data, command)
            assert (done.returncode, done.stderr) == (0, b""), command
        status = msgspec.json.decode(run(data, "status", "--json").stdout)
        assert len(status["writers"]) == 2
        assert status["usage"]["commits"] >= 12
        assert not one.events("store.failed")
    # As outside of a container, where neither has this id.
    assert run(data, "verify").returncode == 0


def test_a_proxy_starts_beside_a_reader_with_its_process_id(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, [Call(tool="pay", minute=0)])
    tail = subprocess.Popen([*TURNLOG, "tail", "--json", "--data", str(data)])
    try:
        reader, log = namespaces.first(tail.pid), data / "log" / "data.mdb"
        wait_until(lambda: has_opened(reader, log), "the reader to open the store")
        with proxy_in_a_namespace(tmp_path / "one", data, "http://127.0.0.1:9/mcp") as proxy:
            # The first process waits for the one that serves, and passes signals on.
            os.kill(namespaces.first(proxy.process.pid), signal.SIGTERM)
            assert proxy.process.wait(60) == 0
            assert proxy.told("proxy.stopped")
    finally:
        tail.kill()
        tail.wait()


def test_wrapped_commands_in_two_containers_share_a_store(tmp_path: Path) -> None:
    given = [*TURNLOG, "wrap", "--data", str(tmp_path / "data"), "--"]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(3):
            server = [sys.executable, str(Path(stdio_server.__file__))]
            running.append(subprocess.Popen([*given, *server], stdin=-1, stdout=-1))
            stdin, stdout = running[-1].stdin, running[-1].stdout
            assert stdin is not None
            assert stdout is not None
            params: dict[str, object] = {"protocolVersion": "2025-06-18", "capabilities": {}}
            stdin.write(message("initialize", params, request_id=1) + b"\n")
            stdin.flush()
            assert b"protocolVersion" in stdout.readline()
        for process in running:
            process.communicate(timeout=60)
        assert [process.returncode for process in running] == [0, 0, 0]
    finally:
        for process in running:
            process.kill()
            process.communicate()


def test_a_process_that_runs_under_another_id_ends_with_the_one_that_waits_for_it(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with (
        proxy_in_a_namespace(tmp_path / "one", data, "http://127.0.0.1:9/mcp"),
        proxy_in_a_namespace(tmp_path / "two", data, "http://127.0.0.1:9/mcp") as two,
    ):
        waiting = namespaces.first(two.process.pid)
        serving = namespaces.first(waiting)
        os.kill(waiting, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{serving}").exists(), "the end of the proxy")


def test_a_reader_that_was_killed_holds_no_pages_up_for_a_proxy_with_its_id(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, [Call(tool="pay", minute=0)])
    script = (
        "import lmdb, sys\n"
        "txn = lmdb.open(sys.argv[1], readonly=True, max_readers=1024, map_size=1 << 40).begin()\n"
        "print('reads', flush=True)\n"
        "sys.stdin.read()\n"
    )
    # Somebody has the store open all the time: else LMDB begins with an empty table of readers.
    beside = lmdb.open(str(data / "log"), readonly=True, max_readers=1024, map_size=1 << 40)
    given = [*namespaces.UNSHARE, sys.executable, "-c", script, str(data / "log")]
    reader = subprocess.Popen(given, stdin=-1, stdout=-1)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"reads\n"
    killed = namespaces.first(reader.pid)
    os.kill(killed, signal.SIGKILL)
    reader.communicate()
    assert readers(beside) == {1}
    with proxy_in_a_namespace(tmp_path / "one", data, "http://127.0.0.1:9/mcp"):
        assert 1 not in readers(beside)
    beside.close()


def readers(env: lmdb.Environment) -> set[int]:
    """Return the process ids in LMDB's table of readers."""
    return {int(line.split()[0]) for line in env.readers().splitlines()[1:]}


class Writer:
    """A process that writes, or waits until it may, in a thread with the id `THREAD`."""

    def __init__(self, data: Path, said: Path, name: str, before: int) -> None:
        # The ids of processes differ, as those of all that have opened a store do.
        step = ["sh", "-c", f'for i in $(seq {before}); do true & wait; done; "$@"; exit', "sh"]
        given = [sys.executable, str(WRITER), str(data / "log"), str(THREAD), name]
        self.said = said
        with said.open("ab") as out:
            self.process = subprocess.Popen(
                [*namespaces.UNSHARE, *step, *given], stdin=subprocess.PIPE, stdout=out
            )

    def let_go(self) -> None:
        """End the transaction, and the process."""
        self.process.communicate(b"\n", timeout=60)

    def kill(self) -> None:
        """Kill it where it waits."""
        wait_until(self.is_waiting, "the writer to wait")
        self.process.kill()
        self.process.communicate()

    def is_waiting(self) -> bool:
        """Tell whether its thread sleeps in the kernel, again and again."""
        try:
            python = namespaces.first(namespaces.first(self.process.pid))
            return all(_has_sleeping_thread(python) for _ in range(50))
        except (FileNotFoundError, ProcessLookupError):  # it was one of those that only use ids up
            return False


def _has_sleeping_thread(process: int) -> bool:
    tasks = sorted(Path(f"/proc/{process}/task").iterdir(), key=lambda task: int(task.name))
    return len(tasks) == 2 and "State:\tS" in (tasks[1] / "status").read_text()


def test_a_killed_writer_that_waited_takes_no_lock_from_a_living_one_with_its_thread_id(
    tmp_path: Path,
) -> None:
    data, order = tmp_path / "data", tmp_path / "order"
    fill(data, [])
    holder = Writer(data, order, "holder", 0)
    wait_until(lambda: "holder in\n" in text(order), "the transaction")
    for number in range(KILLS):
        Writer(data, tmp_path / "killed", "killed", number + 1).kill()
    other = Writer(data, order, "other", KILLS + 1)
    wait_until(other.is_waiting, "the next writer to wait")
    holder.let_go()
    other.let_go()
    steps = [line for line in text(order).splitlines() if line != "waits"]
    assert steps == ["holder in", "holder out", "other in", "other out"]
    assert "killed in" not in text(tmp_path / "killed")


def text(file: Path) -> str:
    """Return what a file says so far."""
    return file.read_text() if file.exists() else ""
