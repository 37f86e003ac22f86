"""The case of the old HTTP+SSE transport: answers come on a stream, requests go to its endpoint.

The scripted upstream works on after its 202, on a connection that turnlog may use again: so the
answers may come in another order than without turnlog, and the stream is compared event by event.
"""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from conformance.cases import judge, player
from conformance.cases.playing import kept, settled
from conformance.cases.reports import INPUTS, Report, load
from kit import proxy


@pytest.mark.promise("WIRE-3", "WIRE-30", "REC-1", "REC-2")
@pytest.mark.parametrize("prefix", ["", "/default"])
async def test_c69_the_endpoint_leads_back_and_answers_are_matched_by_id(
    prefix: str, tmp_path: Path
) -> None:
    case, script = load("sse/C69"), INPUTS / "sse" / "C69.json"
    near, far = tmp_path / "direct", tmp_path / "through"
    near.mkdir()
    far.mkdir()
    async with (
        player.upstream(script, near / "upstream", listens=True) as one,
        player.upstream(script, far / "upstream", listens=True) as two,
    ):
        async with proxy.here(far, f"default={two.origin}/sse") as turnlog:
            origin = f"http://{urlsplit(turnlog.url).netloc}{prefix}"
            direct, through = await asyncio.gather(
                player.client(script, one.origin), player.client(script, origin)
            )
            run = await settled(through, two)
        assert judge.upstream(case, run) == {}
        assert judge.record(case, run, kept(far, turnlog.stdout)) == {}
    assert events_of(through) == {
        event.replace("/messages", f"{prefix}/messages") for event in events_of(direct)
    }
    assert statuses(through) == statuses(direct) == {200, 202}


def events_of(report: Report) -> set[str]:
    """Return all that came on the stream."""
    return {*report.requests[0].body.split("\n\n")}


def statuses(report: Report) -> set[int | None]:
    """Return how the requests were answered."""
    return {answer.status for answer in report.requests}
