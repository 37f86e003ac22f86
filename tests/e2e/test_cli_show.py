"""`turnlog show` of a call with several attempts, and of its changes."""

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import Call, call_id, fill, turnlog
from turnlog.core import ids
from turnlog.core.kinds import Flag, Status
from turnlog.core.operation import Operation

LOST: dict[str, Any] = {
    "status": Status.ERROR, "error": "connection", "error_kind": "connection_lost", "output": b"",
}  # fmt: skip
MOVED = Operation(
    field="files_modified", op="renamed", key="/a\x1b", to="/b", evidence="declared", maybe=True
)


def output(**members: object) -> dict[str, Any]:
    return {"output": json.dumps({"content": [], "structuredContent": members}).encode()}


def written(folder: Path, *attempts: dict[str, Any]) -> str:
    """Write attempts of one call, and return its name."""
    fill(
        folder,
        [
            Call(tool="read", minute=number, of=0, attempt=number + 1, **attempt)
            for number, attempt in enumerate(attempts)
        ],
    )
    return ids.to_text(call_id(0))


def differences(folder: Path, *attempts: dict[str, Any]) -> list[dict[str, Any] | None]:
    """Return what `show --json` says of each attempt and the one before."""
    name = written(folder / "data", *attempts)
    done = turnlog("show", name, "--json", data=folder / "data")
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line)["difference"] for line in done.stdout.splitlines()]


def test_an_only_attempt_has_nothing_before_it(tmp_path: Path) -> None:
    assert differences(tmp_path, {}) == [None]


@pytest.mark.promise("DIFF-4")
def test_each_later_attempt_is_compared_with_the_one_before(tmp_path: Path) -> None:
    found = differences(tmp_path, LOST, output(rows=[1, 2], at="x"), output(rows=[1, 3], at="x"))
    assert found[0] is None
    assert found[1] == {"class": "error_to_ok", "changes": [], "more": 0}
    assert found[2] == {
        "class": "value_changed",
        "changes": [
            {"path": "/structuredContent/rows/1", "change": "changed", "before": "2", "after": "3",
             "line": None},
        ],
        "more": 0,
    }  # fmt: skip


@pytest.mark.promise("DIFF-4")
@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        ({}, "same"),
        ({"flags": (Flag.NULL_RESULT,)}, "value_to_null"),
        (LOST, "ok_to_error"),
    ],
)
def test_the_class_of_a_difference_comes_from_how_both_ended(
    tmp_path: Path, after: dict[str, Any], wanted: str
) -> None:
    _, found = differences(tmp_path, {}, after)
    assert found is not None
    assert found["class"] == wanted


def test_an_attempt_in_flight_is_not_compared(tmp_path: Path) -> None:
    assert differences(tmp_path, LOST, {"status": None}) == [None, None]


def test_people_read_what_differs_and_what_changed(tmp_path: Path) -> None:
    first = {"output": b"one\ntwo\x1b[2J\nthree", "delta": (MOVED,)}
    name = written(tmp_path / "data", first, {"output": b"one\n2\nthree"})
    lines = turnlog("show", name, data=tmp_path / "data").stdout.splitlines()
    assert "changed     files_modified renamed /a\\u001b to /b (declared, maybe)" in lines
    assert "difference  value_changed since the attempt before" in lines
    assert '  changed / line 2: "two\\u001b[2J" -> "2"' in lines


def test_only_so_many_differences_are_shown(tmp_path: Path) -> None:
    attempts = [output(**{f"m{n}": turn for n in range(60)}) for turn in range(2)]
    name = written(tmp_path / "data", *attempts)
    lines = turnlog("show", name, data=tmp_path / "data").stdout.splitlines()
    assert "  ... 10 changes more" in lines
