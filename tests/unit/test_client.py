"""`turnlog.client`: the outcome in anything that a runtime may get."""

import json
import subprocess
import sys
from typing import Any

import httpx2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import CallToolResult, ErrorData, TextContent
from multidict import CIMultiDict, CIMultiDictProxy

from kit.attempts import ask, session
from turnlog import client
from turnlog.client import (
    ErrorFamily,
    Executed,
    Flag,
    Outcome,
    Provenance,
    Retry,
    Source,
    Status,
    outcome_of,
    outcome_of_headers,
)
from turnlog.core import classify, ids
from turnlog.core.kinds import Effect, ErrorKind, Phase
from turnlog.exchange.duplicates import replayed_ending
from turnlog.record.own_answers import Unanswered, envelope, problem, with_tail
from turnlog.rules.model import Surface
from turnlog.rules.policy import Policy
from turnlog.wire.jsonrpc import Kind, Message, id_key

LOST = classify.failed(ErrorKind.CONNECTION_LOST, Phase.SENT, Effect.UNKNOWN)
REF = session()
REF.id = bytes(range(16))
ASK = ask(REF, bytes(range(16, 32)))
ENVELOPE = envelope(ASK, LOST)
WANTED = Outcome(
    session=ids.to_text(bytes(range(16))),
    call=ids.to_text(bytes(range(16, 32))),
    tool="write",
    attempt=1,
    status=Status.UNKNOWN,
    error=ErrorFamily.CONNECTION,
    kind=ErrorKind.CONNECTION_LOST,
    retry=Retry.UNSAFE,
    executed=Executed.MAYBE,
    phase=Phase.SENT,
    provenance=Provenance.UNVERIFIED,
    provenance_reasons=("tool: unverified",),
)
TEXT: list[Any] = [TextContent(type="text", text="it broke")]


def made(surface: Surface = Surface.RESULT) -> dict[str, Any]:
    request = Message(kind=Kind.REQUEST, id=b"1", method="tools/call", jsonrpc=True)
    asked = msgspec.structs.replace(ASK, policy=Policy(surface=surface))
    unanswered = Unanswered(
        requests=[request],
        asks={id_key(request.id): asked},
        ending=LOST,
        said="it broke",
        said_without_call="it broke",
    )
    said: dict[str, Any] = json.loads(unanswered.as_answer(as_batch=False).body)
    return said


class Failed(Exception):
    """As the SDKs raise a JSON-RPC error."""

    def __init__(self, error: ErrorData) -> None:
        super().__init__(error.message)
        self.error = error


ERROR = ErrorData(code=-32603, message="it broke", data={"turnlog/outcome": ENVELOPE})


@pytest.mark.promise("OUT-22")
@pytest.mark.parametrize(
    "said",
    [
        made(),
        made()["result"],
        CallToolResult.model_validate(made()["result"]),
        made(Surface.ERROR),
        made(Surface.ERROR)["error"],
        ERROR,
        Failed(ERROR),
        problem(502, "Bad Gateway", "it broke", {"turnlog/outcome": ENVELOPE}).body,
        {"turnlog/outcome": ENVELOPE},
    ],
    ids=[
        "whole",
        "result",
        "sdk result",
        "message",
        "error",
        "sdk error",
        "raised",
        "body",
        "read",
    ],
)
def test_outcomes_of_turnlogs_own_answers_are_read_back(said: object) -> None:
    assert outcome_of(said) == WANTED


class Wrapped:
    """What a framework makes of a result: only an attribute of it holds that."""

    def __init__(self, name: str, held: object) -> None:
        setattr(self, name, held)
        self.content = "it broke"


RESULT = CallToolResult.model_validate(made()["result"])


@pytest.mark.promise("OUT-22")
@pytest.mark.parametrize("held", [RESULT, made()["result"], made()["result"]["_meta"], ERROR])
@pytest.mark.parametrize(
    "name", ["metadata", "raw_output", "artifact", "additional_properties", "result"]
)
def test_an_outcome_is_found_in_the_wrappers_of_frameworks(name: str, held: object) -> None:
    assert outcome_of(Wrapped(name, held)) == WANTED
    assert outcome_of({name: held}) == WANTED
    assert outcome_of(("it broke", Wrapped(name, held))) == WANTED


def fail() -> None:
    raise Failed(ERROR)


def raised(*, how: str) -> BaseException:
    """Return what a framework raises that has caught an SDK's error."""
    try:
        try:
            fail()
        except Failed as error:
            if how == "cause":
                raise RuntimeError("tool failed") from error
            if how == "hidden":
                raise RuntimeError("tool failed") from None
            if how == "group":
                raise ExceptionGroup("tools failed", [ValueError(), error]) from None
            raise RuntimeError("tool failed")  # noqa: B904 - that is what they do
    except (RuntimeError, ExceptionGroup) as error:
        return error
    raise AssertionError


@pytest.mark.promise("OUT-22")
@pytest.mark.parametrize("how", ["cause", "context", "group"])
def test_an_outcome_is_found_in_the_cause_of_an_exception(how: str) -> None:
    assert outcome_of(raised(how=how)) == WANTED


