import pytest
from msgspec import structs

from turnlog.core.classify import Ending, failed, refused, succeeded
from turnlog.core.kinds import Effect, ErrorKind, Executed, Phase, RetryClass, Status
from turnlog.exchange.duplicates import (
    CANCELLED_LIFE,
    KEY_LIFE,
    Asked,
    Earlier,
    Likeness,
    NeverTwice,
    Verdict,
    decide,
    may_be_guessed,
    on_disconnect,
    replayed,
    unsent,
)
from turnlog.rules.model import OnDisconnect, OnDuplicate

LIMITS = NeverTwice()
WRITE = Asked(effect=Effect.WRITE)
PAYMENT = Asked(effect=Effect.IRREVERSIBLE)
KEYED = Asked(effect=Effect.UNKNOWN, keyed=True)
OK = succeeded()
UNKNOWN = failed(ErrorKind.CONNECTION_LOST, Phase.SENT, Effect.WRITE)
CANCELLED = failed(ErrorKind.CANCELLED_BY_CALLER, Phase.SENT, Effect.WRITE)
FAILED = refused(ErrorKind.TOOL_FAILED, Effect.WRITE)
DROPPED = refused(ErrorKind.CANCELLED_BY_CALLER, Effect.WRITE)
REFUSED = refused(ErrorKind.RATE_LIMITED, Effect.WRITE)


def runs(began: float = 1.0, **more: object) -> Earlier:
    return structs.replace(Earlier(ending=None, began=began), **more)


def over(ending: Ending, ended: float = 1.0, **more: object) -> Earlier:
    return structs.replace(Earlier(ending=ending, began=ended + 1, ended=ended), **more)


LATE = LIMITS.window + 1


