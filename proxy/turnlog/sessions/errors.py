"""Errors of the use cases in this package.

Every command imports them, so nothing heavy may be imported here.
"""

from enum import StrEnum

from turnlog.core.hints import Hint, HintedError


class SessionsError(HintedError):
    """A request that cannot be met. The message says why, or what to do."""


class NotFoundError(SessionsError):
    """A name matches nothing in the store, or several things. The message says which."""


class NotHeldError(NotFoundError):
    """The session has no hold that could be released."""


class BundleError(SessionsError):
    """A file is not a whole bundle that this version reads. The message says what is wrong."""


class NotRecallableError(SessionsError):
    """The log cannot give an answer back. The message says why."""


class NoteError(SessionsError, ValueError):
    """The given data is not a valid note. The message says what is wrong."""


class CompactedError(SessionsError):
    """A state is no longer known, because its commits were compacted. `first` is the first that is."""

    def __init__(self, message: str, first: int, hint: Hint | None = None) -> None:
        super().__init__(message, hint, str(first))
        self.first = first


class OperationError(SessionsError):
    """An operation on a session is not possible, or not fully described. The message says why, or what to give."""


class UnresolvableReason(StrEnum):
    """Why a call cannot be resolved."""

    IN_FLIGHT = "in_flight"
    """A running process waits for its answer."""
    KNOWN = "known"
    """Its outcome is recorded."""
    RESOLVED = "resolved"
    """An operator resolved it before."""


class UnresolvableError(SessionsError):
    """The outcome of a call is not unknown. The message says what it is."""

    def __init__(self, reason: UnresolvableReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
