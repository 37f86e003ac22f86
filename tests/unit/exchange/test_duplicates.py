import pytest
from msgspec import structs

from turnlog.core.classify import Ending, failed, refused, succeeded
from turnlog.core.kinds import Effect, ErrorKind, Executed, Phase, RetryClass, Status
from turnlog.core.note import EffectChoice
from turnlog.exchange.duplicates import (
    CANCELLED_LIFE,
    KEY_LIFE,
    DuplicateAction,
    EarlierCall,
    Likeness,
    NeverTwice,
    NewCall,
    after_replay,
    choice_advice,
    decide_duplicate,
    disconnect_action,
    may_join_guessed_session,
    replayed_ending,
    stops_replay,
    unsent_detail,
    unsent_ending,
)
from turnlog.rules.model import OnDisconnect, OnDuplicate

LIMITS = NeverTwice()
WRITE = NewCall(effect=Effect.WRITE)
PAYMENT = NewCall(effect=Effect.IRREVERSIBLE)
KEYED = NewCall(effect=Effect.UNKNOWN, keyed=True)
OK = succeeded()
UNKNOWN = failed(ErrorKind.CONNECTION_LOST, Phase.SENT, Effect.WRITE)
CANCELLED = failed(ErrorKind.CANCELLED_BY_CALLER, Phase.SENT, Effect.WRITE)
FAILED = refused(ErrorKind.TOOL_FAILED, Effect.WRITE)
DROPPED = refused(ErrorKind.CANCELLED_BY_CALLER, Effect.WRITE)
REFUSED = refused(ErrorKind.RATE_LIMITED, Effect.WRITE)


def runs(began: float = 1.0, **more: object) -> EarlierCall:
    return structs.replace(EarlierCall(ending=None, began=began), **more)


def over(ending: Ending, ended: float = 1.0, **more: object) -> EarlierCall:
    return structs.replace(EarlierCall(ending=ending, began=ended + 1, ended=ended), **more)


LATE = LIMITS.window + 1


