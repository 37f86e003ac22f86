"""Identity: each rung of the ladder, and everything that must not count as a name."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from turnlog.core.identity import (
    NAME_BYTES,
    CallerEvidence,
    Confidence,
    KeyLocation,
    SessionIdentity,
    Vendor,
    VendorTable,
    identify,
    session_name,
    vendor_headers,
    vendor_variables,
)
from turnlog.core.kinds import Rung, TurnSource
from turnlog.packs.load import load

TABLE = load(Path(__file__).parents[3] / "rules" / "identity.yaml", VendorTable).identity

CODEX = {"session_id": "s-1", "thread_id": "t-1", "turn_id": "turn-9", "model": "m"}


def meta(**values: object) -> dict[str, bytes]:
    """`_meta` with raw JSON values; `__` in a name stands for `/`, `_dot_` for `.`."""
    return {
        name.replace("__", "/").replace("_dot_", "."): json.dumps(value).encode()
        for name, value in values.items()
    }


def named(evidence: CallerEvidence) -> tuple[Rung, str]:
    identity = identify(evidence, TABLE)
    return identity.rung, identity.name


@pytest.mark.promise("SESS-3")
def test_the_first_rung_that_names_a_session_wins() -> None:
    everything = CallerEvidence(
        path_session="from-path",
        header_session="from-header",
        meta={**meta(turnlog__session="from-meta"), "openai/session": b'"from-vendor"'},
        mcp_session_id="digest",
        upstream="files",
        credential="who",
        client_name="agent",
    )
    rungs: list[tuple[Rung, str]] = []
    steps: tuple[dict[str, Any], ...] = (
        {},
        {"path_session": ""},
        {"header_session": ""},
        {"meta": {"openai/session": b'"from-vendor"'}},
        {"meta": {}},
        {"mcp_session_id": ""},
    )
    for gone in steps:
        everything = msgspec.structs.replace(everything, **gone)
        rungs.append(named(everything))
    assert rungs == [
        (Rung.EXPLICIT, "from-path"),
        (Rung.EXPLICIT, "from-header"),
        (Rung.EXPLICIT, "from-meta"),
        (Rung.VENDOR, "openai/from-vendor"),
        (Rung.TRANSPORT, "files/digest"),
        (Rung.IMPLICIT, ""),
    ]


@pytest.mark.parametrize(
    ("evidence", "why", "confidence"),
    [
        (CallerEvidence(path_session="a"), "path", Confidence.GIVEN),
        (CallerEvidence(header_session="a"), "header Turnlog-Session", Confidence.GIVEN),
        (
            CallerEvidence(meta=meta(turnlog__session="a")),
            "_meta turnlog/session",
            Confidence.GIVEN,
        ),
        (
            CallerEvidence(meta=meta(openai__session="a")),
            "meta openai/session",
            Confidence.OBSERVED,
        ),
        (CallerEvidence(mcp_session_id="a"), "header Mcp-Session-Id", Confidence.TRANSPORT),
        (
            CallerEvidence(credential="a", client_name="b"),
            "credential and client name",
            Confidence.INFERRED,
        ),
        (CallerEvidence(client_name="b"), "client name", Confidence.INFERRED),
        (CallerEvidence(connection=7), "connection", Confidence.INFERRED),
    ],
)
def test_an_identity_has_its_source_and_confidence(
    evidence: CallerEvidence, why: str, confidence: Confidence
) -> None:
    identity = identify(evidence, TABLE)
    assert (identity.why, identity.confidence) == (why, confidence)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"x-codex-turn-metadata": json.dumps(CODEX).encode()}, "codex/s-1"),
        ({"x-codex-turn-metadata": json.dumps(json.dumps(CODEX)).encode()}, "codex/s-1"),
        ({"x-codex-turn-metadata": b'{"thread_id":"t-1"}'}, "codex/t-1"),
        ({"ai.opencode/sessionID": b'"ses_1"'}, "opencode/ses_1"),
        ({"vscode.conversationId": b'"c-1"', "vscode.requestId": b'"r-1"'}, "vscode/c-1"),
        ({"openai/session": b'"v1/abc"'}, "openai/v1/abc"),
        ({"antigravity.google/conversation_id": b'"g"'}, "antigravity/g"),
        ({"com.zcode/request-context": b'{"session_id":"z"}'}, "zcode/z"),
        ({"vscode.conversationId": b"12345"}, "vscode/12345"),
    ],
)
def test_known_clients_name_their_conversations(given: dict[str, bytes], name: str) -> None:
    assert named(CallerEvidence(meta=given)) == (Rung.VENDOR, name)


def test_a_call_key_names_no_session() -> None:
    identity = identify(CallerEvidence(meta=meta(claudecode__toolUseId="toolu_1")), TABLE)
    assert identity.rung is Rung.IMPLICIT
    assert identity.client == "claude-code"


@pytest.mark.promise("SESS-6")
def test_traceparent_and_progress_token_name_nothing() -> None:
    given = meta(traceparent="00-aaaa-bbbb-01", progressToken=7)
    assert named(CallerEvidence(meta=given)) == (Rung.IMPLICIT, "")


def turn_of(evidence: CallerEvidence) -> tuple[str, TurnSource]:
    identity: SessionIdentity = identify(evidence, TABLE)
    return identity.turn_label, identity.turn_source


def test_a_turn_is_named_explicitly_then_by_the_vendor() -> None:
    vendor = {"vscode.requestId": b'"r-1"'}
    assert turn_of(CallerEvidence(header_turn="7", meta=vendor)) == ("7", TurnSource.EXPLICIT)
    own = {**vendor, "turnlog/turn": b"8"}
    assert turn_of(CallerEvidence(meta=own)) == ("8", TurnSource.EXPLICIT)
    assert turn_of(CallerEvidence(meta=vendor)) == ("r-1", TurnSource.VENDOR)
    assert turn_of(CallerEvidence()) == ("", TurnSource.GAP)


def test_a_vendors_turn_counts_in_an_explicit_session() -> None:
    given = CallerEvidence(
        path_session="mine", meta={"x-codex-turn-metadata": json.dumps(CODEX).encode()}
    )
    assert turn_of(given) == ("turn-9", TurnSource.VENDOR)
    assert identify(given, TABLE).client == "codex"


NOT_NAMES = [
    b"",
    b'""',
    b'"   "',
    b"null",
    b"true",
    b"1.5",
    b"{}",
    b'["a"]',
    b'{"session_id":"a"}',
    b'"a\\u0000b"',
    b'"a\\nb"',
    b'"\\u001b[2J"',
    b'"\\u202eabc"',
    b'"\\ud800"',
    b'"cut',
    b'"\xff"',
    json.dumps("x" * 10_000).encode(),
    json.dumps("é" * 4_000).encode(),
    b"[" * 100_000,
    b'"' + b"x" * 100_000 + b'"',
]


@pytest.mark.parametrize("value", NOT_NAMES, ids=lambda value: repr(value[:14]))
def test_values_that_cannot_be_names_are_skipped(value: bytes) -> None:
    given = {"turnlog/session": value, "turnlog/turn": value, "openai/session": value}
    evidence = CallerEvidence(meta=given, mcp_session_id="digest", upstream="u")
    assert named(evidence) == (Rung.TRANSPORT, "u/digest")
    assert turn_of(evidence) == ("", TurnSource.GAP)


@pytest.mark.parametrize(
    "value",
    [b'"x"', b'{"session_id":{}}', b'"{\\"session_id\\":"', b'{"session_id":"a\\u0007"}', b"[]"],
)
def test_nested_keys_that_lead_nowhere_are_skipped(value: bytes) -> None:
    given = {"x-codex-turn-metadata": value, "openai/session": b'"next"'}
    assert named(CallerEvidence(meta=given)) == (Rung.VENDOR, "openai/next")


def test_a_bad_header_does_not_hide_a_good_key() -> None:
    given = CallerEvidence(
        path_session="\x1b", header_session=" ", meta=meta(turnlog__session=" kept ")
    )
    assert named(given) == (Rung.EXPLICIT, "kept")


def test_a_long_name_is_replaced_by_its_hash() -> None:
    longest = "x" * NAME_BYTES
    assert named(CallerEvidence(path_session=longest)) == (Rung.EXPLICIT, longest)
    rung, name = named(CallerEvidence(path_session=longest + "x"))
    assert rung is Rung.EXPLICIT
    assert name.startswith("sha256:")
    assert len(name) == len("sha256:") + 64
    assert name != named(CallerEvidence(path_session=longest + "y"))[1]


def test_the_same_protocol_session_at_two_upstreams_is_two_sessions() -> None:
    one = CallerEvidence(mcp_session_id="digest", upstream="files")
    other = CallerEvidence(mcp_session_id="digest", upstream="git")
    assert named(one) != named(other)


def test_implicit_sessions_go_by_credential_and_client_then_by_connection() -> None:
    def key(**values: object) -> str:
        return identify(msgspec.convert(values, CallerEvidence), ()).implicit_key

    known = key(credential="a", client_name="b", connection=1)
    assert known == key(credential="a", client_name="b", connection=2)
    assert known != key(credential="x", client_name="b", connection=1)
    assert known != key(credential="a", client_name="x", connection=1)
    assert key(connection=1) != key(connection=2)
    assert key(connection=1) == key(connection=1)


def test_a_wrapped_command_has_one_client_under_any_name() -> None:
    early = identify(CallerEvidence(connection="process 7"), ())
    later = identify(CallerEvidence(connection="process 7", client_name="b"), ())
    assert early.implicit_key == later.implicit_key
    assert (later.why, later.confidence) == ("process", Confidence.INFERRED)
    other = identify(CallerEvidence(connection="process 8", client_name="b"), ())
    assert other.implicit_key != later.implicit_key


def test_headers_are_looked_up_as_the_table_says() -> None:
    table = (
        Vendor(
            name="one", where=KeyLocation.HEADER, session=(("X-Chat", "id"),), turn=(("X-Turn",),)
        ),
        Vendor(name="two", session=(("chat",),)),
    )
    assert vendor_headers(table) == {"x-chat", "x-turn"}
    found = identify(CallerEvidence(headers={"x-chat": '{"id":"7"}', "x-turn": "3"}), table)
    assert (found.rung, found.name, found.turn_label) == (Rung.VENDOR, "one/7", "3")


ENVIRONMENT = (
    Vendor(name="env", where=KeyLocation.ENVIRONMENT, session=(("CHAT",), ("STATE", "chat"))),
    Vendor(name="meta", session=(("chat",),)),
)


@pytest.mark.promise("SESS-3")
def test_the_environment_ranks_between_the_vendors_keys_and_the_transport() -> None:
    assert vendor_variables(ENVIRONMENT) == {"CHAT", "STATE"}
    assert vendor_headers(ENVIRONMENT) == frozenset()
    environment = {"CHAT": "7"}
    found = identify(CallerEvidence(environment=environment, mcp_session_id="m"), ENVIRONMENT)
    assert (found.rung, found.name, found.client) == (Rung.ENVIRONMENT, "env/7", "env")
    assert (found.why, found.confidence) == ("environment CHAT", Confidence.OBSERVED)
    said = CallerEvidence(environment=environment, meta={"chat": b'"9"'})
    assert identify(said, ENVIRONMENT).name == "meta/9"
    assert (
        identify(CallerEvidence(environment=environment, path_session="p"), ENVIRONMENT).name == "p"
    )


def test_a_variable_may_hold_json_and_an_empty_one_names_nothing() -> None:
    deep = CallerEvidence(environment={"CHAT": " ", "STATE": '{"chat":"8"}'})
    assert identify(deep, ENVIRONMENT).name == "env/8"
    assert identify(CallerEvidence(environment={"CHAT": ""}), ENVIRONMENT).rung is Rung.IMPLICIT


MISTAKES: list[dict[str, Any]] = [
    {"name": "x", "session": [[]]},
    {"name": "x", "session": [[""]]},
    {"name": "x", "sessions": [["a"]]},
    {"name": "X y", "session": [["a"]]},
    {"name": "x", "where": "cookie"},
    {"name": "x", "where": "ENVIRONMENT"},
    {"name": "x", "session": ["a"]},
]


@pytest.mark.parametrize("entry", MISTAKES)
def test_a_table_with_a_mistake_is_refused(entry: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"identity": [entry]}, VendorTable)


def test_the_name_of_an_explicit_session_is_one_line_and_a_long_one_is_hashed() -> None:
    assert session_name("my run") == "my run"
    assert len(session_name("x" * 1000)) < 100
    with pytest.raises(ValueError, match="can name no session"):
        session_name("two\nlines")
