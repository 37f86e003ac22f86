"""`core.state.files`: the net change of each file."""

from typing import Any

import pytest

from kit.commits import changed, delta
from turnlog.core.operation import OperationType
from turnlog.core.state.files import (
    FileChange,
    FileTouch,
    apply_touch,
    follow_rename,
    is_inside,
    touches,
    with_uncertain,
)


def touch(op: str, key: str, to: str = "", seq: int = 1, **more: Any) -> FileTouch:
    told: dict[str, Any] = {"evidence": "declared", "turn": seq} | more
    return FileTouch(op=OperationType(op), key=key, to=to, seq=seq, **told)


def netted(*done: FileTouch) -> dict[str, FileChange]:
    files: dict[str, FileChange] = {}
    for each in done:
        apply_touch(files, each)
    return files


def ops(*done: FileTouch) -> dict[str, tuple[str, str]]:
    return {key: (found.op.value, found.origin) for key, found in netted(*done).items()}


def test_operations_are_read_with_their_commit() -> None:
    raw = delta(changed("modified", "/a", maybe=True), changed("renamed", "/b", "/c"))
    assert list(touches(raw, seq=4, turn=2)) == [
        touch("modified", "/a", seq=4, turn=2, maybe=True),
        touch("renamed", "/b", "/c", seq=4, turn=2),
    ]


@pytest.mark.parametrize(
    ("first", "then", "net"),
    [
        ("created", "modified", "created"),
        ("created", "deleted", "deleted"),
        ("modified", "created", "modified"),
        ("modified", "deleted", "deleted"),
        ("deleted", "created", "created"),
    ],
)
def test_two_operations_combine_to_one(first: str, then: str, net: str) -> None:
    assert ops(touch(first, "/a"), touch(then, "/a")) == {"/a": (net, "")}


def test_a_rename_moves_the_entry() -> None:
    found = netted(
        touch("modified", "/a", seq=3, evidence="observed"), touch("renamed", "/a", "/b", seq=5)
    )
    assert found == {
        "/b": FileChange(
            op=OperationType.RENAMED,
            first_seq=3,
            last_seq=5,
            first_turn=3,
            last_turn=5,
            evidence="declared",
            origin="/a",
        )
    }


@pytest.mark.parametrize(
    ("done", "net"),
    [
        ([touch("renamed", "/a", "/b")], {"/b": ("renamed", "/a")}),
        ([touch("created", "/a"), touch("renamed", "/a", "/b")], {"/b": ("created", "")}),
        (
            [touch("renamed", "/a", "/b"), touch("renamed", "/b", "/c")],
            {"/c": ("renamed", "/a")},
        ),
        (
            [touch("renamed", "/a", "/b"), touch("renamed", "/b", "/a")],
            {"/a": ("modified", "")},
        ),
        (
            [touch("renamed", "/a", "/b"), touch("modified", "/b")],
            {"/b": ("renamed", "/a")},
        ),
        ([touch("renamed", "/a", "/b"), touch("created", "/b")], {"/b": ("renamed", "/a")}),
        ([touch("renamed", "/a", "/b"), touch("deleted", "/b")], {"/b": ("deleted", "/a")}),
        (
            [touch("deleted", "/a"), touch("renamed", "/a", "/b")],
            {"/b": ("renamed", "/a")},
        ),
        (
            [touch("modified", "/b"), touch("created", "/a"), touch("renamed", "/a", "/b")],
            {"/b": ("created", "")},
        ),
        (
            [touch("modified", "/d/a"), touch("modified", "/da"), touch("renamed", "/d", "/e")],
            {"/e/a": ("modified", ""), "/da": ("modified", ""), "/e": ("renamed", "/d")},
        ),
        ([touch("renamed", "/a")], {"/a": ("renamed", "")}),
    ],
)
def test_names_change_with_renames(done: list[FileTouch], net: dict[str, tuple[str, str]]) -> None:
    assert ops(*done) == net


def test_a_late_outcome_does_not_move_the_last_commit_back() -> None:
    found = netted(touch("modified", "/a", seq=9, turn=4), touch("modified", "/a", seq=11, turn=2))
    change = found["/a"]
    assert (change.first_seq, change.last_seq) == (9, 11)
    assert (change.first_turn, change.last_turn) == (2, 4)


def test_uncertain_changes_are_shown_beside_certain_ones() -> None:
    sure = netted(touch("created", "/a"), touch("modified", "/b"))
    found = with_uncertain(
        sure,
        [
            touch("deleted", "/a", seq=2),
            touch("modified", "/b", seq=2),
            touch("renamed", "/c", "/d", seq=2),
            touch("modified", "/c", seq=3),
        ],
    )
    assert {k: (f.op.value, f.maybe, f.to) for k, f in found.items()} == {
        "/a": ("deleted", True, ""),
        "/b": ("modified", False, ""),
        "/c": ("renamed", True, "/d"),
    }
    assert sure["/a"].op is OperationType.CREATED


def test_an_operation_follows_its_file_to_another_name() -> None:
    assert follow_rename(touch("modified", "/d/a"), "/d", "/e") == touch("modified", "/e/a")
    assert follow_rename(touch("modified", "/da"), "/d", "/e") == touch("modified", "/da")


@pytest.mark.parametrize(
    ("key", "folder", "below"),
    [("/d", "/d", True), ("/d/a", "/d", True), ("/d/a", "/d/", True), ("/da", "/d", False)],
)
def test_a_folder_contains_names_that_begin_with_it(key: str, folder: str, below: bool) -> None:
    assert is_inside(key, folder) is below
