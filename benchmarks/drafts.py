"""The commits of a call as the proxy makes them: bodies of some 300 bytes, one call in 50 failed."""

import os
import time

import msgspec
from msgspec import Raw

from turnlog.core.commit import CommitBody, Facts
from turnlog.core.ids import uuid7
from turnlog.core.kinds import CommitKind, Effect, Executed, Phase, Status, TurnSource
from turnlog.core.operation import Operation
from turnlog.store.base import Draft, SessionRef, Ticket

TOOLS = ("read_file", "write_file", "list_directory", "search", "run_command")


WRITING = "write_file"
FILES = 500
"""That a session writes to, again and again."""
_encode = msgspec.msgpack.Encoder().encode


def changed_file(number: int) -> str:
    """Return what the call `number` changes, if it is a write."""
    return f"/srv/repo/src/part_{number % FILES}.py"


def _written(number: int, *, maybe: bool) -> tuple[Raw, ...]:
    path = changed_file(number)
    done = Operation(
        field="files_modified", op="modified", key=path, evidence="declared", maybe=maybe
    )
    return (Raw(_encode(done)),)


def new_id() -> bytes:
    """Return an id as the proxy makes them."""
    return uuid7(time.time_ns(), os.urandom(10))


def intent(session: SessionRef, call: bytes, tool: str, turn: str = "") -> Draft:
    """Return the draft of a call's begin; `turn` names its turn."""
    facts = Facts(
        kind=CommitKind.INTENT,
        at=time.time_ns(),
        clock=time.monotonic_ns(),
        turn_label=turn,
        turn_source=TurnSource.EXPLICIT if turn else TurnSource.GAP,
        call=call,
        server="files",
        tool=tool,
        method="tools/call",
        effect=Effect.UNKNOWN,
        bytes_in=312,
        trace="0af7651916cd43dd8448eb211c80319c",
        protocol="2025-11-25",
    )
    body = CommitBody(
        input_hash="sha256:" + "5a" * 32,
        preview='{"path":"/srv/repo/src/main.py","content":"import asyncio ' + "x" * 80 + '"}',
    )
    return Draft(session=session, facts=facts, body=body)


def outcome(session: SessionRef, call: bytes, tool: str, ticket: Ticket, number: int) -> Draft:
    """Return the draft of a call's end; each 50th one failed."""
    failed = number % 50 == 0
    facts = Facts(
        kind=CommitKind.OUTCOME,
        at=time.time_ns(),
        clock=time.monotonic_ns(),
        call=call,
        server="files",
        tool=tool,
        method="tools/call",
        effect=Effect.UNKNOWN,
        phase=Phase.DONE,
        executed=Executed.MAYBE if failed else Executed.YES,
        status=Status.ERROR if failed else Status.OK,
        error="timeout" if failed else "",
        error_kind="response_timeout" if failed else "",
        retry="unsafe" if failed else "",
        duration=1_234_567,
        bytes_in=312,
        bytes_out=528,
        trace="0af7651916cd43dd8448eb211c80319c",
        protocol="2025-11-25",
        http_status=200,
    )
    body = CommitBody(
        input_hash="sha256:" + "5a" * 32,
        output_hash="sha256:" + "a5" * 32,
        summary="wrote 4,312 bytes to /srv/repo/src/main.py " + "y" * 60,
        delta=_written(number, maybe=failed) if tool == WRITING else (),
    )
    return Draft(session=session, facts=facts, body=body, intent=ticket)
