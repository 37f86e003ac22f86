"""`api.parameters`: the query of the log for the parameters of a request."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.stores import MINUTE, START, Call, fill, session_id
from turnlog.api.parameters import BadParameterError, LogQuery, log_query, moment
from turnlog.core.kinds import ErrorFamily, ErrorKind, Flag
from turnlog.sessions.log import Query, TurnRange
from turnlog.store.base import Filter
from turnlog.store.lmdb import LmdbReader
from turnlog.store.read.view import View

NOW = START + 60 * MINUTE


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    fill(tmp_path, [Call(tool="a", minute=0), Call(tool="b", minute=1, session="other")])
    with LmdbReader.open(tmp_path) as reader, reader.view() as view:
        yield view


def test_a_query_says_all_that_the_command_line_can(view: View) -> None:
    asked = LogQuery(
        limit=7, after=3, before=9, turns="-2..", tool="write_*", server="files",
        error=ErrorFamily.TIMEOUT, kind=ErrorKind.RESPONSE_TIMEOUT, flag=Flag.LATE,
        since="10m", until="2026-11-27",
    )  # fmt: skip
    assert log_query(view, session_id("work"), asked, NOW) == Query(
        session=session_id("work"),
        last=7,
        turns=TurnRange(-2, None),
        match=Filter(
            after=3, before=9, tool="write_*", server="files", error="timeout",
            kind="response_timeout", flag="late", since=NOW - 10 * MINUTE,
            until=START + 24 * 60 * MINUTE - 1,
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "name", "text"),
    [
        (LogQuery(after=1), "after", "needs a session"),
        (LogQuery(turns="1"), "turns", "needs a session"),
        (LogQuery(since="soon"), "since", "'soon' is no time, write 10m"),
        (LogQuery(until="2026-13-01"), "until", "is no time"),
        (LogQuery(since="1m", until="2m"), "since", "lies after until"),
    ],
)
def test_an_invalid_parameter_is_reported_by_its_name(
    view: View, asked: LogQuery, name: str, text: str
) -> None:
    with pytest.raises(BadParameterError, match=text) as caught:
        log_query(view, None, asked, NOW)
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("asked", "name"),
    [(LogQuery(turns="x"), "turns"), (LogQuery(around=1, cursor=2), "around")],
)
def test_an_invalid_parameter_is_refused_with_a_session_too(
    view: View, asked: LogQuery, name: str
) -> None:
    with pytest.raises(BadParameterError) as caught:
        log_query(view, session_id("work"), asked, NOW)
    assert caught.value.name == name


def test_the_only_session_needs_no_name(tmp_path: Path) -> None:
    fill(tmp_path, [Call(tool="a", minute=0)])
    with LmdbReader.open(tmp_path) as reader, reader.view() as view:
        assert log_query(view, None, LogQuery(after=0), NOW).session == session_id("work")


def test_a_time_that_is_not_given_is_none() -> None:
    assert moment("since", None, NOW) is None
