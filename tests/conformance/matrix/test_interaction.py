"""Run the Python SDK's own interaction suite over sockets, direct and through turnlog."""

import subprocess
import tomllib
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from conformance.matrix import rig

pytestmark = pytest.mark.matrix

PLUGIN = rig.HERE / "interaction"
# How many tests pass directly: fewer means that the suite itself did not run.
PASSED = 640
# How many tool calls of the suite cross a network.
RECORDED = 450
MINUTES = 10


@pytest.mark.promise("WIRE-31")
def test_the_sdks_interaction_suite_passes_through_turnlog_as_it_does_direct(
    tmp_path: Path,
) -> None:
    direct = run_suite(tmp_path / "direct", {})
    through = run_suite(tmp_path / "through", {"MATRIX_TURNLOG": str(rig.TURNLOG)})
    print(f"direct {totals(direct)}, through turnlog {totals(through)}")
    assert totals(direct)["passed"] >= PASSED
    assert not (found := regressions(direct, through)), "\n".join(found)
    assert_recorded(tmp_path / "through")
    assert_quiet(tmp_path / "through")


def run_suite(folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """Run the suite with two workers; return how each test ended."""
    folder.mkdir()
    report = folder / "report.xml"
    command: list[str | Path] = [
        *(rig.PYTHON_TWO, "-m", "pytest", "-n", "2", "-q", "tests/interaction"),
        *("-o", "addopts=", "-o", "log_cli=false", "-p", "anyio", "-p", "sockets"),
        *("-p", "no:cacheprovider", "--timeout", "60", "-k", selection()),
        *("--junit-xml", report),
    ]
    path = f"{PLUGIN}:{rig.SDK}"
    with (folder / "pytest.out").open("wb") as output:
        subprocess.run(
            command,
            cwd=rig.SDK,
            env=rig.environment(PYTHONPATH=path, MATRIX_FOLDER=str(folder), **environment),
            check=False,
            timeout=60 * MINUTES,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return read_report(report)


def selection() -> str:
    """Return the expression that leaves out what cannot say anything about a proxy."""
    return " and ".join(f"not {word}" for word in exceptions("not_run"))


def exceptions(table: str) -> dict[str, str]:
    """Return a table of the exceptions: a test, or a part of its id, and the reason."""
    tables: dict[str, dict[str, str]] = tomllib.loads((PLUGIN / "exceptions.toml").read_text())
    return tables[table]


def read_report(report: Path) -> dict[str, str]:
    """Return how each test of a JUnit report ended."""
    cases = ET.parse(report).iter("testcase")
    return {f"{case.get('classname')}::{case.get('name')}": outcome(case) for case in cases}


def outcome(case: ET.Element) -> str:
    """Name how a test ended, with the first line of what it said."""
    for kind in ("failure", "error", "skipped"):
        if (found := case.find(kind)) is not None:
            return f"{kind}: {(found.get('message') or '').splitlines()[:1]}"
    return "passed"


def regressions(direct: dict[str, str], through: dict[str, str]) -> list[str]:
    """Name each test that ends differently through turnlog, and each that wrongly counts as one."""
    known = exceptions("differs")
    return [
        f"{test}: direct {ended}, through turnlog {through.get(test, 'missing')}"
        for test, ended in sorted(direct.items())
        if (ended != through.get(test)) != (test in known)
    ]


def totals(found: dict[str, str]) -> Counter[str]:
    """Count the endings."""
    return Counter(ended.partition(":")[0] for ended in found.values())


def assert_recorded(folder: Path) -> None:
    """Check that the suite's calls are in the logs, each with its end, and the chains are whole."""
    statuses: Counter[str] = Counter()
    for data in folder.glob("turnlog-*/"):
        rig.finish([rig.TURNLOG, "verify", "--data", data])
        rows = rig.lines_of("log", "--json", "--last", "100000", "--data", data)
        statuses += Counter(row["status"] for row in rows)
    assert statuses.total() >= RECORDED, statuses
    assert "pending" not in statuses


def assert_quiet(folder: Path) -> None:
    """Check that every turnlog ended with 0 and complained of nothing."""
    ends = [file.read_text() for file in folder.glob("ended-*.json")]
    assert ends
    assert all(set(end) <= set("[0, ]") for end in ends), ends
    assert [file.read_text() for file in folder.glob("turnlog-*.err") if file.stat().st_size] == []