@pytest.mark.parametrize(
    ("earlier", "asked", "verdict"),
    [
        (None, WRITE, Verdict.FORWARD),
        # while it runs
        (runs(), WRITE, Verdict.FORWARD),
        (runs(LIMITS.join_after), WRITE, Verdict.JOIN),
        (runs(abandoned=True), WRITE, Verdict.JOIN),
        (runs(), KEYED, Verdict.JOIN),
        (runs(cancelled=1.0), WRITE, Verdict.JOIN),
        (runs(cancelled=CANCELLED_LIFE + 1), WRITE, Verdict.AGAIN),
        (runs(cancelled=CANCELLED_LIFE + 1), PAYMENT, Verdict.UNKNOWN),
        (runs(abandoned=True), structs.replace(WRITE, on_duplicate=OnDuplicate.PASS), Verdict.FORWARD),
        (over(UNKNOWN), structs.replace(PAYMENT, on_duplicate=OnDuplicate.PASS), Verdict.UNKNOWN),
        (over(OK), structs.replace(WRITE, on_duplicate=OnDuplicate.PASS), Verdict.REPLAY),
        (runs(), structs.replace(WRITE, on_duplicate=OnDuplicate.BLOCK), Verdict.BLOCK),
        (runs(), structs.replace(KEYED, on_duplicate=OnDuplicate.PASS), Verdict.JOIN),
        # while another process carries it out
        (runs(elsewhere=True), WRITE, Verdict.WAIT),
        (runs(elsewhere=True), PAYMENT, Verdict.WAIT),
        (runs(elsewhere=True), KEYED, Verdict.JOIN),
        (runs(elsewhere=True, abandoned=True), WRITE, Verdict.JOIN),
        (runs(LIMITS.join_after, elsewhere=True), WRITE, Verdict.JOIN),
        (runs(LIMITS.join_after, elsewhere=True), structs.replace(WRITE, waited=1.0), Verdict.WAIT),
        (runs(elsewhere=True), structs.replace(WRITE, on_duplicate=OnDuplicate.PASS), Verdict.FORWARD),
        (runs(elsewhere=True), structs.replace(WRITE, on_duplicate=OnDuplicate.BLOCK), Verdict.BLOCK),
        (over(OK, settling=True), WRITE, Verdict.WAIT),
        (over(UNKNOWN, settling=True), WRITE, Verdict.WAIT),
        (over(OK, settling=True), KEYED, Verdict.REPLAY),
        (over(REFUSED, settling=True), WRITE, Verdict.FORWARD),
        # after its end
        (over(OK), WRITE, Verdict.REPLAY),
        (over(OK, delivered=True), WRITE, Verdict.FORWARD),
        (over(OK, delivered=True), structs.replace(WRITE, slower_than=0.5), Verdict.REPLAY),
        (over(OK, delivered=True), structs.replace(WRITE, slower_than=1.5), Verdict.FORWARD),
        (over(OK, LATE), WRITE, Verdict.FORWARD),
        (over(FAILED), WRITE, Verdict.REPLAY),
        (over(REFUSED), WRITE, Verdict.FORWARD),
        (over(REFUSED, repeats=True), WRITE, Verdict.AGAIN),
        (over(FAILED, cancelled=2.0), WRITE, Verdict.AGAIN),
        (over(FAILED, cancelled=2.0), PAYMENT, Verdict.UNKNOWN),
        (over(OK, cancelled=2.0), WRITE, Verdict.REPLAY),
        (over(succeeded(Status.INPUT_REQUIRED)), WRITE, Verdict.FORWARD),
        (over(succeeded(Status.ACCEPTED)), WRITE, Verdict.FORWARD),
        (over(OK, delivered=True), KEYED, Verdict.REPLAY),
        (over(OK, KEY_LIFE - 1, delivered=True), KEYED, Verdict.REPLAY),
        (over(OK, KEY_LIFE + 1), KEYED, Verdict.FORWARD),
        (over(OK, same_input=False), KEYED, Verdict.CONFLICT),
        (over(OK, KEY_LIFE, same_input=False), KEYED, Verdict.FORWARD),
        # nobody knows
        (over(UNKNOWN), WRITE, Verdict.UNKNOWN),
        (over(UNKNOWN, warned=True), WRITE, Verdict.AGAIN),
        (over(UNKNOWN, delivered=True), WRITE, Verdict.AGAIN),
        (over(UNKNOWN, LATE), WRITE, Verdict.AGAIN),
        (over(UNKNOWN, KEY_LIFE + 1), KEYED, Verdict.AGAIN),
        (over(UNKNOWN, LATE, warned=True), PAYMENT, Verdict.UNKNOWN),
        (over(CANCELLED), WRITE, Verdict.AGAIN),
        (over(CANCELLED), PAYMENT, Verdict.UNKNOWN),
        (over(DROPPED), WRITE, Verdict.AGAIN),
        (over(DROPPED), PAYMENT, Verdict.UNKNOWN),
    ],
)  # fmt: skip
def test_what_becomes_of_a_call(earlier: Earlier | None, asked: Asked, verdict: Verdict) -> None:
    assert decide(earlier, asked, LIMITS) is verdict


def test_a_replayed_call_says_what_the_first_came_to_and_was_never_sent() -> None:
    again = replayed(FAILED, whole=True)
    assert (again.status, again.phase) == (Status.REPLAYED, Phase.QUEUED)
    assert (again.kind, again.executed, again.retry) == (
        FAILED.kind,
        FAILED.executed,
        FAILED.retry,
    )


def test_an_answer_that_is_no_longer_held_is_no_reason_to_ask_again() -> None:
    assert replayed(OK, whole=False).retry == RetryClass.NEVER


@pytest.mark.parametrize(
    ("verdict", "kind", "executed", "retry"),
    [
        (Verdict.UNKNOWN, ErrorKind.OUTCOME_UNKNOWN, Executed.MAYBE, RetryClass.UNSAFE),
        (Verdict.CONFLICT, ErrorKind.CONFLICT, Executed.NO, RetryClass.NEVER),
        (Verdict.BLOCK, ErrorKind.POLICY_BLOCKED, Executed.NO, RetryClass.NEVER),
        (Verdict.LATE, ErrorKind.RESPONSE_TIMEOUT, Executed.MAYBE, RetryClass.UNSAFE),
    ],
)
def test_a_call_that_is_not_sent_never_waits_for_anything(
    verdict: Verdict, kind: ErrorKind, executed: Executed, retry: RetryClass
) -> None:
    ending = unsent(verdict)
    # One that waited in vain has got as far as the call that it waited for.
    phase = Phase.SENT if verdict is Verdict.LATE else Phase.QUEUED
    assert (ending.status, ending.phase) == (Status.ERROR, phase)
    assert (ending.kind, ending.executed, ending.retry) == (kind, executed, retry)


