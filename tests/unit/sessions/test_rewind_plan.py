"""`sessions.control`: what a rewind would discard, and what of it stands outside."""

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

from e2e.stores import Call, fill, session_id
from kit.commits import changed
from turnlog.core.canon import canonical, input_hash
from turnlog.core.kinds import Effect, Executed, NoteKind, Status
from turnlog.core.note import Decision, Evict, EvictReason
from turnlog.rules.model import Compensation, Look, Match, Rule
from turnlog.rules.policy import Rulebook
from turnlog.sessions.control.compensation import Fit, ProposedCall
from turnlog.sessions.control.rewind import RewindOrder, rewind
from turnlog.sessions.control.rewind_plan import (
    EffectGroup,
    RewindPlan,
    group_of,
    rewind_plan,
    rewind_target,
)
from turnlog.sessions.errors import NotFoundError, OperationError
from turnlog.sessions.live import SessionBranches
from turnlog.store.base import Conflict
from turnlog.store.lmdb import LmdbReader, LmdbStore

WORK = session_id("work")
CALLS = [
    Call(tool="look", minute=0, effect=Effect.READ),
    Call(tool="write", minute=1, delta=(changed("created", "/a"),)),
    Call(tool="shell", minute=10, effect=Effect.UNKNOWN, notes=(Decision(text="go"),)),
    Call(tool="mail", minute=11, effect=Effect.IRREVERSIBLE),
    Call(tool="put", minute=12, effect=Effect.IDEMPOTENT_WRITE),
    Call(tool="write", minute=13, status=Status.ERROR, executed=Executed.NO),
    Call(tool="write", minute=14, status=None),
]
"""Commits: it opens 0, calls 1 2, 3 4, 5 6, a decision 7, calls 8 9, 10 11, 12 13, an intent 14."""
LOOK = Look(tool="look", args={"path": "$.args.path"}, expect="$.args.path")
UNDO = Compensation(tool="delete", args={"path": "$.args.path"})


def plan(
    data: Path, target: int, *, keep: tuple[int, ...] = (), rules: Rulebook | None = None
) -> RewindPlan:
    with LmdbReader.open(data) as reader, reader.view() as view:
        return rewind_plan(view, WORK, target, keep=keep, rules=rules)


def compensated(rule: Compensation) -> Rulebook:
    return Rulebook((Rule(name="undo", match=Match(tool=("write",)), compensate=rule),), {}, ())


def rewound(data: Path, made: RewindPlan, expect: int | None = None) -> RewindPlan:
    async def commit() -> RewindPlan:
        store = LmdbStore.open(data)
        try:
            head = made.head if expect is None else expect
            return await rewind(store, made, RewindOrder(expect=head))
        finally:
            await store.close()

    return asyncio.run(commit())


@pytest.mark.promise("REWIND-2")
def test_discarded_calls_are_grouped_by_what_stands_of_them(tmp_path: Path) -> None:
    fill(tmp_path, CALLS)
    found = plan(tmp_path, 0)
    groups = {one.seq: one.group for one in found.discarded}
    assert list(groups) == [14, 12, 10, 8, 5, 3, 1]
    assert groups == {
        1: EffectGroup.NO_EFFECT,
        3: EffectGroup.STANDS,
        5: EffectGroup.STANDS,
        8: EffectGroup.IRREVERSIBLE,
        10: EffectGroup.IDEMPOTENT,
        12: EffectGroup.NO_EFFECT,
        14: EffectGroup.STANDS,
    }
    assert found.groups == {"irreversible": 1, "stands": 3, "idempotent": 1, "no_effect": 2}
    assert (found.head, found.commits, found.rewound) == (14, 14, None)


def test_a_call_of_unknown_effect_is_said_not_to_be_tracked(tmp_path: Path) -> None:
    fill(tmp_path, CALLS)
    found = plan(tmp_path, 0)
    assert [one.tool for one in found.discarded if not one.tracked] == ["shell"]
    assert found.untracked == 1


