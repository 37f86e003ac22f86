"""`core.lifecycle`: which action is possible when, and what the control commits of a session amount to."""

from itertools import pairwise

import pytest
from msgspec import structs

from turnlog.core.commit import CommitBody, Facts
from turnlog.core.hints import Hint, in_words
from turnlog.core.kinds import Actor, CommitKind
from turnlog.core.lifecycle import (
    CONTROL_KINDS,
    TRANSITIONS,
    Action,
    Control,
    LifecycleContent,
    SessionStage,
    action_of,
    after_control,
    decode_lifecycle,
    encode_content,
    ends_bundle,
    is_move,
    lease_refusal,
    stage_of,
    suspension_of,
    transition_refusal,
)

OWN_KIND = (Action.REWIND, Action.COMPACT, Action.REDACT)


def does(
    action: Action | str, *, actor: Actor = Actor.OPERATOR, at: int = 0, expires: int = 0
) -> Facts:
    """Return the facts of a control commit."""
    kind, note = CommitKind.LIFECYCLE, str(action)
    if isinstance(action, Action) and action in OWN_KIND:
        kind, note = CommitKind(action.value), ""
    return Facts(kind=kind, at=at, clock=0, actor=actor, note=note, expires=expires)


def folded(*commits: Facts) -> Control | None:
    """Return the result of control commits with the seqs 1, 2, ..."""
    control: Control | None = None
    for seq, facts in enumerate(commits, 1):
        control = after_control(control, facts, seq)
    return control


def stage(*actions: Action, has_calls: bool = True) -> SessionStage:
    """Return the stage after actions of an operator."""
    return stage_of(folded(*map(does, actions)), has_calls=has_calls)


def test_a_session_goes_through_its_stages() -> None:
    assert stage_of(None, has_calls=False) is SessionStage.OPEN
    assert stage_of(None, has_calls=True) is SessionStage.ACTIVE
    life = (Action.PAUSE, Action.RESUME, Action.CLOSE, Action.ARCHIVE, Action.PURGE)
    reached = [stage(*life[: count + 1]) for count in range(len(life))]
    assert reached == ["paused", "active", "closed", "archived", "purged"]


def test_resumes_are_counted() -> None:
    pause, resume = does(Action.PAUSE), does(Action.RESUME)
    counted = [folded(*([pause, resume] * count)) for count in (1, 2, 3)]
    assert [control.resumes for control in counted if control] == [1, 2, 3]
    ineffective = folded(resume, pause)
    assert ineffective is not None
    assert ineffective.resumes == 0


def test_a_call_does_not_lift_a_pause_or_reopen_a_session() -> None:
    assert stage(Action.PAUSE, has_calls=True) is stage(Action.PAUSE, has_calls=False)
    assert stage(Action.CLOSE, has_calls=True) is SessionStage.CLOSED


def test_an_open_session_stays_open_under_actions_that_do_not_move_it() -> None:
    assert stage(Action.CLAIM, Action.ALIAS, has_calls=False) is SessionStage.OPEN
    assert stage(Action.CLAIM, Action.ALIAS) is SessionStage.ACTIVE


def test_open_and_active_sessions_allow_the_same() -> None:
    # The fold keeps one stage for both.
    for action in set(Action) - {Action.CALL}:
        opened, active = (
            TRANSITIONS.get((s, action)) for s in (SessionStage.OPEN, SessionStage.ACTIVE)
        )
        assert (opened, active) == (SessionStage.OPEN, SessionStage.ACTIVE) or opened is active


@pytest.mark.parametrize("before", SessionStage)
@pytest.mark.parametrize("action", [each for each in Action if each is not Action.CALL])
def test_an_action_is_refused_exactly_where_the_table_lacks_it(
    before: SessionStage, action: Action
) -> None:
    why = transition_refusal(Control(stage=before), before, does(action))
    assert (why == "") == ((before, action) in TRANSITIONS)
    if why:
        assert why.startswith(f"'{action}' is not possible while the session is {before}")


