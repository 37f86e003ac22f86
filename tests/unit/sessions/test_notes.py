"""`sessions.notes`: write a note to a real store."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from turnlog.core.commit import Commit
from turnlog.core.ids import uuid7
from turnlog.core.kinds import Actor, CommitKind, NoteKind, Rung
from turnlog.core.note import (
    Budget,
    Decision,
    Evict,
    EvictReason,
    Fact,
    FactAction,
    Metadata,
    Note,
    Recall,
    TurnStart,
    UserInput,
)
from turnlog.core.state.fold import fold
from turnlog.core.state.session_state import State
from turnlog.observe.clock import Clock
from turnlog.redaction.redact import Redactor
from turnlog.sessions.errors import NoteError, NotFoundError
from turnlog.sessions.log import find_session
from turnlog.sessions.notes import ID_CHARS, NoteWriter, parse_note, redact_note
from turnlog.store.base import Conflict, SessionRef, alias
from turnlog.store.lmdb import LmdbStore

AT = 1_790_000_000_000_000_000
SECRET = "sk-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
DECIDED = Decision(text="use lmdb", why="one file")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LmdbStore]:
    opened = LmdbStore.open(tmp_path)
    yield opened
    await opened.close()


def session(name: str = "work") -> SessionRef:
    return SessionRef(
        candidate=uuid7(AT, name.encode().ljust(10, b"\0")),
        rung=Rung.EXPLICIT,
        aliases=(alias(Rung.EXPLICIT, name, "me"),),
    )


def noter(store: LmdbStore) -> NoteWriter:
    return NoteWriter(store, Redactor(), Clock(wall=lambda: AT, monotonic=lambda: 7))


def commits(store: LmdbStore, ref: SessionRef) -> list[Commit]:
    assert ref.id is not None
    with store.view() as view:
        return list(view.commits(ref.id))


async def test_a_note_opens_its_session_and_is_folded(store: LmdbStore) -> None:
    ref = session()
    noted = await noter(store).write(ref, DECIDED, actor=Actor.OPERATOR)
    opened, note = commits(store, ref)
    assert opened.facts.kind is CommitKind.OPEN
    assert (noted.seq, noted.turn, noted.kind, noted.known) == (1, 1, NoteKind.DECISION, False)
    assert noted.hash == f"sha256:{note.hash.hex()}"
    assert (note.facts.actor, note.facts.at) == (Actor.OPERATOR, AT)
    assert note.body is not None
    assert note.body.summary == "decision text=use lmdb why=one file"
    assert fold(State(), [opened, note]).decisions["1"].why == "one file"


@pytest.mark.promise("AGENT-5")
async def test_a_note_under_a_known_id_is_not_repeated(store: LmdbStore) -> None:
    ref, write = session(), noter(store).write
    first = await write(ref, DECIDED, note_id="n1")
    again = await write(ref, Decision(text="something else"), note_id="n1")
    assert (again.seq, again.hash, again.known) == (first.seq, first.hash, True)
    assert (await write(ref, DECIDED, note_id="n2")).seq == 2
    assert [(await write(ref, DECIDED)).known for _ in range(2)] == [False, False]
    assert len(commits(store, ref)) == 5


def fact(action: FactAction, **more: str) -> Fact:
    return Fact(id="port", action=action, subject="port", **more)


async def test_a_fact_is_changed_only_with_its_newest_version_as_head(store: LmdbStore) -> None:
    ref, write = session(), noter(store).write
    first = await write(ref, fact(FactAction.ASSERT, value="80"))
    with pytest.raises(Conflict, match="commit 1 says something of the same fact") as refused:
        await write(ref, fact(FactAction.VERIFY))
    assert refused.value.seq == first.seq == 1
    # Other facts, other notes and other sessions are in nobody's way.
    await write(ref, DECIDED)
    await write(ref, Fact(id="host", action=FactAction.ASSERT))
    await write(session("elsewhere"), fact(FactAction.ASSERT, value="81"))
    second = await write(ref, fact(FactAction.VERIFY), head=1)
    assert second.seq == 4
    with pytest.raises(Conflict, match="give 4 or a later commit"):
        await write(ref, fact(FactAction.RETRACT), head=3)
    with pytest.raises(Conflict, match="commit 5 is to come, the session's newest is 4"):
        await write(ref, fact(FactAction.RETRACT), head=5)
    assert (await write(ref, fact(FactAction.RETRACT), head=4)).seq == 5
    assert [commit.link.seq for commit in commits(store, ref)] == list(range(6))


async def test_a_repeated_note_needs_no_newer_head(
    store: LmdbStore,
) -> None:
    ref, write = session(), noter(store).write
    first = await write(ref, fact(FactAction.ASSERT), note_id="n1")
    again = await write(ref, fact(FactAction.ASSERT), note_id="n1")
    assert (again.seq, again.known) == (first.seq, True)


async def test_only_one_of_several_simultaneous_changes_of_a_fact_is_written(
    store: LmdbStore,
) -> None:
    ref, write = session(), noter(store).write
    first = await write(ref, fact(FactAction.ASSERT))
    actions = (FactAction.VERIFY, FactAction.DISPUTE, FactAction.RETRACT)
    told = (write(ref, fact(action), head=first.seq) for action in actions)
    found = await asyncio.gather(write(ref, DECIDED), *told, return_exceptions=True)
    assert [isinstance(one, Conflict) for one in found] == [False, False, True, True]
    assert len(commits(store, ref)) == 4


async def test_fact_keys_are_the_same_in_another_process(tmp_path: Path) -> None:
    for seen, flush_every in ((None, 1), (1, 2000), (2, 1)):
        store = LmdbStore.open(tmp_path / "data", flush_every=flush_every)
        with pytest.raises(Conflict):
            await noter(store).write(session(), fact(FactAction.ASSERT), head=(seen or 0) + 1)
        await noter(store).write(session(), fact(FactAction.ASSERT), head=seen)
        await store.close()


async def test_a_turn_note_begins_a_turn_with_its_name(store: LmdbStore) -> None:
    ref = session()
    await noter(store).write(ref, TurnStart(name="a"))
    noted = await noter(store).write(ref, TurnStart(name="b"))
    assert noted.turn == 2


async def test_an_existing_session_can_be_written_to_by_any_name(store: LmdbStore) -> None:
    ref = session()
    await noter(store).write(ref, DECIDED)
    with store.view() as view:
        found = SessionRef.existing(find_session(view, "work"))
        with pytest.raises(NotFoundError):
            find_session(view, "play")
    assert (await noter(store).write(found, DECIDED)).seq == 2


@pytest.mark.parametrize(
    ("note", "message"),
    [
        (Evict(keys=("a" * 300,) * 256, reason=EvictReason.TTL), "65536 are kept"),
        (Decision(text="\ud800"), "half a surrogate pair"),
        (Recall(key="\n".join(["password: a"] * 42)), "too long"),
    ],
)
async def test_notes_that_cannot_be_stored_are_refused(
    store: LmdbStore, note: Note, message: str
) -> None:
    with pytest.raises(NoteError, match=message):
        await noter(store).write(session(), note)


async def test_an_overlong_note_id_is_refused(store: LmdbStore) -> None:
    with pytest.raises(NoteError, match=f"give {ID_CHARS} or less"):
        await noter(store).write(session(), DECIDED, note_id="x" * (ID_CHARS + 1))


CUT = "[redacted]"


@pytest.mark.parametrize(
    ("note", "left"),
    [
        (Decision(text=f"use {SECRET}", why=SECRET), Decision(text=f"use {CUT}", why=CUT)),
        (
            Fact(id="p", action=FactAction.ASSERT, subject="password", value="hunter2"),
            Fact(id="p", action=FactAction.ASSERT, subject="password", value=CUT),
        ),
        (
            Fact(id="api_key", action=FactAction.ASSERT, subject="it", value="hunter2"),
            Fact(id="api_key", action=FactAction.ASSERT, subject="it", value=CUT),
        ),
        (
            Evict(keys=(SECRET, "a"), reason=EvictReason.TTL),
            Evict(keys=(CUT, "a"), reason=EvictReason.TTL),
        ),
        (Recall(key=SECRET), Recall(key=CUT)),
        (UserInput(text=SECRET), UserInput(text=CUT)),
        (
            Metadata(entries={"password": "hunter2", "goal": "g"}),
            Metadata(entries={"password": CUT, "goal": "g"}),
        ),
        (Budget(calls=3), Budget(calls=3)),
    ],
)
def test_secrets_are_removed_from_notes(note: Note, left: Note) -> None:
    assert redact_note(note, Redactor()) == left


@pytest.mark.parametrize(
    ("told", "note"),
    [
        ({"kind": "decision", "text": "x", "why": "y"}, Decision(text="x", why="y")),
        (
            {"kind": "evict", "keys": ["a"], "reason": "ttl"},
            Evict(keys=("a",), reason=EvictReason.TTL),
        ),
        ({"kind": "budget", "seconds": 1}, Budget(seconds=1.0)),
        ({"kind": "turn"}, TurnStart()),
    ],
)
def test_a_note_is_read_from_json(told: dict[str, Any], note: Note) -> None:
    assert parse_note(json.dumps(told)) == note


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ("{", r"it is not JSON \(input data was truncated\), write a JSON object"),
        ("{" + "}" * 2, r"it is not JSON \(trailing characters \(byte 3\)\), write a JSON object"),
        ("[" * 5000, "it is not JSON|it is nested too deeply"),
        ("[]", "it must be a mapping, not a list"),
        ('{"kind":"song"}', "'kind' cannot be 'song', use one of: budget, decision, effect"),
        ('{"kind":"delivered"}', "'kind' cannot be 'delivered', use one of"),
        ('{"kind":"decision"}', "'text' is missing, add it"),
        ('{"kind":"decision","text":""}', "'text' must have a length of at least 1"),
        ('{"kind":"evict","keys":[],"reason":"ttl"}', "'keys' must have a length of at least 1"),
        (
            '{"kind":"evict","keys":["1"],"reason":"x"}',
            "'reason' cannot be 'x', use one of: budget",
        ),
        ('{"kind":"metadata","entries":{"a":1}}', "'entries.a' must be text, not a whole number"),
        ('{"kind":"turn","title":"x"}', "kind 'turn' has no 'title'"),
        ('{"kind":"budget","calls":-1}', "'calls' must be at least 0"),
    ],
)
def test_invalid_notes_are_refused_with_a_reason(told: str, message: str) -> None:
    with pytest.raises(NoteError, match=message):
        parse_note(told)


def test_the_error_names_every_kind_of_note() -> None:
    with pytest.raises(NoteError) as refused:
        parse_note("{}")
    bare = {
        NoteKind.ABANDONED,
        NoteKind.CANCEL_FORWARDED,
        NoteKind.DELIVERED,
        NoteKind.ENDORSE,
        NoteKind.HOLD,
        NoteKind.RELEASE,
        NoteKind.RESUMABLE,
        NoteKind.TAINT,
        NoteKind.UNANSWERED,
    }
    named = str(refused.value).rpartition("one of: ")[2].split(", ")
    assert set(named) == {kind.value for kind in set(NoteKind) - bare}
