"""What is written of a call under the rules that redact, keep less, or read changes out of it."""

import json
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from kit.attempts import Time, ask, session
from turnlog.core.classify import Ending, failed, refused, succeeded
from turnlog.core.commit import CommitBody, Facts
from turnlog.core.kinds import Effect, ErrorKind, Flag, Phase
from turnlog.core.operation import ChangedField, OperationType
from turnlog.exchange.outcome import AnswerFacts
from turnlog.record.attempt import Attempt
from turnlog.record.drafts import Drafter
from turnlog.redaction.redact import Redactor
from turnlog.rules.model import Extractor, KeepContent
from turnlog.rules.policy import Policy
from turnlog.settings.upstream_url import UpstreamUrl, mask_of
from turnlog.store.base import Draft

OK = succeeded()
ARGUMENTS = {"path": "/tmp/a", "note": "a private note"}
RESULT = {
    "content": [{"type": "text", "text": "wrote a private note to /tmp/a"}],
    "structuredContent": {"path": "/tmp/a"},
}


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


class Made:
    """What a drafter makes of one call."""

    def __init__(
        self,
        policy: Policy,
        ending: Ending = OK,
        *,
        result: bytes = encoded(RESULT),
        arguments: bytes = encoded(ARGUMENTS),
        broken: bool = False,
        why: str = "",
        url: str = "",
        **changes: Any,
    ) -> None:
        self.faults: list[Exception] = []
        self._broken = broken
        clock = Time().clock()
        mask = mask_of(UpstreamUrl(url, ((url.rindex("/") + 1, len(url)),))) if url else None
        drafter = Drafter(
            Redactor(),
            clock,
            self._keyed,
            self.faults.append,
            record_limit=1 << 20,
            masks={"files": mask} if mask is not None else {},
        )
        asked = ask(session(), b"call", policy=policy, arguments=arguments, why=why)
        self.intent = drafter.intent(asked)
        attempt = Attempt(asked, self.intent.facts, 0, waits=False)
        plain = AnswerFacts(
            http_status=200, content=result, is_mcp=True, is_result=True, size=len(result)
        )
        self.outcome = drafter.outcome(attempt, ending, msgspec.structs.replace(plain, **changes))

    def _keyed(self, _: bytes | None, data: bytes) -> bytes:
        if self._broken and len(data) == 32:
            raise ValueError("no key")
        return data[:4]

    @property
    def asked(self) -> CommitBody:
        """What is kept beside the input."""
        assert self.intent.body is not None
        return self.intent.body

    @property
    def said(self) -> CommitBody:
        """What is kept beside the output."""
        assert self.outcome.body is not None
        return self.outcome.body

    @property
    def facts(self) -> Facts:
        return self.outcome.facts

    @property
    def delta(self) -> list[dict[str, object]]:
        return [msgspec.msgpack.decode(operation) for operation in self.said.delta]

    @property
    def text(self) -> str:
        """All that is written."""
        return "".join(map(_all, (self.intent, self.outcome)))


def _all(draft: Draft) -> str:
    blobs = [draft.blob.data] if draft.blob is not None else []
    return repr((draft.body, draft.facts, blobs))


def redacting(*expressions: str) -> Policy:
    return Policy(redact=expressions)


def test_without_rules_all_is_kept() -> None:
    made = Made(Policy())
    assert "a private note" in made.text
    assert (made.delta, made.facts.flags, made.facts.retry_after_ms) == ([], (), None)


@pytest.mark.parametrize("policy", [Policy(), redacting("$.args.path")])
def test_values_of_the_upstreams_url_are_nowhere(policy: Policy) -> None:
    made = Made(policy, url="http://a/a private note", detail="not: a private note")
    assert "a private note" not in made.text
    assert "[redacted]" in made.text
    assert made.intent.facts.flags == made.facts.flags == (Flag.REDACTED,)
    assert made.said.output_hash == Made(redacting("$.args.note")).said.output_hash


def test_a_text_without_values_of_the_upstreams_url_is_unchanged() -> None:
    url, detail = "http://a/elsewhere", "not elsewhere"
    made, plain = Made(Policy(), url=url, detail=detail), Made(Policy(), detail=detail)
    assert made.said.detail == "not [redacted]"
    assert made.asked == plain.asked
    assert (made.facts.flags, made.said.output_hash) == ((), plain.said.output_hash)


