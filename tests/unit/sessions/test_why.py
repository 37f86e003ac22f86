"""`sessions.lineage.why`: values are followed back through a bounded number of calls."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from e2e.stores import Call, call_id, fill, session_id
from turnlog.core.commit import Lineage
from turnlog.core.kinds import ValueOrigin
from turnlog.sessions.errors import NotFoundError
from turnlog.sessions.lineage.why import TrailEnd, TrailStep, input_places, trail
from turnlog.store.lmdb import LmdbReader

WORK = session_id("work")
VALUES = [f"deploy-7f3a9c{n:02d}" for n in range(16)]


def spread(number: int) -> Call:
    """Return a call whose input has values of 16 places of the output of the call before."""
    before = {"origin": ValueOrigin.SOURCED, "call": call_id(max(number - 1, 0))}
    places = [f"/{n}" for n in range(16)] if number else []
    return Call(
        tool=f"t{number}",
        minute=number,
        input=json.dumps({"all": " ".join(VALUES)}).encode(),
        output=json.dumps(VALUES).encode(),
        lineage=tuple(Lineage(pointer="/all", place=place, **before) for place in places),  # type: ignore[arg-type]
    )


def every(steps: Iterable[TrailStep]) -> Iterable[TrailStep]:
    for step in steps:
        yield step
        yield from every(step.earlier)


def test_ways_that_part_at_each_call_end_after_some_hundred_values(tmp_path: Path) -> None:
    fill(tmp_path / "data", [spread(n) for n in range(8)])
    with LmdbReader.open(tmp_path / "data") as store, store.view() as view:
        found = trail(view, WORK, 15, "/all")
        ends = Counter(step.end for step in every(found.steps))
        assert 256 <= ends.total() < 400
        assert set(ends) == {None, TrailEnd.TOO_DEEP, TrailEnd.GONE}
        # Any commit of the call names it, and it is named by the newest.
        assert trail(view, WORK, 16, "/all") == found
        assert found.seq == 16
        places = input_places(view, WORK, 15)
        assert (places.seq, len(places.origins)) == (16, 16)
        with pytest.raises(NotFoundError, match="no value that is looked for"):
            input_places(view, WORK, 1)
