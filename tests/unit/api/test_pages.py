"""The API as the application answers it: access, answers and refusals."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from aiohttp import web

from kit.clients import call
from kit.pages import TOKEN, V1, Connect, Pages, own_pages
from turnlog.api.pages import problems
from turnlog.core.identity import CallerEvidence
from turnlog.core.kinds import Effect
from turnlog.engine.http.own_pages import SECRET
from turnlog.observe.events import RequestRefused, StoreFailed
from turnlog.sessions.retention.ages import Retention
from turnlog.sessions.retention.collect import Collector
from turnlog.sessions.retention.gc import expired
from turnlog.store.lmdb import DAY
from turnlog.store.read.held_content import HeldContent

BEARER = ("Authorization", f"Bearer {TOKEN}")
VERDICT = b'{"verdict": "did_not"}'
NOTE = b'{"kind": "decision", "text": "ask first"}'
BODIES = {
    f"{V1}/calls/{{call}}/resolve": b'{"verdict": "happened"}',
    f"{V1}/sessions/{{session}}/notes": NOTE,
    f"{V1}/sessions/{{session}}/rewind": b'{"seq": 0}',
    f"{V1}/calls/{{call}}/effect": b'{"choice": "redo"}',
    f"{V1}/sessions/{{session}}/fork": b'{"name": "other"}',
    f"{V1}/sessions/{{session}}/lifecycle": b'{"action": "pause"}',
    f"{V1}/sessions/{{session}}/hold": b'{"why": "a lawsuit"}',
    f"{V1}/sessions/{{session}}/release": b"{}",
    f"{V1}/sessions/{{session}}/purge": b"{}",
    f"{V1}/sessions/{{session}}/taint/marks": b'{"seq": 1, "action": "mark", "why": "forged"}',
    f"{V1}/gc": b'{"yes": true}',
}


@pytest.fixture
async def pages(tmp_path: Path, aiohttp_client: Connect) -> AsyncGenerator[Pages]:
    async with own_pages(tmp_path, aiohttp_client) as found:
        yield found


@pytest.mark.promise("API-1")
@pytest.mark.parametrize(
    ("headers", "challenge"),
    [
        ((), 'Bearer realm="turnlog"'),
        (("Bearer",), 'Bearer realm="turnlog"'),
        (("Bearer wrong",), 'Bearer realm="turnlog", error="invalid_token"'),
        (("Basic {token}",), 'Bearer realm="turnlog", error="invalid_token"'),
        (("Bearer {token}x",), 'Bearer realm="turnlog", error="invalid_token"'),
        (("{token}",), 'Bearer realm="turnlog"'),
        (("Bearer {token}", "Bearer {token}"), 'Bearer realm="turnlog", error="invalid_token"'),
    ],
)
@pytest.mark.parametrize(
    ("method", "target"),
    [("GET", f"{V1}/log"), ("POST", f"{V1}/calls/0123/resolve"), ("GET", "/turnlog/api/openapi.json"), ("GET", "/turnlog/api/nothing")],
)  # fmt: skip
async def test_requests_without_the_token_are_refused(
    pages: Pages, headers: tuple[str, ...], challenge: str, method: str, target: str
) -> None:
    given = [("Authorization", text.format(token=TOKEN)) for text in headers]
    answer = await pages.ask(target, method, headers=tuple(given))
    answer.problem(401)
    assert answer.headers["WWW-Authenticate"] == challenge
    assert TOKEN.encode() not in answer.body


async def test_the_scheme_has_no_case_and_answers_are_not_kept(pages: Pages) -> None:
    answer = await pages.ask(f"{V1}/log", headers=(("Authorization", f"bEARER  {TOKEN}"),))
    assert answer.status == 200
    assert answer.headers["Cache-Control"] == "no-store"
    refused = await pages.ask(f"{V1}/log")
    assert refused.headers["Cache-Control"] == "no-store"


async def test_a_refused_request_is_in_the_event_log_with_its_method(pages: Pages) -> None:
    await pages.api("/log", token="guess")
    (event,) = pages.log.of(RequestRefused)
    assert (event.reason, event.http_method, event.http_status) == ("token", "GET", 401)


@pytest.mark.promise("API-1")
@pytest.mark.parametrize("target", [f"{V1}/log", "/turnlog/mcp", "/turnlog/nothing"])
async def test_a_request_that_the_proxy_did_not_relay_is_refused(pages: Pages, target: str) -> None:
    answer = await pages.ask(target, headers=(BEARER,), secret="guess")
    answer.problem(403)
    assert SECRET not in answer.headers


async def test_answers_have_no_fields_of_the_framework(pages: Pages) -> None:
    for target in (f"{V1}/log", "/turnlog/nothing", "/turnlog/mcp"):
        answer = await pages.ask(target, headers=(BEARER,))
        assert answer.headers.keys() <= {"Content-Type", "Content-Length", "Cache-Control", "Allow"}


async def test_sessions_are_listed_and_found_by_any_name(pages: Pages) -> None:
    await pages.call(name="first")
    await pages.call(name="orders")
    by_name = await pages.found("/sessions/orders")
    assert by_name == await pages.found(f"/sessions/{by_name['session']}")
    assert by_name["names"] == ["orders"]
    page = await pages.found("/sessions?limit=1")
    assert page["items"] == [by_name]


@pytest.mark.promise("API-3")
async def test_pages_of_a_log_follow_one_another(pages: Pages) -> None:
    calls = [await pages.call() for _ in range(3)]
    page = await pages.found("/sessions/trip/log")
    assert [row["call"] for row in page["items"]] == calls
    first = await pages.found("/sessions/trip/log?limit=2&order=oldest")
    rest = await pages.found(f"/sessions/trip/log?order=oldest&cursor={first['next']}")
    assert first["items"] + rest["items"] == page["items"]
    assert (first["more"], rest["more"]) == (True, False)


async def test_filters_narrow_the_log_of_all_sessions(pages: Pages) -> None:
    await pages.call()
    await pages.call("only", name="other")
    page = await pages.found("/log?tool=only&since=1h&server=files")
    assert [row["tool"] for row in page["items"]] == ["only"]
    assert (await pages.found("/log?tool=only&flag=late"))["items"] == []


async def test_a_call_is_shown_with_its_texts_only_where_they_are_asked_for(pages: Pages) -> None:
    name = await pages.call(arguments=b'{"path":"/etc/motd"}')
    (bare,) = (await pages.found(f"/calls/{name}"))["attempts"]
    (full,) = (await pages.found(f"/calls/{name}?payloads=true"))["attempts"]
    assert (bare["input"]["text"], bare["output"]["text"]) == ("", "")
    assert json.loads(full["input"]["text"]) == {"path": "/etc/motd"}
    assert full["output"]["kept"] == "whole"
    assert full["row"] == bare["row"]


@pytest.mark.promise("OPEN-2")
async def test_a_call_that_is_known_or_not_there_is_not_settled(pages: Pages) -> None:
    name = await pages.unknown()
    settled = await pages.api(f"/calls/{name}/resolve", "POST", VERDICT)
    assert settled.json()["retry"] == "safe"
    said = (await pages.api(f"/calls/{name}/resolve", "POST", VERDICT)).problem(409)
    assert (said["reason"], name in said["detail"]) == ("resolved", True)
    (await pages.api("/calls/ffffffff/resolve", "POST", VERDICT)).problem(404)


@pytest.mark.promise("API-5")
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
async def test_a_parameter_that_cannot_be_used_is_named(
    pages: Pages, query: str, name: str
) -> None:
    await pages.call()
    said = (await pages.api(f"/sessions/trip/log?{query}")).problem(400)
    assert said["parameter"] == name
    assert said["detail"].startswith(f"parameter {name!r}")


@pytest.mark.promise("API-5")
async def test_a_parameter_that_is_missing_is_named(pages: Pages) -> None:
    await pages.call()
    said = (await pages.api("/sessions/trip/why?pointer=/path")).problem(400)
    assert (said["parameter"], said["detail"]) == ("seq", "parameter 'seq' is missing, add it")


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("limit=0", "parameter 'limit' must be at least 1"),
        ("limit=1001", "parameter 'limit' must be at most 1000"),
        ("after=x", "parameter 'after' must be a whole number or nothing, not text"),
        ("order=up", "parameter 'order' cannot be 'up', use one of: newest, oldest"),
        ("flag=lat", "parameter 'flag' cannot be 'lat', did you mean 'late'?"),
        ("tool=", "parameter 'tool' must have a length of at least 1"),
        ("nope=1", "parameter 'nope': it is unknown, known are: limit"),
    ],
)
async def test_an_invalid_parameter_is_explained(pages: Pages, query: str, told: str) -> None:
    said = (await pages.api(f"/log?{query}")).problem(400)
    assert said["detail"].startswith(told)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "it is not JSON"),
        (b"{", "it is not JSON (input data was truncated), write a JSON object"),
        (b"[]", "it must be a mapping, not a list"),
        (b"\xff", "it is not JSON (invalid character (byte 0)), write a JSON object"),
        (b"{}", "'verdict' is missing, add it"),
        (b'{"verdict": "perhaps"}', "'verdict' cannot be 'perhaps', use one of: did_not, happened"),
        (
            b'{"verdict": "happened", "also": 1}',
            "unknown key 'also', use one of: fence, verdict, why",
        ),
        (b'{"verdict": "happened", "why": "\\ud800"}', "it is not JSON"),
    ],
)
async def test_an_invalid_body_is_explained_and_settles_nothing(
    pages: Pages, body: bytes, told: str
) -> None:
    name = await pages.unknown()
    said = (await pages.api(f"/calls/{name}/resolve", "POST", body)).problem(400)
    assert said["detail"].startswith(f"the body is invalid: {told}")
    (row,) = (await pages.found("/log"))["items"]
    assert row["status"] == "unknown"


@pytest.mark.parametrize("query", ["tool=%ff", "&".join(["tool=x"] * 101)])
async def test_a_query_that_cannot_be_read_is_refused(pages: Pages, query: str) -> None:
    said = (await pages.api(f"/log?{query}")).problem(400)
    assert said["detail"].startswith("the query is unreadable: ")


async def test_a_range_needs_a_session(pages: Pages) -> None:
    await pages.call(name="first")
    await pages.call(name="second")
    assert (await pages.api("/log?after=0")).problem(400)["parameter"] == "after"


async def test_a_body_that_is_too_large_is_refused(pages: Pages) -> None:
    name = await pages.unknown()
    for size, status in ((300_000, 413), (100_000, 413), (2001, 400)):
        body = json.dumps({"verdict": "happened", "why": "x" * size}).encode()
        (await pages.api(f"/calls/{name}/resolve", "POST", body)).problem(status)


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("POST", f"{V1}/log", "GET, HEAD"),
        ("DELETE", f"{V1}/sessions", "GET, HEAD"),
        ("GET", f"{V1}/calls/0123/resolve", "POST"),
        ("OPTIONS", f"{V1}/calls/0123", "GET, HEAD"),
        ("PUT", "/turnlog/api/openapi.json", "GET, HEAD"),
    ],
)
async def test_another_method_gets_the_list_of_allowed_ones(
    pages: Pages, method: str, target: str, allow: str
) -> None:
    answer = await pages.ask(target, method, headers=(BEARER,))
    said = answer.problem(405)
    assert said["detail"] == f"{target} takes {allow.replace(', ', ' and ')}"
    assert answer.headers["Allow"] == allow


@pytest.mark.parametrize(
    "target",
    [
        "/turnlog/api", V1, f"{V1}/", f"{V1}/nothing", f"{V1}log", f"{V1}/sessions/",
        f"{V1}/sessions/a/b", f"{V1}/sessions/nobody/log", f"{V1}/log/", f"{V1}/l%6Fg", f"{V1}/log#x",
        f"{V1}/sessions/%ff", f"{V1}/sessions/\udcff", f"{V1}/sessions/{{x}}",
    ],
)  # fmt: skip
async def test_a_missing_page_gets_404(pages: Pages, target: str) -> None:
    (await pages.ask(target, headers=(BEARER,))).problem(404)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("/turnlog/no", "turnlog has no page '/turnlog/no'"),
        ("/turnlog/%61pi/v1/log", "turnlog has no page '/turnlog/%61pi/v1/log'"),
        (
            "/turnlog/api/no",
            "the API has no '/turnlog/api/no'; `GET /turnlog/api/openapi.json` lists what it has",
        ),
        ("/s/a%2Fb/turnlog/no", "in a session turnlog has no page '/turnlog/no'"),
    ],
)
async def test_a_path_without_a_page_is_shown_as_it_was_sent(
    pages: Pages, target: str, told: str
) -> None:
    said = (await pages.ask(target, headers=(BEARER,))).problem(404)
    assert said["detail"] == told


@pytest.mark.promise("API-7")
async def test_a_page_that_fails_is_a_problem_that_reveals_nothing(
    aiohttp_client: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: web.Request) -> web.Response:
        raise RuntimeError("hunter2")

    app = web.Application(middlewares=[problems])
    app.router.add_get("/", fail)
    client = await aiohttp_client(app)
    async with client.get("/") as answer:
        assert answer.status == 500
        assert "hunter2" not in await answer.text()
        assert answer.headers["Content-Type"] == "application/problem+json"
    assert "a request could not be handled" in caplog.messages


async def test_head_is_get_without_a_body(pages: Pages) -> None:
    answer = await pages.api("/sessions", "HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert (await pages.api("/log?limit=0", "HEAD")).status == 400


@pytest.mark.promise("API-4")
async def test_answers_are_as_the_description_says(pages: Pages) -> None:
    name = await pages.unknown(effect=Effect.WRITE)
    document = (await pages.ask("/turnlog/api/openapi.json", headers=(BEARER,))).json()
    for path, verbs in document["paths"].items():
        if path.endswith("/why"):
            continue  # needs a call whose values were looked up: tests/e2e/test_lineage.py
        target = path.replace("{session}", "trip").replace("{call}", name)
        (verb,) = verbs
        body = BODIES[path] if verb == "post" else b""
        answer = await pages.ask(target, verb.upper(), body, headers=(BEARER,))
        assert answer.status == 200, (path, answer.body)
        schema = verbs[verb]["responses"]["200"]["content"]["application/json"]["schema"]
        whole = {**schema, "components": document["components"]}
        validator: Any = jsonschema.Draft202012Validator(whole)
        validator.validate(answer.json())


async def test_a_state_is_that_after_any_commit(pages: Pages) -> None:
    await pages.call("write")
    await pages.call("read")
    newest = await pages.found("/sessions/trip/state")
    assert set(newest["state"]["tools_used"]) == {"files.write", "files.read"}
    early = await pages.found("/sessions/trip/state?at=2&field=tools_used")
    assert list(early["state"]) == ["tools_used"]
    assert set(early["state"]["tools_used"]) == {"files.write"}
    last_turn = await pages.found("/sessions/trip/state?turn=-1")
    assert last_turn["state_hash"] == newest["state_hash"]
    said = (await pages.api("/sessions/trip/state?at=1&turn=1")).problem(400)
    assert said["parameter"] == "at"
    (await pages.api("/sessions/trip/state?at=999999")).problem(404)


async def test_a_difference_names_the_commits_that_made_it(pages: Pages) -> None:
    await pages.call("write")
    await pages.call("read")
    path = "/sessions/trip/diff"
    changed = (await pages.found(f"{path}?seq=2.."))["items"]
    (made,) = [one for one in changed if one["field"] == "tools_used"]
    assert (made["key"], made["before"], made["after"]["calls"]) == ("files.read", None, 1)
    whole = await pages.found(path)
    assert {one["key"] for one in whole["items"]} >= {"files.read", "files.write"}
    assert await pages.found(f"{path}?turns=-1") == whole
    assert (await pages.found(f"{path}?other=trip"))["items"] == []


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("turns=1&seq=1..2", "turns"), ("seq=1", "seq"), ("seq=2..1", "seq"), ("turns=x", "turns"),
    ],
)  # fmt: skip
async def test_a_difference_that_makes_no_sense_is_refused(
    pages: Pages, query: str, name: str
) -> None:
    await pages.call()
    said = (await pages.api(f"/sessions/trip/diff?{query}")).problem(400)
    assert said["parameter"] == name


@pytest.mark.promise("AGENT-5")
async def test_a_note_is_written_once_per_id_and_appears_in_the_state(pages: Pages) -> None:
    await pages.call()
    note = b'{"kind": "decision", "id": "d1", "text": "ask first", "why": "it is dear"}'
    target = "/sessions/trip/notes?id=n1"
    first = await pages.api(target, "POST", note)
    assert first.status == 200, first.body
    assert (first.json()["kind"], first.json()["known"]) == ("decision", False)
    again = (await pages.api(target, "POST", note)).json()
    assert (again["seq"], again["known"]) == (first.json()["seq"], True)
    made = (await pages.found("/sessions/trip/state?field=decisions_made"))["state"]
    assert made["decisions_made"]["d1"]["why"] == "it is dear"


@pytest.mark.promise("STATE-3")
async def test_a_note_about_a_fact_needs_the_head_that_its_writer_has_seen(pages: Pages) -> None:
    await pages.call()
    target = "/sessions/trip/notes"
    fact = b'{"kind": "fact", "id": "port", "action": "assert", "subject": "port", "value": "80"}'
    seq = (await pages.api(target, "POST", fact)).json()["seq"]
    await pages.call()
    for query in ("", f"?head={seq - 1}"):
        said = (await pages.api(target + query, "POST", fact)).problem(409)
        assert said["head"] == seq
    # The call in between is in nobody's way.
    assert (await pages.api(f"{target}?head={seq}", "POST", fact)).status == 200
    facts = (await pages.found("/sessions/trip/state?field=facts"))["state"]["facts"]
    (held,) = facts.values()
    assert len(held["sources"]) == 2


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"kind": "rumour"}', b'{"kind": "decision"}', b'{"kind": "delivered"}', b'{"kind": "decision", "text": "a", "also": 1}', b'{"kind": "decision", "text": ' + b"[" * 20_000],
)  # fmt: skip
async def test_an_invalid_note_is_refused(pages: Pages, body: bytes) -> None:
    await pages.call()
    (await pages.api("/sessions/trip/notes", "POST", body)).problem(400)
    assert (await pages.found("/sessions/trip"))["seq"] == 2


async def test_a_note_needs_a_session_that_is_there(pages: Pages) -> None:
    (await pages.api("/sessions/nobody/notes", "POST", NOTE)).problem(404)


async def test_a_name_with_a_slash_is_one_part_of_the_path(pages: Pages) -> None:
    await pages.call(name="team/trip")
    assert (await pages.found("/sessions/team%2Ftrip"))["names"] == ["team/trip"]
    assert (await pages.found("/sessions/t%65am%2ftrip/log"))["items"]
    (await pages.api("/sessions/team/trip")).problem(404)


async def test_a_state_from_before_a_compaction_is_gone(pages: Pages) -> None:
    await pages.call()
    context = pages.context
    later = context.clock.wall() + 400 * DAY
    with context.store.view() as view:
        due = expired(view, Retention(), later, HeldContent())
    collector = Collector(context.store, context.saved_states, context.clock)
    assert len([line async for line in collector.collect(due)]) == 2

    assert (await pages.found("/sessions/trip/state?at=2"))["at"]["seq"] == 2
    said = (await pages.api("/sessions/trip/state?at=1")).problem(410)
    assert (said["reason"], said["first"]) == ("compacted", 2)
    assert said["detail"].endswith("; ask for a later one, as with `at=2` or `seq=2..`")
    trip = CallerEvidence(path_session="trip", connection=1)
    early = call("state", {"at": 1})
    told = await pages.ask("/s/trip/turnlog/mcp", "POST", early, caller=trip)
    assert told.json()["result"]["content"][0]["text"].endswith("as with `at` 2")
    (row,) = (await pages.found("/sessions/trip/log"))["items"]
    assert row["gone"] == "expired"
    found = await pages.found(f"/calls/{row['call']}?payloads=true")
    assert found["attempts"][0]["input"]["kept"] == "expired"


async def test_what_is_wrong_with_the_store_is_told_to_the_operator_and_not_to_callers(
    pages: Pages,
) -> None:
    await pages.call()
    log = pages.data / "log"
    log.rename(pages.data / "moved")
    detail = (await pages.api("/sessions/trip/notes", "POST", NOTE)).problem(503)["detail"]
    (pages.data / "moved").rename(log)
    assert detail == "the store cannot be read or written now; the log says why"
    told = [event.reason for event in pages.log.events if isinstance(event, StoreFailed)]
    assert str(log) in told[0]
