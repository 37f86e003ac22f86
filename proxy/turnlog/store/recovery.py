"""What is written for attempts that nobody can finish any more. Pure."""

import msgspec

from turnlog.core.commit import Body, Facts
from turnlog.core.kinds import Actor, CommitKind, Effect, Executed, Flag, Status


def closing(intent: Facts, *, at: int, clock: int, n: int, flags: tuple[Flag, ...]) -> Facts:
    """Return the outcome of an attempt whose answer nobody will see.

    A read that is unknown harmed nobody: it is an error that may be repeated.
    """
    read = intent.effect is Effect.READ
    return msgspec.structs.replace(
        intent,
        kind=CommitKind.OUTCOME,
        at=at,
        clock=clock,
        actor=Actor.TURNLOG,
        n=n,
        executed=Executed.MAYBE,
        status=Status.ERROR if read else Status.UNKNOWN,
        error="unknown",
        error_kind="outcome_unknown",
        retry=retry_class(intent.effect),
        duration=0,
        bytes_out=0,
        flags=flags,
        http_status=0,
        code=None,
        expires=0,
    )


def retry_class(effect: Effect) -> str:
    """Return whether a call whose outcome is unknown may be repeated."""
    match effect:
        case Effect.READ:
            return "safe"
        case Effect.IDEMPOTENT_WRITE:
            return "if_idempotent"
        case Effect.WRITE | Effect.IRREVERSIBLE | Effect.UNKNOWN:
            return "unsafe"


CRASHED = Body(detail="the writer ended before the answer was recorded")
EXPIRED = Body(detail="no answer came before the call expired")
