"""Arguments that are not UTF-8, and output that cannot be written: one line on stderr and an exit code."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from e2e.stores import fill
from kit.clients import wait_until
from kit.processes import has_opened

NO_TEXT = b"d\xff\xfe"
SHOWN = r"'d\udcff\udcfe'"
TURNLOG = [sys.executable.encode(), b"-m", b"turnlog"]


def _run(
    *arguments: bytes, folder: bytes | None = None, **environ: bytes
) -> "subprocess.CompletedProcess[bytes]":
    known = {k: v for k, v in os.environb.items() if not k.startswith(b"TURNLOG_")}
    more = {name.encode(): value for name, value in environ.items()}
    return subprocess.run(
        [*TURNLOG, *arguments],
        check=False,
        capture_output=True,
        cwd=folder,
        env=known | more,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        [b"log", NO_TEXT],
        [b"verify", NO_TEXT],
        [b"tail", b"--session", NO_TEXT],
        [b"show", NO_TEXT],
        [b"rules", b"explain", b"a", b"b", b"--args", NO_TEXT],
        [b"serve", b"--upstream", b"http://127.0.0.1:9/mcp", b"--data", NO_TEXT],
    ],
)
def test_an_argument_that_is_no_text_is_refused(tmp_path: Path, arguments: list[bytes]) -> None:
    done = _run(*arguments, folder=os.fsencode(tmp_path))
    assert done.returncode == 2
    assert done.stderr.decode() == (
        f"turnlog: the argument {SHOWN} is not UTF-8, use a name that is\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_variable_that_is_no_text_is_refused() -> None:
    done = _run(b"log", TURNLOG_DATA=NO_TEXT)
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"turnlog: the value of TURNLOG_DATA {SHOWN} is not")


def test_a_working_directory_that_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = os.path.join(os.fsencode(tmp_path), NO_TEXT)  # noqa: PTH118 - of bytes
    os.mkdir(folder)  # noqa: PTH102
    done = _run(b"rules", b"explain", b"a", b"b", b"--json", folder=folder)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("turnlog: the working directory ")
    assert done.stderr.count(b"\n") == 1


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text("rules: [{name: reads, match: {tool: read_*}, effect: read}]\n")
    return file


ENDS = [
    ["--help"],
    ["--version"],
    ["rules", "--help"],
    ["rules", "check", "mine.yaml"],
    ["rules", "test", "default"],
    ["rules", "explain", "files", "read_x", "--rules", "mine.yaml"],
    ["rules", "schema"],
]


@pytest.mark.parametrize("arguments", ENDS)
@pytest.mark.usefixtures("rules")
def test_a_closed_reader_ends_a_command_as_shells_have_it(
    tmp_path: Path, arguments: list[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [*TURNLOG, *arguments],
            check=False,
            cwd=tmp_path,
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("arguments", [*ENDS, ["log", "--data", "data"]])
@pytest.mark.usefixtures("rules")
def test_a_full_device_is_reported(tmp_path: Path, arguments: list[str]) -> None:
    fill(tmp_path / "data", [])
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*TURNLOG, *arguments],
            check=False,
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert done.returncode == 74
    assert done.stderr == (
        b"turnlog: cannot write the output (no space left on device), "
        b"make room or write it to another place\n"
    )


CLOSINGS = ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"]
RUNNING = {
    "serve": ["--upstream", "http://127.0.0.1:9/mcp", "--listen", "127.0.0.1:0"],
    "tail": [],
    "wrap": ["--", "sleep", "300"],
}


@pytest.mark.parametrize(
    ("command", "closing"),
    # With a closed stdin `wrap` ends at once.
    [pair for pair in product(RUNNING, CLOSINGS) if pair[0] != "wrap" or "0<" not in pair[1]],
)
def test_a_closed_standard_stream_is_never_a_file_or_socket_of_turnlogs_own(
    tmp_path: Path, command: str, closing: str
) -> None:
    fill(tmp_path / "data", [])
    log = tmp_path / "data" / "log" / "data.mdb"
    given = [sys.executable, "-m", "turnlog", command, "--data", "data", *RUNNING[command]]
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$@" {closing}', "sh", *given],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: has_opened(process.pid, log), "the store to be opened")
        standard = [_target(process.pid, number) for number in (0, 1, 2)]
        assert all(name == "/dev/null" or name.startswith("pipe:") for name in standard)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _target(process: int, descriptor: int) -> str:
    return str(Path(f"/proc/{process}/fd/{descriptor}").readlink())


@pytest.mark.parametrize("closing", CLOSINGS)
def test_a_command_with_closed_standard_streams_ends_as_usual(tmp_path: Path, closing: str) -> None:
    fill(tmp_path / "data", [])
    for command in ("status", "log", "verify", "sessions"):
        given = [sys.executable, "-m", "turnlog", command, "--data", "data"]
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {closing}', "sh", *given],
            check=False,
            cwd=tmp_path,
            capture_output=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, b"")