@pytest.mark.promise("TWICE-10", "TWICE-18")
@pytest.mark.parametrize(
    ("earlier", "asked", "verdict"),
    [
        (None, WRITE, DuplicateAction.FORWARD),
        # while it runs
        (runs(), WRITE, DuplicateAction.FORWARD),
        (runs(LIMITS.join_after), WRITE, DuplicateAction.JOIN),
        (runs(abandoned=True), WRITE, DuplicateAction.JOIN),
        (runs(), KEYED, DuplicateAction.JOIN),
        (runs(cancelled=1.0), WRITE, DuplicateAction.JOIN),
        (runs(cancelled=CANCELLED_LIFE + 1), WRITE, DuplicateAction.AGAIN),
        (runs(cancelled=CANCELLED_LIFE + 1), PAYMENT, DuplicateAction.UNKNOWN),
        (runs(abandoned=True), structs.replace(WRITE, on_duplicate=OnDuplicate.PASS), DuplicateAction.FORWARD),
        (over(UNKNOWN), structs.replace(PAYMENT, on_duplicate=OnDuplicate.PASS), DuplicateAction.UNKNOWN),
        (over(OK), structs.replace(WRITE, on_duplicate=OnDuplicate.PASS), DuplicateAction.REPLAY),
        (runs(), structs.replace(WRITE, on_duplicate=OnDuplicate.BLOCK), DuplicateAction.BLOCK),
        (runs(), structs.replace(KEYED, on_duplicate=OnDuplicate.PASS), DuplicateAction.JOIN),
        # while another process carries it out
        (runs(elsewhere=True), WRITE, DuplicateAction.WAIT),
        (runs(elsewhere=True), PAYMENT, DuplicateAction.WAIT),
        (runs(elsewhere=True), KEYED, DuplicateAction.JOIN),
        (runs(elsewhere=True, abandoned=True), WRITE, DuplicateAction.JOIN),
        (runs(LIMITS.join_after, elsewhere=True), WRITE, DuplicateAction.JOIN),
        (runs(LIMITS.join_after, elsewhere=True), structs.replace(WRITE, waited=1.0), DuplicateAction.WAIT),
        (runs(elsewhere=True), structs.replace(WRITE, on_duplicate=OnDuplicate.PASS), DuplicateAction.FORWARD),
        (runs(elsewhere=True), structs.replace(WRITE, on_duplicate=OnDuplicate.BLOCK), DuplicateAction.BLOCK),
        (over(OK, settling=True), WRITE, DuplicateAction.WAIT),
        (over(UNKNOWN, settling=True), WRITE, DuplicateAction.WAIT),
        (over(OK, settling=True), KEYED, DuplicateAction.REPLAY),
        (over(REFUSED, settling=True), WRITE, DuplicateAction.FORWARD),
        # after its end
        (over(OK), WRITE, DuplicateAction.REPLAY),
        (over(OK, delivered=True), WRITE, DuplicateAction.FORWARD),
        (over(OK, delivered=True), structs.replace(WRITE, slower_than=0.5), DuplicateAction.REPLAY),
        (over(OK, delivered=True), structs.replace(WRITE, slower_than=1.5), DuplicateAction.FORWARD),
        (over(OK, LATE), WRITE, DuplicateAction.FORWARD),
        (over(FAILED), WRITE, DuplicateAction.REPLAY),
        (over(REFUSED), WRITE, DuplicateAction.FORWARD),
        (over(REFUSED, repeats=True), WRITE, DuplicateAction.AGAIN),
        (over(FAILED, cancelled=2.0), WRITE, DuplicateAction.AGAIN),
        (over(FAILED, cancelled=2.0), PAYMENT, DuplicateAction.UNKNOWN),
        (over(OK, cancelled=2.0), WRITE, DuplicateAction.REPLAY),
        (over(succeeded(Status.INPUT_REQUIRED)), WRITE, DuplicateAction.FORWARD),
        (over(succeeded(Status.ACCEPTED)), WRITE, DuplicateAction.FORWARD),
        (over(OK, delivered=True), KEYED, DuplicateAction.REPLAY),
        (over(OK, KEY_LIFE - 1, delivered=True), KEYED, DuplicateAction.REPLAY),
        (over(OK, KEY_LIFE + 1), KEYED, DuplicateAction.FORWARD),
        (over(OK, same_input=False), KEYED, DuplicateAction.CONFLICT),
        (over(OK, KEY_LIFE, same_input=False), KEYED, DuplicateAction.FORWARD),
        # nobody knows
        (over(UNKNOWN), WRITE, DuplicateAction.UNKNOWN),
        (over(UNKNOWN, warned=True), WRITE, DuplicateAction.AGAIN),
        (over(UNKNOWN, delivered=True), WRITE, DuplicateAction.AGAIN),
        (over(UNKNOWN, LATE), WRITE, DuplicateAction.AGAIN),
        (over(UNKNOWN, KEY_LIFE + 1), KEYED, DuplicateAction.AGAIN),
        (over(UNKNOWN, LATE, warned=True), PAYMENT, DuplicateAction.UNKNOWN),
        (over(CANCELLED), WRITE, DuplicateAction.AGAIN),
        (over(CANCELLED), PAYMENT, DuplicateAction.UNKNOWN),
        (over(DROPPED), WRITE, DuplicateAction.AGAIN),
        (over(DROPPED), PAYMENT, DuplicateAction.UNKNOWN),
    ],
)  # fmt: skip
def test_duplicates_are_decided_by_the_table(
    earlier: EarlierCall | None, asked: NewCall, verdict: DuplicateAction
) -> None:
    assert decide_duplicate(earlier, asked, LIMITS) is verdict


def hidden(earlier: EarlierCall, **more: object) -> EarlierCall:
    """Return a call that its branch does not show, and whose answer was delivered long ago."""
    told: dict[str, object] = {"likeness": Likeness.DISCARDED, "delivered": True, "ended": LATE}
    return structs.replace(earlier, **told | more)


@pytest.mark.promise("LEDGER-1", "LEDGER-2", "LEDGER-3")
@pytest.mark.parametrize(
    ("earlier", "asked", "verdict"),
    [
        (hidden(over(OK)), WRITE, DuplicateAction.REPLAY),
        (hidden(over(OK)), PAYMENT, DuplicateAction.REPLAY),
        (hidden(over(OK), same_input=False), WRITE, DuplicateAction.DISCARDED),
        (hidden(over(UNKNOWN)), WRITE, DuplicateAction.UNKNOWN),
        (hidden(over(UNKNOWN), same_input=False), WRITE, DuplicateAction.UNKNOWN),
        (hidden(over(UNKNOWN), warned=True), WRITE, DuplicateAction.UNKNOWN),
        (hidden(over(succeeded(Status.ACCEPTED))), WRITE, DuplicateAction.UNKNOWN),
        (hidden(over(FAILED)), WRITE, DuplicateAction.FORWARD),
        (hidden(over(REFUSED)), WRITE, DuplicateAction.FORWARD),
        (hidden(runs()), WRITE, DuplicateAction.JOIN),
        (hidden(runs(), same_input=False), WRITE, DuplicateAction.DISCARDED),
        # what somebody has said
        (hidden(over(OK), choice=EffectChoice.REDO), WRITE, DuplicateAction.FORWARD),
        (hidden(over(OK), choice=EffectChoice.REDO, same_input=False), WRITE, DuplicateAction.DISCARDED),
        (hidden(over(OK), choice=EffectChoice.OVERRIDE, same_input=False), WRITE, DuplicateAction.FORWARD),
        (hidden(over(OK), choice=EffectChoice.REPLAY, same_input=False), WRITE, DuplicateAction.REPLAY),
        (hidden(over(UNKNOWN), choice=EffectChoice.REDO), WRITE, DuplicateAction.UNKNOWN),
        (over(OK, likeness=Likeness.RECORDED, delivered=True), WRITE, DuplicateAction.REPLAY),
        (runs(likeness=Likeness.RECORDED, same_input=False), WRITE, DuplicateAction.DIVERGED),
        # what a rule says
        (hidden(over(OK)), structs.replace(PAYMENT, on_duplicate=OnDuplicate.PASS), DuplicateAction.FORWARD),
        (hidden(over(OK)), structs.replace(WRITE, effect=Effect.IDEMPOTENT_WRITE), DuplicateAction.FORWARD),
    ],
)  # fmt: skip
def test_effects_that_a_branch_does_not_show_are_decided_by_the_table(
    earlier: EarlierCall, asked: NewCall, verdict: DuplicateAction
) -> None:
    assert decide_duplicate(earlier, asked, LIMITS) is verdict


