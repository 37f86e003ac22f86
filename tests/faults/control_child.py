"""An operator in a process of its own, for tests that kill it, with the argument DATA.

It gives the session `work` one more name after the other, and pauses and resumes it between them. It
prints the seq of each change that the store said is on disk, and never before.
"""

import asyncio
import os
import sys
from itertools import count
from pathlib import Path

from turnlog.core.kinds import Actor
from turnlog.observe.clock import Clock
from turnlog.redaction.redact import Redactor
from turnlog.sessions.control.lifecycle import SessionAction, SessionChange, operation_of
from turnlog.sessions.control.writer import ControlWriter
from turnlog.sessions.log import find_session
from turnlog.store.lmdb import LmdbStore


async def change(store: LmdbStore, asked: SessionChange) -> None:
    """Make a change and print its seq."""
    with store.view() as view:
        session = find_session(view, "work")
        operation = operation_of(view, session, asked, Actor.OPERATOR, str)
    result = await ControlWriter(store, Redactor(), Clock()).write(session, operation)
    os.write(1, f"{result.seq}\n".encode())


def main() -> None:
    """Change the session until killed."""
    asyncio.run(_change_for_ever(Path(sys.argv[1])))


async def _change_for_ever(data: Path) -> None:
    """Change the session for ever."""
    store = LmdbStore.open(data, flush_every=7)
    with store.view() as view:
        known = len(next(view.sessions()).aliases)
    for number in count(known):
        await change(store, SessionChange(action=SessionAction.ALIAS, name=f"name {number}"))
        with store.view() as view:
            stage = next(view.sessions()).stage
        action = SessionAction.RESUME if stage == "paused" else SessionAction.PAUSE
        await change(store, SessionChange(action=action))
