"""Hints of errors: what to do about them, as data.

Errors of use cases reach the command line, the API and the agent's tools. Each of them names what its
user can do in words of its own: a command, an endpoint, a tool.
"""

from collections.abc import Mapping
from enum import StrEnum


class Hint(StrEnum):
    """A thing to do about an error."""

    SESSIONS = "sessions"
    """Look at the list of sessions."""
    CALLS = "calls"
    """Look at the log of all sessions."""
    CALLS_OF_SESSION = "calls_of_session"
    """Look at the log of the session that it is about."""
    DANGLING = "dangling"
    """Look at the calls that can be resolved."""
    LATER_STATE = "later_state"
    """Ask for the state after the commit that it is about, or after a later one."""
    GO_ON_HERE = "go_on_here"
    """Import the bundle of the session that was moved away, or let it go on without that."""
    UNPACK = "unpack"
    """Do it where the session was moved, or let the session go on here."""
    RELEASE = "release"
    """End the hold of the session."""
    LEASE_NUMBER = "lease_number"
    """Give the number of the lease."""
    BRANCH = "branch"
    """Name the session whose later calls the choice is for."""
    UNCLAIM = "unclaim"
    """Wait for the end of the lease, or end it."""


class HintedError(Exception):
    """An error with a hint, which its text does not hold; `about` is the subject of the hint."""

    def __init__(self, message: str, hint: Hint | None = None, about: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.about = about


def in_words(error: Exception, words: Mapping[Hint, str]) -> str:
    """Return the text of an error, with its hint if there are words for that; `{}` stands for its subject."""
    if not isinstance(error, HintedError) or error.hint is None or error.hint not in words:
        return str(error)
    return f"{error}; {words[error.hint].replace('{}', error.about)}"
