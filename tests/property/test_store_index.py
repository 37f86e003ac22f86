"""An index made at once equals one made bit by bit, and both equal a plain search of the log."""

import asyncio
import tempfile
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import lmdb
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct

from conformance.store import kit
from turnlog.core.commit import Commit, CommitBody
from turnlog.core.kinds import CommitKind, Flag, Status
from turnlog.core.lifecycle import CONTROL_KINDS, Action
from turnlog.core.operation import Operation
from turnlog.store.base import Filter, LeaseRefused, SessionRef, SessionRow, TransitionRefused
from turnlog.store.lmdb import LmdbReader, LmdbStore, rebuild_indexes
from turnlog.store.log.tables import NAMES
from turnlog.store.read.view import View

T = TypeVar("T")
DURABLE = {"log", "bodies", "aliases", "meta"}
TOOLS = ("read", "write", "read_all")
ACTIONS = [action for action in Action if action is not Action.CALL]
ERRORS = ("", "timeout", "connection")
NAMED = ("/a", "/a/b.py", "/a/\u00e9", "/a\0", "/" + "x" * 500)
GLOBS = (
    "/a",
    "/a*",
    "*.py",
    "/a.old",
    "/?",
    "/x*",
    "[/]a",
    "/a/\u00e9",
    "/a\0",
    "nothing",
    "\ud800*",
)


class Step(Struct, frozen=True):
    """One commit: of which session and call, and what it says."""

    session: int
    call: int
    leg: int
    attempt: int
    ends: bool
    status: Status
    error: str
    flag: Flag | None
    tool: str
    minutes: int
    linked: bool
    changed: str
    n: int
    action: Action | None
    """A control commit instead, for one."""
    fence: int | None


def steps() -> st.SearchStrategy[list[Step]]:
    return st.lists(
        st.builds(
            Step,
            session=st.integers(0, 1),
            call=st.integers(0, 2),
            leg=st.sampled_from([0, 0, 0, 1]),
            attempt=st.sampled_from([1, 1, 1, 2]),
            ends=st.booleans(),
            status=st.sampled_from([s for s in Status if s is not Status.PENDING]),
            error=st.sampled_from(ERRORS),
            flag=st.sampled_from([None, Flag.LATE, Flag.BOM]),
            tool=st.sampled_from(TOOLS),
            minutes=st.integers(0, 9),
            linked=st.booleans(),
            changed=st.sampled_from(["", "", *NAMED]),
            n=st.integers(0, 2),
            action=st.one_of(st.none(), st.none(), st.none(), st.sampled_from(ACTIONS)),
            fence=st.sampled_from([None, None, 1, 2, 3]),
        ),
        max_size=40,
    )


def folder() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder, in memory where that is possible: the law is not about the disk."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)


async def write(store: LmdbStore, plan: list[Step]) -> None:
    """Write a plan, one transaction for each step."""
    refs = [kit.session(f"s{n}") for n in range(3)]
    calls = [[kit.new_id() for _ in range(6)] for _ in refs]
    begun: set[tuple[int, int, int, int]] = set()
    for step in plan:
        if step.action is not None:
            await control(store, refs[step.session], step)
            continue
        attempt = (step.session, step.call, step.leg, step.attempt)
        first = (*attempt[:2], 0, 1)
        # A call begins with its first attempt, and an attempt with its intent.
        if (step.ends and attempt not in begun) or (attempt != first and first not in begun):
            continue
        begun.add(attempt)
        ref, call = refs[step.session], calls[step.session][step.call]
        body: CommitBody | None = CommitBody(
            links=(b"link %d" % step.call,) if step.linked else (),
            delta=(changed(step.changed),) if step.changed else (),
        )
        body = body if step.linked or step.changed else None
        at = kit.START + step.minutes * kit.MINUTE
        if not step.ends:
            draft = kit.intent(
                ref, call, leg=step.leg, attempt=step.attempt, tool=step.tool, at=at, body=body
            )
        else:
            draft = kit.outcome(
                ref,
                call,
                leg=step.leg,
                attempt=step.attempt,
                n=step.n,
                status=step.status,
                error=step.error,
                kind=step.error and f"{step.error} kind",
                flags=(step.flag,) if step.flag else (),
                at=at,
                body=body,
                expires=kit.START + kit.MINUTE if step.status.parked else 0,
            )
        await kit.put(store, draft)


