"""Return the recorded answer of a call to a model that no longer sees it."""

from typing import Final

from msgspec import Raw, Struct

from turnlog.core import ids
from turnlog.core.commit import Commit
from turnlog.core.kinds import Status
from turnlog.core.text.units import timestamp
from turnlog.sessions.state.state_at import outcomes_of_key
from turnlog.store.base import Blob
from turnlog.store.read.view import View
from turnlog.wire.json_text import value_of
from turnlog.wire.tool_result import blocks_of_result, only_text

from .errors import NotRecallableError
from .live import LiveCalls
from .payloads import Payload, PayloadState, read_payload


class Recalled(Struct, frozen=True, kw_only=True):
    """The recorded answer of a call."""

    key: str
    call: str
    seq: int
    """The seq of the outcome."""
    turn: int
    server: str
    tool: str
    timestamp: str
    """When the answer came, RFC 3339, UTC."""
    status: Status
    error: str | None
    """The error family, for an answer that was an error."""
    text: str
    """The text of its content blocks; the whole answer when it has other blocks."""


class RecalledAnswer(Struct, frozen=True):
    """A recalled answer with its content blocks, which only a result of an MCP tool has."""

    recalled: Recalled
    blocks: list[Raw]


def recall(view: View, session: bytes, key: str, *, with_discarded: bool = False) -> RecalledAnswer:
    """Return the newest recorded answer of a call. Raises `NotRecallableError`.

    The key is the id of the call, or the seq of one of its commits.
    """
    why = f"{key!r} is not an ended call of this session: give its id or the seq of its row"
    live = LiveCalls(view)
    for number, commit in enumerate(outcomes_of_key(view, session, key)):
        if not (with_discarded or live.has([commit])):
            raise NotRecallableError(f"the call {key!r} was discarded by a rewind; `all` gives it")
        handle = commit.body.output_blob if commit.body else b""
        found = read_payload(view, handle)
        if commit.gone is not None:
            found = Payload(kept=PayloadState(commit.gone))
        blob = view.blob(handle) if found.is_exact else None
        if isinstance(blob, Blob):
            asked = view.get(session, commit.link.ref) if commit.link.ref is not None else None
            return _answer(asked or commit, commit, key, blob.data)
        if number == 0:
            why = f"the call {key!r} {_WHY_NOT[found.kept].format(size=found.size)}"
    raise NotRecallableError(why)


_WHY_NOT: Final = {
    PayloadState.NONE: "left no answer in the log",
    PayloadState.WHOLE: "was answered, and its secrets were cut out: it is not given back",
    PayloadState.CUT: "was answered, and only the first {size} bytes were recorded",
    PayloadState.TRIMMED: "was answered, and that was trimmed: given up for room",
    PayloadState.EXPIRED: "was answered, and that has expired: it was kept for a time only",
    PayloadState.PURGED: "was answered, and that was purged by an operator",
    PayloadState.UNSAVED: "was answered, and that is unsaved: it never came to the disk",
    PayloadState.DAMAGED: "was answered, and that is damaged: it is not what was recorded",
}


def _answer(intent: Commit, commit: Commit, key: str, data: bytes) -> RecalledAnswer:
    try:
        whole = data.decode()
    except UnicodeDecodeError:
        raise NotRecallableError(f"the answer to {key!r} is not text") from None
    asked, facts = intent.facts, commit.facts
    is_result = asked.method == "tools/call" and facts.code is None and value_of(data) is not None
    recalled = Recalled(
        key=key,
        call=ids.to_text(facts.call),
        seq=commit.link.seq,
        turn=commit.link.turn,
        server=asked.server,
        tool=asked.tool,
        timestamp=timestamp(facts.at),
        status=Status(facts.status),
        error=facts.error or None,
        text=(only_text(data) or whole) if is_result else whole,
    )
    return RecalledAnswer(recalled, blocks_of_result(data) if is_result else [])