def test_a_replayed_call_has_the_ending_of_the_first_but_was_not_sent() -> None:
    again = replayed_ending(FAILED, whole=True)
    assert (again.status, again.phase) == (Status.REPLAYED, Phase.QUEUED)
    assert (again.kind, again.executed, again.retry) == (
        FAILED.kind,
        FAILED.executed,
        FAILED.retry,
    )


def test_an_answer_that_is_no_longer_recorded_is_not_retried() -> None:
    assert replayed_ending(OK, whole=False).retry == RetryClass.NEVER


@pytest.mark.parametrize(
    ("verdict", "kind", "executed", "retry"),
    [
        (DuplicateAction.UNKNOWN, ErrorKind.OUTCOME_UNKNOWN, Executed.MAYBE, RetryClass.UNSAFE),
        (DuplicateAction.CONFLICT, ErrorKind.CONFLICT, Executed.NO, RetryClass.NEVER),
        (DuplicateAction.BLOCK, ErrorKind.POLICY_BLOCKED, Executed.NO, RetryClass.NEVER),
        (DuplicateAction.LATE, ErrorKind.RESPONSE_TIMEOUT, Executed.MAYBE, RetryClass.UNSAFE),
        (DuplicateAction.LEFT, ErrorKind.CANCELLED_BY_CALLER, Executed.MAYBE, RetryClass.UNSAFE),
        (DuplicateAction.STOPPED, ErrorKind.OUTCOME_UNKNOWN, Executed.MAYBE, RetryClass.UNSAFE),
        (DuplicateAction.GIVEN_UP, ErrorKind.CANCELLED_BY_CALLER, Executed.NO, RetryClass.SAFE),
        (DuplicateAction.DISCARDED, ErrorKind.POLICY_BLOCKED, Executed.NO, RetryClass.NEVER),
        (DuplicateAction.DIVERGED, ErrorKind.POLICY_BLOCKED, Executed.NO, RetryClass.NEVER),
    ],
)
def test_every_unsent_ending_is_an_error(
    verdict: DuplicateAction, kind: ErrorKind, executed: Executed, retry: RetryClass
) -> None:
    ending = unsent_ending(verdict, Effect.WRITE)
    # One that waited in vain has got as far as the call that it waited for.
    waited = verdict in {DuplicateAction.LATE, DuplicateAction.LEFT}
    phase = Phase.SENT if waited else Phase.QUEUED
    assert (ending.status, ending.phase) == (Status.ERROR, phase)
    assert (ending.kind, ending.executed, ending.retry) == (kind, executed, retry)
    assert unsent_detail(verdict)


def test_an_agent_chooses_about_a_discarded_effect_unless_it_cannot_be_undone() -> None:
    command = "`turnlog effect 01a2` with --replay, --redo or --override"
    assert (
        choice_advice("01a2", Effect.WRITE) == f"; choose by turnlog's tool 'effect', or {command}"
    )
    assert (
        choice_advice("01a2", Effect.IRREVERSIBLE) == f"; only an operator can choose, by {command}"
    )


def test_a_replay_that_stops_says_where_and_how_to_go_on() -> None:
    assert stops_replay("it has no answer").startswith("it has no answer, and the replay stops")
    assert "call 01a2: the replay has stopped there" in after_replay("01a2", None)
    assert "call 01a2 (commit 7): the replay has stopped there" in after_replay("01a2", 7)
    for said in (stops_replay("so"), after_replay("01a2", 7)):
        assert "`turnlog rewind` to before that call" in said