def test_decisions_are_void_and_other_notes_are_not_listed(tmp_path: Path) -> None:
    evicted = Evict(keys=("a",), reason=EvictReason.TTL)
    fill(tmp_path, [*CALLS, Call(tool="look", minute=15, notes=(evicted,))])
    (void,) = plan(tmp_path, 4).voided
    assert (void.seq, void.kind, "go" in void.summary) == (7, NoteKind.DECISION, True)


def test_a_call_that_began_before_the_target_is_not_discarded_with_its_outcome(
    tmp_path: Path,
) -> None:
    fill(tmp_path, CALLS)
    assert 3 not in {one.seq for one in plan(tmp_path, 3).discarded}
    assert 3 in {one.seq for one in plan(tmp_path, 2).discarded}


def test_an_open_call_of_a_dead_process_is_unknown_and_not_in_flight(tmp_path: Path) -> None:
    fill(tmp_path, CALLS)
    found = plan(tmp_path, 4)
    assert found.in_flight == 0
    assert found.discarded[0].standing == "unknown"


@pytest.mark.parametrize(
    ("effect", "status", "executed", "group"),
    [
        (Effect.WRITE, Status.REPLAYED, Executed.YES, EffectGroup.NO_EFFECT),
        (Effect.WRITE, Status.UNKNOWN, Executed.MAYBE, EffectGroup.STANDS),
        (Effect.IRREVERSIBLE, Status.ERROR, Executed.NO, EffectGroup.NO_EFFECT),
        (Effect.UNKNOWN, Status.OK, Executed.YES, EffectGroup.STANDS),
    ],
)
def test_an_effect_stands_if_it_may_have_happened(
    effect: Effect, status: Status, executed: Executed, group: EffectGroup
) -> None:
    assert group_of(effect, status, executed) is group


def test_an_earlier_attempt_that_may_have_been_executed_counts(tmp_path: Path) -> None:
    fill(
        tmp_path,
        [
            Call(tool="write", minute=0, status=Status.ERROR, executed=Executed.MAYBE),
            Call(
                tool="write", minute=1, of=0, attempt=2, status=Status.ERROR, executed=Executed.NO
            ),
        ],
    )
    (one,) = plan(tmp_path, 0).discarded
    assert (one.executed, one.group, one.seq, one.last_seq) == ("maybe", EffectGroup.STANDS, 1, 4)


@pytest.mark.promise("REWIND-3")
def test_a_rewind_is_refused_if_the_session_has_grown(tmp_path: Path) -> None:
    fill(tmp_path, CALLS[:2])
    made = plan(tmp_path, 2)
    with pytest.raises(Conflict, match="newest commit is 4, not 3") as caught:
        rewound(tmp_path, made, expect=3)
    assert caught.value.seq == 4
    assert rewound(tmp_path, made).rewound == 5
    with pytest.raises(Conflict, match="newest commit is 5, not 4"):
        rewound(tmp_path, made)


def test_a_rewind_can_be_taken_back_and_says_which_calls_return(tmp_path: Path) -> None:
    fill(tmp_path, CALLS[:2])
    rewound(tmp_path, plan(tmp_path, 2))
    back = plan(tmp_path, 4)
    assert (back.discarded, back.returning) == ([], 1)
    rewound(tmp_path, back)
    assert [one.seq for one in plan(tmp_path, 2).discarded] == [3]


def test_a_call_can_be_kept_by_any_of_its_commits(tmp_path: Path) -> None:
    fill(tmp_path, CALLS[:4])
    made = plan(tmp_path, 2, keep=(9,))
    assert (made.kept, [one.seq for one in made.discarded]) == ([8], [5, 3])
    rewound(tmp_path, made)
    with LmdbReader.open(tmp_path) as reader, reader.view() as view:
        (stored,) = SessionBranches(view, WORK).rewinds
    assert (stored.target, stored.keep) == (2, frozenset({8}))
    again = plan(tmp_path, 1)
    assert [one.seq for one in again.discarded] == [8]


