"""`sessions.control`: sessions are changed in a real store, by two writers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from conformance.store import kit
from turnlog.core import ids
from turnlog.core.kinds import Actor, Rung
from turnlog.core.lifecycle import decode_lifecycle
from turnlog.observe.clock import Clock
from turnlog.redaction.redact import Redactor
from turnlog.sessions.call_detail import commit_entry
from turnlog.sessions.control.lifecycle import SessionAction, SessionChange, operation_of
from turnlog.sessions.control.writer import ControlWriter, OperationResult
from turnlog.sessions.errors import NotFoundError, OperationError
from turnlog.store.base import Conflict, LeaseRefused, SessionRef, TransitionRefused, alias
from turnlog.store.lmdb import LmdbStore

SECRET = "sk-abcdefghijklmnopqrstuvwxyz0123456789ABCD"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LmdbStore]:
    opened = LmdbStore.open(tmp_path)
    yield opened
    await opened.close()


@pytest.fixture
async def ref(store: LmdbStore) -> SessionRef:
    """A session with one call."""
    found = kit.session("work")
    await kit.whole_call(store, found)
    return found


def head(store: LmdbStore, ref: SessionRef) -> int:
    with store.view() as view:
        row = view.session(kit.known(ref))
    assert row is not None
    return row.head_seq


async def change(
    store: LmdbStore,
    ref: SessionRef,
    asked: SessionChange,
    *,
    actor: Actor = Actor.OPERATOR,
    now: int = kit.START,
) -> OperationResult:
    redactor = Redactor()
    with store.view() as view:
        operation = operation_of(
            view, kit.known(ref), asked, actor, lambda text: redactor.text(text)[0]
        )
    writer = ControlWriter(store, redactor, Clock(wall=lambda: now))
    return await writer.write(kit.known(ref), operation)


async def test_a_change_is_a_commit_with_actor_and_reason(
    store: LmdbStore, ref: SessionRef
) -> None:
    asked = SessionChange(action=SessionAction.PAUSE, why=f"because of {SECRET}")
    result = await change(store, ref, asked)
    with store.view() as view:
        (commit,) = view.controls(kit.known(ref))
    assert (result.seq, result.stage, result.action) == (commit.link.seq, "paused", "pause")
    assert result.hash == f"sha256:{commit.hash.hex()}"
    assert commit.facts.actor is Actor.OPERATOR
    assert commit.body is not None
    assert commit.body.detail.startswith("because of ")
    assert SECRET not in repr(commit)


@pytest.mark.promise("SESS-13")
async def test_calls_that_move_the_head_do_not_keep_an_operator_from_a_change(
    store: LmdbStore, ref: SessionRef
) -> None:
    stop = asyncio.Event()

    async def work() -> None:
        while not stop.is_set():
            await kit.whole_call(store, ref)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(work())
        for _ in range(5):
            await change(store, ref, SessionChange(action=SessionAction.PAUSE))
            await change(store, ref, SessionChange(action=SessionAction.RESUME))
        stop.set()
    with store.view() as view:
        assert len(list(view.controls(kit.known(ref)))) == 10


@pytest.mark.promise("SESS-13")
async def test_with_an_expected_head_it_is_exactly_that(store: LmdbStore, ref: SessionRef) -> None:
    before = head(store, ref)
    await kit.whole_call(store, ref)
    asked = SessionChange(action=SessionAction.CLOSE, expect=before)
    with pytest.raises(Conflict) as refused:
        await change(store, ref, asked)
    assert refused.value.seq == before + 2
    result = await change(store, ref, msgspec.structs.replace(asked, expect=before + 2))
    assert result.seq == before + 3


@pytest.mark.promise("SESS-13")
async def test_after_another_change_it_is_not_tried_again(
    store: LmdbStore, ref: SessionRef, tmp_path: Path
) -> None:
    other = LmdbStore.open(tmp_path)
    changes = [SessionAction.PAUSE, SessionAction.CLAIM]
    ended = await asyncio.gather(
        change(store, ref, SessionChange(action=changes[0])),
        change(other, ref, SessionChange(action=changes[1])),
        return_exceptions=True,
    )
    await other.close()
    failed = [one for one in ended if isinstance(one, BaseException)]
    # They may also have come one after the other.
    assert len(failed) <= 1
    for error in failed:
        assert isinstance(error, Conflict)
        assert error.seq == head(store, ref)


@pytest.mark.promise("SESS-14")
async def test_a_lease_is_claimed_renewed_and_given_back(store: LmdbStore, ref: SessionRef) -> None:
    claim = SessionChange(action=SessionAction.CLAIM, holder=f"ci {SECRET}", ttl=10)
    lease = (await change(store, ref, claim)).lease
    assert lease is not None
    with store.view() as view:
        (commit,) = view.controls(kit.known(ref))
    assert commit.body is not None
    holder = decode_lifecycle(commit.body.note).holder
    assert holder.startswith("ci ")
    assert SECRET not in holder

    renew = SessionChange(action=SessionAction.RENEW, fence=lease.fence, ttl=20)
    renewed = (await change(store, ref, renew, now=kit.START + 5_000_000_000)).lease
    assert renewed is not None
    assert renewed.fence == lease.fence
    assert renewed.until > lease.until

    with pytest.raises(LeaseRefused):
        await change(store, ref, claim, now=kit.START + 20_000_000_000)
    again = (await change(store, ref, claim, now=kit.START + 25_000_000_000)).lease
    assert again is not None
    assert again.fence > lease.fence
    stale = SessionChange(action=SessionAction.CLOSE, fence=lease.fence)
    with pytest.raises(LeaseRefused) as refused:
        await change(store, ref, stale, now=kit.START + 26_000_000_000)
    assert refused.value.fence == again.fence

    given_back = SessionChange(action=SessionAction.UNCLAIM, fence=again.fence)
    assert (await change(store, ref, given_back, now=kit.START + 26_000_000_000)).lease is None


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (SessionChange(action=SessionAction.ALIAS), "'alias' needs 'name'"),
        (SessionChange(action=SessionAction.MERGE), "'merge' needs 'into'"),
        (SessionChange(action=SessionAction.PAUSE, name="x"), "'pause' has no 'name'"),
        (SessionChange(action=SessionAction.RENEW, holder="x"), "'renew' has no 'holder'"),
        (SessionChange(action=SessionAction.CLOSE, ttl=3), "'close' has no 'ttl'"),
        (SessionChange(action=SessionAction.MERGE, into="work"), "into itself"),
        (SessionChange(action=SessionAction.MERGE, into="closed"), "'closed' is closed"),
        (SessionChange(action=SessionAction.ALIAS, name="closed"), "'closed' means session"),
        (SessionChange(action=SessionAction.ALIAS, name="two\nlines"), "can name no session"),
        (SessionChange(action=SessionAction.ALIAS, name=SECRET), "the name holds a secret"),
    ],
)
async def test_a_change_that_cannot_be_made_says_why(
    store: LmdbStore, ref: SessionRef, asked: SessionChange, told: str
) -> None:
    closed = kit.session("closed")
    await kit.whole_call(store, closed)
    await change(store, closed, SessionChange(action=SessionAction.CLOSE))
    before = head(store, ref)
    with pytest.raises(OperationError, match=told):
        await change(store, ref, asked)
    assert head(store, ref) == before


async def test_a_session_that_is_not_there_cannot_be_changed(
    store: LmdbStore, ref: SessionRef
) -> None:
    other = kit.session("other")
    other.id = other.candidate
    with pytest.raises(NotFoundError):
        await change(store, other, SessionChange(action=SessionAction.PAUSE))
    with pytest.raises(NotFoundError, match="no session is called 'nobody'"):
        await change(store, ref, SessionChange(action=SessionAction.MERGE, into="nobody"))


async def test_an_agent_cannot_lift_an_operators_pause(store: LmdbStore, ref: SessionRef) -> None:
    pause, resume = (SessionChange(action=a) for a in (SessionAction.PAUSE, SessionAction.RESUME))
    await change(store, ref, pause, actor=Actor.AGENT)
    await change(store, ref, resume, actor=Actor.AGENT)
    await change(store, ref, pause)
    with pytest.raises(TransitionRefused, match="an operator paused"):
        await change(store, ref, resume, actor=Actor.AGENT)
    await change(store, ref, resume)


async def test_another_name_is_one_for_all_who_have_a_name_of_the_session(
    store: LmdbStore, ref: SessionRef
) -> None:
    await change(store, ref, SessionChange(action=SessionAction.ALIAS, name="second"))
    with store.view() as view:
        row = view.session(kit.known(ref))
        assert view.find_sessions("second") == [kit.known(ref)]
    assert row is not None
    assert alias(Rung.EXPLICIT, "second", "me") in row.aliases


async def test_a_merge_takes_the_names_over(store: LmdbStore, ref: SessionRef) -> None:
    other = kit.session("other")
    await kit.whole_call(store, other)
    result = await change(store, ref, SessionChange(action=SessionAction.MERGE, into="other"))
    assert result.stage == "closed"
    with store.view() as view:
        assert view.find_sessions("work") == [kit.known(other)]
        (commit,) = view.controls(kit.known(ref))
    assert commit.body is not None
    assert decode_lifecycle(commit.body.note).into == ids.to_text(kit.known(other))


async def test_a_change_is_shown_with_its_reason_and_its_content(
    store: LmdbStore, ref: SessionRef
) -> None:
    asked = SessionChange(action=SessionAction.CLAIM, holder="ci", why="a run")
    result = await change(store, ref, asked)
    with store.view() as view:
        commit = view.get(kit.known(ref), result.seq)
    assert commit is not None
    shown = commit_entry(commit)
    assert (shown.summary, shown.content) == ("claim", {"holder": "ci", "why": "a run"})