@pytest.mark.parametrize(
    ("before", "action", "advice"),
    [
        (SessionStage.ACTIVE, Action.ARCHIVE, "; close it first"),
        (SessionStage.PAUSED, Action.PURGE, "; close it first"),
        (SessionStage.CLOSED, Action.RESUME, "; it is never opened again, fork it to go on"),
        (SessionStage.ARCHIVED, Action.REWIND, "; it is never opened again, fork it to go on"),
        (SessionStage.ACTIVE, Action.RESUME, ""),
        (SessionStage.PURGED, Action.PAUSE, ""),
        (SessionStage.ARCHIVED, Action.ARCHIVE, ""),
    ],
)
def test_a_refusal_says_what_to_do_at_that_stage(
    before: SessionStage, action: Action, advice: str
) -> None:
    why = transition_refusal(Control(stage=before), before, does(action))
    assert why == f"'{action}' is not possible while the session is {before}{advice}"


def test_no_stage_is_left_behind_a_close() -> None:
    order = list(SessionStage)
    for (before, action), after in TRANSITIONS.items():
        rises = order.index(after) >= order.index(before)
        assert rises or (before, action) == (SessionStage.PAUSED, Action.RESUME)
    assert not any(
        after in (SessionStage.OPEN, SessionStage.ACTIVE, SessionStage.PAUSED)
        for (before, _), after in TRANSITIONS.items()
        if before in (SessionStage.CLOSED, SessionStage.ARCHIVED, SessionStage.PURGED)
    )


@pytest.mark.parametrize("note", ["", "from a later version", "call", "rewind"])
def test_an_unknown_action_changes_nothing_and_is_not_written(note: str) -> None:
    unknown = does(note)
    assert action_of(unknown) is None
    assert transition_refusal(None, SessionStage.ACTIVE, unknown)
    paused = Control(stage=SessionStage.PAUSED, fence=2, leased_until=9, newest=4)
    assert after_control(paused, unknown, 5) == structs.replace(paused, newest=5)


@pytest.mark.parametrize("kind", CommitKind)
def test_control_commits_of_all_kinds_have_an_action(kind: CommitKind) -> None:
    facts = Facts(kind=kind, at=0, clock=0, note="pause")
    assert (action_of(facts) is not None) == (kind in CONTROL_KINDS)


def test_a_log_with_an_impossible_action_still_folds() -> None:
    assert stage(Action.CLOSE, Action.RESUME, Action.PAUSE) is SessionStage.CLOSED


@pytest.mark.parametrize("action", [Action.PAUSE, Action.RESUME])
def test_an_agent_lifts_its_own_pause_only(action: Action) -> None:
    own = folded(does(Action.PAUSE, actor=Actor.AGENT))
    taken = folded(does(Action.PAUSE, actor=Actor.AGENT), does(Action.PAUSE))
    agents = does(action, actor=Actor.AGENT)
    assert transition_refusal(own, SessionStage.PAUSED, agents) == ""
    assert transition_refusal(taken, SessionStage.PAUSED, agents) == (
        f"an operator paused the session: the agent cannot {action} it"
    )
    assert transition_refusal(taken, SessionStage.PAUSED, does(action)) == ""


def test_an_agent_may_pause_an_active_session() -> None:
    assert (
        transition_refusal(None, SessionStage.ACTIVE, does(Action.PAUSE, actor=Actor.AGENT)) == ""
    )


def test_leases_are_numbered_by_their_claims_and_numbers_rise() -> None:
    commits = (
        does(Action.CLAIM, expires=10),
        does(Action.RENEW, at=5, expires=20),
        does(Action.PAUSE),
        does(Action.UNCLAIM),
        does(Action.CLAIM, at=30, expires=40),
    )
    leases = [folded(*commits[: count + 1]) for count in range(len(commits))]
    assert [(c.fence, c.leased_until) for c in leases if c] == [
        (1, 10),
        (1, 20),
        (1, 20),
        (1, 0),
        (5, 40),
    ]
    assert all(a.fence <= b.fence for a, b in pairwise(c for c in leases if c))


WORDS = {hint: hint.value for hint in Hint}


def why_refused(control: Control | None, facts: Facts, fence: int | None) -> str:
    refusal = lease_refusal(control, facts, fence)
    return "" if refusal is None else in_words(refusal, WORDS)


def test_a_session_that_was_never_claimed_needs_no_number() -> None:
    assert lease_refusal(None, does(Action.CLOSE), None) is None
    assert lease_refusal(None, does(Action.CLAIM), None) is None
    assert "is not the newest" in why_refused(None, does(Action.CLOSE), 0)