@pytest.mark.parametrize(
    ("target", "keep", "message"),
    [
        (14, (), "commit 14 is the newest"),
        (2, (1,), "commit 1 is of no call"),
        (2, (7,), "commit 7 is of no call"),
    ],
)
def test_a_rewind_that_makes_no_sense_is_refused(
    tmp_path: Path, target: int, keep: tuple[int, ...], message: str
) -> None:
    fill(tmp_path, CALLS)
    with pytest.raises(OperationError, match=message):
        plan(tmp_path, target, keep=keep)
    with pytest.raises(NotFoundError, match="no commit 99"):
        plan(tmp_path, 99)


def test_a_turn_names_the_commit_at_its_end(tmp_path: Path) -> None:
    fill(tmp_path, CALLS)
    with LmdbReader.open(tmp_path) as reader, reader.view() as view:
        assert rewind_target(view, WORK, seq=None, turn=1) == 4
        assert rewind_target(view, WORK, seq=None, turn=-1) == 14
        assert rewind_target(view, WORK, seq=3, turn=None) == 3


@pytest.mark.promise("REWIND-4")
def test_a_compensation_is_made_of_the_recorded_call(tmp_path: Path) -> None:
    fill(tmp_path, CALLS[:3])
    shell, write = plan(tmp_path, 2, rules=compensated(UNDO)).discarded
    assert shell.compensation is None
    assert write.compensation is not None
    assert write.compensation.call == ProposedCall(
        server="files", tool="delete", args={"path": "/tmp/a"}
    )
    assert (write.compensation.fit, write.compensation.look) == (Fit.FITS, None)


@pytest.mark.promise("REWIND-4")
@pytest.mark.parametrize("session", ["work", "other"])
def test_a_compensation_is_refused_if_a_call_that_stays_changed_the_same(
    tmp_path: Path, session: str
) -> None:
    later = Call(tool="edit", minute=20, session=session, delta=(changed("modified", "/a"),))
    fill(tmp_path, [*CALLS[:2], later])
    keep = (5,) if session == "work" else ()
    (write,) = plan(tmp_path, 2, keep=keep, rules=compensated(UNDO)).discarded
    assert write.compensation is not None
    assert write.compensation.fit is Fit.REFUSED
    assert "files/edit changed the same at commit" in write.compensation.why


def test_later_changes_that_are_discarded_as_well_do_not_count(tmp_path: Path) -> None:
    later = Call(tool="edit", minute=20, delta=(changed("modified", "/a"),))
    fill(tmp_path, [*CALLS[:2], later])
    _, write = plan(tmp_path, 2, rules=compensated(UNDO)).discarded
    assert write.compensation is not None
    assert write.compensation.fit is Fit.FITS


@pytest.mark.promise("REWIND-4")
@pytest.mark.parametrize(
    ("shown", "fit"),
    [(None, Fit.UNCHECKED), ("/tmp/a", Fit.FITS), ("changed by hand", Fit.REFUSED)],
)
def test_the_newest_look_decides_whether_a_compensation_fits(
    tmp_path: Path, shown: str | None, fit: Fit
) -> None:
    answer = b'{"content":[{"type":"text","text":"%b"}]}' % (shown or "").encode()
    hashed = input_hash(canonical(CALLS[1].input))
    look = Call(tool="look", minute=20, session="other", output=answer, input_hash=hashed)
    elsewhere = Call(tool="look", minute=21, session="other")
    fill(tmp_path, [*CALLS[:2], *([look] if shown else []), elsewhere])
    rules = compensated(structs.replace(UNDO, look=LOOK))
    (write,) = plan(tmp_path, 2, rules=rules).discarded
    assert write.compensation is not None
    assert write.compensation.fit is fit
    assert write.compensation.look == ProposedCall(
        server="files", tool="look", args={"path": "/tmp/a"}
    )


def test_a_compensation_that_the_record_does_not_give_is_unavailable(tmp_path: Path) -> None:
    fill(tmp_path, [Call(tool="write", minute=0), Call(tool="write", minute=1, input=b"{}")])
    empty, _ = plan(tmp_path, 0, rules=compensated(UNDO)).discarded
    assert empty.compensation is not None
    assert (empty.compensation.fit, empty.compensation.call) == (Fit.UNAVAILABLE, None)
    assert "$.args.path selects nothing" in empty.compensation.why
