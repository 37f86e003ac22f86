"""Which calls are the same: those of one target, by one principal."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.stores import turnlog
from kit.beside import Rig, proxy_beside
from kit.clients import MCP_HEADERS, call, wait_until
from kit.proxy import Proxy
from kit.upstreams import Peer, RawUpstream, ok, text_result

RULES = """
rules:
  - match: {tool: ["write*", "POST /write*"], method: [tools/call, POST]}
    effect: write
  - match: {tool: "pay*"}
    effect: irreversible
"""
KEY = ("Idempotency-Key", "key-1")
WRITE = call("write", {"a": 1})
SETTINGS = {
    "rules": ["rules.yaml"],
    "never_twice": {"join_after": "1h"},
    "identity": {"principal": ["authorization", "*-token", "cookie:sid", "*-api-key", "api-key"]},
}


class Counting:
    """Answer each call with its number; those in `held` are not answered until they are let go."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.go = threading.Event()
        self.holds = False
        self._lock = threading.Lock()

    def __call__(self, peer: Peer) -> None:
        """Count, and answer."""
        request = peer.read()
        with self._lock:
            self.asked.append(request.target)
            number = len(self.asked)
        while self.holds and not self.go.wait(0.01):
            if peer.wait_for_hang_up(0.01):
                return
        if b"jsonrpc" not in request.body:
            peer.send(ok(f"done {number}".encode(), media="text/plain"))
            return
        answer = text_result(json.loads(request.body)["id"], f"done {number}")
        peer.send_json(answer)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "rules.yaml").write_text(RULES)
    with RawUpstream() as upstream, proxy_beside(folder, upstream.url, settings=SETTINGS) as proxy:
        yield Rig(upstream, proxy)


@pytest.fixture
def counting(rig: Rig) -> Iterator[Counting]:
    script = rig.upstream.script = Counting()
    yield script
    script.go.set()


def asked(rig: Rig, path: str, *headers: tuple[str, str], body: bytes = WRITE) -> str:
    """Return what the answer to a call of this session at a path says."""
    with rig.client() as client:
        target = f"/s/{rig.session}{path}"
        answer = client.request("POST", target, body, headers=(*MCP_HEADERS, *headers))
    said = json.loads(answer.body)["result"]["content"][0]["text"] if b"jsonrpc" in body else ""
    return str(said or answer.body.decode())


def left(rig: Rig, counting: Counting, path: str, *headers: tuple[str, str]) -> None:
    """Ask, and leave before the answer, which then goes to nobody."""
    counting.holds = True
    before = rig.notes().count("abandoned")
    with rig.client() as client:
        client.ask("POST", f"/s/{rig.session}{path}", WRITE, headers=(*MCP_HEADERS, *headers))
        wait_until(lambda: len(counting.asked) == 1, "the server has the call")
    wait_until(lambda: rig.notes().count("abandoned") > before, "the proxy has noticed")


def key_of(rig: Rig) -> tuple[str, str]:
    """Return a key of this test's own: keys count in all sessions."""
    return "Idempotency-Key", f"of {rig.session}"


PLACES = {
    "path": ("/gw/acme/mcp", "/gw/globex/mcp"),
    "query": ("/mcp?project_ref=one", "/mcp?project_ref=two"),
    "no query": ("/mcp?project_ref=one", "/mcp"),
}
PRINCIPALS = {
    "Private-Token": (("Private-Token", "alice"), ("Private-Token", "bob")),
    "Authorization": (("Authorization", "Bearer a"), ("Authorization", "Bearer b")),
    "Cookie": (("Cookie", "sid=a"), ("Cookie", "sid=b")),
    "none": (("Private-Token", "alice"), ("X-Nothing", "")),
}