LEASED = Control(fence=3, leased_until=100)


def test_the_holder_of_a_lease_is_heard_until_it_ends() -> None:
    assert lease_refusal(LEASED, does(Action.CLOSE, at=99), 3) is None
    assert lease_refusal(LEASED, does(Action.RENEW, at=99), 3) is None
    assert "has ended" in why_refused(LEASED, does(Action.CLOSE, at=100), 3)
    assert "has ended" in why_refused(LEASED, does(Action.RENEW, at=100), 3)
    assert "is not the newest, 3 is" in why_refused(LEASED, does(Action.CLOSE, at=1), 2)


def test_an_operator_without_a_lease_is_heard_but_cannot_claim_or_renew() -> None:
    assert lease_refusal(LEASED, does(Action.PAUSE, at=1), None) is None
    assert lease_refusal(LEASED, does(Action.UNCLAIM, at=1), None) is None
    held = "lease 3 holds until 1970-01-01T00:00:00.000000Z; unclaim"
    assert why_refused(LEASED, does(Action.CLAIM, at=1), None) == held
    assert why_refused(LEASED, does(Action.CLAIM, at=1), 3) == held
    missing = "the number of the lease is missing; lease_number"
    assert why_refused(LEASED, does(Action.RENEW, at=1), None) == missing
    assert lease_refusal(LEASED, does(Action.CLAIM, at=100), None) is None


@pytest.mark.parametrize(
    ("actions", "actor", "said"),
    [
        ([Action.PAUSE], Actor.OPERATOR, "the session is paused by an operator"),
        ([Action.PAUSE], Actor.AGENT, "the session is paused by the agent itself"),
        ([Action.CLOSE], Actor.OPERATOR, "the session is closed"),
        ([Action.CLOSE, Action.ARCHIVE], Actor.OPERATOR, "the session is archived"),
    ],
)
def test_calls_are_refused_where_a_session_is_suspended_and_only_a_pause_ends(
    actions: list[Action], actor: Actor, said: str
) -> None:
    control = folded(*(does(action, actor=actor) for action in actions))
    found = suspension_of(control, "")
    assert found is not None
    assert (found.detail, found.is_final) == (said, actions != [Action.PAUSE])
    because = suspension_of(control, "the reason")
    assert because is not None
    assert because.detail == f"{said}: the reason"


def test_a_session_that_was_moved_says_so_as_long_as_it_is_paused() -> None:
    found = suspension_of(folded(does(Action.PAUSE)), "to host b", is_moved=True)
    assert found is not None
    assert (found.detail, found.is_final) == (
        "the session was moved to another store, make the call there: to host b",
        True,
    )
    closed = suspension_of(folded(does(Action.CLOSE)), "", is_moved=True)
    assert closed is not None
    assert (closed.detail, closed.is_moved) == ("the session is closed", False)


def test_only_a_pause_that_says_so_is_a_move() -> None:
    moved = CommitBody(note=encode_content(LifecycleContent(moved=True)))
    assert is_move(does(Action.PAUSE), moved)
    assert not is_move(does(Action.PAUSE), CommitBody())
    assert not is_move(does(Action.PAUSE), None)
    assert not is_move(does(Action.CLOSE), moved)


def test_only_a_move_that_says_so_ends_a_bundle() -> None:
    moved, packed = (
        CommitBody(note=encode_content(LifecycleContent(moved=True, packed=is_packed)))
        for is_packed in (False, True)
    )
    assert ends_bundle(does(Action.PAUSE), packed)
    assert not ends_bundle(does(Action.PAUSE), moved)
    assert not ends_bundle(does(Action.PAUSE), None)
    assert not ends_bundle(does(Action.RESUME), packed)


def test_a_session_that_goes_on_is_not_suspended() -> None:
    assert suspension_of(None, "") is None
    assert suspension_of(folded(does(Action.PAUSE), does(Action.RESUME)), "") is None
    assert suspension_of(folded(does(Action.CLAIM)), "") is None


def test_content_comes_back_and_what_cannot_be_read_is_empty() -> None:
    content = LifecycleContent(holder="ci", name="n", into="s")
    assert decode_lifecycle(encode_content(content)) == content
    for data in (b"", b"\xc1", b"\x93"):
        assert decode_lifecycle(data) == LifecycleContent()
