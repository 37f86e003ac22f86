"""No sequence of operations, by whatever writers, brings a session to a stage that the table lacks."""

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from conformance.store import kit
from turnlog.core.commit import Facts
from turnlog.core.kinds import Actor, CommitKind, NoteKind
from turnlog.core.lifecycle import TRANSITIONS, Action, SessionStage, action_of
from turnlog.store.base import REFUSALS, Draft, SessionRef, SessionRow
from turnlog.store.lmdb import LmdbReader, LmdbStore


class Step(Struct, frozen=True):
    """A call, or an operation of one of two writers that has seen a head some commits back."""

    action: Action
    writer: int
    behind: int
    actor: Actor
    fence: int | None
    minutes: int
    allows_calls: bool


STEPS = st.lists(
    st.builds(
        Step,
        action=st.sampled_from(Action),
        writer=st.integers(0, 1),
        behind=st.sampled_from([0, 0, 0, 0, 1]),
        actor=st.sampled_from([Actor.OPERATOR, Actor.OPERATOR, Actor.AGENT]),
        fence=st.sampled_from([None, None, None, 1, 4]),
        minutes=st.integers(0, 3),
        allows_calls=st.booleans(),
    ),
    max_size=25,
)


def row_of(store: LmdbStore | LmdbReader, ref: SessionRef) -> SessionRow:
    with store.view() as view:
        row = view.session(kit.known(ref))
    assert row is not None
    return row


async def done(store: LmdbStore, ref: SessionRef, step: Step) -> bool:
    """Carry a step out; return whether it was written."""
    if step.action is Action.CALL:
        await kit.whole_call(store, ref)
        return True
    at = kit.START + step.minutes * kit.MINUTE
    draft = kit.control(
        ref,
        step.action,
        row_of(store, ref).head_seq - step.behind,
        actor=step.actor,
        at=at,
        fence=step.fence,
        expires=at + kit.MINUTE if step.action in (Action.CLAIM, Action.RENEW) else 0,
        target=0 if step.action is Action.REWIND else None,
    )
    draft.allows_calls = step.allows_calls
    with suppress(*REFUSALS):
        await kit.put(store, draft)
        return True
    return False


async def walked(data: Path, steps: list[Step]) -> None:
    writers = [LmdbStore.open(data, flush_every=n) for n in (2, 1000)]
    ref = kit.session("work")
    note = Facts(kind=CommitKind.NOTE, at=kit.START, clock=0, note=NoteKind.DECISION)
    await kit.put(writers[0], Draft(session=ref, facts=note))
    stage = SessionStage.OPEN
    for step in steps:
        if await done(writers[step.writer], ref, step):
            # A call that was under way is recorded at any stage, and opens no session again.
            assert (stage, step.action) in TRANSITIONS or step.action is Action.CALL
            stage = TRANSITIONS.get((stage, step.action), stage)
        for store in writers:
            assert row_of(store, ref).stage is stage
    for store in writers:
        await store.close()
    reader = LmdbReader.open(data)
    with reader, reader.view() as view:
        assert row_of(reader, ref).stage is stage
        assert list(view.index_flaws()) == []
        fences = [
            c.link.seq for c in view.controls(kit.known(ref)) if action_of(c.facts) is Action.CLAIM
        ]
        assert fences == sorted(set(fences))


@pytest.mark.promise("SESS-12")
@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_each_operation_is_in_the_table_or_refused(steps: list[Step]) -> None:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        asyncio.run(walked(Path(name) / "data", steps))
