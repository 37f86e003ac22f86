"""Compare the official conformance suite's checks, one by one, direct and through turnlog."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from conformance.matrix import rig

pytestmark = pytest.mark.matrix

Check = tuple[str, str]
Statuses = dict[Check, Counter[str]]

SUITE = Path("node_modules/@modelcontextprotocol/conformance/dist/index.js")
# How many checks a direct run passes: fewer means that the suite itself did not run.
PASSED = {"2025-06-18": 56, "2025-11-25": 84, "2026-07-28": 152}
# What a command cannot do behind HTTP, or turnlog does not check: docs/supported.md says why.
STREAMS, PARAMS = "server-server-sse", "server-http-custom-header-server-validation"
DEVIATIONS = {
    "2025-11-25": {
        f"{STREAMS}-multiple-streams / server-sse-streams-functional",
        f"{STREAMS}-polling / server-sse-disconnect-resume",
        f"{STREAMS}-polling / server-sse-priming-event",
        f"{STREAMS}-polling / server-sse-retry-field",
    },
    "2026-07-28": {
        f"{PARAMS} / sep-2243-server-reject-invalid-param-chars",
        f"{PARAMS} / sep-2243-server-reject-param-mismatch",
        f"{PARAMS} / sep-2243-server-validate-param-match",
    },
}
TIMESTAMP = re.compile(r"-\d{4}-\d\d-\d\dT[\d-]+Z$")


@pytest.mark.promise("WIRE-31")
@pytest.mark.parametrize("revision", PASSED)
def test_the_official_suite_sees_the_same_server_through_turnlog(
    revision: str, tmp_path: Path
) -> None:
    with rig.everything_server(tmp_path) as upstream:
        direct = run_suite(upstream, revision, tmp_path / "direct")
        with rig.turnlog([upstream], tmp_path) as urls:
            through = run_suite(urls[0], revision, tmp_path / "through")
    print(f"{revision}: direct {totals(direct)}, through turnlog {totals(through)}")
    assert sum(found["SUCCESS"] for found in direct.values()) >= PASSED[revision]
    assert not (found := regressions(direct, through)), "\n".join(found)
    assert rig.recorded(tmp_path)


@pytest.mark.promise("WIRE-31")
@pytest.mark.parametrize("share", ["session", "all"])
@pytest.mark.parametrize("revision", DEVIATIONS)
def test_the_official_suite_sees_the_same_server_as_a_command_but_for_what_is_documented(
    revision: str, share: str, tmp_path: Path
) -> None:
    with rig.everything_server(tmp_path) as upstream:
        direct = run_suite(upstream, revision, tmp_path / "direct")
    with rig.turnlog([rig.everything_command()], tmp_path, share=share) as urls:
        through = run_suite(urls[0], revision, tmp_path / "through")
    print(f"{revision}: over HTTP {totals(direct)}, as a command {totals(through)}")
    assert sum(found["SUCCESS"] for found in direct.values()) >= PASSED[revision]
    found = regressions(direct, through)
    other = [line for line in found if line.split(":")[0] not in DEVIATIONS[revision]]
    assert not other, "\n".join(other)
    assert len(found) == len(DEVIATIONS[revision]), "docs/supported.md lists what is no deviation"
    assert rig.recorded(tmp_path)


def run_suite(url: str, revision: str, folder: Path) -> Statuses:
    """Run every scenario of a revision against a server and return each check's statuses."""
    # A name, because the DNS-rebinding scenario needs one.
    local = url.replace("//127.0.0.1:", "//localhost:")
    suite: list[str | Path] = [
        rig.node(),
        rig.BUILD / "node" / SUITE,
        "server",
        "--url",
        local,
        "--suite",
        "all",
    ]
    # The exit code says little: eight faults of a proxy leave it at 0.
    subprocess.run(
        [*suite, "--spec-version", revision, "--timeout", "20000", "--output-dir", folder],
        check=False,
        timeout=600,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    return read_checks(folder)


def read_checks(folder: Path) -> Statuses:
    """Return how often each check of each scenario ended in which status."""
    found: Statuses = {}
    for file in folder.glob("server-*/checks.json"):
        scenario = TIMESTAMP.sub("", file.parent.name)
        for check in json.loads(file.read_bytes()):
            found.setdefault((scenario, check["id"]), Counter())[check["status"]] += 1
    return found


def regressions(direct: Statuses, through: Statuses) -> list[str]:
    """Name each check that succeeded less often through turnlog, or ended in another way."""
    return [
        f"{scenario} / {check}: direct {dict(wanted)}, through turnlog {dict(got)}"
        for (scenario, check), wanted in sorted(direct.items())
        if not same(wanted, got := through.get((scenario, check), Counter()))
    ] + [
        f"{scenario} / {check}: only through turnlog: {dict(through[scenario, check])}"
        for scenario, check in sorted(through.keys() - direct.keys())
    ]


def same(direct: Counter[str], through: Counter[str]) -> bool:
    """Compare statuses; how many informational events a stream had may differ from run to run."""
    judged = direct.keys() | through.keys()
    equal = all(direct[status] == through[status] for status in judged - {"INFO"})
    return equal and (direct["INFO"] > 0) == (through["INFO"] > 0)


def totals(statuses: Statuses) -> dict[str, int]:
    """Sum the statuses over all checks."""
    total: Counter[str] = Counter()
    for found in statuses.values():
        total += found
    return dict(total)
