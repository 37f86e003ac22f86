"""What is written for attempts that nobody can finish any more. Pure."""

import msgspec

from turnlog.core.classify import failed
from turnlog.core.commit import CommitBody, Facts
from turnlog.core.kinds import Actor, CommitKind, ErrorKind, Flag, Phase


def closing(intent: Facts, *, at: int, clock: int, n: int, flags: tuple[Flag, ...]) -> Facts:
    """Return the outcome of an attempt whose answer nobody will see.

    How far it came is not known: it may have been sent.
    """
    ending = failed(ErrorKind.OUTCOME_UNKNOWN, Phase.SENT, intent.effect)
    return msgspec.structs.replace(
        intent,
        kind=CommitKind.OUTCOME,
        at=at,
        clock=clock,
        actor=Actor.TURNLOG,
        n=n,
        phase=ending.phase,
        executed=ending.executed,
        status=ending.status,
        error=ending.error,
        error_kind=ending.kind,
        retry=ending.retry,
        duration=0,
        bytes_out=0,
        flags=flags,
        http_status=0,
        code=None,
        expires=0,
    )


CRASHED = CommitBody(detail="the writer ended before the answer was recorded")
EXPIRED = CommitBody(detail="no answer came before the call expired")
