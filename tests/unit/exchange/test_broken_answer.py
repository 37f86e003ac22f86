import pytest

from turnlog.core.kinds import ErrorKind
from turnlog.exchange.delivery import AfterBreak, BrokenAnswer, after_break


def broken(**said: object) -> BrokenAnswer:
    """An MCP stream that the server broke off between two events, without ids."""
    known: dict[str, object] = {
        "kind": ErrorKind.CONNECTION_LOST,
        "untouched": False,
        "between_events": True,
        "resumable": False,
    }
    return BrokenAnswer(**(known | said))  # type: ignore[arg-type]


ROWS = {
    "a stream": (broken(), False, True, AfterBreak.ANSWER),
    "a stream that can be resumed": (broken(resumable=True), False, True, AfterBreak.RESUMPTION),
    "one that can be resumed, under a rule": (
        broken(resumable=True),
        True,
        True,
        AfterBreak.RESUMPTION,
    ),
    "a limit on a stream that could be resumed": (
        broken(resumable=True, kind=ErrorKind.RESPONSE_TIMEOUT),
        True,
        True,
        AfterBreak.ANSWER,
    ),
    "amid an event": (broken(between_events=False), True, True, AfterBreak.CUT),
    "JSON, some of which has left": (broken(between_events=False), False, True, AfterBreak.CUT),
    "JSON, none of which has left": (
        broken(between_events=False, untouched=True),
        False,
        True,
        AfterBreak.CUT,
    ),
    "the same, under a rule": (
        broken(between_events=False, untouched=True),
        True,
        True,
        AfterBreak.ANSWER,
    ),
    "a reader that is too slow": (
        broken(kind=ErrorKind.CANCELLED_BY_CALLER),
        False,
        True,
        AfterBreak.CUT,
    ),
    "events of a plain tool": (broken(), False, False, AfterBreak.CUT),
    "events of a plain tool under a rule": (broken(), True, False, AfterBreak.ANSWER),
}


@pytest.mark.parametrize("name", ROWS)
def test_an_agent_gets_a_resumption_an_answer_or_a_cut(name: str) -> None:
    given, managed, events_are_messages, then = ROWS[name]
    assert after_break(given, managed=managed, events_are_messages=events_are_messages) is then
