"""`core.classify`: the table of outcomes, compared with its text."""

from itertools import product

import pytest

from turnlog.core.classify import (
    MEANINGS,
    ending_of,
    ending_of_call,
    failed,
    is_method_preserving_redirect,
    is_transport_status,
    kind_of_code,
    kind_of_error,
    kind_of_redirect,
    kind_of_status,
    refused,
    retry_class,
    succeeded,
    with_attempt,
)
from turnlog.core.commit import Facts
from turnlog.core.kinds import CommitKind, Effect, ErrorKind, Executed, Phase, Status

TABLE = """
timeout           queue_timeout          S  no
timeout           connect_timeout        S  no
timeout           response_timeout       U  maybe
timeout           progress_timeout       U  maybe
timeout           deadline_exhausted     U  maybe
connection        connect_failed         S  no
connection        connection_lost        U  maybe
connection        upstream_unavailable   U  maybe
connection        circuit_open           S  no
rate_limited      rate_limited           S  no
auth              unauthenticated        N  no
auth              permission_denied      N  no
invalid           invalid_request        N  no
invalid           tool_not_found         N  no
invalid           not_found              N  no
invalid           conflict               I  maybe
tool_error        tool_failed            N  maybe
tool_error        upstream_internal      U  maybe
null_result       null_result            U  yes
malformed_result  malformed_result       U  maybe
malformed_result  result_too_large       N  yes
unverified        unverified_provenance  N  maybe
blocked           policy_blocked         N  no
session           session_unavailable    S  no
session           session_lost           S  no
cancelled         cancelled_by_caller    U  maybe
unknown           outcome_unknown        U  maybe
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]
CLASSES = {"S": "safe", "I": "if_idempotent", "U": "unsafe", "N": "never"}
UNSENT = (Phase.QUEUED, Phase.CONNECTING)
SENT = tuple(phase for phase in Phase if phase not in UNSENT)


@pytest.mark.promise("OUT-2")
def test_every_kind_is_in_the_table_once() -> None:
    assert [row[1] for row in ROWS] == list(ErrorKind) == list(MEANINGS)


@pytest.mark.promise("OUT-2")
@pytest.mark.parametrize(("family", "kind", "base", "executed"), ROWS)
def test_after_the_first_byte_a_kind_means_what_the_table_says(
    family: str, kind: ErrorKind, base: str, executed: str
) -> None:
    for phase in SENT:
        ending = failed(ErrorKind(kind), phase, Effect.WRITE)
        assert (ending.error, ending.kind, ending.phase) == (family, kind, phase)
        assert (ending.retry, ending.executed) == (CLASSES[base], executed)


@pytest.mark.promise("OUT-3")
@pytest.mark.parametrize("kind", ErrorKind)
def test_before_the_first_byte_nothing_was_executed(kind: ErrorKind) -> None:
    again = "never" if MEANINGS[kind].base == "never" else "safe"
    for effect, phase in product(Effect, UNSENT):
        ending = failed(kind, phase, effect)
        assert (ending.status, ending.executed, ending.retry) == ("error", "no", again)


@pytest.mark.promise("OUT-4")
@pytest.mark.parametrize(
    ("effect", "of_safe", "of_idempotent", "of_unsafe"),
    [
        (Effect.READ, "safe", "safe", "safe"),
        (Effect.IDEMPOTENT_WRITE, "safe", "if_idempotent", "if_idempotent"),
        (Effect.WRITE, "safe", "if_idempotent", "unsafe"),
        (Effect.UNKNOWN, "safe", "if_idempotent", "unsafe"),
        (Effect.IRREVERSIBLE, "safe", "unsafe", "unsafe"),
    ],
)
def test_the_effect_changes_every_retry_class_but_never(
    effect: Effect, of_safe: str, of_idempotent: str, of_unsafe: str
) -> None:
    found = [
        retry_class(kind, Phase.DONE, effect)
        for kind in (
            ErrorKind.RATE_LIMITED,
            ErrorKind.CONFLICT,
            ErrorKind.CONNECTION_LOST,
            ErrorKind.TOOL_FAILED,
        )
    ]
    assert found == [of_safe, of_idempotent, of_unsafe, "never"]


@pytest.mark.promise("OUT-5")
@pytest.mark.parametrize("kind", ErrorKind)
def test_an_unanswered_attempt_that_may_have_had_an_effect_is_unknown(
    kind: ErrorKind,
) -> None:
    for effect, phase, answered in product(Effect, Phase, (False, True)):
        ending = failed(kind, phase, effect, answered=answered)
        may_have = ending.executed is Executed.MAYBE and effect is not Effect.READ
        unknown = may_have and not answered
        assert ending.status is (Status.UNKNOWN if unknown else Status.ERROR)


@pytest.mark.promise("OUT-5")
@pytest.mark.parametrize("kind", ErrorKind)
def test_an_answered_attempt_is_never_unknown(kind: ErrorKind) -> None:
    for effect in Effect:
        ending = refused(kind, effect)
        assert (ending.status, ending.phase) == (Status.ERROR, Phase.DONE)


@pytest.mark.parametrize(
    ("status", "executed"),
    [
        (Status.OK, Executed.YES),
        (Status.ACCEPTED, Executed.MAYBE),
        (Status.INPUT_REQUIRED, Executed.MAYBE),
    ],
)
def test_a_success_has_no_error(status: Status, executed: Executed) -> None:
    ending = succeeded(status)
    assert (ending.status, ending.executed, ending.phase) == (status, executed, Phase.DONE)
    assert (ending.error, ending.kind, ending.retry) == ("", "", "")


@pytest.mark.parametrize("status", [100, 200, 201, 204, 206, 299, 300, 304, 307, 399])
def test_a_status_below_400_is_no_error(status: int) -> None:
    assert kind_of_status(status) is None


@pytest.mark.parametrize(
    ("statuses", "kind"),
    [
        ((401,), "unauthenticated"),
        ((403,), "permission_denied"),
        ((404, 410), "not_found"),
        ((408, 504), "response_timeout"),
        ((409, 412), "conflict"),
        ((429,), "rate_limited"),
        ((400, 402, 405, 406, 411, 413, 415, 418, 421, 422, 451, 499), "invalid_request"),
        ((502, 503), "upstream_unavailable"),
        ((500, 501, 505, 507, 511, 599, 999), "upstream_internal"),
    ],
)
def test_an_error_status_has_its_kind(statuses: tuple[int, ...], kind: str) -> None:
    assert {kind_of_status(status) for status in statuses} == {kind}


@pytest.mark.parametrize(
    ("codes", "kind"),
    [
        ((-32700, -32600, -32602, -32020, -32021, -32022), "invalid_request"),
        ((-32601,), "tool_not_found"),
        ((-32800,), "cancelled_by_caller"),
        ((-32603, -32000, -32001, 0, 7, -1, 10**30, None), "upstream_internal"),
    ],
)
def test_a_json_rpc_error_has_its_kind(codes: tuple[int | None, ...], kind: str) -> None:
    assert {kind_of_code(code) for code in codes} == {kind}


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (-32603, 200, "upstream_internal"),
        (-32603, 500, "upstream_internal"),
        (-32603, 400, "upstream_internal"),
        (-32603, 409, "upstream_internal"),
        (-32602, 412, "invalid_request"),
        (-32602, 500, "invalid_request"),
        (-32000, 500, "upstream_internal"),
        (-32000, 412, "conflict"),
        (None, 409, "conflict"),
        (None, 400, "invalid_request"),
        (-32601, 404, "tool_not_found"),
        (-32602, 400, "invalid_request"),
        (-32000, 400, "invalid_request"),
        (-32000, 404, "invalid_request"),
        (-32000, 409, "conflict"),
        (-32042, 503, "upstream_unavailable"),
        (-32603, 401, "unauthenticated"),
        (-32000, 403, "permission_denied"),
        (-32603, 429, "rate_limited"),
        (-32603, 503, "upstream_unavailable"),
        (-32600, 504, "response_timeout"),
        (None, 200, "upstream_internal"),
    ],
)
def test_the_more_precise_of_code_and_status_counts(
    code: int | None, status: int, kind: str
) -> None:
    assert kind_of_error(code, status) == kind


READ = Effect.READ
PUT = Effect.IDEMPOTENT_WRITE
OF_CALLS = [
    # Kinds of the attempts, all but the last one sent, and what they come to together.
    (PUT, ["connection_lost", "connect_failed"], ("unknown", "maybe", "if_idempotent")),
    (READ, ["connection_lost", "connect_failed"], ("error", "maybe", "safe")),
    (PUT, ["rate_limited", "connect_failed"], ("error", "no", "safe")),
    (PUT, ["null_result", "rate_limited", "connect_failed"], ("error", "yes", "if_idempotent")),
    (PUT, ["connection_lost", "unauthenticated"], ("error", "maybe", "never")),
    (PUT, ["connection_lost", "rate_limited"], ("error", "maybe", "if_idempotent")),
    (PUT, ["connection_lost", ""], ("ok", "yes", "")),
]


@pytest.mark.parametrize(("effect", "kinds", "expected"), OF_CALLS)
def test_the_ending_of_a_call_covers_all_attempts(
    effect: Effect, kinds: list[str], expected: tuple[str, str, str]
) -> None:
    past = None
    for kind in kinds[:-1]:
        sent = Phase.SENT if kind == "connection_lost" else Phase.DONE
        ending = failed(ErrorKind(kind), sent, effect, answered=sent is Phase.DONE)
        past = with_attempt(past, ending)
    assert past is not None
    assert past.attempts == len(kinds) - 1
    if kinds[-1] == "connect_failed":
        last = failed(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, effect)
    else:
        last = refused(ErrorKind(kinds[-1]), effect) if kinds[-1] else succeeded()
    whole = ending_of_call(last, past)
    assert (whole.status, whole.executed, whole.retry) == expected
    assert (whole.kind, whole.phase) == (last.kind, last.phase)
    assert ending_of_call(last, None) is last


@pytest.mark.parametrize(
    ("status", "elsewhere", "kind"),
    [
        (200, False, None),
        (400, False, None),
        (302, False, ErrorKind.MALFORMED_RESULT),
        (304, True, ErrorKind.INVALID_REQUEST),
        (307, False, ErrorKind.INVALID_REQUEST),
        (308, True, ErrorKind.MALFORMED_RESULT),
    ],
)
def test_a_redirect_is_an_error_by_whether_the_tool_may_have_run(
    status: int, elsewhere: bool, kind: ErrorKind | None
) -> None:
    assert kind_of_redirect(status, elsewhere=elsewhere) is kind


def test_only_307_and_308_preserve_the_method() -> None:
    preserving = [s for s in range(300, 400) if is_method_preserving_redirect(s)]
    assert preserving == [307, 308]


def test_statuses_of_gateways_count_more_than_the_body() -> None:
    assert [s for s in (200, 400, 401, 404, 429, 503) if is_transport_status(s)] == [401, 429, 503]


def test_the_ending_of_an_outcome_is_read_from_its_facts() -> None:
    ending = failed(ErrorKind.CONNECTION_LOST, Phase.SENT, Effect.WRITE)
    facts = Facts(
        kind=CommitKind.OUTCOME,
        at=0,
        clock=0,
        status=ending.status,
        phase=ending.phase,
        executed=ending.executed,
        error=ending.error,
        error_kind=ending.kind,
        retry=ending.retry,
    )
    assert ending_of(facts) == ending


def test_a_final_failure_is_never_tried_again_whatever_its_kind() -> None:
    kind, phase = ErrorKind.SESSION_UNAVAILABLE, Phase.QUEUED
    assert failed(kind, phase, Effect.READ).retry == "safe"
    final = failed(kind, phase, Effect.READ, is_final=True)
    assert (final.retry, final.executed) == ("never", Executed.NO)
