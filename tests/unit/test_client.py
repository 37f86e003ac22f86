"""`turnlog.client`: from what a runtime gets to an outcome, whatever it gets."""

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import CallToolResult, ErrorData, TextContent

from kit.attempts import ask, session
from turnlog.client import ErrorFamily, Executed, Outcome, Retry, Status, outcome_of
from turnlog.core import classify, ids
from turnlog.core.kinds import Effect, ErrorKind, Phase
from turnlog.core.policy import Policy
from turnlog.core.rules import Surface
from turnlog.serve.answers import envelope, failed_request, problem
from turnlog.wire.jsonrpc import Kind, Message

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
)
TEXT: list[Any] = [TextContent(type="text", text="it broke")]


def made(surface: Surface = Surface.RESULT) -> dict[str, Any]:
    request = Message(kind=Kind.REQUEST, id=b"1", method="tools/call", jsonrpc=True)
    asked = msgspec.structs.replace(ASK, policy=Policy(surface=surface))
    answer = failed_request(request, asked, "it broke", LOST, stateless=False)
    said: dict[str, Any] = json.loads(answer.body)
    return said


class Failed(Exception):
    """As the SDKs raise a JSON-RPC error."""

    def __init__(self, error: ErrorData) -> None:
        super().__init__(error.message)
        self.error = error


ERROR = ErrorData(code=-32603, message="it broke", data={"turnlog/outcome": ENVELOPE})


@pytest.mark.parametrize(
    "said",
    [
        made()["result"],
        CallToolResult.model_validate(made()["result"]),
        made(Surface.ERROR),
        made(Surface.ERROR)["error"],
        ERROR,
        Failed(ERROR),
        problem(502, "Bad Gateway", "it broke", {"turnlog/outcome": ENVELOPE}).body,
        problem(502, "Bad Gateway", "it broke", {"turnlog/outcome": ENVELOPE}).body.decode(),
        {"turnlog/outcome": ENVELOPE},
    ],
    ids=["result", "sdk result", "message", "error", "sdk error", "raised", "body", "text", "read"],
)
def test_what_turnlog_answers_is_read_back(said: object) -> None:
    assert outcome_of(said) == WANTED


def test_retry_logic_is_one_match() -> None:
    def decide(said: object) -> str:
        match outcome_of(said):
            case None:
                return "done"
            case Outcome(executed=Executed.NO) | Outcome(retry=Retry.SAFE):
                return "again"
            case Outcome(executed=Executed.MAYBE):
                return "ask"
            case _:
                return "give up"

    unsent = classify.failed(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, Effect.WRITE)
    assert decide(made()["result"]) == "ask"
    assert decide({"_meta": {"turnlog/outcome": envelope(None, unsent)}}) == "again"
    assert decide(CallToolResult(content=TEXT)) == "done"


def test_words_of_a_newer_version_stay_words() -> None:
    newer = {**ENVELOPE, "kind": "eaten_by_a_grue", "retry": "perhaps", "more": [1]}
    said = outcome_of({"_meta": {"turnlog/outcome": newer}})
    assert said is not None
    assert (said.kind, said.retry, said.error) == ("eaten_by_a_grue", "perhaps", "connection")


class Hostile:
    @property
    def meta(self) -> object:
        raise RuntimeError


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["_meta", "meta", "data", "error", "turnlog/outcome", *ENVELOPE])
            | st.text(),
            inner,
        )
    ),
    max_leaves=12,
)


@given(json_values | st.binary() | st.just(Hostile()) | st.just(CallToolResult(content=TEXT)))
def test_nothing_foreign_is_an_error(said: object) -> None:
    assert isinstance(outcome_of(said), Outcome | None)


def test_it_needs_msgspec_alone() -> None:
    code = (
        "import sys, msgspec\n"
        "before = set(sys.modules)\n"
        "import turnlog.client\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["turnlog"]
