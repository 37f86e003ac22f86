"""A call as it was asked for, one try of it, and what came back: what the recorder is told."""

from typing import Final

from msgspec import Struct, structs

from turnlog.core.commit import Commit, Facts
from turnlog.core.kinds import Effect, Flag, TurnSource
from turnlog.core.policy import Policy
from turnlog.store.base import SessionRef, Ticket

TOOL_CHARS: Final = 256
"""Longest tool name that is recorded; a caller may send anything."""


class Ask(Struct, frozen=True, kw_only=True):
    """A call as it was asked for. `arguments` is JSON as it came, cut if `complete` is false."""

    session: SessionRef
    turn_label: str
    turn_source: TurnSource
    call: bytes
    leg: int
    server: str
    tool: str
    method: str
    effect: Effect
    definition: bytes
    arguments: bytes
    complete: bool
    size: int
    flags: tuple[Flag, ...]
    trace: str
    protocol: str
    policy: Policy = Policy()
    """What the rules come to for this call."""
    number: int = 1
    """Of the attempt; the first one is 1."""

    @property
    def is_mcp(self) -> bool:
        """Whether this is a `tools/call`, and not a plain HTTP tool."""
        return self.method == "tools/call"


class Reply(Struct, frozen=True, kw_only=True):
    """What is known of an answer. `content` is the result as it came, cut if not `complete`."""

    http_status: int = 0
    code: int | None = None
    content: bytes = b""
    complete: bool = True
    digest: bytes = b""
    """sha256 of the whole content; empty where `content` is all of it."""
    media_type: str = ""
    is_mcp: bool = False
    size: int = 0
    flags: tuple[Flag, ...] = ()
    links: tuple[bytes, ...] = ()
    ttl: int | None = None
    """ns that a task lives; `None` where nothing was said, -1 for ever."""
    detail: str = ""


class Attempt:
    """One attempt under way. `intent` is `None` where the store could not take it."""

    __slots__ = ("ask", "cancelled", "ended", "facts", "intent", "marks", "n", "started", "waits")

    def __init__(self, ask: Ask, facts: Facts, started: int, *, waits: bool) -> None:
        self.ask = ask
        self.facts = facts
        """What the intent says."""
        self.started = started
        """Monotonic clock, ns."""
        self.waits = waits
        """Whether the disk is waited for: the intent before the first byte leaves, the outcome
        before the answer's last piece is released."""
        self.intent: Ticket | None = None
        self.n = 0
        """Number of the outcome to come."""
        self.ended = False
        self.marks: set[Flag] = set()
        """Flags of what happened on the way."""
        self.cancelled = False
        """Whether the caller took the call back."""

    def shrink(self) -> None:
        """Let go of the input, which is in the store."""
        self.ask = structs.replace(self.ask, arguments=b"")
        placed = self.intent.placed if self.intent is not None else None
        if placed is not None:
            self.intent = Settled(placed)


class Settled:
    """A ticket for a commit that has long been on disk."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit

    @property
    def placed(self) -> Commit:
        """The commit."""
        return self._commit

    @property
    def more(self) -> None:
        """Nothing was appended with it."""
        return

    async def done(self) -> Commit:
        """Return the commit at once."""
        return self._commit
