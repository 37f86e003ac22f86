"""What turnlog says of a call reaches the application, whichever SDK is between."""

from pathlib import Path
from typing import Any, Final

import pytest

from conformance.matrix import misbehaving, rig
from kit.upstreams import RawUpstream
from turnlog.client import ErrorKind, Executed, Outcome, Retry, Status, outcome_of

pytestmark = pytest.mark.matrix

CLIENTS: Final = {
    "python-2-legacy": ("outcomes_two.py", "2025-11-25"),
    "python-2-modern": ("outcomes_two.py", "2026-07-28"),
    "python-1": ("outcomes_one.py", "2025-11-25"),
    "typescript-1": ("typescript_one.mjs", "2025-11-25"),
    "typescript-2-legacy": ("typescript_two.mjs", "2025-11-25"),
    "typescript-2-modern": ("typescript_two.mjs", "2026-07-28"),
}
LOST = (ErrorKind.CONNECTION_LOST, Retry.UNSAFE, Executed.MAYBE, Status.UNKNOWN, 1, None)
LATE = (ErrorKind.RESPONSE_TIMEOUT, Retry.UNSAFE, Executed.MAYBE, Status.UNKNOWN, 1, None)
NULL = (ErrorKind.NULL_RESULT, Retry.SAFE, Executed.YES, Status.ERROR, 1, None)
BUSY = (ErrorKind.RATE_LIMITED, Retry.SAFE, Executed.NO, Status.ERROR, 1, 2.0)
TWICE = (ErrorKind.CONNECTION_LOST, Retry.SAFE, Executed.MAYBE, Status.ERROR, 2, None)
OUTCOMES: Final = {
    "well": None,
    "reset": LOST,
    "slow": LATE,
    "slow_events": LATE,
    "null": NULL,
    "null_events": NULL,
    "busy": BUSY,
    "busy_events": BUSY,
    "flaky": TWICE,
    "recovers": None,
    "raises": LOST,
}
MADE: Final = {"reset", "slow", "slow_events", "flaky"}


@pytest.mark.promise("OUT-28")
@pytest.mark.parametrize("client", CLIENTS)
def test_an_application_learns_how_its_calls_ended(client: str, tmp_path: Path) -> None:
    rules = tmp_path / "mine.yaml"
    rules.write_text(misbehaving.RULES)
    script, revision = CLIENTS[client]
    with (
        RawUpstream(misbehaving.serve) as upstream,
        rig.turnlog([upstream.url], tmp_path, rules=(rules,)) as (url,),
    ):
        found = rig.run_client(script, *arguments(script, url, revision))
    calls = {row["call"] for row in rig.recorded(tmp_path)}
    resource = found.pop("resource")
    assert (resource["raised"], told(resource)) == (-32603, LOST)
    assert found.pop("at last")["text"] == "well"
    typed = {f"{kind}_typed" for kind in misbehaving.TYPED}
    assert found.keys() == {*misbehaving.KINDS, *typed}
    for tool, seen in found.items():
        assert_seen(tool.removesuffix("_typed"), seen)
        assert seen["outcome"] is None or seen["outcome"]["call"] in calls


def arguments(script: str, url: str, revision: str) -> list[str]:
    """Return what a script is told; the URL twice where others call a second server."""
    return [url, revision] if script.endswith(".py") else [url, url, revision, "./outcomes.mjs"]


def told(seen: dict[str, Any]) -> object:
    """Return what an application was told of a call."""
    match outcome_of({"turnlog/outcome": seen["outcome"]}):
        case None:
            return None
        case Outcome() as said:
            after = said.retry_after
            return said.kind, said.retry, said.executed, said.status, said.attempt, after


def assert_seen(kind: str, seen: dict[str, Any]) -> None:
    """Check what an application saw of one call."""
    assert told(seen) == OUTCOMES[kind], (kind, seen)
    if kind == "raises":
        assert seen["raised"] == -32603
        return
    assert seen["error"] == (kind in MADE), (kind, seen)
    if kind in MADE:
        assert "may have been executed" in seen["text"]
        assert seen["structured"] is None
    elif kind not in {"null", "null_events"}:
        assert seen["structured"] == {"n": 1}