def test_an_exception_raised_from_none_has_no_outcome() -> None:
    assert outcome_of(raised(how="hidden")) is None


def tail(**changes: object) -> str:
    """Return what turnlog says of a call, in a sentence."""
    return with_tail("it broke", ENVELOPE | changes)


READ = Outcome(
    call=WANTED.call,
    error=WANTED.error,
    kind=WANTED.kind,
    retry=Retry.UNSAFE,
    executed=Executed.MAYBE,
    source=Source.TEXT,
)


@pytest.mark.promise("OUT-12")
@pytest.mark.parametrize(
    "said",
    [
        tail(),
        f"Error: {tail()}\nPlease fix your mistakes.",
        tail().encode(),
        RuntimeError(tail()),
        {"content": tail()},
        {"content": [{"type": "text", "text": tail()}]},
        CallToolResult(content=[TextContent(type="text", text=tail())]),
        Wrapped("output", tail()),
        json.dumps({"content": [{"type": "text", "text": tail()}]}),
    ],
    ids=["text", "within", "bytes", "raised", "dict", "blocks", "sdk", "attribute", "json"],
)
def test_an_outcome_is_read_from_the_tail_of_a_text(said: object) -> None:
    assert outcome_of(said) == READ


@pytest.mark.promise("OUT-23")
@pytest.mark.parametrize(
    "text",
    [
        tail(kind="connect_failed", executed="no", retry="safe"),
        json.dumps({"turnlog/outcome": ENVELOPE | {"executed": "no", "retry": "safe"}}),
        json.dumps({"_meta": {"turnlog/outcome": {"executed": "no", "retry": "safe"}}}),
        "[turnlog rate_limited executed=no retry=safe call=1]",
    ],
)
def test_text_never_makes_a_call_safe_to_repeat(text: str) -> None:
    content: list[Any] = [TextContent(type="text", text=text)]
    for said in (text, RuntimeError(text), text.encode() if text[0] != "{" else text):
        found = outcome_of(said)
        assert found is not None
        assert (found.retry, found.executed) == (Retry.UNSAFE, Executed.MAYBE)
        assert found.source is Source.TEXT
    found = outcome_of(CallToolResult(content=content))
    assert found is None or found.retry is Retry.UNSAFE


@pytest.mark.promise("OUT-23")
@pytest.mark.parametrize(
    ("said", "told"),
    [("verified", "unverified"), ("pinned", "unverified"), ("new_in_2030", "unverified"),
     ("mismatch", "mismatch"), (None, None), (17, None)],
)  # fmt: skip
def test_text_never_makes_a_call_known(said: object, told: str | None) -> None:
    written = {"turnlog/outcome": ENVELOPE | {"provenance": said, "provenance_reasons": ["a", 1]}}
    for text in (json.dumps(written), json.dumps({"_meta": written})):
        found = outcome_of(text)
        assert found is not None
        assert (found.provenance, found.provenance_reasons) == (told, ("a",))
    believed = outcome_of(written)
    assert believed is not None
    assert believed.provenance == (said if isinstance(said, str) else None)


def test_reasons_that_are_no_list_are_none() -> None:
    found = outcome_of({"turnlog/outcome": ENVELOPE | {"provenance_reasons": "tool: unverified"}})
    assert found is not None
    assert found.provenance_reasons == ()


def test_text_may_say_that_a_call_ran_or_would_fail_again() -> None:
    ran = outcome_of(tail(status="replayed", kind=None, executed="yes", retry="never"))
    assert ran is not None
    assert (ran.status, ran.kind) == (Status.REPLAYED, None)
    assert (ran.executed, ran.retry) == (Executed.YES, Retry.NEVER)


@pytest.mark.parametrize(
    "text",
    ["", "[turnlog]", "[turnlog ]", "turnlog response_timeout executed=maybe", "done", "null"],
)
def test_other_text_has_no_outcome(text: str) -> None:
    assert outcome_of(text) is None


def test_a_cyclic_object_is_searched_once() -> None:
    endless: dict[str, Any] = {"result": {}}
    endless["result"]["metadata"] = endless
    assert outcome_of(endless) is None


def decide(said: object) -> str:
    match outcome_of(said):
        case None | Outcome(retry=None):
            return "done"
        case Outcome(retry=Retry.SAFE, retry_after=wait):
            return f"again after {wait}"
        case Outcome(retry=Retry.NEVER):
            return "give up"
        case Outcome():
            return "ask"


def test_the_names_that_users_import_stay() -> None:
    names = "ErrorFamily ErrorKind Executed Flag Outcome Phase Provenance Retry Source Status"
    assert client.__all__ == [*names.split(), "outcome_of", "outcome_of_headers"]
    assert all(hasattr(client, name) for name in client.__all__)


