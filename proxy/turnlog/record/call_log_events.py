"""What the log says of an attempt: the events of its begin, its end and of what follows."""

from msgspec import structs

from turnlog.core import ids
from turnlog.core.classify import Ending
from turnlog.core.commit import Facts
from turnlog.core.kinds import Flag
from turnlog.observe.events import CallEnded, CallRetried, CallStarted, RetryAbandoned
from turnlog.rules.retry import StopReason

from .attempt import Ask, Attempt


def started(ask: Ask) -> CallStarted:
    """Return what is said once an attempt has its intent."""
    return CallStarted(
        session=_session_of(ask),
        call=ids.to_text(ask.call),
        leg=ask.leg,
        attempt=ask.number,
        server=ask.server,
        tool=ask.tool,
        method=ask.method if ask.is_mcp else "",
        http_method="" if ask.is_mcp else ask.method,
        protocol=ask.protocol if ask.is_mcp else "",
        effect=ask.effect,
        bytes_in=ask.size,
        flags=ask.flags,
        trace=ask.trace,
    )


def ended(attempt: Attempt, facts: Facts, *, unrecorded: bool, summary: str = "") -> CallEnded:
    """Return what is said once an attempt has its outcome, whose facts are `facts`."""
    ask, mcp = attempt.ask, attempt.ask.is_mcp
    flags = facts.flags
    if attempt.facts.flags:
        # As the call's row has them: what was said of its input counts as well.
        flags = tuple(dict.fromkeys((*attempt.facts.flags, *flags)))
    said = CallEnded(
        session=_session_of(ask),
        call=ids.to_text(ask.call),
        server=ask.server,
        tool=ask.tool,
        method=ask.method if mcp else "",
        protocol=ask.protocol if mcp else "",
        status=facts.status,
        executed=facts.executed,
        effect=facts.effect,
        phase=facts.phase,
        http_status=facts.http_status,
        duration_ns=facts.duration,
        bytes_in=facts.bytes_in,
        bytes_out=facts.bytes_out,
        flags=(*flags, Flag.UNRECORDED) if unrecorded else flags,
    )
    # What is rare stands apart: beyond 15 keywords Python makes a dict of them for each call.
    if attempt.preview or summary:
        said = structs.replace(said, input_summary=attempt.preview, output_summary=summary)
    if not mcp:
        version = ask.protocol.partition("/")[2]
        said = structs.replace(said, http_method=ask.method, http_version=version)
    placed = attempt.intent.placed if attempt.intent is not None else None
    if placed is not None:
        link = placed.link
        said = structs.replace(said, seq=link.seq, turn=link.turn, step=link.step)
    first = ask.number == 1 and not ask.leg
    if first and not (facts.error or attempt.reason or facts.trace) and facts.code is None:
        return said
    return structs.replace(
        said,
        leg=ask.leg,
        attempt=ask.number,
        error=facts.error,
        kind=facts.error_kind,
        retry=facts.retry,
        reason=attempt.reason,
        code=facts.code,
        trace=facts.trace,
    )


def retried(ask: Ask, ending: Ending, delay: float) -> CallRetried:
    """Return what is said where another attempt follows, after `delay` seconds."""
    return CallRetried(
        session=_session_of(ask),
        call=ids.to_text(ask.call),
        attempt=ask.number,
        server=ask.server,
        tool=ask.tool,
        kind=ending.kind,
        delay_ns=round(delay * 1e9),
    )


def abandoned(ask: Ask, reason: StopReason) -> RetryAbandoned:
    """Return what is said where the attempt which was to follow is not made."""
    return RetryAbandoned(
        session=_session_of(ask),
        call=ids.to_text(ask.call),
        attempt=ask.number,
        server=ask.server,
        tool=ask.tool,
        reason=reason,
    )


def _session_of(ask: Ask) -> str:
    """Return the session's id as text; nothing while it has none."""
    return ids.to_text(ask.session.id) if ask.session.id is not None else ""
