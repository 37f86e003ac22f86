"""Why there is no answer, or no whole one."""

from enum import StrEnum

from turnlog.core.kinds import Phase


class Fault(StrEnum):
    """What went wrong on the way to a tool server and back."""

    CONNECT_FAILED = "connect_failed"
    CONNECTION_LOST = "connection_lost"


class Failure(Exception):
    """No answer, or no whole one: raised by `upstream`, caught where it is recorded."""

    def __init__(self, fault: Fault, phase: Phase, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault
        self.phase = phase
        """How far the attempt came."""
        self.detail = detail

    def sentence(self, server: str) -> str:
        """Return what an agent is told."""
        match self.fault:
            case Fault.CONNECT_FAILED:
                return f"the tool server {server!r} could not be reached; the call was not sent"
            case Fault.CONNECTION_LOST:
                return (
                    f"the connection to the tool server {server!r} broke; "
                    "the call may have been executed"
                )


class Progress:
    """How far one attempt has come; whoever carries it out moves it on."""

    __slots__ = ("phase",)

    def __init__(self) -> None:
        self.phase = Phase.QUEUED