@pytest.mark.parametrize("expression", ["$.args.note", "$..note"])
def test_a_value_that_a_rule_redacts_is_stored_nowhere(expression: str) -> None:
    made = Made(redacting(expression), detail="no private note, but: a private note")
    assert "a private note" not in made.text
    assert made.asked.preview == '{"path":"/tmp/a","note":"[redacted]"}'
    assert made.said.summary == "wrote [redacted] to /tmp/a"
    assert made.intent.facts.flags == made.facts.flags == (Flag.REDACTED,)
    hashes = made.asked.input_hash, made.said.output_hash
    assert all(found is not None and found.startswith("hmac-sha256:") for found in hashes)


def test_a_rule_may_redact_the_result_alone() -> None:
    made = Made(redacting("$.result.content[*].text"), arguments=b'{"path":"/tmp/a"}')
    assert (made.intent.facts.flags, made.facts.flags) == ((), (Flag.REDACTED,))
    assert made.said.summary == "[redacted]"


@pytest.mark.parametrize(
    "changes",
    [
        {"result": b"<p>a page</p>", "is_mcp": False, "is_result": False},
        {"result": b'{"jsonrpc":"2.0","result":{"content":[{"text":"a page', "complete": False},
    ],
)
def test_unreadable_content_is_not_kept_if_a_rule_redacts(changes: dict[str, Any]) -> None:
    made = Made(redacting("$.result.content"), **changes)
    assert "a page" not in made.text
    assert Flag.REDACTED in made.facts.flags


def test_an_error_says_what_it_says_without_what_is_cut_elsewhere() -> None:
    error = b'{"code":-32000,"message":"bad: a private note"}'
    ending = refused(ErrorKind.UPSTREAM_INTERNAL, Effect.WRITE)
    made = Made(
        redacting("$.args.note", "$.result"), ending, result=error, is_result=False, code=-32000,
        detail="bad: a private note",
    )  # fmt: skip
    assert made.said.detail == "bad: [redacted]"
    assert made.said.summary == "error -32000: bad: [redacted]"


@pytest.mark.parametrize(
    ("keep", "short", "blobs"),
    [
        (KeepContent.FULL, True, True),
        (KeepContent.SUMMARY, True, False),
        (KeepContent.NOTHING, False, False),
    ],
)
def test_a_rule_says_what_is_kept(keep: KeepContent, short: bool, blobs: bool) -> None:
    made = Made(Policy(store=keep))
    bodies = made.asked, made.said
    assert (bool(bodies[0].preview), bool(bodies[1].summary)) == (short, short)
    assert (made.intent.blob is not None, made.outcome.blob is not None) == (
        blobs,
        blobs,
    )
    assert all((bodies[0].input_hash, bodies[1].output_hash))
    assert (made.facts.bytes_out, made.facts.flags) == (len(encoded(RESULT)), ())


@pytest.mark.parametrize(
    ("policy", "changes", "known"),
    [
        (Policy(), {}, True),
        (Policy(), {"is_mcp": False, "digest": sha256(encoded(RESULT)).digest()}, True),
        (redacting("$.result.nothing"), {}, True),
        (redacting("$.result.structuredContent"), {}, False),
        (Policy(), {"result": b'{"api_key": "abcdefgh"}'}, False),
        (Policy(), {"result": b"x " * 999, "complete": False, "digest": bytes(32)}, False),
        (Policy(), {"result": b"x" * (2 << 20)}, False),
    ],
)
def test_kept_content_has_the_answers_digest_only_if_it_is_the_whole_answer(
    policy: Policy, changes: dict[str, Any], known: bool
) -> None:
    blob = Made(policy, **changes).outcome.blob
    assert blob is not None
    assert blob.digest == (sha256(blob.data).digest() if known else b"")


@pytest.mark.parametrize(
    "result", [b"x " * 2000, b"x " * 2000 + b'{"api_key": "abcdefgh", "pad": "' + b"y " * 999]
)
def test_a_cut_answer_has_the_digest_of_all_that_came(result: bytes) -> None:
    rest = b"and more"
    made = Made(Policy(), result=result, rest=rest, complete=False)
    blob = made.outcome.blob
    assert blob is not None
    assert blob.digest == (b"" if blob.redacted else sha256(blob.data).digest())
    known = Made(Policy(), result=result, complete=False, digest=sha256(result + rest).digest())
    assert made.said.output_hash == known.said.output_hash


