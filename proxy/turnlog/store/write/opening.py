"""What the commit says that opens a session. Pure."""

import msgspec

from turnlog.core.commit import CommitBody, Facts
from turnlog.core.kinds import CommitKind, Phase, Status
from turnlog.store.base import SessionRef


def facts(cause: Facts) -> Facts:
    """Return what is said of a session that begins with the commit of `cause`."""
    return Facts(
        kind=CommitKind.OPEN,
        at=cause.at,
        clock=cause.clock,
        actor=cause.actor,
        server=cause.server,
        phase=Phase.DONE,
        status=Status.OK,
        protocol=cause.protocol,
    )


def body(ref: SessionRef, salt: bytes) -> CommitBody:
    """Return how the session was named."""
    aliases = msgspec.json.encode(ref.aliases).decode()
    return CommitBody(
        salt=salt, metadata={**ref.metadata, "rung": ref.rung.value, "aliases": aliases}
    )
