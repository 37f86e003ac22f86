"""The program that shows an agent what it lost, run as a reader would."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.clients import BOUND
from kit.proxy import running

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = """\
sees: order 7 is not placed
sees: order 7 is not placed, order 8 is not placed
sees: order 7 is not placed, order 8 is not placed, order 9 is not placed
evicts: order 7 is not placed
lost to its budget: what find_order said; it was: order 7 is not placed
still lost: 0; calls: [3]
"""


@pytest.fixture
def shop() -> Iterator[str]:
    command = [sys.executable, str(EXAMPLES / "shop.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["urls"][0]
        finally:
            process.terminate()


PROGRAMS = sorted(EXAMPLES.glob("with_*.py"))


def said(program: Path, *flags: str) -> str:
    """Run a program without a URL; return the line that it leaves with."""
    command = [sys.executable, *flags, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_a_program_without_a_needed_package_names_it(program: Path) -> None:
    assert "; install what this needs: pip install " in said(program, "-S")


@pytest.mark.parametrize("name", ["with_mcp.py", "with_recall.py"])
def test_a_program_without_a_url_prints_its_usage(name: str) -> None:
    assert said(EXAMPLES / name).startswith(f"usage: python {name} URL")


@pytest.mark.promise("AGENT-2")
async def test_the_model_finds_and_recalls_what_it_lost(shop: str, tmp_path: Path) -> None:
    rules = ("--rules", str(EXAMPLES / "rules.yaml"))
    async with running(tmp_path, shop, flags=rules) as proxy:
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            str(EXAMPLES / "with_recall.py"),
            proxy.url,
            stdout=subprocess.PIPE,
        )
        async with asyncio.timeout(BOUND):
            printed, _ = await program.communicate()
    assert printed.decode() == PRINTED
    # Three lookups; each was lost on the way at first, and made again by a rule.
    assert [row.tool for row in proxy.rows()] == ["find_order"] * 6
