import pytest

from turnlog.core.classify import (
    http_answer,
    malformed_answer,
    rpc_answer,
    void_answer,
    without_answer,
)
from turnlog.core.kinds import Effect, ErrorKind, Executed, Phase, Status

BEFORE = (Phase.QUEUED, Phase.CONNECTING)
AFTER = (Phase.SENDING, Phase.SENT, Phase.HEAD, Phase.BODY)
KINDS = {
    ErrorKind.CONNECT_FAILED: "connection",
    ErrorKind.CONNECTION_LOST: "connection",
    ErrorKind.CANCELLED_BY_CALLER: "cancelled",
    ErrorKind.SESSION_UNAVAILABLE: "session",
    ErrorKind.OUTCOME_UNKNOWN: "unknown",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize("phase", BEFORE)
def test_what_was_never_sent_was_not_executed(
    kind: ErrorKind, effect: Effect, phase: Phase
) -> None:
    ending = without_answer(kind, phase, effect)
    assert (ending.status, ending.executed, ending.retry) == (Status.ERROR, Executed.NO, "safe")
    assert (ending.error, ending.kind, ending.phase) == (KINDS[kind], kind, phase)


@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize("phase", AFTER)
def test_what_was_sent_and_not_answered_may_have_been_executed(
    effect: Effect, phase: Phase
) -> None:
    ending = without_answer(ErrorKind.CONNECTION_LOST, phase, effect)
    assert ending.executed is Executed.MAYBE
    assert ending.status is (Status.ERROR if effect is Effect.READ else Status.UNKNOWN)


@pytest.mark.parametrize(
    ("effect", "retry"),
    [
        (Effect.READ, "safe"),
        (Effect.IDEMPOTENT_WRITE, "if_idempotent"),
        (Effect.WRITE, "unsafe"),
        (Effect.IRREVERSIBLE, "unsafe"),
        (Effect.UNKNOWN, "unsafe"),
    ],
)
def test_the_effect_decides_whether_a_lost_call_may_be_repeated(effect: Effect, retry: str) -> None:
    assert without_answer(ErrorKind.CONNECTION_LOST, Phase.BODY, effect).retry == retry


@pytest.mark.parametrize("status", [100, 200, 201, 204, 206, 299, 300, 304, 307, 399])
def test_a_status_below_400_is_success(status: int) -> None:
    ending = http_answer(status)
    assert (ending.status, ending.executed, ending.phase) == (
        Status.OK,
        Executed.YES,
        Phase.DONE,
    )


@pytest.mark.parametrize(
    ("status", "executed"),
    [
        (400, Executed.NO),
        (401, Executed.NO),
        (403, Executed.NO),
        (404, Executed.NO),
        (408, Executed.MAYBE),
        (409, Executed.MAYBE),
        (422, Executed.NO),
        (429, Executed.NO),
        (499, Executed.MAYBE),
        (500, Executed.MAYBE),
        (502, Executed.MAYBE),
        (503, Executed.MAYBE),
        (504, Executed.MAYBE),
        (999, Executed.MAYBE),
    ],
)
def test_an_error_status_tells_whether_the_tool_was_tried(status: int, executed: Executed) -> None:
    ending = http_answer(status)
    assert (ending.status, ending.executed) == (Status.ERROR, executed)


@pytest.mark.parametrize(
    ("status", "code", "executed"),
    [
        (Status.OK, None, Executed.YES),
        (Status.ERROR, None, Executed.MAYBE),
        (Status.ERROR, -32700, Executed.NO),
        (Status.ERROR, -32600, Executed.NO),
        (Status.ERROR, -32601, Executed.NO),
        (Status.ERROR, -32602, Executed.NO),
        (Status.ERROR, -32603, Executed.MAYBE),
        (Status.ERROR, -32800, Executed.MAYBE),
        (Status.ERROR, 7, Executed.MAYBE),
        (Status.ACCEPTED, None, Executed.MAYBE),
        (Status.INPUT_REQUIRED, None, Executed.MAYBE),
        (Status.INPUT_REQUIRED, -32042, Executed.MAYBE),
    ],
)
def test_a_json_rpc_answer_tells_how_it_ended(
    status: Status, code: int | None, executed: Executed
) -> None:
    ending = rpc_answer(status, code)
    assert (ending.status, ending.executed, ending.phase) == (status, executed, Phase.DONE)


def test_an_answer_that_is_none_leaves_open_what_happened() -> None:
    assert malformed_answer().executed is Executed.MAYBE
    assert malformed_answer().status is Status.ERROR


def test_a_void_answer_says_that_the_tool_ran() -> None:
    assert void_answer().executed is Executed.YES
    assert void_answer().status is Status.ERROR
