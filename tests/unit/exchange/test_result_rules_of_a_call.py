"""What is recorded of an answer under the rules of its call."""

import json
from typing import Any

import msgspec
import pytest

from kit.attempts import ask, session
from turnlog.core.classify import refused, succeeded
from turnlog.core.kinds import Effect, ErrorKind, Executed, Flag, RetryClass, Status
from turnlog.exchange.outcome import AnswerFacts, judged, seen, unwrapped, waiting
from turnlog.record.attempt import Ask, InputGate
from turnlog.rules.expression import ExpressionInput
from turnlog.rules.model import (
    ErrorMap,
    Expects,
    ProvenanceDemand,
    RequiredInputs,
    RequiredProvenance,
    Unmet,
)
from turnlog.rules.policy import Policy

OK = succeeded()
FAILED = refused(ErrorKind.TOOL_FAILED, Effect.READ)
LIKE = (Flag.ERROR_LIKE_TEXT,)


def asked(policy: Policy = Policy(), **more: Any) -> Ask:  # noqa: B008 - frozen
    return ask(session(), b"call", **{"policy": policy, "effect": Effect.READ, **more})


def plain(policy: Policy = Policy()) -> Ask:  # noqa: B008 - frozen
    return asked(policy, method="GET")


def reply(content: bytes, **changes: Any) -> AnswerFacts:
    made = AnswerFacts(
        http_status=200, content=content, is_mcp=True, is_result=True, size=len(content)
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def text(said: str, **more: Any) -> AnswerFacts:
    return reply(json.dumps({"content": [{"type": "text", "text": said}]}).encode(), **more)


def page(body: bytes, **more: Any) -> AnswerFacts:
    return reply(body, is_mcp=False, **more)


@pytest.mark.parametrize("said", ["Error: no such file", "hello", ""])
def test_without_rules_an_answer_ends_as_it_did(said: str) -> None:
    assert judged(asked(), FAILED, text(said)) == (FAILED, text(said))
    assert judged(asked(), OK, text(said))[0] is OK


@pytest.mark.promise("PROV-20")
@pytest.mark.parametrize(
    ("call", "detail"),
    [
        (
            asked(
                Policy(
                    provenance=ProvenanceDemand(tool=RequiredProvenance.PINNED, then=Unmet.SURFACE)
                ),
                tool="add",
                definition=b"d",
            ),
            "is not pinned",
        ),
        (
            asked(
                Policy(
                    provenance=ProvenanceDemand(inputs=RequiredInputs.SOURCED, then=Unmet.SURFACE)
                ),
                gate=InputGate(surfaced="the value at /path was never seen"),
            ),
            "never seen",
        ),
    ],
)
def test_a_success_without_the_provenance_that_a_rule_demands_is_an_error(
    call: Ask, detail: str
) -> None:
    ending, said = judged(call, OK, text("done"))
    assert (ending.kind, ending.executed) == (ErrorKind.UNVERIFIED_PROVENANCE, Executed.MAYBE)
    assert detail in said.detail
    assert judged(call, FAILED, text("no"))[0] == FAILED


@pytest.mark.parametrize(
    ("call", "answer", "flags"),
    [
        (asked(), text("Error: no such file"), LIKE),
        (asked(), text("error: none", flags=(Flag.BOM,)), (Flag.BOM, *LIKE)),
        (asked(), text("no error: fine"), ()),
        (asked(), text("Error: x", flags=(Flag.NULL_RESULT,)), (Flag.NULL_RESULT,)),
        (asked(), text("Error: x", is_result=False), ()),
        (plain(), page(b'{"ok":false,"error":"no_such_channel"}'), LIKE),
        (plain(), page(b"Traceback (most recent call last):"), LIKE),
        (plain(), page(b"<h1>Error</h1>"), ()),
    ],
)
def test_a_result_that_reads_like_an_error_is_flagged_and_unchanged(
    call: Ask, answer: AnswerFacts, flags: tuple[Flag, ...]
) -> None:
    ending, found = judged(call, OK, answer)
    assert (ending, found.flags, found.content) == (OK, flags, answer.content)


def test_a_mapped_error_has_the_class_of_its_kind() -> None:
    rule = ErrorMap(kind=ErrorKind.RATE_LIMITED, text="(?i)slow down", retry_after=2.5)
    ending, found = judged(asked(Policy(map_error=(rule,))), FAILED, text("Slow down!"))
    assert (ending.status, ending.kind, ending.error) == (
        Status.ERROR, "rate_limited", "rate_limited",
    )  # fmt: skip
    assert (ending.retry, ending.executed, found.retry_after) == (RetryClass.SAFE, Executed.NO, 2.5)


def test_an_error_of_json_rpc_is_known_by_code_and_message() -> None:
    rule = ErrorMap(kind=ErrorKind.CONFLICT, code=-32000, text="locked")
    content = b'{"code":-32000,"message":"row","data":"locked"}'
    said = reply(content, code=-32000, is_result=False)
    ending = refused(ErrorKind.UPSTREAM_INTERNAL, Effect.READ)
    assert judged(asked(Policy(map_error=(rule,))), ending, said)[0].kind == "conflict"


def test_a_page_is_known_by_its_text() -> None:
    rule = ErrorMap(kind=ErrorKind.UPSTREAM_UNAVAILABLE, text="maintenance")
    ending = refused(ErrorKind.MALFORMED_RESULT, Effect.READ)
    said = page(b"<h1>Under maintenance</h1>", is_result=False)
    found = judged(asked(Policy(map_error=(rule,))), ending, said)[0]
    assert found.kind == "upstream_unavailable"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (reply(b'{"structuredContent":{"a":1}}'), ""),
        (text("hello"), "null_result"),
        (text("hello", complete=False), ""),
        (text("hello", is_result=False), ""),
    ],
)
def test_structure_may_be_demanded_of_mcp(answer: AnswerFacts, kind: str) -> None:
    assert judged(asked(Policy(expects=Expects.STRUCTURED)), OK, answer)[0].kind == kind


