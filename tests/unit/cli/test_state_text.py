"""`turnlog state`: the entries of the state in words."""

from turnlog.cli.commands.read.state import described
from turnlog.core.state.session_state import ToolUse


def test_the_error_family_unknown_differs_from_the_status_unknown() -> None:
    used = ToolUse(calls=5, attempts=5, ok=1, errors={"unknown": 1}, replayed=1, last_seq=9)
    assert described(used) == "5 calls, 1 ok, 1 error unknown, 1 replayed, last seq 9"
    both = ToolUse(calls=3, attempts=3, errors={"unknown": 1}, unknown=2, last_seq=9)
    assert described(both) == "3 calls, 1 error unknown, 2 unknown, last seq 9"
