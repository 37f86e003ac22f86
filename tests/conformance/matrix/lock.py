"""Resolve every lock file anew, as `make lock` does. No file names the registry it was made with."""

import json
import os
import subprocess
import sys

from conformance.matrix.install import BUILD, HERE, ROOT, node_wheel, run, virtual_environment

LOCKS = HERE / "locks"
COMPILE = [
    *("pip", "compile", "--quiet", "--universal", "--python-version", "3.11"),
    *("--generate-hashes", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
    *("--custom-compile-command", "make lock"),
]
# The package itself is built without isolation, so its build backend is locked like the rest.
BACKEND = "hatchling>=1.27\neditables>=0.5\n"


def main() -> None:
    """Write requirements.lock, the environments' lock files and package-lock.json."""
    tools = BUILD / "tools"
    if not tools.exists():
        run([sys.executable, "-m", "venv", str(tools)])
        run([str(tools / "bin" / "pip"), "install", "--quiet", "uv"])
    uv = str(tools / "bin" / "uv")
    upgrade = ["--upgrade"] if "--upgrade" in sys.argv[1:] else []
    sources = ["pyproject.toml", "-", "--all-extras", "--group", "dev"]
    compile_lock([uv, *COMPILE, *upgrade, *sources, "-o", "requirements.lock"], BACKEND)
    for source in sorted(LOCKS.glob("*.in")):
        target = source.with_suffix(".txt")
        compile_lock([uv, *COMPILE, *upgrade, str(source), "-o", str(target)], "")
    lock_packages()


def compile_lock(command: list[str], standard_input: str) -> None:
    """Run the resolver; what it prints goes into the file it was told to write."""
    subprocess.run(
        command, check=True, cwd=ROOT, input=standard_input, text=True, stdout=subprocess.DEVNULL
    )


def lock_packages() -> None:
    """Write package-lock.json by the Node wheel's own npm, without addresses of any host."""
    tools = BUILD / "lock-node"
    if not tools.exists():
        virtual_environment(tools, LOCKS / "node.txt")
    wheel = node_wheel(tools)
    npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [str(wheel / "bin" / "node"), str(npm), "install", "--package-lock-only"]
    path = f"{wheel / 'bin'}{os.pathsep}{os.environ['PATH']}"
    run([*command, "--loglevel", "error"], cwd=HERE / "node", path=path)
    lock = HERE / "node" / "package-lock.json"
    content = json.loads(lock.read_text())
    for package in content["packages"].values():
        package.pop("funding", None)
        package.pop("resolved", None)
    lock.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