@pytest.mark.promise("TWICE-20")
@pytest.mark.parametrize("name", PLACES)
def test_a_key_identifies_a_call_at_one_url(rig: Rig, counting: Counting, name: str) -> None:
    one, two = PLACES[name]
    assert [asked(rig, path, key_of(rig)) for path in (one, two, one, two)] == [
        *("done 1", "done 2", "done 1", "done 2")
    ]
    assert counting.asked == [one.encode(), two.encode()]


@pytest.mark.parametrize("name", PLACES)
def test_a_lost_answer_is_given_only_at_its_own_url(
    rig: Rig, counting: Counting, name: str
) -> None:
    one, two = PLACES[name]
    left(rig, counting, one)
    counting.go.set()
    assert asked(rig, two) == "done 2"
    assert asked(rig, one) == "done 1"
    assert [row.flags[:1] for row in rig.ended_rows(3)] == [["late"], [], ["replayed"]]


def test_a_call_in_flight_is_joined_only_at_its_own_url(rig: Rig, counting: Counting) -> None:
    left(rig, counting, "/gw/acme/mcp")
    with rig.client() as client:
        client.ask("POST", f"/s/{rig.session}/gw/globex/mcp", WRITE, headers=MCP_HEADERS)
        wait_until(lambda: len(counting.asked) == 2, "the server has both calls")
    assert counting.asked == [b"/gw/acme/mcp", b"/gw/globex/mcp"]


@pytest.mark.promise("TWICE-20")
@pytest.mark.parametrize("name", PRINCIPALS)
def test_a_key_identifies_a_call_of_one_principal(rig: Rig, counting: Counting, name: str) -> None:
    alice, bob = PRINCIPALS[name]
    given = [asked(rig, "/mcp", key_of(rig), who) for who in (alice, bob, alice, bob)]
    assert given == ["done 1", "done 2", "done 1", "done 2"]


@pytest.mark.promise("TWICE-23")
@pytest.mark.parametrize("name", PRINCIPALS)
def test_a_lost_answer_is_never_given_to_another_principal_and_the_repeat_is_flagged(
    rig: Rig, counting: Counting, name: str
) -> None:
    alice, bob = PRINCIPALS[name]
    left(rig, counting, "/mcp", alice)
    counting.go.set()
    assert asked(rig, "/mcp", bob) == "done 2"
    assert asked(rig, "/mcp", alice) == "done 1"
    flags = sorted(row.flags[:1] for row in rig.ended_rows(3))
    assert flags == [["late"], ["repeat_of_unknown"], ["replayed"]]


def test_a_call_that_equals_a_running_one_of_another_caller_says_that_it_may_repeat_it(
    rig: Rig, counting: Counting
) -> None:
    alice, bob = PRINCIPALS["Private-Token"]
    left(rig, counting, "/mcp", alice)
    counting.holds = False
    assert asked(rig, "/mcp", bob) == "done 2"
    counting.go.set()
    assert sorted(row.flags for row in rig.ended_rows(2)) == [["late"], ["repeat_of_unknown"]]


def test_an_answer_to_one_principal_is_not_delivered_to_another(
    rig: Rig, counting: Counting
) -> None:
    alice, bob = PRINCIPALS["Private-Token"]
    assert [asked(rig, "/mcp", who) for who in (alice, bob)] == ["done 1", "done 2"]
    assert [row.flags for row in rig.ended_rows(2)] == [[], []]


@pytest.mark.promise("TWICE-24")
@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("X-CSRF-Token", "1"), ("X-CSRF-Token", "2")),
        (("Cookie", "sid=a; _ga=1"), ("Cookie", "_ga=2; sid=a")),
        (("DPoP", "proof-1"), ("DPoP", "proof-2")),
    ],
    ids=["token against forgery", "other cookies", "proof"],
)
def test_fields_that_change_with_each_request_do_not_change_the_caller(
    rig: Rig, counting: Counting, one: tuple[str, str], two: tuple[str, str]
) -> None:
    left(rig, counting, "/mcp", one)
    counting.go.set()
    rig.ended_rows(1)
    assert asked(rig, "/mcp", two) == "done 1"


