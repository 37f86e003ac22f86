"""Why a call cannot be resolved. By itself, because every command knows the error."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a call cannot be resolved."""

    IN_FLIGHT = "in_flight"
    """A living process waits for its answer."""
    KNOWN = "known"
    """How it ended is recorded."""
    RESOLVED = "resolved"
    """An operator has done it before."""


class UnresolvableError(Exception):
    """A call is not one of which nobody knows. The message says what it is."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
