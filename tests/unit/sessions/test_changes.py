"""`sessions.state.changes`: what changed between two states, by which commits, and why."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from e2e.stores import Call, fill, session_id
from kit.commits import applied, changed
from turnlog.core.note import Decision
from turnlog.core.state.fold import ContributingCommit
from turnlog.core.state.state_view import FieldChange, StateField, Value, state_table
from turnlog.sessions.errors import NotFoundError
from turnlog.sessions.state.changes import (
    Difference,
    changes_between,
    session_differences,
)
from turnlog.sessions.state.state_at import saved_states, state_at
from turnlog.store.lmdb import LmdbReader
from turnlog.store.read.view import View

WORK, PLAY = session_id("work"), session_id("play")
CALLS = [
    Call(tool="write", minute=0, delta=(changed("created", "/a"),)),
    Call(
        tool="write",
        minute=1,
        delta=(changed("modified", "/a"),),
        why="it was wrong",
        notes=(Decision(text="rewrite", why="simpler", id="d"),),
    ),
    Call(tool="write", minute=2, delta=(changed("renamed", "/a", "/b"),)),
    Call(tool="write", minute=0, session="play", delta=(changed("created", "/a"),)),
]


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    fill(tmp_path, CALLS)
    with LmdbReader.open(tmp_path) as reader, reader.view() as view:
        yield view


def named(changes: list[Difference]) -> dict[tuple[StateField, str], Difference]:
    return {
        (change.field, change.key): change
        for change in changes
        if change.field is not StateField.USAGE
    }


@pytest.mark.promise("DIFF-1")
def test_changes_name_their_commits_and_the_reasons(view: View, tmp_path: Path) -> None:
    found = named(changes_between(view, saved_states(tmp_path), WORK, 2, 5))
    assert set(found) == {
        (StateField.TOOLS_USED, "files.write"),
        (StateField.FILES_MODIFIED, "/a"),
        (StateField.DECISIONS_MADE, "d"),
    }
    assert found[StateField.FILES_MODIFIED, "/a"].commits == [
        ContributingCommit(seq=4, what="files.write", why="it was wrong")
    ]
    assert found[StateField.DECISIONS_MADE, "d"].commits == [
        ContributingCommit(seq=5, what="decision", why="simpler")
    ]
    at = found[StateField.DECISIONS_MADE, "d"]
    assert (at.before_at.seq, at.after_at.seq) == (2, 5)


def test_a_moved_file_changes_the_old_and_the_new_name(view: View, tmp_path: Path) -> None:
    found = named(changes_between(view, saved_states(tmp_path), WORK, 5, 7))
    assert found[StateField.FILES_MODIFIED, "/a"].after is None
    assert found[StateField.FILES_MODIFIED, "/b"].before is None
    assert [by.seq for by in found[StateField.FILES_MODIFIED, "/b"].commits] == [7]


@pytest.mark.promise("DIFF-2")
def test_applying_the_changes_to_the_first_state_gives_the_second(
    view: View, tmp_path: Path
) -> None:
    saved = saved_states(tmp_path)
    for before, after in ((0, 7), (2, 4), (3, 3)):
        told = [
            FieldChange(
                field=c.field,
                key=c.key,
                before=cast("Value", c.before),
                after=cast("Value", c.after),
            )
            for c in changes_between(view, saved, WORK, before, after)
        ]
        start, end = (state_table(state_at(view, saved, WORK, at)) for at in (before, after))
        assert applied(start, told) == end


@pytest.mark.promise("DIFF-3")
def test_the_states_of_two_sessions_are_compared(view: View, tmp_path: Path) -> None:
    found = named(session_differences(view, saved_states(tmp_path), WORK, PLAY, (7, 2)))
    assert found[StateField.FILES_MODIFIED, "/b"].after is None
    made = found[StateField.FILES_MODIFIED, "/a"]
    assert (made.before, [by.seq for by in made.commits]) == (None, [2])
    assert found[StateField.DECISIONS_MADE, "d"].after is None
    assert made.before_at.session != made.after_at.session


def test_a_range_of_missing_commits_is_refused(view: View, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no commit 99"):
        changes_between(view, saved_states(tmp_path), WORK, 0, 99)
