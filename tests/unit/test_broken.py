import pytest

from turnlog.core.kinds import ErrorKind
from turnlog.exchange.broken import Broken, Then, after


def broken(**said: object) -> Broken:
    """An MCP stream that the server broke off between two events, without ids."""
    known: dict[str, object] = {
        "kind": ErrorKind.CONNECTION_LOST,
        "untouched": False,
        "between_events": True,
        "resumable": False,
    }
    return Broken(**(known | said))  # type: ignore[arg-type]


ROWS = {
    "a stream": (broken(), False, True, Then.ANSWER),
    "a stream that can be resumed": (broken(resumable=True), False, True, Then.RESUMPTION),
    "one that can be resumed, under a rule": (broken(resumable=True), True, True, Then.RESUMPTION),
    "a limit on a stream that could be resumed": (
        broken(resumable=True, kind=ErrorKind.RESPONSE_TIMEOUT),
        True,
        True,
        Then.ANSWER,
    ),
    "amid an event": (broken(between_events=False), True, True, Then.CUT),
    "JSON, some of which has left": (broken(between_events=False), False, True, Then.CUT),
    "JSON, none of which has left": (
        broken(between_events=False, untouched=True),
        False,
        True,
        Then.CUT,
    ),
    "the same, under a rule": (
        broken(between_events=False, untouched=True),
        True,
        True,
        Then.ANSWER,
    ),
    "a reader that is too slow": (
        broken(kind=ErrorKind.CANCELLED_BY_CALLER),
        False,
        True,
        Then.CUT,
    ),
    "events of a plain tool": (broken(), False, False, Then.CUT),
    "events of a plain tool under a rule": (broken(), True, False, Then.ANSWER),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_follows_an_answer_that_breaks_off(name: str) -> None:
    given, managed, events_are_messages, then = ROWS[name]
    assert after(given, managed=managed, events_are_messages=events_are_messages) is then
