"""Calls into a paused or closed session are refused, whichever process paused it and whatever carries them."""

import json
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Self

import pytest

from e2e.stores import turnlog
from e2e.test_record_legs import DONE as DONE_RESULT
from e2e.test_record_legs import NEW, Scripted, input_required
from e2e.test_record_sse import stream
from kit.beside import Rig, proxy_beside, ruled, session_rows
from kit.clients import BOUND, MCP_HEADERS, Client, call, message, wait_until
from kit.commands import Agent, settings
from kit.stalls import StopPoint
from kit.upstreams import Peer, RawUpstream, answer, ok, text_result
from kit.wraps import outcome, wrapping
from turnlog.store.lmdb import LmdbReader

DONE = answer(ok(json.dumps(text_result(1, "done")).encode()))
READS = "rules: [{match: {tool: read}, effect: read}, {match: {tool: put}, effect: write}]"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), READS) as rig:
        yield rig


@pytest.fixture
def met(rig: Rig) -> Rig:
    """A rig whose proxy has met the session by a call that passed."""
    rig.upstream.script = DONE
    assert b"done" in rig.post(call("read"))
    return rig


def change(rig: Rig, *words: str) -> dict[str, Any]:
    """Change the test's session by another process; return the result."""
    done = turnlog("sessions", words[0], rig.session, *words[1:], "--json", data=rig.proxy.data)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


def refused(body: bytes) -> tuple[str, str, str, str]:
    """Return kind, whether executed, retry class and text of an answer."""
    said = json.loads(body)
    found = outcome(said)
    assert found["error"] == "session"
    text = said["result"]["content"][0]["text"]
    return found["kind"], found["executed"], found["retry"], text


@pytest.mark.promise("SESS-10")
@pytest.mark.parametrize("tool", ["read", "put", "other"])
def test_a_call_into_a_paused_session_is_not_sent_and_may_be_tried_again(
    met: Rig, tool: str
) -> None:
    result = change(met, "pause", "--why", "wait for the backup")
    assert (result["stage"], result["action"], result["actor"]) == ("paused", "pause", "operator")
    sent = len(met.upstream.requests)

    kind, executed, retry, text = refused(met.post(call(tool)))

    assert (kind, executed, retry) == ("session_unavailable", "no", "safe")
    assert text.startswith(
        "the session is paused by an operator: wait for the backup; the call was not sent."
    )
    assert len(met.upstream.requests) == sent
    row = met.ended_rows(2)[-1]
    assert (row.tool, row.status, row.kind, row.phase) == (
        tool,
        "error",
        "session_unavailable",
        "queued",
    )
    change(met, "resume")
    assert b"done" in met.post(call(tool))


def test_a_second_pause_without_a_reason_keeps_that_of_the_first(met: Rig) -> None:
    change(met, "pause", "--why", "wait for the backup")
    change(met, "pause")
    assert "paused by an operator: wait for the backup" in refused(met.post(call("read")))[3]
    change(met, "pause", "--why", "wait for tomorrow")
    assert "paused by an operator: wait for tomorrow" in refused(met.post(call("read")))[3]
    change(met, "resume")
    change(met, "pause")
    assert "paused by an operator; the call was not" in refused(met.post(call("read")))[3]
    change(met, "close")
    assert refused(met.post(call("read")))[3].startswith("the session is closed; the call was not")


@pytest.mark.promise("SESS-10")
def test_a_closed_session_refuses_calls_for_good(met: Rig) -> None:
    change(met, "close")
    kind, executed, retry, text = refused(met.post(call("read")))
    assert (kind, executed, retry) == ("session_unavailable", "no", "never")
    assert text.startswith("the session is closed; the call was not sent. Do not make it again")
    done = turnlog("sessions", "resume", met.session, data=met.proxy.data)
    assert done.returncode == 2
    assert "'resume' is not possible while the session is closed" in done.stderr


@pytest.mark.promise("SESS-10")
def test_a_process_that_has_not_met_the_session_refuses_its_calls_as_well(
    met: Rig, tmp_path: Path
) -> None:
    change(met, "pause")
    flags = ("--data", str(met.proxy.data))
    with proxy_beside(tmp_path, met.upstream.url, flags=flags) as other:
        with Client(other.url) as client:
            said = client.request("POST", met.path, call("read"), headers=MCP_HEADERS).body
        assert refused(said)[0] == "session_unavailable"
    change(met, "resume")


@pytest.mark.promise("SESS-11")
def test_lookups_and_all_else_pass_in_a_paused_session(met: Rig) -> None:
    change(met, "pause")
    sent = len(met.upstream.requests)
    for method in ("tools/list", "ping", "resources/read"):
        assert b"done" in met.post(message(method, {"uri": "file:///a"}))
    assert len(met.upstream.requests) == sent + 3
    assert met.ended_rows(2)[-1].status == "ok"


