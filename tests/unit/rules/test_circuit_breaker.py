"""When a circuit opens, probes and closes."""

import pytest

from turnlog.core.classify import Ending, failed, refused, succeeded
from turnlog.core.kinds import Effect, ErrorKind, Phase
from turnlog.rules.circuit_breaker import BreakerSettings, CircuitBreaker, CircuitPass, CircuitState

SETTINGS = BreakerSettings(failures=3, within=10.0, cool_down=5.0)
LOST = failed(ErrorKind.CONNECTION_LOST, Phase.SENT, Effect.WRITE)


def pass_of(circuit: CircuitBreaker, now: float) -> CircuitPass:
    passed = circuit.admit(now)
    assert passed is not None
    return passed


def run(circuit: CircuitBreaker, now: float, *endings: Ending | None) -> CircuitState:
    for ending in endings:
        circuit.on_ended(pass_of(circuit, now), ending, now)
    return circuit.state


def opened() -> CircuitBreaker:
    circuit = CircuitBreaker(SETTINGS)
    assert run(circuit, 0.0, LOST, LOST, LOST) is CircuitState.OPEN
    return circuit


def test_failures_in_a_row_open_the_circuit() -> None:
    circuit = CircuitBreaker(SETTINGS)
    assert run(circuit, 0.0, LOST, LOST) is CircuitState.CLOSED
    assert run(circuit, 1.0, LOST) is CircuitState.OPEN
    assert (circuit.admit(5.9), circuit.seconds_left(5.0)) == (None, 1.0)


def test_old_failures_do_not_count() -> None:
    circuit = CircuitBreaker(SETTINGS)
    run(circuit, 0.0, LOST, LOST)
    assert run(circuit, 10.0, LOST, LOST) is CircuitState.CLOSED
    assert run(circuit, 10.0, LOST) is CircuitState.OPEN


@pytest.mark.parametrize(
    "good",
    [
        succeeded(),
        refused(ErrorKind.TOOL_FAILED, Effect.WRITE),
        refused(ErrorKind.RATE_LIMITED, Effect.READ),
    ],
)
def test_an_answer_resets_the_count_of_failures(good: Ending) -> None:
    assert run(CircuitBreaker(SETTINGS), 0.0, LOST, LOST, good, LOST, LOST) is CircuitState.CLOSED


@pytest.mark.parametrize(
    "silent",
    [
        None,
        failed(ErrorKind.CANCELLED_BY_CALLER, Phase.SENT, Effect.WRITE),
        failed(ErrorKind.OUTCOME_UNKNOWN, Phase.BODY, Effect.WRITE),
        failed(ErrorKind.QUEUE_TIMEOUT, Phase.QUEUED, Effect.WRITE),
        failed(ErrorKind.DEADLINE_EXHAUSTED, Phase.QUEUED, Effect.WRITE),
        failed(ErrorKind.SESSION_UNAVAILABLE, Phase.CONNECTING, Effect.WRITE),
    ],
)
def test_neutral_endings_do_not_change_the_circuit(silent: Ending | None) -> None:
    assert run(CircuitBreaker(SETTINGS), 0.0, LOST, LOST, silent, LOST) is CircuitState.OPEN
    assert run(CircuitBreaker(SETTINGS), 0.0, LOST, LOST, silent) is CircuitState.CLOSED


def test_after_the_cool_down_one_attempt_is_let_through() -> None:
    circuit = opened()
    assert pass_of(circuit, 5.0) == CircuitPass(probes=True)
    assert (circuit.state, circuit.admit(5.0), circuit.seconds_left(5.0)) == (
        CircuitState.HALF_OPEN,
        None,
        0.0,
    )


@pytest.mark.promise("RULE-21")
def test_an_answer_to_the_probe_closes_the_circuit() -> None:
    circuit = opened()
    assert run(circuit, 5.0, succeeded()) is CircuitState.CLOSED
    assert run(circuit, 5.0, LOST, LOST) is CircuitState.CLOSED


def test_a_failure_of_the_probe_opens_the_circuit_again() -> None:
    circuit = opened()
    assert run(circuit, 6.0, LOST) is CircuitState.OPEN
    assert circuit.admit(10.9) is None
    assert circuit.admit(11.0) == CircuitPass(probes=True)


def test_after_a_neutral_probe_the_next_attempt_is_the_probe() -> None:
    circuit = opened()
    assert run(circuit, 5.0, None) is CircuitState.HALF_OPEN
    assert run(circuit, 5.0, succeeded()) is CircuitState.CLOSED


def test_attempts_from_before_the_opening_do_not_count() -> None:
    circuit = CircuitBreaker(SETTINGS)
    old = pass_of(circuit, 0.0)
    run(circuit, 0.0, LOST, LOST, LOST)
    circuit.on_ended(old, succeeded(), 1.0)
    assert circuit.state is CircuitState.OPEN
