"""Logs of earlier releases come to the states that those releases said."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from golden.make import HERE, Record, records, scripted
from turnlog.core.commit import Commit, body_digest, decode_body, decode_header, digest
from turnlog.core.state.fold import fold
from turnlog.core.state.session_state import State
from turnlog.core.state.state_view import StateField, state_table

LOGS = sorted(path.stem for path in HERE.glob("*.jsonl"))


def commits(name: str) -> Iterator[Commit]:
    lines = (HERE / f"{name}.jsonl").read_bytes().splitlines()
    for position, line in enumerate(lines):
        record = msgspec.json.decode(line, type=Record)
        header, body = bytes.fromhex(record.header), bytes.fromhex(record.body)
        link, facts = decode_header(header)
        assert link.body_hash == body_digest(body)
        yield Commit(
            position=position,
            link=link,
            facts=facts,
            hash=digest(header),
            body=decode_body(body) if body else None,
        )


def holds(told: Any, found: Any) -> bool:
    """Tell whether all that was told is so; a later version may say more."""
    if not (isinstance(told, dict) and isinstance(found, dict)):
        return bool(told == found)
    old, new = cast("dict[str, object]", told), cast("dict[str, object]", found)
    return all(name in new and holds(value, new[name]) for name, value in old.items())


@pytest.mark.parametrize("name", LOGS)
def test_a_golden_log_comes_to_the_state_that_it_came_to(name: str) -> None:
    told = json.loads((HERE / f"{name}.json").read_bytes())
    found = json.loads(msgspec.json.encode(state_table(fold(State(), commits(name)))))
    for field, entries in told.items():
        assert holds(entries, found[field]), field
        assert set(entries) == set(found[field]), field


@pytest.mark.parametrize("name", LOGS)
def test_a_golden_log_is_one_chain(name: str) -> None:
    found = list(commits(name))
    assert [commit.link.seq for commit in found] == list(range(len(found)))
    assert all(after.link.prev == before.hash for before, after in pairwise(found))


def test_there_is_a_golden_log_with_every_field() -> None:
    assert LOGS
    found = state_table(fold(State(), commits(LOGS[-1])))
    assert all(getattr(found, field.value) for field in StateField)


async def test_what_this_version_writes_is_what_the_newest_golden_log_says(tmp_path: Path) -> None:
    written = await records(scripted(), tmp_path / "data")
    old = list(commits(LOGS[-1]))
    new = [decode_header(bytes.fromhex(record.header)) for record in written]
    assert [(facts.kind, facts.call) for _, facts in new] == [
        (commit.facts.kind, commit.facts.call) for commit in old
    ]
    golden = json.loads((HERE / f"{LOGS[-1]}.json").read_bytes())
    later = {"labels": {"tainted": None}}  # a field that this log is older than
    assert json.loads((tmp_path / "state").read_bytes()) == {**golden, **later}