@pytest.mark.promise("SESS-11")
def test_a_call_that_waits_for_input_goes_on_in_a_paused_session(rig: Rig) -> None:
    state = f"sealed-{rig.session}"
    rig.upstream.script = Scripted(input_required(state), *[DONE_RESULT] * 2)
    answered = call("ask", request_id=2, inputResponses={"x": {}}, requestState=state)
    with rig.client() as client:
        client.request("POST", rig.path, call("ask"), headers=NEW)
        change(rig, "pause")
        said = client.request("POST", rig.path, answered, headers=NEW).body
        assert b"done" in said
        said = client.request("POST", rig.path, call("ask", request_id=3), headers=NEW).body
        assert refused(said)[0] == "session_unavailable"
    assert [(row.leg, row.status.value) for row in rig.ended_rows(3)][:2] == [
        (0, "input_required"),
        (1, "ok"),
    ]


def test_other_sessions_go_on(met: Rig) -> None:
    change(met, "pause")
    met.fresh()
    met.upstream.script = DONE
    assert b"done" in met.post(call("read"))


@pytest.mark.promise("SESS-10")
def test_a_batch_with_a_call_into_a_paused_session_is_not_sent(met: Rig) -> None:
    change(met, "pause")
    sent = len(met.upstream.requests)
    batch = b"[%b,%b]" % (call("read", request_id=1), message("ping", request_id=2))
    said = json.loads(met.post(batch))
    assert [one["id"] for one in said] == [1, 2]
    assert outcome(said[0])["kind"] == "session_unavailable"
    assert said[1]["error"]["message"].endswith("the request beside it was not sent")
    assert len(met.upstream.requests) == sent


@pytest.mark.promise("SESS-10")
@pytest.mark.parametrize(("action", "status"), [("pause", 503), ("close", 409)])
def test_a_plain_call_into_a_held_session_gets_a_problem(
    rig: Rig, action: str, status: int
) -> None:
    rig.upstream.script = answer(ok(b"{}"))
    with rig.client() as client:
        place = f"/s/{rig.session}/default/items"
        assert client.request("GET", place).head.status == 200
        change(rig, action)
        refusal = client.request("GET", place)
        assert refusal.head.status == status
        problem = json.loads(refusal.body)
        assert problem["turnlog/outcome"]["kind"] == "session_unavailable"
    assert len(rig.upstream.requests) == 1


@pytest.mark.promise("SESS-10")
def test_a_call_on_the_old_transport_into_a_paused_session_is_refused(rig: Rig) -> None:
    with stream(rig) as opened:
        with rig.client() as client:
            first = client.request("POST", opened.endpoint, call("read"), headers=MCP_HEADERS)
            assert first.head.status == 202
        sent = len(rig.upstream.requests)
        change(rig, "pause")
        with rig.client() as client:
            refusal = client.request("POST", opened.endpoint, call("read"), headers=MCP_HEADERS)
            assert refusal.head.status == 502
        assert len(rig.upstream.requests) == sent


@pytest.mark.promise("SESS-10")
def test_a_wrapped_command_gets_no_call_of_a_paused_session(tmp_path: Path) -> None:
    with wrapping(tmp_path, "--session", "work") as wrap:
        wrap.server.answer(wrap.asked(call("read")))
        assert wrap.stdout.json()["id"] == 1
        done = turnlog("sessions", "pause", "work", data=wrap.data)
        assert done.returncode == 0, done.stderr
        wrap.send(call("put", request_id=2))
        assert outcome(wrap.stdout.json())["kind"] == "session_unavailable"
        assert turnlog("sessions", "resume", "work", data=wrap.data).returncode == 0
        assert wrap.asked(call("put", request_id=3))["id"] == 3


@pytest.mark.promise("SESS-10")
def test_a_command_behind_serve_gets_no_call_of_a_paused_session(tmp_path: Path) -> None:
    with proxy_beside(tmp_path, settings=settings()) as proxy:
        agent = Agent(proxy)
        assert "result" in agent.post(call("say", {"text": "x"})).json()
        (line,) = turnlog("sessions", "--json", data=proxy.data).stdout.splitlines()
        session = json.loads(line)["session"]
        assert turnlog("sessions", "pause", session, data=proxy.data).returncode == 0
        said = agent.post(call("say", {"text": "x"}, request_id=9)).json()
        assert outcome(said)["kind"] == "session_unavailable"
        agent.client.close()