def test_retry_logic_is_one_match() -> None:
    unsent = classify.failed(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, Effect.WRITE)
    busy = classify.refused(ErrorKind.RATE_LIMITED, Effect.WRITE)
    wrong = classify.refused(ErrorKind.INVALID_REQUEST, Effect.WRITE)
    assert decide(made()["result"]) == "ask"
    assert decide({"_meta": {"turnlog/outcome": envelope(None, unsent)}}) == "again after None"
    assert decide({"_meta": {"turnlog/outcome": envelope(None, busy, 1.5)}}) == "again after 1.5"
    assert decide({"_meta": {"turnlog/outcome": envelope(None, wrong)}}) == "give up"
    assert decide(CallToolResult(content=TEXT)) == "done"
    again, lost = (replayed_ending(classify.succeeded(), whole=whole) for whole in (True, False))
    assert decide({"_meta": {"turnlog/outcome": envelope(None, again)}}) == "done"
    assert decide({"_meta": {"turnlog/outcome": envelope(None, lost)}}) == "give up"


FIELDS = [
    ("Date", "Mon, 30 Nov 2026 10:00:00 GMT"),
    ("Retry-After", "2"),
    ("Turnlog-Session", "s"),
    ("Turnlog-Call", "c"),
    ("Turnlog-Commit", "s:12"),
    ("Turnlog-Status", "error"),
    ("Turnlog-Error", "rate_limited"),
    ("Turnlog-Kind", "rate_limited"),
    ("Turnlog-Retry", "safe"),
    ("Turnlog-Executed", "no"),
    ("Turnlog-Provenance", "pinned"),
    ("Turnlog-Flags", "retried,new_in_2030"),
    ("Turnlog-Attempts", "3"),
]
TOLD = Outcome(
    session="s",
    call="c",
    attempt=3,
    status=Status.ERROR,
    error=ErrorFamily.RATE_LIMITED,
    kind=ErrorKind.RATE_LIMITED,
    retry=Retry.SAFE,
    retry_after_ms=2000,
    executed=Executed.NO,
    flags=(Flag.RETRIED, "new_in_2030"),
    provenance=Provenance.PINNED,
    commit="s:12",
)


@pytest.mark.promise("OUT-27")
@pytest.mark.parametrize(
    "headers",
    [
        httpx2.Headers(FIELDS),
        CIMultiDictProxy(CIMultiDict(FIELDS)),
        dict(FIELDS),
        {name.upper(): value for name, value in FIELDS},
        FIELDS,
        [(name.lower().encode(), value.encode()) for name, value in FIELDS],
        [("Turnlog-Retry", "never"), *FIELDS],
    ],
    ids=["httpx", "aiohttp", "dict", "upper case", "pairs", "bytes", "repeated"],
)
def test_headers_are_read_back(headers: object) -> None:
    assert outcome_of_headers(headers) == TOLD


@pytest.mark.promise("OUT-27")
def test_headers_sent_before_the_end_name_only_the_call() -> None:
    assert outcome_of_headers(FIELDS[2:4]) == Outcome(session="s", call="c")
    assert outcome_of_headers(FIELDS[:2]) is None


@pytest.mark.parametrize("date", ["Mon, 30 Nov 2026 10:00:00 GMT", "9" * 400, "-1", "²", ""])
def test_a_retry_after_date_is_ignored(date: str) -> None:
    said = outcome_of_headers({"turnlog-call": "c", "retry-after": date})
    assert said is not None
    assert said.retry_after is None


def test_unknown_words_of_a_newer_version_stay_strings() -> None:
    newer = {**ENVELOPE, "kind": "eaten_by_a_grue", "retry": "perhaps", "more": [1]}
    said = outcome_of({"_meta": {"turnlog/outcome": newer}})
    assert said is not None
    assert (said.kind, said.retry, said.error) == ("eaten_by_a_grue", "perhaps", "connection")


class Hostile:
    @property
    def meta(self) -> object:
        raise RuntimeError

    @property
    def items(self) -> object:
        raise RuntimeError


class Lying:
    def __getattribute__(self, name: str) -> object:
        raise RuntimeError


words = st.sampled_from(
    [
        *("_meta", "meta", "data", "error", "result", "turnlog/outcome", "attempts"),
        *("Turnlog-" + name for name in ENVELOPE),
        *ENVELOPE,
    ]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(words | st.text(), inner),
    max_leaves=12,
)
field_values = st.text() | st.binary() | st.integers() | st.just(Hostile())
things = (
    json_values
    | st.sampled_from([Hostile(), CallToolResult(content=TEXT), object()])
    | st.lists(st.tuples(words | field_values, words | field_values))
    | st.dictionaries(st.just("turnlog-call") | words | st.text(), field_values)
)


@pytest.mark.promise("OUT-22")
@given(things)
def test_foreign_objects_never_raise(said: object) -> None:
    for found in (outcome_of(said), outcome_of_headers(said)):
        assert found is None or found.retry_after is None or found.retry_after >= 0


def test_an_object_with_failing_properties_has_no_outcome() -> None:
    assert outcome_of(Lying()) is None
    assert outcome_of({"_meta": {"turnlog/outcome": Lying()}}) is None
    assert outcome_of_headers([("turnlog-call", Lying())]) is None


@pytest.mark.promise("OUT-24")
def test_the_client_imports_only_msgspec() -> None:
    code = (
        "import sys, msgspec\n"
        "before = set(sys.modules)\n"
        "import turnlog.client\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["turnlog"]
