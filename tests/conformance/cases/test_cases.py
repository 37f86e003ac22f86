"""Each case after a public bug report, played direct and through turnlog at the same time."""

import json
from pathlib import Path

import pytest
from msgspec import structs

from conformance.cases import judge
from conformance.cases.left import LEFT
from conformance.cases.playing import play
from conformance.cases.reports import load, names
from conformance.cases.ruled import RULED
from kit.proxy import events_in


@pytest.mark.promise(
    "WIRE-1",
    "WIRE-2",
    "WIRE-3",
    "WIRE-4",
    "WIRE-5",
    "REC-1",
    "REC-2",
    "REC-3",
    "REC-4",
    "OUT-1",
    "RULE-1",
    "STORE-1",
    "SEC-1",
)
@pytest.mark.parametrize("name", names())
async def test_a_case_differs_from_what_it_expects_only_where_that_is_known(
    name: str, tmp_path: Path
) -> None:
    """What may differ stands in `left`, and in `ruled` what the case's rules ask for."""
    case = load(name)
    if name == "C17":
        # Only watched; what a named effect makes of it is the next test.
        case = structs.replace(case, tools={})

    played = await play(case, tmp_path)

    seen = judge.differences(
        case, played.direct, played.through, played.kept, played.ports, RULED.get(name)
    )
    assert seen == {aspect: left.seen for aspect, left in LEFT.get(name, {}).items()}


@pytest.mark.promise("REC-2", "RULE-1")
async def test_a_call_that_is_sent_again_is_answered_by_the_one_that_runs_on(
    tmp_path: Path,
) -> None:
    """C17, where a rule says that the tool writes: one execution, and its outcome for both."""
    played = await play(load("C17"), tmp_path)

    near, far = (run.report.requests for run in (played.direct, played.through))
    first, again = played.kept.rows
    assert played.through.executions() == 1
    assert json.loads(far[-1].body)["id"] == json.loads(near[-1].body)["id"]
    assert json.loads(far[-1].body)["result"]["_meta"]["turnlog/outcome"]["status"] == "replayed"
    assert (first.status, first.executed, first.flags) == ("ok", "yes", ["late"])
    assert (again.status, again.executed, again.flags) == (
        "replayed",
        "yes",
        ["replayed", "joined"],
    )


@pytest.mark.promise("WIRE-1", "WIRE-4", "RULE-1")
# C65, a stream that is cut, is ended with the typed answer, rule or not.
@pytest.mark.parametrize("name", ["C25", "C53"])
async def test_what_rules_change_is_as_it_comes_without_them(name: str, tmp_path: Path) -> None:
    """A refusal and a cut: the same answers, and the same requests."""
    case = structs.replace(load(name), tools={}, proxy_settings={})

    played = await play(case, tmp_path)

    assert judge.relayed(played.direct, played.through, played.ports) == {}


@pytest.mark.promise("PROV-1")
async def test_each_call_names_the_definition_that_its_tool_had_at_that_time(
    tmp_path: Path,
) -> None:
    """C13: the description changes between the two calls."""
    played = await play(load("C13"), tmp_path)

    before, after = (row.definition for row in played.kept.rows)
    assert before is not None
    assert after is not None
    assert before != after


@pytest.mark.promise("REC-1")
async def test_a_refused_handshake_is_an_event_and_no_call(tmp_path: Path) -> None:
    """C11: 401 to `initialize`."""
    played = await play(load("C11"), tmp_path)

    relayed = events_in(played.log, "request.relayed")
    seen = [(event["mcp.method.name"], event["http.response.status_code"]) for event in relayed]
    assert seen == [("initialize", 401)]
    assert events_in(played.log, "call.ended") == []


def test_every_known_difference_belongs_to_a_case() -> None:
    assert {*LEFT, *RULED} <= set(names())