def test_an_implicit_session_that_is_closed_is_followed_by_a_new_one(tmp_path: Path) -> None:
    with ruled(tmp_path, READS) as rig:
        rig.upstream.script = DONE
        with rig.client() as client:

            def ask() -> bytes:
                return client.request("POST", "/mcp", call("read"), headers=MCP_HEADERS).body

            assert b"done" in ask()
            (first,) = turnlog("sessions", "--json", data=rig.proxy.data).stdout.splitlines()
            session = json.loads(first)["session"]
            assert turnlog("sessions", "close", session, data=rig.proxy.data).returncode == 0
            assert b"done" in ask()
            assert b"done" in ask()
        lines = turnlog("sessions", "--json", data=rig.proxy.data).stdout.splitlines()
        found = list(map(json.loads, lines))
        assert {line["session"]: line["stage"] for line in found}[session] == "closed"
        (new,) = [line for line in found if line["session"] != session]
        assert (new["stage"], new["metadata"]["follows"]) == ("active", session)


def test_a_merged_session_goes_on_in_the_other(met: Rig) -> None:
    target = f"{met.session}-target"
    with met.client() as client:
        client.request("POST", f"/s/{target}/mcp", call("read"), headers=MCP_HEADERS)
    old = met.session
    result = change(met, "merge", target)
    assert result["stage"] == "closed"
    assert b"done" in met.post(call("put"))
    assert [row.tool for row in session_rows(met.proxy.data, target)][-1] == "put"
    assert [row.tool for row in session_rows(met.proxy.data, old)][-1] == "put"


def test_another_name_leads_to_the_session(met: Rig) -> None:
    name = f"{met.session}-other"
    change(met, "alias", name)
    with met.client() as client:
        client.request("POST", f"/s/{name}/mcp", call("put"), headers=MCP_HEADERS)
    assert [row.tool for row in met.ended_rows(2)] == ["read", "put"]


class Working:
    """An agent that calls for ever, and notes for each call when it was made and what it came to."""

    def __init__(self, url: str, name: str, ticks: Iterator[int]) -> None:
        self.made: list[tuple[int, str]] = []
        self._target = (url, f"/s/{name}/mcp")
        self._ticks = ticks
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(BOUND)

    def goes_on(self) -> None:
        """Wait until it has made some more calls."""
        count = len(self.made) + 5
        wait_until(lambda: len(self.made) >= count, "the agent makes calls")

    def _work(self) -> None:
        url, path = self._target
        with Client(url) as client:
            while not self._stop.is_set():
                tick = next(self._ticks)
                tool = "put" if tick % 3 == 0 else "read"
                asked = call(tool, {"n": tick}, request_id=tick)
                body = client.request("POST", path, asked, headers=MCP_HEADERS).body
                self.made.append((tick, "sent" if b"done" in body else refused(body)[0]))


@contextmanager
def two_agents(folder: Path) -> Generator[tuple[Path, Iterator[int], Working, Working]]:
    """Run two agents that work in the session `shared`, each behind a proxy of its own."""

    def script(peer: Peer) -> None:
        peer.send_json(text_result(peer.read().json()["id"], "done"))

    ticks = count(1)
    with ruled(folder, READS) as rig:
        rig.upstream.script = script
        data, rules = rig.proxy.data, str(folder / "rules.yaml")
        (folder / "other").mkdir()
        flags = ("--data", str(data), "--rules", rules)
        with (
            proxy_beside(folder / "other", rig.upstream.url, flags=flags) as other,
            Working(rig.proxy.url, "shared", ticks) as one,
            Working(other.url, "shared", ticks) as two,
        ):
            for agent in (one, two):
                agent.goes_on()
            yield data, ticks, one, two


@contextmanager
def overtaken(
    folder: Path, tool: str, *command: str, others: Sequence[str] = ()
) -> Generator[tuple[Rig, bytes]]:
    """Yield the answer to a call of which a command changed the session before the call was recorded.

    `others` are further sessions of the store.
    """
    (folder / "rules.yaml").write_text(READS)
    point = StopPoint("turnlog.record.recorder:Recorder.begin", folder / "armed")
    rules = {"rules": ["rules.yaml"]}
    with (
        RawUpstream() as upstream,
        proxy_beside(folder, upstream.url, settings=rules, environ=point.environ) as proxy,
        ThreadPoolExecutor() as pool,
    ):
        rig = Rig(upstream, proxy)
        for rig.session in (*others, "work"):
            rig.post(call("read"))
            rig.ended_rows()
        point.arm()
        given = pool.submit(rig.post, call(tool))
        with point.stopped(proxy.process.pid):
            done = turnlog(*command, data=proxy.data)
            assert done.returncode == 0, done.stderr
        yield rig, given.result(BOUND)


