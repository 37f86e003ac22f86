"""turnlog's own API on a running proxy: who may ask, what it answers, and what it refuses."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from conformance.requirements import Requirement, proves
from e2e.stores import process
from kit.beside import Rig, proxy_beside, ruled
from kit.clients import MCP_HEADERS, Response, call, wait_until
from kit.faults import ResetAfterRequest
from kit.upstreams import RawUpstream

V1 = "/turnlog/api/v1"
HOST = ("Host", "127.0.0.1")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path_factory.mktemp("api"), upstream.url) as proxy,
    ):
        yield Rig(upstream, proxy)


@pytest.fixture
def rig(shared: Rig) -> Rig:
    shared.fresh()
    return shared


SAID = {
    f"{V1}/calls/{{call}}/resolve": b'{"verdict": "happened"}',
    f"{V1}/sessions/{{session}}/notes": b'{"kind": "decision", "text": "ask first"}',
}


def token(rig: Rig) -> str:
    return (rig.proxy.data / "token").read_text().strip()


def ask(
    rig: Rig,
    target: str,
    method: str = "GET",
    body: bytes = b"",
    headers: tuple[tuple[str, str], ...] | None = None,
) -> Response:
    given = (("Authorization", f"Bearer {token(rig)}"),) if headers is None else headers
    with rig.client() as client:
        return client.request(method, target, body, headers=given)


def found(rig: Rig, path: str) -> Any:
    given = ask(rig, V1 + path)
    assert given.status == 200, given.body
    assert given.head.one("content-type") == "application/json"
    return given.json()


def problem(given: Response, status: int) -> dict[str, Any]:
    """Check that an answer is a problem of this status, and return it."""
    assert given.status == status, given.body
    assert given.head.one("content-type") == "application/problem+json"
    said: dict[str, Any] = given.json()
    assert (said["status"], said["title"]) == (status, given.head.reason)
    return said


def unknown(rig: Rig) -> str:
    """Make a call of which nobody knows, and return its id."""
    rig.upstream.script = ResetAfterRequest()
    rig.post(call("send", {"to": "you"}))
    row = rig.row()
    assert row.status == "unknown"
    return row.call


@proves(Requirement.API_GUARDED)
@pytest.mark.parametrize(
    ("headers", "challenge"),
    [
        ((), 'Bearer realm="turnlog"'),
        ((("Authorization", "Bearer"),), 'Bearer realm="turnlog"'),
        ((("Authorization", "Bearer wrong"),), 'Bearer realm="turnlog", error="invalid_token"'),
        ((("Authorization", "Basic {token}"),), 'Bearer realm="turnlog", error="invalid_token"'),
        ((("Authorization", "Bearer {token}x"),), 'Bearer realm="turnlog", error="invalid_token"'),
        ((("Authorization", "{token}"),), 'Bearer realm="turnlog"'),
        (
            (("Authorization", "Bearer {token}"), ("Authorization", "Bearer {token}")),
            'Bearer realm="turnlog", error="invalid_token"',
        ),
    ],
)
@pytest.mark.parametrize(
    ("method", "target"),
    [("GET", f"{V1}/log"), ("POST", f"{V1}/calls/0123/resolve"), ("GET", "/turnlog/api/openapi.json"), ("GET", "/turnlog/api/nothing")],
)  # fmt: skip
def test_nobody_is_answered_without_the_token(
    rig: Rig, headers: tuple[tuple[str, str], ...], challenge: str, method: str, target: str
) -> None:
    given = [(name, text.format(token=token(rig))) for name, text in headers]
    answer = ask(rig, target, method, headers=tuple(given))
    problem(answer, 401)
    assert answer.head.one("www-authenticate") == challenge
    assert token(rig).encode() not in answer.body


@proves(Requirement.API_GUARDED)
def test_a_page_of_another_origin_is_refused_before_its_token_is_looked_at(rig: Rig) -> None:
    bearer = ("Authorization", f"Bearer {token(rig)}")
    assert ask(rig, f"{V1}/log", headers=(bearer, ("Origin", "http://evil.example"))).status == 403
    assert ask(rig, f"{V1}/log", headers=(bearer, ("Host", "evil.example"))).status == 421


def test_the_scheme_has_no_case_and_answers_are_not_kept(rig: Rig) -> None:
    answer = ask(rig, f"{V1}/log", headers=(("Authorization", f"bEARER  {token(rig)}"),))
    assert answer.status == 200
    assert answer.head.one("cache-control") == "no-store"


async def test_what_was_refused_is_in_the_event_log_without_the_token(rig: Rig) -> None:
    ask(rig, f"{V1}/log", headers=(("Authorization", "Bearer guess"),))
    await rig.proxy.event("request.refused", **{"turnlog.reason": "token"})
    assert b"guess" not in rig.proxy.stdout.read_bytes()
    assert token(rig).encode() not in rig.proxy.stdout.read_bytes()


def test_sessions_are_listed_and_found_by_any_name(rig: Rig) -> None:
    rig.post(call("write"))
    row = rig.row()
    by_name = found(rig, f"/sessions/{rig.session}")
    assert by_name == found(rig, f"/sessions/{row.session}")
    assert (by_name["session"], by_name["names"]) == (row.session, [rig.session])
    page = found(rig, "/sessions?limit=1")
    assert page["items"] == [by_name]


def test_the_log_is_what_the_command_prints(rig: Rig) -> None:
    for number in range(3):
        rig.post(call("write", {"n": number}))
    rows = rig.ended_rows(3)
    page = found(rig, f"/sessions/{rig.session}/log")
    assert [row["call"] for row in page["items"]] == [row.call for row in rows]
    first = found(rig, f"/sessions/{rig.session}/log?limit=2&order=oldest")
    rest = found(rig, f"/sessions/{rig.session}/log?order=oldest&cursor={first['next']}")
    assert first["items"] + rest["items"] == page["items"]
    assert (first["more"], rest["more"]) == (True, False)


def test_filters_narrow_the_log_of_all_sessions(rig: Rig) -> None:
    rig.post(call("write"))
    name = f"only-{rig.session}"
    rig.post(call(name))
    page = found(rig, f"/log?tool={name}&since=1h&server=default")
    assert [row["tool"] for row in page["items"]] == [name]
    assert found(rig, f"/log?tool={name}&flag=late")["items"] == []


def test_a_call_is_shown_with_its_texts_only_where_they_are_asked_for(rig: Rig) -> None:
    rig.post(call("write", {"path": "/etc/motd"}))
    name = rig.row().call
    (bare,) = found(rig, f"/calls/{name}")["attempts"]
    (full,) = found(rig, f"/calls/{name}?payloads=true")["attempts"]
    assert (bare["input"]["text"], bare["output"]["text"]) == ("", "")
    assert json.loads(full["input"]["text"]) == {"path": "/etc/motd"}
    assert full["output"]["kept"] == "whole"
    assert full["row"] == bare["row"]


@proves(Requirement.DANGLING_FACTS, Requirement.RESOLVE_SETTLES)
async def test_an_unknown_call_is_listed_settled_and_gone(rig: Rig) -> None:
    name = unknown(rig)
    (one,) = found(rig, f"/sessions/{rig.session}/dangling")["items"]
    assert (one["standing"], one["row"]["call"]) == ("unknown", name)
    assert (one["row"]["executed"], one["row"]["retry"]) == ("maybe", "unsafe")
    assert json.loads(one["preview"]) == {"to": "you"}
    said = b'{"verdict": "happened", "why": "it is in the outbox, token ghp_' + b"a" * 36 + b'"}'
    answer = ask(rig, f"{V1}/calls/{name[:23]}/resolve", "POST", said)
    assert answer.status == 200, answer.body
    row = answer.json()
    assert (row["call"], row["status"], row["executed"]) == (name, "ok", "yes")
    assert row["flags"] == ["resolved"]
    assert found(rig, f"/sessions/{rig.session}/dangling")["items"] == []
    (attempt,) = found(rig, f"/calls/{name}")["attempts"]
    assert attempt["detail"].startswith("it is in the outbox")
    assert "ghp_a" not in attempt["detail"]
    assert attempt["commits"][-1]["actor"] == "operator"
    event = await rig.proxy.event("call.resolved", **{"turnlog.call": name})
    assert (event["turnlog.executed"], event["turnlog.seq"]) == ("yes", row["seq"])


@proves(Requirement.RESOLVE_SETTLES)
def test_a_call_that_is_known_or_not_there_is_not_settled(rig: Rig) -> None:
    name = unknown(rig)
    verdict = b'{"verdict": "did_not"}'
    target = f"{V1}/calls/{name}/resolve"
    assert ask(rig, target, "POST", verdict).json()["retry"] == "safe"
    said = problem(ask(rig, target, "POST", verdict), 409)
    assert (said["reason"], name in said["detail"]) == ("resolved", True)
    problem(ask(rig, f"{V1}/calls/ffffffff/resolve", "POST", verdict), 404)


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("nothing=1", "nothing"), ("limit=0", "limit"), ("limit=many", "limit"), ("limit=", "limit"),
        ("limit=1&limit=2", "limit"), ("flag=odd", "flag"), ("kind=odd", "kind"),
        ("error=odd", "error"), ("order=up", "order"), ("cursor=-1", "cursor"), ("tool=", "tool"),
        ("since=soon", "since"), ("until=2026-13-01", "until"), ("turns=a", "turns"),
        ("around=1&cursor=2", "around"), ("after=x", "after"), ("limit", "limit"),
    ],
)  # fmt: skip
def test_a_parameter_that_cannot_be_used_is_named(rig: Rig, query: str, name: str) -> None:
    rig.post(call("write"))
    said = problem(ask(rig, f"{V1}/sessions/{rig.session}/log?{query}"), 400)
    assert said["parameter"] == name
    assert said["detail"].startswith(f"parameter {name!r}")


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("limit=0", "parameter 'limit' must be at least 1"),
        ("limit=1001", "parameter 'limit' must be at most 1000"),
        ("after=x", "parameter 'after' must be a whole number or nothing, not text"),
        ("order=up", "parameter 'order' cannot be 'up', use one of: newest, oldest"),
        ("flag=lat", "parameter 'flag' cannot be 'lat', did you mean 'late'?"),
        ("tool=", "parameter 'tool' must have a length of at least 1"),
        ("nope=1", "parameter 'nope': it is not known here, known are: limit"),
    ],
)
def test_what_is_wrong_with_a_parameter_is_a_sentence(rig: Rig, query: str, told: str) -> None:
    said = problem(ask(rig, f"{V1}/log?{query}"), 400)
    assert said["detail"].startswith(told)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "it is no JSON (input data was truncated), write a JSON object"),
        (b"[]", "it must be a mapping, not a list"),
        (b"\xff", "it is no JSON (invalid character (byte 0)), write a JSON object"),
        (b"{}", "'verdict' is missing, add it"),
        (b'{"verdict": "perhaps"}', "'verdict' cannot be 'perhaps', use one of: did_not, happened"),
        (b'{"verdict": "happened", "also": 1}', "unknown key 'also', use one of: verdict, why"),
    ],
)
def test_what_is_wrong_with_a_body_is_a_sentence(rig: Rig, body: bytes, told: str) -> None:
    said = problem(ask(rig, f"{V1}/calls/0193a1b2/resolve", "POST", body), 400)
    assert said["detail"] == f"the body is not as it must be: {told}"


def test_a_query_that_is_no_text_is_refused(rig: Rig) -> None:
    assert "the query" in problem(ask(rig, f"{V1}/log?tool=%ff"), 400)["detail"]


def test_a_range_needs_a_session(rig: Rig) -> None:
    rig.post(call("write"))
    first = rig.session
    rig.fresh()
    rig.post(call("write"))
    assert first != rig.session
    assert problem(ask(rig, f"{V1}/log?after=0"), 400)["parameter"] == "after"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"{}", b'{"verdict": "perhaps"}', b'{"verdict": "happened", "also": 1}', b'{"verdict": "happened", "why": "\\ud800"}', b"\xff"],
)  # fmt: skip
def test_a_body_that_says_something_else_is_refused(rig: Rig, body: bytes) -> None:
    name = unknown(rig)
    said = problem(ask(rig, f"{V1}/calls/{name}/resolve", "POST", body), 400)
    assert said["detail"].startswith("the body is not as it must be: ")
    assert rig.row().status == "unknown"


def test_a_body_that_is_too_large_is_refused(rig: Rig) -> None:
    name = unknown(rig)
    body = json.dumps({"verdict": "happened", "why": "x" * 100_000}).encode()
    problem(ask(rig, f"{V1}/calls/{name}/resolve", "POST", body), 413)
    long = json.dumps({"verdict": "happened", "why": "x" * 2001}).encode()
    problem(ask(rig, f"{V1}/calls/{name}/resolve", "POST", long), 400)


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("POST", f"{V1}/log", "GET, HEAD"),
        ("DELETE", f"{V1}/sessions", "GET, HEAD"),
        ("GET", f"{V1}/calls/0123/resolve", "POST"),
        ("OPTIONS", f"{V1}/calls/0123", "GET, HEAD"),
        ("PUT", "/turnlog/api/openapi.json", "GET, HEAD"),
        ("POST", "/turnlog/health", "GET, HEAD"),
    ],
)
def test_another_method_is_told_which_ones_there_are(
    rig: Rig, method: str, target: str, allow: str
) -> None:
    answer = ask(rig, target, method)
    problem(answer, 405)
    assert answer.head.one("allow") == allow


@pytest.mark.parametrize(
    "target",
    ["/turnlog/api", V1, f"{V1}/", f"{V1}/nothing", f"{V1}log", f"{V1}/sessions/", f"{V1}/sessions/a/b", f"{V1}/sessions/nobody/log"],
)  # fmt: skip
def test_what_is_not_there_is_not_found(rig: Rig, target: str) -> None:
    problem(ask(rig, target), 404)


def test_head_is_get_without_a_body(rig: Rig) -> None:
    answer = ask(rig, f"{V1}/sessions", "HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert ask(rig, f"{V1}/log?limit=0", "HEAD").status == 400


def test_answers_are_as_the_description_says(rig: Rig) -> None:
    name = unknown(rig)
    document = ask(rig, "/turnlog/api/openapi.json").json()
    names = {"{session}": rig.session, "{call}": name}
    for path, verbs in document["paths"].items():
        target = path
        for part, text in names.items():
            target = target.replace(part, text)
        (verb,) = verbs
        said = SAID[path] if verb == "post" else b""
        answer = ask(rig, target, verb.upper(), said)
        assert answer.status == 200, (path, answer.body)
        schema = verbs[verb]["responses"]["200"]["content"]["application/json"]["schema"]
        whole = {**schema, "components": document["components"]}
        validator: Any = jsonschema.Draft202012Validator(whole)
        validator.validate(answer.json())


def test_a_token_is_kept_over_a_restart_and_a_new_one_counts(tmp_path: Path) -> None:
    with RawUpstream() as upstream:
        seen: list[str] = []
        for _ in range(2):
            with proxy_beside(tmp_path, upstream.url) as proxy:
                seen.append(token(Rig(upstream, proxy)))
        (tmp_path / "data" / "token").write_text("an operator may choose one that is long enough\n")
        with proxy_beside(tmp_path, upstream.url) as proxy:
            rig = Rig(upstream, proxy)
            assert ask(rig, f"{V1}/log").status == 200
            old = (("Authorization", f"Bearer {seen[0]}"),)
            assert ask(rig, f"{V1}/log", headers=old).status == 401
    assert seen[0] == seen[1]


def test_calls_go_on_where_no_token_can_be_had(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "token").write_text("short")
    with RawUpstream() as upstream, proxy_beside(tmp_path, upstream.url) as proxy:
        rig = Rig(upstream, proxy)
        with rig.client() as client:
            answer = client.request("POST", rig.proxy.url, call("write"), headers=MCP_HEADERS)
        assert answer.status == 200
        problem(ask(rig, f"{V1}/log"), 503)
        (tmp_path / "data" / "token").unlink()
        problem(ask(rig, f"{V1}/log", headers=()), 401)
        assert ask(rig, f"{V1}/log").status == 200
        failed = proxy.told("store.failed")
        assert "too short" in failed[0]["error.message"]


def test_a_state_is_that_after_any_commit(rig: Rig) -> None:
    rig.post(call("write"))
    rig.post(call("read"))
    rows = rig.ended_rows(2)
    newest = found(rig, f"/sessions/{rig.session}/state")
    assert set(newest["state"]["tools_used"]) == {"default.write", "default.read"}
    early = found(rig, f"/sessions/{rig.session}/state?at={rows[0].seq}&field=tools_used")
    assert list(early["state"]) == ["tools_used"]
    assert set(early["state"]["tools_used"]) == {"default.write"}
    assert (
        found(rig, f"/sessions/{rig.session}/state?turn=-1")["state_hash"] == newest["state_hash"]
    )
    said = problem(ask(rig, f"{V1}/sessions/{rig.session}/state?at=1&turn=1"), 400)
    assert said["parameter"] == "at"
    problem(ask(rig, f"{V1}/sessions/{rig.session}/state?at=999999"), 404)


def test_a_difference_names_the_commits_that_made_it(rig: Rig) -> None:
    rig.post(call("write"))
    first = rig.row()
    rig.post(call("read"))
    rig.ended_rows(2)
    path = f"/sessions/{rig.session}/diff"
    (made,) = [
        one
        for one in found(rig, f"{path}?seq={first.seq}..")["items"]
        if one["field"] == "tools_used"
    ]
    assert (made["key"], made["before"], made["after"]["calls"]) == ("default.read", None, 1)
    assert {one["key"] for one in found(rig, path)["items"]} >= {"default.read", "default.write"}
    assert found(rig, f"{path}?turns=-1") == found(rig, path)
    assert found(rig, f"{path}?other={rig.session}")["items"] == []


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("turns=1&seq=1..2", "turns"), ("seq=1", "seq"), ("seq=2..1", "seq"), ("turns=x", "turns"),
    ],
)  # fmt: skip
def test_a_difference_that_makes_no_sense_is_refused(rig: Rig, query: str, name: str) -> None:
    rig.post(call("write"))
    rig.row()
    said = problem(ask(rig, f"{V1}/sessions/{rig.session}/diff?{query}"), 400)
    assert said["parameter"] == name


def test_a_note_is_written_once_under_its_id_and_stands_in_the_state(rig: Rig) -> None:
    rig.post(call("write"))
    rig.row()
    note = b'{"kind": "decision", "id": "d1", "text": "ask first", "why": "it is dear"}'
    target = f"{V1}/sessions/{rig.session}/notes?id=n1"
    first = ask(rig, target, "POST", note)
    assert first.status == 200, first.body
    assert (first.json()["kind"], first.json()["known"]) == ("decision", False)
    again = ask(rig, target, "POST", note).json()
    assert (again["seq"], again["known"]) == (first.json()["seq"], True)
    made = found(rig, f"/sessions/{rig.session}/state?field=decisions_made")["state"]
    assert made["decisions_made"]["d1"]["why"] == "it is dear"


def test_a_note_is_shown_with_what_it_says_and_by_the_operator(rig: Rig) -> None:
    rig.post(call("write"))
    rig.row()
    target = f"{V1}/sessions/{rig.session}/notes"
    note = b'{"kind": "decision", "text": "ask\\u001b first", "why": "it is dear"}'
    evicted = b'{"kind": "evict", "keys": ["1", "2"], "reason": "budget"}'
    seqs = [ask(rig, target, "POST", body).json()["seq"] for body in (note, evicted)]
    shown = [_shown(rig, seq).splitlines() for seq in seqs]
    assert {"actor       operator", "note        decision"} < set(shown[0])
    assert {"text        ask\\u001b first", "why         it is dear"} < set(shown[0])
    assert {'keys        ["1","2"]', "reason      budget"} < set(shown[1])
    assert json.loads(_shown(rig, seqs[1], "--json"))["content"]["keys"] == ["1", "2"]


def test_a_note_of_turnlogs_own_is_shown_with_its_kind(tmp_path: Path) -> None:
    with ruled(tmp_path, "rules: [{match: {}, effect: write}]") as one:
        one.session = "noted"
        one.post(call("write"))
        wait_until(lambda: one.notes() == ["delivered"], "it is noted that the answer arrived")
        shown = _shown(one, 3).splitlines()
        assert {"actor       turnlog", "note        delivered", "follows     2"} < set(shown)
        assert _shown(one, 0).count("note  ") == 0


def _shown(rig: Rig, seq: int, *flags: str) -> str:
    done = process("show", f"{rig.session}:{seq}", *flags, "--data", str(rig.proxy.data))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@proves(Requirement.FACT_HEAD)
def test_a_note_about_a_fact_needs_the_head_that_its_writer_has_seen(rig: Rig) -> None:
    rig.post(call("write"))
    rig.row()
    target = f"{V1}/sessions/{rig.session}/notes"
    fact = b'{"kind": "fact", "id": "port", "action": "assert", "subject": "port", "value": "80"}'
    seq = ask(rig, target, "POST", fact).json()["seq"]
    rig.post(call("write"))
    for query in ("", f"?head={seq - 1}"):
        refused = ask(rig, target + query, "POST", fact)
        problem(refused, 409)
        assert refused.json()["head"] == seq
    # The call in between is in nobody's way.
    assert ask(rig, f"{target}?head={seq}", "POST", fact).status == 200
    (held,) = found(rig, f"/sessions/{rig.session}/state?field=facts")["state"]["facts"].values()
    assert len(held["sources"]) == 2


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"kind": "rumour"}', b'{"kind": "decision"}', b'{"kind": "delivered"}', b'{"kind": "decision", "text": "a", "also": 1}', b'{"kind": "decision", "text": ' + b"[" * 20_000],
)  # fmt: skip
def test_what_is_no_note_is_refused(rig: Rig, body: bytes) -> None:
    rig.post(call("write"))
    seq = rig.row().seq
    problem(ask(rig, f"{V1}/sessions/{rig.session}/notes", "POST", body), 400)
    assert found(rig, f"/sessions/{rig.session}")["seq"] == seq


def test_a_note_needs_a_session_that_is_there(rig: Rig) -> None:
    note = b'{"kind": "decision", "text": "ask first"}'
    problem(ask(rig, f"{V1}/sessions/nobody/notes", "POST", note), 404)


def test_a_name_with_a_slash_is_one_part_of_the_path(rig: Rig) -> None:
    name = f"team/{rig.session}"
    headers = (*MCP_HEADERS, ("Turnlog-Session", name))
    with rig.client() as client:
        client.request("POST", "/mcp", call("write"), headers=headers)
    quoted = f"team%2F{rig.session}"
    assert found(rig, f"/sessions/{quoted}")["names"] == [name]
    problem(ask(rig, f"{V1}/sessions/team/{rig.session}"), 404)