@pytest.mark.parametrize(
    ("body", "kind"), [(b'{"a":1}', ""), (b"<p>", "malformed_result"), (b"", "null_result")]
)
def test_structure_may_be_demanded_of_a_plain_tool(body: bytes, kind: str) -> None:
    policy = Policy(expects=Expects.STRUCTURED)
    assert judged(plain(policy), OK, page(body))[0].kind == kind


def test_a_null_result_is_lifted_or_made_an_error() -> None:
    void = reply(b"{}", flags=(Flag.NULL_RESULT, Flag.VOID))
    ending = refused(ErrorKind.NULL_RESULT, Effect.READ)
    lifted, found = judged(asked(Policy(expects=Expects.NOTHING)), ending, void)
    assert (lifted, found.flags) == (OK, ())
    null = text("none", flags=(Flag.NULL_RESULT,))
    raised, _ = judged(asked(Policy(expects=Expects.CONTENT)), OK, null)
    assert (raised.kind, raised.executed) == ("null_result", Executed.YES)


def test_a_call_that_waits_is_not_judged() -> None:
    policy = Policy(expects=Expects.STRUCTURED)
    parked = succeeded(Status.INPUT_REQUIRED)
    assert judged(asked(policy), parked, text("Error: x")) == (parked, text("Error: x"))


@pytest.mark.parametrize(
    ("call", "answer", "wanted"),
    [
        (
            asked(),
            reply(b'{"a":1}'),
            ExpressionInput(args={"path": "/tmp/a"}, result={"a": 1}, status=200),
        ),
        (asked(complete=False), AnswerFacts(), ExpressionInput()),
        (
            asked(),
            reply(b'{"a":1}', complete=False),
            ExpressionInput(args={"path": "/tmp/a"}, status=200),
        ),
        (
            asked(),
            reply(b'{"a":1}', is_result=False),
            ExpressionInput(args={"path": "/tmp/a"}, status=200),
        ),
    ],
)
def test_expressions_see_what_is_whole(
    call: Ask, answer: AnswerFacts, wanted: ExpressionInput
) -> None:
    assert seen(call, answer) == wanted


@pytest.mark.parametrize(
    ("task", "content", "is_result"),
    [
        (b'{"status":"completed","result":{"content":[]}}', b'{"content":[]}', True),
        (b'{"status":"failed","error":{"code":1}}', None, False),
    ],
)
def test_the_state_of_a_task_holds_the_result(
    task: bytes, content: bytes | None, is_result: bool
) -> None:
    found = unwrapped(reply(task))
    assert (found.content, found.is_result) == (content or task, is_result)


AT = 1_795_737_600 * 10**9


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, [(b"Retry-After", b"7")], 7.0),
        (503, [(b"retry-after", b"Fri, 27 Nov 2026 00:00:09 GMT")], 9.0),
        (429, [(b"Retry-After", b"soon")], 1.5),
        (429, [], 1.5),
        (200, [(b"Retry-After", b"7")], 1.5),
    ],
)
def test_a_refusal_may_say_when_to_come_back(
    status: int, headers: list[tuple[bytes, bytes]], seconds: float
) -> None:
    said = reply(b"", http_status=status, retry_after=1.5)
    assert waiting(said, headers, lambda: AT).retry_after == seconds


LARGE = json.dumps({"rows": [{"id": number} for number in range(30_000)], "gone": None}).encode()
BROKEN = ErrorMap(kind=ErrorKind.CONFLICT, when=("$..[?@.id == 7]",))


@pytest.mark.parametrize(
    ("policy", "content", "kind", "flags"),
    [
        (Policy(map_error=(BROKEN,)), b'{"rows":[{"id":7}]}', "conflict", ()),
        (Policy(map_error=(BROKEN,)), LARGE, "", (Flag.NOT_SEARCHED,)),
        (Policy(null_when=("$.result.rows[*].none",)), LARGE, "", (Flag.NOT_SEARCHED,)),
        (Policy(null_when=("$.result.rows[0].id",)), LARGE, "", (Flag.NULL_RESULT,)),
        (Policy(expects=Expects.CONTENT), LARGE, "", ()),
    ],
)
def test_a_large_answer_is_not_searched(
    policy: Policy, content: bytes, kind: str, flags: tuple[Flag, ...]
) -> None:
    ending, found = judged(asked(policy), OK, reply(content))
    assert (ending.kind, found.flags) == (kind, flags)


def test_several_rules_may_look_at_the_values_of_one_answer() -> None:
    other = ErrorMap(kind=ErrorKind.NOT_FOUND, when=("$..[?@.id == 8]",))
    ending, _ = judged(asked(Policy(map_error=(BROKEN, other))), OK, reply(b'{"rows":[{"id":8}]}'))
    assert ending.kind == "not_found"
