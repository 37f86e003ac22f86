"""Fetch back the recorded answer of a call, for the model that no longer sees it."""

from typing import Final

import msgspec
from msgspec import Raw, Struct

from turnlog.core import ids
from turnlog.core.commit import Commit
from turnlog.core.kinds import Status
from turnlog.core.text.times import timestamp
from turnlog.sessions.state.state_at import endings
from turnlog.store.base import View
from turnlog.wire.result.content import blocks_of_result, only_text

from .contents import Kept, Payload, payload


class NotRecallableError(Exception):
    """The log cannot give an answer back. The message says why."""


class Recalled(Struct, frozen=True, kw_only=True):
    """The answer of a call, as it was recorded."""

    key: str
    call: str
    seq: int
    """Of the outcome."""
    turn: int
    server: str
    tool: str
    timestamp: str
    """When it came, RFC 3339, UTC."""
    status: Status
    error: str | None
    """The family of the error that the answer was."""
    text: str
    """Its texts; all of it where it is more than texts."""


class Answer(Struct, frozen=True):
    """A recalled answer with its blocks of content; without any where it was no result of MCP."""

    recalled: Recalled
    blocks: list[Raw]


def recall(view: View, session: bytes, key: str) -> Answer:
    """Return the newest answer that a key stands for: a call's id, or the seq of one of its commits.

    Raises `NotRecallableError`.
    """
    why = f"{key!r} is no call of this session that has ended: give its id or the seq of its row"
    for number, commit in enumerate(endings(view, session, key)):
        handle = commit.body.output_blob if commit.body else b""
        found = payload(view, handle)
        blob = view.blob(handle) if _is_exact(found) else None
        if blob is not None:
            asked = view.get(session, commit.link.ref) if commit.link.ref is not None else None
            return _answer(asked or commit, commit, key, blob.data)
        why = _why_not(key, found) if number == 0 else why
    raise NotRecallableError(why)


def _is_exact(found: Payload) -> bool:
    return found.kept is Kept.WHOLE and not found.redacted


_WHY_NOT: Final = {
    Kept.NONE: "left no answer in the log",
    Kept.WHOLE: "was answered, and its secrets were cut out: it is not given back",
    Kept.CUT: "was answered, and only the first {size} bytes were recorded",
    Kept.TRIMMED: "was answered, and that was trimmed: given up for room",
    Kept.EXPIRED: "was answered, and that has expired: it was kept for a time only",
    Kept.PURGED: "was answered, and that was purged by an operator",
    Kept.UNSAVED: "was answered, and that is unsaved: it never came to the disk",
    Kept.DAMAGED: "was answered, and that is damaged: it is not what was recorded",
}


def _why_not(key: str, found: Payload) -> str:
    return f"the call {key!r} {_WHY_NOT[found.kept].format(size=found.size)}"


def _answer(intent: Commit, commit: Commit, key: str, data: bytes) -> Answer:
    try:
        whole = data.decode()
    except UnicodeDecodeError:
        raise NotRecallableError(f"the answer to {key!r} is no text") from None
    asked, facts = intent.facts, commit.facts
    is_result = asked.method == "tools/call" and facts.code is None and _is_json(data)
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
    return Answer(recalled, blocks_of_result(data) if is_result else [])


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return False
    return True