@pytest.mark.parametrize(
    ("said", "stateless", "does"),
    [
        (None, False, OnDisconnect.DRAIN),
        (None, True, OnDisconnect.GRACE),
        (OnDisconnect.DRAIN, True, OnDisconnect.DRAIN),
        (OnDisconnect.CANCEL, False, OnDisconnect.CANCEL),
    ],
)
def test_what_becomes_of_a_call_whose_caller_is_gone(
    said: OnDisconnect | None, stateless: bool, does: OnDisconnect
) -> None:
    assert on_disconnect(said, stateless=stateless) is does


PASSES = structs.replace(WRITE, on_duplicate=OnDuplicate.PASS)


@pytest.mark.parametrize(
    ("earlier", "asked", "verdict"),
    [
        (runs(), WRITE, Verdict.AGAIN),
        (runs(abandoned=True), PAYMENT, Verdict.AGAIN),
        (runs(), PASSES, Verdict.FORWARD),
        (over(OK), WRITE, Verdict.AGAIN),
        (over(OK, delivered=True), WRITE, Verdict.FORWARD),
        (over(OK, LATE), WRITE, Verdict.FORWARD),
        (over(UNKNOWN), PAYMENT, Verdict.AGAIN),
        (over(REFUSED), WRITE, Verdict.FORWARD),
    ],
)
def test_a_call_is_never_answered_from_another_principals(
    earlier: Earlier, asked: Asked, verdict: Verdict
) -> None:
    others = structs.replace(earlier, likeness=Likeness.OTHERS)
    assert decide(others, asked, LIMITS) is verdict


@pytest.mark.parametrize(
    ("earlier", "asked", "verdict"),
    [
        (runs(), WRITE, Verdict.FORWARD),
        (runs(abandoned=True), WRITE, Verdict.UNKNOWN),
        (runs(), KEYED, Verdict.UNKNOWN),
        (over(OK), WRITE, Verdict.UNKNOWN),
        (over(OK, warned=True), WRITE, Verdict.AGAIN),
        (over(OK, warned=True), PAYMENT, Verdict.UNKNOWN),
        (over(OK, delivered=True), WRITE, Verdict.FORWARD),
        (over(OK, delivered=True), KEYED, Verdict.UNKNOWN),
        (over(OK, same_input=False), KEYED, Verdict.UNKNOWN),
        (over(OK, KEY_LIFE + 1), KEYED, Verdict.FORWARD),
        (over(UNKNOWN), WRITE, Verdict.UNKNOWN),
        (over(REFUSED), WRITE, Verdict.FORWARD),
    ],
)
def test_a_call_that_was_recorded_without_its_target_answers_nothing_and_is_not_forgotten(
    earlier: Earlier, asked: Asked, verdict: Verdict
) -> None:
    untargeted = structs.replace(earlier, likeness=Likeness.UNTARGETED)
    assert decide(untargeted, asked, LIMITS) is verdict


def test_a_cancel_is_held_back_only_for_a_repeat_that_could_join() -> None:
    assert on_disconnect(None, stateless=True, is_findable=False) is OnDisconnect.CANCEL
    assert on_disconnect(None, stateless=False, is_findable=False) is OnDisconnect.DRAIN
    said = OnDisconnect.GRACE
    assert on_disconnect(said, stateless=True, is_findable=False) is said


@pytest.mark.parametrize(
    ("calls", "may"),
    [
        ({1: 2.0, 2: 0.0}, True),
        ({1: 2.0, 2: 0.0, 3: 5.0}, False),
        ({1: 2.0, 2: 0.0, 3: 5.1}, True),
        ({}, True),
    ],
)
def test_a_caller_is_guessed_only_where_nobody_else_looks_like_it(
    calls: dict[int | str, float], may: bool
) -> None:
    assert may_be_guessed(calls, {1, 2}, grace=5.0) is may
