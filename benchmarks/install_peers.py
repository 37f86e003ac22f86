"""Install each peer into an environment of its own under `benchmarks/.env`, from its lock file.

Their dependencies contradict each other and turnlog's, so none shares an environment.
"""

import subprocess
import sys
import venv
from pathlib import Path

from .proxies import ENVIRONMENTS

_LOCKS = Path(__file__).resolve().parent / "peers"


def install(lock: Path) -> None:
    """Make the environment of one peer, or bring it to what its lock file says."""
    folder = ENVIRONMENTS / lock.stem
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", lock], check=True)


def main() -> None:
    """Install all of them; the names of those that failed are the exit message."""
    failed: list[str] = []
    for lock in sorted(_LOCKS.glob("*.lock")):
        try:
            install(lock)
        except subprocess.CalledProcessError as error:
            failed.append(f"{lock.stem} (pip exit code {error.returncode})")
    if failed:
        sys.exit(f"not installed: {', '.join(failed)}; the benchmarks run without them")


if __name__ == "__main__":
    main()