async def control(store: LmdbStore, ref: SessionRef, step: Step) -> None:
    """Write a control commit of a session that exists, unless it is refused."""
    assert step.action is not None
    with store.view() as view:
        row = view.session(ref.id) if ref.id else None
    if row is None:
        return
    at = kit.START + step.minutes * kit.MINUTE
    renews = step.action in (Action.CLAIM, Action.RENEW)
    draft = kit.control(
        ref,
        step.action,
        row.head_seq,
        at=at,
        fence=step.fence,
        expires=at + kit.MINUTE if renews else 0,
        target=row.head_seq // 2 if step.action is Action.REWIND else None,
        names={f"name {step.n}": row.session} if step.action is Action.ALIAS else {},
    )
    with suppress(TransitionRefused, LeaseRefused):
        await kit.put(store, draft)


def changed(name: str) -> Raw:
    """Return what a commit says that changed a file, and moved it where that has another name."""
    to = f"{name}.old" if name == NAMED[0] else ""
    return Raw(
        msgspec.msgpack.encode(Operation(field="files_modified", op="modified", key=name, to=to))
    )


class Answers(Struct, frozen=True):
    """Everything that a view says of a store."""

    rows: list[SessionRow]
    commits: list[list[Commit]]
    calls: list[list[Commit]]
    attempts: dict[str, list[list[Commit]]]
    unsettled: list[list[Commit]]
    links: list[Commit | None]
    controls: list[list[Commit]]


FILTERS = (
    Filter(),
    *(Filter(tool=tool) for tool in ("read", "*e*", "nothing")),
    *(Filter(error=error) for error in ERRORS[1:]),
    Filter(kind="timeout kind"),
    Filter(flag="late"),
    *(Filter(path=glob) for glob in GLOBS),
    Filter(field="files_modified"),
    Filter(field="facts"),
    Filter(field="files_modified", since=kit.START + 3 * kit.MINUTE),
    Filter(since=kit.START + 3 * kit.MINUTE),
    Filter(until=kit.START + 5 * kit.MINUTE, error="timeout"),
    Filter(since=kit.START + 2 * kit.MINUTE, until=kit.START + 4 * kit.MINUTE, tool="read*"),
)


def answers(view: View) -> Answers:
    """Ask a view for everything."""
    rows = list(view.sessions())
    found: dict[str, list[list[Commit]]] = {}
    for want in FILTERS:
        newest = list(view.attempts(want, newest_first=True))
        assert list(view.attempts(want, newest_first=False)) == newest[::-1]
        found[repr(want)] = newest
    commits = [list(view.commits(row.session)) for row in rows]
    calls = sorted({c.facts.call for session in commits for c in session if c.facts.call})
    return Answers(
        rows=rows,
        commits=commits,
        calls=[view.call(call) for call in calls],
        attempts=found,
        unsettled=list(view.unsettled()),
        links=[view.linked(b"link %d" % n) for n in range(6)],
        controls=[list(view.controls(row.session)) for row in rows],
    )


def searched(log: list[Commit], want: Filter) -> list[list[Commit]]:
    """Return the attempts that `want` covers, newest first, by reading the whole log."""
    found: list[list[Commit]] = []
    for intent in log:
        if intent.facts.kind is not CommitKind.INTENT:
            continue
        mine = (intent.facts.call, intent.facts.leg, intent.facts.attempt)
        ends = [
            c
            for c in log
            if c.facts.kind is CommitKind.OUTCOME
            and (c.facts.call, c.facts.leg, c.facts.attempt) == mine
        ]
        if covers(want, intent, ends):
            found.append([intent, *ends])
    return found[::-1]


