"""Why there is no answer, or no whole one."""

from turnlog.core.kinds import ErrorKind, Phase


class Failure(Exception):
    """No answer, or no whole one: raised by `upstream`, caught where it is recorded."""

    def __init__(self, kind: ErrorKind, phase: Phase, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.phase = phase
        """How far the attempt came."""
        self.detail = detail

    def sentence(self, server: str) -> str:
        """Return what an agent is told."""
        if self.kind is ErrorKind.CONNECT_FAILED:
            return f"the tool server {server!r} could not be reached; the call was not sent"
        return (
            f"the connection to the tool server {server!r} broke; the call may have been executed"
        )


class Progress:
    """How far one attempt has come; whoever carries it out moves it on."""

    __slots__ = ("phase",)

    def __init__(self) -> None:
        self.phase = Phase.QUEUED
