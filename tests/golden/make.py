"""Write the golden log of this release: `PYTHONPATH=tests python -m golden.make NAME`.

NAME.jsonl holds the records of a session as a store has them, NAME.json what they come to. Once a
release has written them they are never written again: every later version has to read them.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

import msgspec
from msgspec import Struct

from kit.commits import AT, SESSION, Log, changed
from turnlog.core.commit import Facts
from turnlog.core.kinds import CommitKind, ErrorKind, Executed, Flag, NoteKind, Rung, Status
from turnlog.core.note import (
    Budget,
    Decision,
    Evict,
    EvictReason,
    Fact,
    FactAction,
    Metadata,
    Recall,
    TurnStart,
    UserInput,
)
from turnlog.core.state.fold import fold
from turnlog.core.state.session_state import State
from turnlog.core.state.state_view import state_table
from turnlog.store.base import Draft, SessionRef, alias
from turnlog.store.lmdb import LmdbStore

HERE = Path(__file__).parent


class Record(Struct, frozen=True):
    """A commit's header and body, in hexadecimal digits."""

    header: str
    body: str


def scripted() -> Log:
    """Return a session in which all happens that a state knows of."""
    log = Log()
    log.note(Metadata(entries={"goal": "tidy up", "model": "m"}))
    log.note(Budget(calls=20, bytes=10_000, seconds=600.0))
    log.note(UserInput(text="tidy up the folder"))
    log.begin("a", "write", changed("modified", "/srv/a", maybe=True), why="the user asked")
    log.end("a", changed("created", "/srv/a", evidence="observed"))
    log.add(Facts(kind=CommitKind.NOTE, at=AT, clock=0, note=NoteKind.DELIVERED))
    log.begin("b", "write")
    log.end(
        "b",
        status=Status.ERROR,
        executed=Executed.NO,
        error="timeout",
        kind=ErrorKind.CONNECT_TIMEOUT,
    )
    log.begin("b", "write", attempt=2)
    log.end("b", changed("modified", "/srv/b"), attempt=2, flags=(Flag.RETRIED,))
    log.note(TurnStart(name="second"))
    log.begin("c", "write", changed("modified", "/srv/c", maybe=True))
    log.timed_out("c")
    log.begin("d", "write")
    log.timed_out("d", changed("modified", "/srv/d", maybe=True))
    log.end("c", n=1, flags=(Flag.LATE,))
    log.begin("e", "move")
    log.end("e", changed("renamed", "/srv/b", "/srv/e"))
    log.begin("f", "write")
    log.end(
        "f",
        changed("modified", "/no"),
        status=Status.ERROR,
        error="tool_error",
        kind=ErrorKind.TOOL_FAILED,
    )
    log.begin("g", "ask")
    log.end("g", status=Status.INPUT_REQUIRED, executed=Executed.MAYBE)
    log.begin("g", "ask", leg=1)
    log.end("g", leg=1)
    log.begin("h", "task")
    log.end("h", status=Status.ACCEPTED, executed=Executed.MAYBE)
    log.begin("i", "delete")
    log.end("i", changed("deleted", "/srv/i"), changed("painted", "/srv/j"))
    log.begin("j", "read")
    log.notes(
        [
            Decision(text="keep it", why="it is used", id="keep"),
            Decision(text="drop it", why="it is not", id="drop", supersedes="keep"),
            Fact(id="port", action=FactAction.ASSERT, subject="port", value="80", validity="today"),
            Fact(id="port", action=FactAction.VERIFY),
            Fact(id="host", action=FactAction.ASSERT, subject="host", value="a"),
            Fact(id="host", action=FactAction.RETRACT, why="it moved"),
            Evict(keys=("5", "k", "l"), reason=EvictReason.COMPACTION),
            Recall(key="k"),
            Metadata(entries={"model": ""}),
        ]
    )
    return log


async def records(log: Log, data: Path) -> list[Record]:
    """Write a session to a real store, and return what the store keeps of it."""
    store = LmdbStore.open(data)
    names = (alias(Rung.EXPLICIT, "golden", "me"),)
    metadata = {"client": "agent 1.0"}
    ref = SessionRef(candidate=SESSION, rung=Rung.EXPLICIT, aliases=names, metadata=metadata)
    for commit in log.commits[1:]:
        await store.submit(
            Draft(session=ref, facts=commit.facts, body=commit.body), wait=True
        ).done()
    with store.view() as view:
        found = [
            Record(header.hex(), (body or b"").hex()) for _, header, body in view.headers(SESSION)
        ]
        state = fold(State(), view.commits(SESSION))
    await store.close()
    (data.parent / "state").write_bytes(
        msgspec.json.format(msgspec.json.encode(state_table(state)))
    )
    return found


def main() -> None:
    """Write both files."""
    target = HERE / sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(records(scripted(), Path(folder) / "data"))
        target.with_name(f"{target.name}.json").write_bytes((Path(folder) / "state").read_bytes())
    lines = b"\n".join(map(msgspec.json.encode, found)) + b"\n"
    target.with_name(f"{target.name}.jsonl").write_bytes(lines)


if __name__ == "__main__":
    main()