def test_without_stored_content_only_turnlogs_own_texts_are_kept() -> None:
    policy = Policy(store=KeepContent.NOTHING)
    error = b'{"code":1,"message":"theirs"}'
    ending = refused(ErrorKind.UPSTREAM_INTERNAL, Effect.WRITE)
    said = Made(policy, ending, result=error, is_result=False, detail="theirs").said
    assert (said.summary, said.detail) == ("", "")
    lost = failed(ErrorKind.CONNECTION_LOST, Phase.SENT, Effect.WRITE)
    own = Made(policy, lost, result=b"", is_result=False, detail="reset").said
    assert (own.summary, own.detail) == ("reset", "reset")


PATH = Extractor(field=ChangedField.FILES_MODIFIED, op=OperationType.MODIFIED, key="$.args.path")
MADE = Extractor(
    field=ChangedField.FILES_MODIFIED,
    op=OperationType.CREATED,
    key="$.result.structuredContent.path",
)


def operation(op: str, evidence: str, **more: object) -> dict[str, object]:
    return {
        "field": "files_modified", "op": op, "key": "/tmp/a", "evidence": evidence, **more,
    }  # fmt: skip


def test_the_changes_of_a_call_are_written() -> None:
    made = Made(Policy(delta=(PATH, MADE)))
    assert made.delta == [operation("modified", "declared"), operation("created", "observed")]


@pytest.mark.parametrize(
    ("ending", "wanted"),
    [
        (failed(ErrorKind.CONNECTION_LOST, Phase.SENT, Effect.WRITE),
         [operation("modified", "declared", maybe=True)]),
        (failed(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, Effect.WRITE), []),
    ],
)  # fmt: skip
def test_a_call_without_answer_may_have_changed_something(
    ending: Ending, wanted: list[dict[str, object]]
) -> None:
    made = Made(Policy(delta=(PATH, MADE)), ending, result=b"", is_result=False)
    assert made.delta == wanted


def test_keys_hold_no_secrets() -> None:
    arguments = {
        "path": "postgres://me:Tr0ub4dor-and-more@db/a",
        "note": "private",
        "x": "/private/x",
    }
    keys = tuple(
        Extractor(field=ChangedField.FILES_MODIFIED, op=OperationType.MODIFIED, key=key)
        for key in ("$.args.path", "$.args.x")
    )
    made = Made(Policy(delta=keys, redact=("$.args.note",)), arguments=encoded(arguments))
    assert "Tr0ub4dor" not in made.text
    assert made.delta[1]["key"] == "/[redacted]/x"


def test_too_many_changes_are_cut_and_flagged() -> None:
    every = Extractor(field=ChangedField.FILES_MODIFIED, op=OperationType.MODIFIED, key="$.args[*]")
    made = Made(Policy(delta=(every,)), arguments=encoded([str(n) for n in range(1000)]))
    assert len(made.delta) == 256
    assert made.facts.flags == (Flag.TRUNCATED_RECORD,)


def test_a_wait_that_was_asked_for_is_in_ms() -> None:
    assert Made(Policy(), retry_after=1.5).facts.retry_after_ms == 1500


def test_a_fault_makes_the_record_say_less() -> None:
    made = Made(redacting("$.result.content"), broken=True)
    assert [str(fault) for fault in made.faults] == ["no key"]
    assert made.said.summary == "content that could not be read"
    assert made.facts.flags == (Flag.TRUNCATED_RECORD,)


def test_an_intent_says_what_the_call_may_change() -> None:
    made = Made(Policy(delta=(PATH, MADE)))
    assert [msgspec.msgpack.decode(raw) for raw in made.asked.delta] == [
        {"field": "files_modified", "op": "modified", "key": "/tmp/a", "evidence": "declared", "maybe": True}
    ]  # fmt: skip


def test_the_reason_of_a_call_is_kept_without_secrets() -> None:
    made = Made(redacting("$.args.note"), why="a private note, password: hunter2 " + "x" * 2000)
    assert made.asked.why.startswith("[redacted], password: [redacted] xxx")
    assert len(made.asked.why) == 1024
    assert made.said.why == ""


def test_the_reason_of_a_call_goes_with_its_content() -> None:
    assert Made(Policy(store=KeepContent.NOTHING), why="because").asked.why == ""