@pytest.mark.parametrize("verdict", [DuplicateAction.UNKNOWN, DuplicateAction.LATE])
@pytest.mark.parametrize(
    ("effect", "retry"),
    [
        (Effect.READ, RetryClass.SAFE),
        (Effect.IDEMPOTENT_WRITE, RetryClass.IF_IDEMPOTENT),
        (Effect.WRITE, RetryClass.UNSAFE),
        (Effect.IRREVERSIBLE, RetryClass.UNSAFE),
    ],
)
def test_the_effect_decides_the_retry_class_when_the_earlier_call_may_have_run(
    verdict: DuplicateAction, effect: Effect, retry: RetryClass
) -> None:
    assert unsent_ending(verdict, effect).retry is retry


@pytest.mark.parametrize("verdict", [DuplicateAction.CONFLICT, DuplicateAction.BLOCK])
def test_a_refused_duplicate_is_never_retried_whatever_its_effect(verdict: DuplicateAction) -> None:
    assert unsent_ending(verdict, Effect.IDEMPOTENT_WRITE).retry is RetryClass.NEVER


@pytest.mark.promise("TWICE-30")
@pytest.mark.parametrize(
    ("said", "stateless", "does"),
    [
        (None, False, OnDisconnect.DRAIN),
        (None, True, OnDisconnect.GRACE),
        (OnDisconnect.DRAIN, True, OnDisconnect.DRAIN),
        (OnDisconnect.CANCEL, False, OnDisconnect.CANCEL),
    ],
)
def test_a_disconnect_is_handled_by_rule_then_revision(
    said: OnDisconnect | None, stateless: bool, does: OnDisconnect
) -> None:
    assert disconnect_action(said, stateless=stateless) is does


@pytest.mark.parametrize(
    ("abandoned", "action"),
    [(True, DuplicateAction.JOIN), (False, DuplicateAction.FORWARD)],
)
def test_a_guessed_call_is_joined_only_where_it_may_be_the_same_callers(
    abandoned: bool, action: DuplicateAction
) -> None:
    guessed = runs(abandoned=abandoned, likeness=Likeness.GUESSED)
    assert decide_duplicate(guessed, WRITE, LIMITS) is action


PASSES = structs.replace(WRITE, on_duplicate=OnDuplicate.PASS)


@pytest.mark.promise("TWICE-5")
@pytest.mark.parametrize(
    ("earlier", "asked", "verdict"),
    [
        (runs(), WRITE, DuplicateAction.AGAIN),
        (runs(abandoned=True), PAYMENT, DuplicateAction.AGAIN),
        (runs(), PASSES, DuplicateAction.FORWARD),
        (over(OK), WRITE, DuplicateAction.AGAIN),
        (over(OK, delivered=True), WRITE, DuplicateAction.FORWARD),
        (over(OK, LATE), WRITE, DuplicateAction.FORWARD),
        (over(UNKNOWN), PAYMENT, DuplicateAction.AGAIN),
        (over(REFUSED), WRITE, DuplicateAction.FORWARD),
    ],
)
def test_a_call_is_never_answered_from_another_principal(
    earlier: EarlierCall, asked: NewCall, verdict: DuplicateAction
) -> None:
    others = structs.replace(earlier, likeness=Likeness.OTHERS)
    assert decide_duplicate(others, asked, LIMITS) is verdict


def test_a_cancel_is_delayed_only_for_a_duplicate_that_could_join() -> None:
    assert disconnect_action(None, stateless=True, is_findable=False) is OnDisconnect.CANCEL
    assert disconnect_action(None, stateless=False, is_findable=False) is OnDisconnect.DRAIN
    said = OnDisconnect.GRACE
    assert disconnect_action(said, stateless=True, is_findable=False) is said


@pytest.mark.promise("TWICE-26")
@pytest.mark.parametrize(
    ("calls", "may"),
    [
        ({1: 2.0, 2: 0.0}, True),
        ({1: 2.0, 2: 0.0, 3: 5.0}, False),
        ({1: 2.0, 2: 0.0, 3: 5.1}, True),
        ({}, True),
    ],
)
def test_an_implicit_session_is_joined_only_without_other_recent_callers(
    calls: dict[int | str, float], may: bool
) -> None:
    assert may_join_guessed_session(calls, {1, 2}, grace=5.0) is may


def test_only_an_earlier_call_that_has_ended_can_be_known_as_not_executed() -> None:
    assert not runs().is_unexecuted
    assert not over(OK).is_unexecuted
    assert over(refused(ErrorKind.RATE_LIMITED, Effect.WRITE)).is_unexecuted
