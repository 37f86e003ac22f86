import click
import pytest

from turnlog.cli.failures import FAILURES, complain, describe
from turnlog.packs.errors import ConfigError, SettingError
from turnlog.sessions.errors import NotFoundError
from turnlog.store.base import Corrupt, StoreError, StoreFull


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (ConfigError("a.yaml", 3, 7, "what, do"), "a.yaml:3:7: what, do", 2),
        (SettingError("--listen", "what, do"), "--listen: what, do", 2),
        (NotFoundError("no session"), "no session", 2),
        (StoreError("cannot"), "cannot", 3),
        (StoreFull("no room"), "no room", 3),
        (Corrupt("broken", 7), "broken", 3),
        (PermissionError(13, "Permission denied", "/x"), "permission denied: '/x'", 3),
        (OSError(98, "Address already in use"), "address already in use", 2),
        (OSError("strange"), "strange", 2),
        (click.UsageError("No such\n  option."), "no such option", 2),
        (click.ClickException("Bad."), "bad", 2),
    ],
)
def test_a_failure_is_one_line_and_an_exit_code(error: Exception, message: str, code: int) -> None:
    assert isinstance(error, FAILURES)
    assert describe(error) == (message, code)


def test_error_lines_escape_control_characters(capfd: pytest.CaptureFixture[str]) -> None:
    complain("no tool \x9b2J \u202e \x1b]0;x\x07")
    assert capfd.readouterr() == ("", "turnlog: no tool \\u009b2J \\u202e \\u001b]0;x\\u0007\n")
