"""Failures: why a call has no answer, or no whole one."""

from typing import Final

from turnlog.core.classify import MEANINGS, UNSENT, EarlierAttempts
from turnlog.core.kinds import ErrorKind, Executed, Phase
from turnlog.rules.policy import Policy

_UNSENT_SAYS: Final = {
    ErrorKind.QUEUE_TIMEOUT: "was not called in time",
    ErrorKind.CIRCUIT_OPEN: "has failed too often, and is left alone for a while",
    ErrorKind.CANCELLED_BY_CALLER: "was not called any more",
    ErrorKind.CONNECT_TIMEOUT: "could not be reached in time",
    ErrorKind.DEADLINE_EXHAUSTED: "could not be reached in time",
}
_SAYS: Final = {
    ErrorKind.RESPONSE_TIMEOUT: "did not answer in time",
    ErrorKind.PROGRESS_TIMEOUT: "was silent for too long",
    ErrorKind.DEADLINE_EXHAUSTED: "did not answer in the time for all attempts",
}

_RULED: Final = frozenset(
    {
        ErrorKind.UNVERIFIED_PROVENANCE,
        ErrorKind.POLICY_BLOCKED,
        ErrorKind.SESSION_UNAVAILABLE,
    }
)
"""Kinds caused by one call alone, not by other messages in its request."""
_BEFORE: Final = {
    Executed.NO: "the call was not executed",
    Executed.MAYBE: "the call may have been executed by an attempt before",
    Executed.YES: "the call was executed by an attempt before",
}


class Failure(Exception):
    """No answer, or no whole one: raised by what sends, caught where it is recorded."""

    def __init__(
        self, kind: ErrorKind, phase: Phase, detail: str, *, retry_after: float | None = None
    ) -> None:
        """`retry_after` is the time to wait, in seconds, if known."""
        super().__init__(detail)
        self.is_told = False
        """Whether callers are told the detail, because nothing else shows them what to mend."""
        self.is_final = False
        """Whether the same call would always fail so, whatever its kind says."""
        self.unmet_demand = "a rule demands it as pinned"
        """The demand that the call does not meet, as a clause of `sentence`; only for the kind
        `unverified_provenance`."""
        self.retry_after = retry_after
        self.kind = kind
        self.phase = phase
        """The phase that the attempt had reached."""
        self.detail = detail

    def is_managed(self, policy: Policy) -> bool:
        """Return whether a rule makes turnlog answer after it: a time limit, or retries."""
        if self.kind in _SAYS:
            return True
        named = policy.retry.on if policy.retry is not None else ()
        return self.kind in named or MEANINGS[self.kind].family in named

    def sentence(self, server: str, past: EarlierAttempts | None = None) -> str:
        """Return what the caller of a tool is told; `past` is what other attempts came to."""
        if self.kind is ErrorKind.UNVERIFIED_PROVENANCE:
            return f"{self.detail}; {self.unmet_demand}, and the call was not sent"
        if self.kind in _RULED:
            return f"{self.detail}; the call was not sent"
        if self.phase in UNSENT:
            return f"{self._cause(server)}; {_unsent(past)}"
        ran = past is not None and past.executed is Executed.YES
        executed = _BEFORE[Executed.YES] if ran else "the call may have been executed"
        return f"{self._cause(server)}; {executed}"

    def sentence_without_call(self, server: str) -> str:
        """Return the error text for a request that is not a tool call."""
        if self.kind in _RULED:
            return f"{self.detail}; the request beside it was not sent"
        arrived = "was not sent" if self.phase in UNSENT else "may have arrived"
        return f"{self._cause(server)}; the request {arrived}"

    def _cause(self, server: str) -> str:
        if self.kind is ErrorKind.OUTCOME_UNKNOWN:
            return self.detail
        if self.phase in UNSENT:
            said = _UNSENT_SAYS.get(self.kind, "could not be reached")
            said += f": {self.detail}" if self.is_told else ""
        elif self.kind is ErrorKind.MALFORMED_RESULT:
            said = "sent what is no HTTP"
        else:
            said = _SAYS.get(self.kind, "broke the connection")
        return f"the tool server {server!r} {said}"


def _unsent(past: EarlierAttempts | None) -> str:
    """Return what happened to a call whose last attempt was not sent."""
    return "the call was not sent" if past is None else _BEFORE[past.executed]