def covers(want: Filter, intent: Commit, ends: list[Commit]) -> bool:
    """Tell whether an attempt is what `want` asks for, in the plainest words."""
    tools: dict[str, set[str]] = {
        "read": {"read"},
        "*e*": {*TOOLS},
        "read*": {"read", "read_all"},
        "nothing": set(),
    }
    if want.tool and intent.facts.tool not in tools[want.tool]:
        return False
    if not (want.since or 0) <= intent.facts.at <= (want.until or 1 << 62):
        return False
    names = {
        n for c in (intent, *ends) for raw in (c.body.delta if c.body else ()) for n in told(raw)
    }
    if want.path and not any(may_match(name, want.path) for name in names):
        return False
    if want.field and not (names and want.field == "files_modified"):
        return False
    last = ends[-1].facts if ends else None
    return (
        (not want.error or (last is not None and last.error == want.error))
        and (not want.kind or (last is not None and last.error_kind == want.kind))
        and (not want.flag or (last is not None and want.flag in last.flags))
    )


def may_match(name: str, glob: str) -> bool:
    """Tell whether a glob matches a name, as far as a key tells: of two of these it has only hashes."""
    return name in (NAMED[3], NAMED[4]) or fnmatchcase(name, glob)


def told(raw: Raw) -> list[str]:
    """Return the names in what a commit says of a file."""
    found = msgspec.msgpack.decode(raw, type=Operation)
    return [name for name in (found.key, found.to) if name]


def drop_indexes(data: Path) -> None:
    """Take all that is derived out of a store."""
    env = lmdb.open(str(data / "log"), map_size=1 << 30, max_dbs=len(NAMES))
    with env.begin(write=True) as txn:
        for name in set(NAMES) - DURABLE:
            txn.drop(env.open_db(name.encode(), txn=txn), delete=False)
        txn.delete(b"watermark", db=env.open_db(b"meta", txn=txn))
    env.close()


async def _written(data: Path, plan: list[Step], flush_every: int) -> Answers:
    store = LmdbStore.open(data, flush_every=flush_every, now=lambda: kit.START)
    await write(store, plan)
    with store.view() as view:
        found = answers(view)
    await store.close()
    return found


def _read(data: Path) -> Answers:
    reader = LmdbReader.open(data)
    with reader.view() as view:
        found = answers(view)
    reader.close()
    return found


def _flaws(data: Path) -> list[str]:
    reader = LmdbReader.open(data)
    with reader.view() as view:
        found = [*view.index_flaws(), *reader.look(1 << 30)]
    reader.close()
    return found


@pytest.mark.promise("STATE-10")
@settings(max_examples=60)
@given(plan=steps(), flush_every=st.sampled_from([1, 2, 3, 7, 1000]))
def test_an_index_does_not_depend_on_when_it_was_made(plan: list[Step], flush_every: int) -> None:
    with folder() as name:
        data = Path(name) / "data"
        bit_by_bit = asyncio.run(_written(data, plan, flush_every))
        assert _read(data) == bit_by_bit
        assert _flaws(data) == []
        drop_indexes(data)
        assert _read(data) == bit_by_bit
        rebuild_indexes(data)
        assert _read(data) == bit_by_bit
        assert _flaws(data) == []


@pytest.mark.promise("STATE-10")
@settings(max_examples=40)
@given(plan=steps(), flush_every=st.sampled_from([1, 3, 1000]))
def test_an_index_finds_what_a_search_of_the_log_finds(plan: list[Step], flush_every: int) -> None:
    with folder() as name:
        found = asyncio.run(_written(Path(name) / "data", plan, flush_every))
    log = sorted((c for session in found.commits for c in session), key=lambda c: c.position)
    for want in FILTERS:
        assert found.attempts[repr(want)] == searched(log, want)
    for session in found.commits:
        assert [c.link.seq for c in session] == list(range(len(session)))
        assert all(b.link.prev == a.hash for a, b in pairwise(session))
    activity = [session[-1].position for session in found.commits]
    assert activity == sorted(activity, reverse=True)
    assert found.controls == [
        [c for c in session if c.facts.kind in CONTROL_KINDS] for session in found.commits
    ]
    for number, link in enumerate(found.links):
        carrying = [c for c in log if c.body and b"link %d" % number in c.body.links]
        assert link == (carrying[-1] if carrying else None)