def test_a_credential_in_the_query_is_the_callers_and_not_the_targets(
    rig: Rig, counting: Counting
) -> None:
    left(rig, counting, "/mcp?api_key=alice")
    counting.go.set()
    assert asked(rig, "/mcp?api_key=bob") == "done 2"
    assert asked(rig, "/mcp?api_key=alice") == "done 1"
    flags = sorted(row.flags[:1] for row in rig.ended_rows(3))
    assert flags == [["late"], ["repeat_of_unknown"], ["replayed"]]


@pytest.mark.promise("TWICE-19")
def test_the_same_key_with_another_path_of_a_plain_tool_is_a_conflict(
    rig: Rig, counting: Counting
) -> None:
    first = asked(rig, "/write/1?project=one", key_of(rig), body=b"{}")
    assert first == "done 1"
    assert "conflict" in asked(rig, "/write/1?project=two", key_of(rig), body=b"{}")
    assert asked(rig, "/write/1?project=one", key_of(rig), body=b"{}") == "done 1"


def test_implicit_sessions_of_two_projects_behind_one_gateway_are_two(
    rig: Rig, counting: Counting
) -> None:
    agent = ("User-Agent", f"agent of {rig.session}")
    ids_seen: list[str] = []
    for path in ("/gw/acme/mcp", "/gw/globex/mcp", "/gw/acme/mcp"):
        with rig.client() as client:
            answer = client.request("POST", path, WRITE, headers=(*MCP_HEADERS, agent))
        ids_seen.append(answer.head.one("turnlog-session") or "")
    assert ids_seen[0] == ids_seen[2] != ids_seen[1]


def test_two_servers_behind_one_gateway_may_give_out_the_same_session_id(
    rig: Rig, counting: Counting
) -> None:
    seen: list[str] = []
    for path in ("/gw/acme/mcp", "/gw/globex/mcp", "/gw/acme/mcp"):
        with rig.client() as client:
            answer = client.request("POST", path, WRITE, headers=rig.session_headers)
        seen.append(answer.head.one("turnlog-session") or "")
    assert seen[0] == seen[2] != seen[1]


# -- where it cannot hold ------------------------------------------------------------------


@pytest.mark.promise("TWICE-27")
def test_it_is_reported_once_that_duplicates_would_not_be_found(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url, settings=SETTINGS) as proxy,
    ):
        upstream.script = Counting()
        rig = Rig(upstream, proxy)

        def ask(path: str, *headers: tuple[str, str], tool: str = "write") -> None:
            with rig.client() as client:
                body = call(tool, {"a": 1})
                client.request("POST", path, body, headers=(*MCP_HEADERS, *headers))

        ask("/s/one/mcp")
        ask("/mcp", KEY)
        ask("/mcp", tool="look")
        for number in range(5):
            ask("/mcp")
            ask("/mcp", ("Mcp-Session-Id", f"session-{number}"))
        proxy.told("session.uncovered", 2)
        wait_until(lambda: b"never-twice" in status(proxy), "the proxy has told of it")
        said = [
            (e["turnlog.reason"], e["gen_ai.tool.name"]) for e in proxy.events("session.uncovered")
        ]
        assert said == [("unnamed", "write"), ("per_call", "write")]
        assert b"never-twice does not hold for 2 callers (see `session.uncovered`)" in status(proxy)


def status(proxy: Proxy) -> bytes:
    return turnlog("status", data=proxy.data).stdout.encode()


def test_explaining_a_rule_says_what_never_twice_needs(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    asked_of = ("rules", "explain", "--rules", str(tmp_path / "rules.yaml"))
    assert "`session.uncovered`" in turnlog(*asked_of, "files", "write").stdout
    assert "`session.uncovered`" not in turnlog(*asked_of, "files", "look").stdout
