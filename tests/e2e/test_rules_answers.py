"""Rules applied to answers, with the real proxy: kinds, flags, changes, stored content."""

import json
from collections.abc import Iterator

import pytest

from kit.beside import Rig, proxy_beside
from kit.clients import call
from kit.proxy import payloads, written
from kit.upstreams import RawUpstream, answer, ok, result, text_result
from turnlog.core.operation import Operation

RULES = """
rules:
  - match: {tool: mapped}
    map_error: [{kind: rate_limited, text: slow down, retry_after: 3s}]
  - match: {tool: content}
    expects: content
  - match: {tool: none_when}
    null_when: [$.result.structuredContent.none]
  - match: {tool: write}
    delta: [{field: files_modified, op: modified, key: $.args.path}]
  - match: {tool: secret}
    redact: [$.args.note]
  - match: {tool: quiet}
    store: nothing
  - match: {tool: POST /pages}
    expects: structured
"""
USED = Operation(field="tools_used", op="called", key="default.write")


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("ruled")
    rules = folder / "mine.yaml"
    rules.write_text(RULES)
    with (
        RawUpstream() as upstream,
        proxy_beside(folder, upstream.url, flags=["--rules", str(rules)]) as proxy,
    ):
        yield Rig(upstream, proxy)


@pytest.fixture
def rig(ruled: Rig) -> Rig:
    ruled.fresh()
    return ruled


def said(text: str) -> bytes:
    return json.dumps(text_result(1, text)).encode()


@pytest.mark.promise("RULE-26")
def test_a_text_is_mapped_to_another_error_and_stays_as_it_is(rig: Rig) -> None:
    body = json.dumps(
        result(1, {"isError": True, "content": [{"type": "text", "text": "please slow down"}]})
    ).encode()
    rig.upstream.script = answer(ok(body))
    assert rig.post(call("mapped")) == body
    row = rig.row()
    assert (row.kind, row.retry, row.executed, row.retry_after_ms) == (
        "rate_limited", "safe", "no", 3000,
    )  # fmt: skip


def test_a_success_mapped_to_an_error_reaches_the_agent_as_one(rig: Rig) -> None:
    rig.upstream.script = answer(ok(said("please slow down")))
    told = json.loads(rig.post(call("mapped")))["result"]["_meta"]["turnlog/outcome"]
    assert (told["kind"], told["retry_after_ms"]) == ("rate_limited", 3000)


@pytest.mark.promise("RULE-27")
def test_a_null_result_is_an_error_where_content_is_expected(rig: Rig) -> None:
    rig.upstream.script = answer(ok(said("null")))
    rig.post(call("content"))
    row = rig.row()
    assert (row.kind, row.flags, row.tool_result) == ("null_result", ["null_result"], None)


def test_null_when_declares_a_result_null(rig: Rig) -> None:
    body = json.dumps(result(1, {"content": [], "structuredContent": {"none": True}})).encode()
    rig.upstream.script = answer(ok(body))
    assert rig.post(call("none_when")) == body
    assert (rig.row().status, rig.row().flags) == ("ok", ["null_result"])


@pytest.mark.promise("OUT-18")
def test_a_result_that_reads_like_an_error_is_flagged(rig: Rig) -> None:
    rig.upstream.script = answer(ok(said("Error executing tool: no such file")))
    assert rig.post(call("other")) == said("Error executing tool: no such file")
    assert (rig.row().status, rig.row().flags) == ("ok", ["error_like_text"])


def test_a_call_shows_what_it_changed(rig: Rig) -> None:
    rig.upstream.script = answer(ok(said("done")))
    rig.post(call("write", {"path": "/tmp/a"}))
    change = Operation(
        field="files_modified", op="modified", key="/tmp/a", evidence="declared"
    )  # fmt: skip
    assert rig.row().delta == [USED, change]


@pytest.mark.promise("RULE-28")
def test_a_value_that_a_rule_redacts_is_never_written_to_disk(rig: Rig) -> None:
    secret = "nobody may read this"
    rig.upstream.script = answer(ok(said(f"you said: {secret}")))
    assert rig.post(call("secret", {"note": secret})) == said(f"you said: {secret}")
    assert rig.row().flags == ["redacted"]
    assert rig.row().output_summary == "you said: [redacted]"
    assert all(secret.encode() not in kept for kept in payloads(rig.proxy.data))
    files = written(rig.proxy.data.parent).values()
    assert all(secret.encode() not in data for data in files)


@pytest.mark.promise("RULE-28")
def test_nothing_is_kept_where_a_rule_says_so(rig: Rig) -> None:
    rig.upstream.script = answer(ok(said("hush hush")))
    rig.post(call("quiet", {"note": "hush hush"}))
    row = rig.row()
    assert (row.output_summary, row.input_hash is not None) == ("", True)
    assert all(b"hush" not in kept for kept in payloads(rig.proxy.data))


@pytest.mark.parametrize(
    ("body", "kind"), [(b'{"a":1}', None), (b"<p>", "malformed_result"), (b"null", "null_result")]
)
def test_a_page_is_no_answer_where_json_is_expected(
    rig: Rig, body: bytes, kind: str | None
) -> None:
    rig.upstream.script = answer(ok(body))
    with rig.client() as client:
        assert client.request("POST", f"/s/{rig.session}/pages", b"{}").body == body
    assert rig.row().kind == kind


@pytest.mark.parametrize(
    ("status", "wait"), [(b"429 Slow", 7000), (b"503 Busy", 7000), (b"500 No", None)]
)
def test_a_refusal_says_when_to_come_back(rig: Rig, status: bytes, wait: int | None) -> None:
    rig.upstream.script = answer(
        b"HTTP/1.1 " + status + b"\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
    )
    rig.post(call("any"))
    assert rig.row().retry_after_ms == wait
