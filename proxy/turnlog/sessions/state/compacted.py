"""States that `compact` commits carry: a fold starts there once earlier bodies are deleted."""

import sys
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.commit import Commit, CommitBody, decoder
from turnlog.core.hints import Hint
from turnlog.core.kinds import Actor, CommitKind
from turnlog.core.lifecycle import encode_content
from turnlog.core.live_view import LiveView
from turnlog.core.state.session_state import VERSION, State, decode_state, encode_state, state_hash
from turnlog.observe.clock import Clock
from turnlog.sessions.errors import CompactedError
from turnlog.sessions.live import SessionBranches
from turnlog.store.base import Draft, SessionRef, session_facts
from turnlog.store.read.view import View

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MOST_BYTES: Final = (1 << 20) - 4096
"""Bytes of a compressed state that fits into a commit."""
_LEVEL: Final = 3


class CompactContent(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The content of a compact commit, in `CommitBody.note`. New fields go to the end."""

    version: int
    """`VERSION` of the state."""
    seq: int
    """The commit after which the session had the state."""
    hash: str
    """`state_hash` of the state."""
    state: bytes
    """Its encoding, compressed."""


_decode_content = decoder(CompactContent)


def compact_draft(session: bytes, state: State, head: int, clock: Clock) -> Draft | None:
    """Return the draft of the commit that carries a state; `None` for one that is too large."""
    packed = zstd.compress(encode_state(state), _LEVEL)
    if len(packed) > MOST_BYTES:
        return None
    content = CompactContent(version=VERSION, seq=state.seq, hash=state_hash(state), state=packed)
    return Draft(
        session=SessionRef.existing(session),
        facts=session_facts(CommitKind.COMPACT, Actor.TURNLOG, clock),
        body=CommitBody(
            summary=f"the state after commit {state.seq}", note=encode_content(content)
        ),
        expected_head=head,
        target=state.seq,
    )


def with_calls(body: CommitBody, calls: Mapping[str, str]) -> CommitBody:
    """Return the body of a compact commit whose state has other ids for these calls."""
    state = _state(body)
    if state is None:
        return body
    attempts = {
        seq: structs.replace(one, call=calls.get(one.call, one.call))
        for seq, one in state.attempts.items()
    }
    by_id = {calls.get(call, call): standing for call, standing in state.calls.items()}
    state = structs.replace(state, attempts=attempts, calls=by_id)
    content = structs.replace(
        _decode_content(body.note),
        hash=state_hash(state),
        state=zstd.compress(encode_state(state), _LEVEL),
    )
    return structs.replace(body, note=encode_content(content))


def newest_compact(view: View, session: bytes) -> Commit | None:
    """Return the newest compact commit of a session whose state is kept."""
    found = [c for c in view.controls(session) if c.facts.kind is CommitKind.COMPACT and c.body]
    return found[-1] if found else None


def compacted_until(view: View, session: bytes) -> int:
    """Return the first commit after which the session's state is known; -1 where that is so for all."""
    commit = newest_compact(view, session)
    return -1 if commit is None or commit.link.ref is None else commit.link.ref


def compacted_state(branches: SessionBranches, live: LiveView) -> State:
    """Return the state from which a fold of a session's live view starts.

    Raises `CompactedError` where that would need commits that were compacted.
    """
    commit = newest_compact(branches.view, branches.session)
    if commit is None or commit.body is None:
        return State()
    first, name = commit.link.ref or 0, ids.to_text(branches.session)
    # The state is what counted up to there when it was written.
    if live.newest < first or not live.agrees(branches.live(commit.link.seq), first):
        raise CompactedError(
            f"the commits of session {name} before {first} are compacted: its state is kept from "
            f"commit {first} on",
            first,
            Hint.LATER_STATE,
        )
    return _state(commit.body) or _unreadable(name, commit.link.seq, first)


def _state(body: CommitBody) -> State | None:
    try:
        content = _decode_content(body.note)
        state = decode_state(zstd.decompress(content.state))
    except (msgspec.DecodeError, zstd.ZstdError):
        return None
    return state if state is not None and state_hash(state) == content.hash else None


def _unreadable(name: str, seq: int, first: int) -> State:
    raise CompactedError(
        f"the state in commit {seq} of session {name} cannot be read by this version of turnlog; "
        "use the one that wrote it",
        first,
    )
