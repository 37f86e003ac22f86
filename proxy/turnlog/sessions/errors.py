"""Errors of the use cases in this package.

Every command imports them, so nothing heavy may be imported here.
"""

from enum import StrEnum


class NotFoundError(Exception):
    """A name matches nothing in the store, or several things. The message says which."""


class NotHeldError(NotFoundError):
    """The session has no hold that could be released."""


class BundleError(Exception):
    """A file is not a whole bundle that this version reads. The message says what is wrong."""


class NotRecallableError(Exception):
    """The log cannot give an answer back. The message says why."""


class NoteError(ValueError):
    """The given data is not a valid note. The message says what is wrong."""


class CompactedError(Exception):
    """A state is no longer known, because its commits were compacted. `first` is the first that is."""

    def __init__(self, message: str, first: int) -> None:
        super().__init__(message)
        self.first = first


class RewindError(ValueError):
    """A rewind is not possible. The message says why."""


class OperationError(ValueError):
    """An operation on a session is not fully described. The message says what to give."""


class UnresolvableReason(StrEnum):
    """Why a call cannot be resolved."""

    IN_FLIGHT = "in_flight"
    """A running process waits for its answer."""
    KNOWN = "known"
    """Its outcome is recorded."""
    RESOLVED = "resolved"
    """An operator resolved it before."""


class UnresolvableError(Exception):
    """The outcome of a call is not unknown. The message says what it is."""

    def __init__(self, reason: UnresolvableReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