@pytest.mark.promise("SESS-10")
@pytest.mark.parametrize("tool", ["put", "other"])
@pytest.mark.parametrize(("action", "retry"), [("pause", "safe"), ("close", "never")])
def test_a_call_that_passed_before_the_pause_and_is_recorded_behind_it_is_not_sent(
    tmp_path: Path, tool: str, action: str, retry: str
) -> None:
    with overtaken(tmp_path, tool, "sessions", action, "work") as (rig, answered):
        kind, executed, told, text = refused(answered)
        assert (kind, executed, told) == ("session_unavailable", "no", retry)
        assert text.startswith(f"the session is {'paused' if action == 'pause' else 'closed'}")
        assert len(rig.upstream.requests) == 1
        row = rig.ended_rows(2)[-1]
        assert (row.tool, row.kind, row.phase) == (tool, "session_unavailable", "queued")
        assert turnlog("verify", data=rig.proxy.data).returncode == 0


@pytest.mark.promise("SESS-10")
def test_a_call_that_a_merge_has_overtaken_is_not_sent_and_goes_to_the_other_when_made_again(
    tmp_path: Path,
) -> None:
    merge = ("sessions", "merge", "work", "target")
    with overtaken(tmp_path, "put", *merge, others=("target",)) as (rig, answered):
        kind, executed, retry, text = refused(answered)
        assert (kind, executed, retry) == ("session_unavailable", "no", "safe")
        assert text.startswith("the session is closed; the call was not sent. It can be made again")
        assert b"done" in rig.post(call("put"))
        assert [row.tool for row in session_rows(rig.proxy.data, "target")] == ["read", "put"]


@pytest.mark.promise("SESS-10")
def test_a_call_that_a_move_has_overtaken_is_neither_sent_nor_recorded(tmp_path: Path) -> None:
    bundle = str(tmp_path / "bundle")
    with overtaken(tmp_path, "put", "resume", "work", "--bundle", bundle) as (rig, answered):
        kind, executed, retry, text = refused(answered)
        assert (kind, executed, retry) == ("session_unavailable", "no", "never")
        assert text.startswith("the session was moved to another store")
        assert (len(rig.upstream.requests), len(rig.rows())) == (1, 1)
        assert turnlog("import", bundle, data=rig.proxy.data).returncode == 0


@pytest.mark.promise("SESS-10")
def test_a_read_that_a_pause_has_overtaken_was_sent_and_began_before_it(tmp_path: Path) -> None:
    with overtaken(tmp_path, "read", "sessions", "pause", "work") as (rig, answered):
        assert b"done" in answered
        assert rig.ended_rows(2)[-1].status == "ok"


@pytest.mark.promise("SESS-10", "SESS-2")
def test_a_pause_holds_in_all_processes_from_the_moment_it_is_acknowledged(tmp_path: Path) -> None:
    spans: list[tuple[int, int, str]] = []
    with two_agents(tmp_path) as (data, ticks, *agents):
        for _ in range(4):
            for action, result in (("pause", "session_unavailable"), ("resume", "sent")):
                done = turnlog("sessions", action, "shared", data=data)
                assert done.returncode == 0, done.stderr
                since = next(ticks)
                for agent in agents:
                    agent.goes_on()
                spans.append((since, next(ticks), result))
    calls = [made for agent in agents for made in agent.made]
    for since, until, result in spans:
        assert {what for tick, what in calls if since < tick < until} == {result}
    assert len(session_rows(data, "shared")) == len(calls)
    assert turnlog("verify", data=data).returncode == 0


@pytest.mark.promise("SESS-2", "SESS-13")
def test_a_session_at_work_is_paused_rewound_and_resumed_and_loses_no_commit(
    tmp_path: Path,
) -> None:
    with two_agents(tmp_path) as (data, _, *agents):
        for number in range(3):
            assert turnlog("sessions", "pause", "shared", data=data).returncode == 0
            plan = turnlog("rewind", "shared", str(2 * number), "--json", data=data)
            for agent in agents:
                agent.goes_on()
            yes = ("--yes", "--expect", str(json.loads(plan.stdout)["head"]))
            done = turnlog("rewind", "shared", str(2 * number), *yes, data=data)
            assert done.returncode == 0, done.stderr
            again = turnlog("rewind", "shared", "0", *yes, data=data)
            assert (again.returncode, "newest commit is" in again.stderr) == (2, True)
            assert turnlog("sessions", "resume", "shared", data=data).returncode == 0
            for agent in agents:
                agent.goes_on()
    calls = sum(len(agent.made) for agent in agents)
    everything = turnlog("log", "shared", "--all", "--last", "100000", "--json", data=data)
    assert len(everything.stdout.splitlines()) == calls
    live = turnlog("log", "shared", "--last", "100000", "--json", data=data).stdout.splitlines()
    assert 0 < len(live) < calls
    assert turnlog("verify", data=data).returncode == 0
    with LmdbReader.open(data) as reader, reader.view() as view:
        (session,) = view.find_sessions("shared")
        commits = list(view.commits(session))
    assert [commit.link.seq for commit in commits] == list(range(len(commits)))
