"""Calls whose effect is named: one that is asked again while it runs, or whose answer was lost, runs
once."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from e2e.stores import turnlog
from kit.beside import Rig, proxy_beside, timed_notes
from kit.clients import (
    BOUND,
    MCP_HEADERS,
    Client,
    ClosedEarlyError,
    call,
    message,
    wait_until,
)
from kit.faults import Hangs, SlowHead
from kit.holding import nobody_writes
from kit.stalls import StopPoint
from kit.upstreams import Peer, RawUpstream, chunked, ok, text_result
from turnlog.core.kinds import NoteKind
from turnlog.store.lmdb import LmdbReader

RULES = """
rules:
  - match: {tool: ["write*", "POST /write*"], method: [tools/call, POST]}
    effect: write
  - match: {tool: "put*"}
    effect: idempotent_write
  - match: {tool: "pay*"}
    effect: irreversible
  - match: {tool: "*_alone"}
    on_duplicate: block
  - match: {tool: "*_freely"}
    on_duplicate: pass
  - match: {tool: "*_slowly"}
    replay_if_slower_than: 1ms
  - match: {tool: ["*_timed", "* /*timed"]}
    timeout: {response: 200ms}
  - match: {method: HEAD}
    effect: write
  - match: {tool: "*_cancelled"}
    on_disconnect: cancel
  - match: {tool: "*_unrecorded"}
    store: nothing
"""
STATELESS = (*MCP_HEADERS, ("MCP-Protocol-Version", "2026-07-28"))
SETTINGS = {"never_twice": {"join_after": "1h", "cancel_grace": "1h"}}
KEY = ("Idempotency-Key", "key-1")


Headers = tuple[tuple[str, str], ...]


class Begun(Protocol):
    """Asks for something."""

    def __call__(self, body: bytes, *headers: tuple[str, str], path: str = "") -> Client:
        """Return the connection."""
        ...


class Counting:
    """Count calls; answer each with its number, once it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.streams = False
        self.cancels: list[Any] = []
        self.go = threading.Event()
        self.hung_up = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, peer: Peer) -> None:
        """Count, and answer as an event where `streams` says so."""
        request = peer.read()
        said = json.loads(request.body)
        if said.get("method", "").startswith("notifications/"):
            self.cancels.append(said)
            peer.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            return
        with self._lock:
            self.asked += 1
            number = self.asked
        if self.streams:
            peer.start_events()
            peer.send_event({"jsonrpc": "2.0", "method": "notifications/message"})
        while not self.go.wait(0.01):
            if peer.wait_for_hang_up(0.01):
                self.hung_up.set()
                return
        answer = text_result(said.get("id"), f"done {number}")
        if self.streams:
            peer.send_event(answer)
            peer.end()
        else:
            peer.send_json(answer)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "rules.yaml").write_text(RULES)
    settings = {"rules": ["rules.yaml"], **SETTINGS}
    with RawUpstream() as upstream, proxy_beside(folder, upstream.url, settings=settings) as proxy:
        yield Rig(upstream, proxy)


@pytest.fixture
def counting(rig: Rig) -> Iterator[Counting]:
    script = rig.upstream.script = Counting()
    yield script
    script.go.set()
    rig.rest()


@pytest.fixture
def begun(rig: Rig) -> Iterator[Begun]:
    """Return what asks, and does not wait for the answer."""
    with ExitStack() as clients:

        def ask(body: bytes, *headers: tuple[str, str], path: str = "") -> Client:
            client = clients.enter_context(rig.client())
            client.ask("POST", path or rig.path, body, headers=headers or MCP_HEADERS)
            return client

        yield ask


@pytest.fixture
def left(rig: Rig, counting: Counting, begun: Begun) -> Begun:
    """Return what asks, and leaves as soon as the server has the call."""

    def leave(body: bytes, *headers: tuple[str, str], path: str = "") -> Client:
        before = counting.asked
        client = begun(body, *headers, path=path)
        wait_until(lambda: counting.asked > before, "the server has the call")
        client.close()
        wait_until(lambda: "abandoned" in rig.notes(), "the proxy has noticed")
        return client

    return leave


def answer_in(body: bytes) -> Any:
    """Return the result in a body, or in the last event of a stream."""
    events = [line[5:] for line in body.splitlines() if line.startswith(b"data:")]
    return json.loads(events[-1] if events else body)["result"]


def text(body: bytes) -> str:
    return str(answer_in(body)["content"][0]["text"])


@pytest.mark.promise("TWICE-3")
def test_a_duplicate_joins_a_call_whose_caller_left(
    rig: Rig, counting: Counting, left: Begun, begun: Begun
) -> None:
    left(call("write", {"a": 1}, request_id=1))
    again = begun(call("write", {"a": 1}, request_id="two"))
    counting.go.set()
    given = again.response("POST")
    assert counting.asked == 1
    assert (given.json()["id"], text(given.body)) == ("two", "done 1")
    assert given.head.one("turnlog-status") == "replayed"
    assert given.json()["result"]["_meta"]["turnlog/outcome"]["status"] == "replayed"
    first, second = rig.ended_rows(2)
    assert (first.status, first.flags, first.executed) == ("ok", ["late"], "yes")
    assert second.status == "replayed"
    assert set(second.flags) == {"replayed", "joined"}
    assert (second.executed, second.phase) == ("yes", "queued")


@pytest.mark.promise("TWICE-3")
@pytest.mark.parametrize("headers", [MCP_HEADERS, STATELESS], ids=["handshake", "stateless"])
@pytest.mark.parametrize("answered", [False, True])
def test_a_duplicate_joins_a_call_as_soon_as_it_was_sent(
    rig: Rig, counting: Counting, begun: Begun, headers: Headers, answered: bool
) -> None:
    first = begun(call("write", {"a": 1}, request_id=1), *headers)
    wait_until(lambda: counting.asked == 1, "the server has the call")
    first.close()
    if answered:
        counting.go.set()
    again = begun(call("write", {"a": 1}, request_id="two"), *headers)
    counting.go.set()
    assert text(again.response("POST").body) == "done 1"
    assert counting.asked == 1


def test_a_half_closed_caller_is_still_waiting_so_an_equal_call_is_a_new_one(
    rig: Rig, counting: Counting, begun: Begun
) -> None:
    first = begun(call("write", {"a": 1}, request_id=1))
    wait_until(lambda: counting.asked == 1, "the server has the call")
    first.end()
    again = begun(call("write", {"a": 1}, request_id="two"))
    wait_until(lambda: counting.asked == 2, "the server has both calls")
    counting.go.set()
    given = [text(client.response("POST").body) for client in (first, again)]
    assert sorted(given) == ["done 1", "done 2"]


@pytest.mark.promise("REC-10", "TWICE-22")
@pytest.mark.parametrize("how", ["leaves", "takes it back"])
def test_a_call_that_is_given_up_before_it_is_decided_has_a_row_and_is_not_sent(
    rig: Rig, counting: Counting, begun: Begun, how: str
) -> None:
    first = begun(call("write", {"a": 1}, request_id=1))
    wait_until(lambda: counting.asked == 1, "the server has the call")
    first.end()  # for up to 1 s nobody knows whether its caller is gone
    again = begun(call("write", {"a": 1}, request_id="two"))
    if how == "leaves":
        again.close()
    else:
        rig.post(message("notifications/cancelled", {"requestId": "two"}, request_id=None))
    wait_until(lambda: len(rig.rows()) == 2, "the second one has a row")
    row = rig.rows()[-1]
    assert (row.kind, row.executed, row.phase) == ("cancelled_by_caller", "no", "queued")
    assert (row.flags, row.retry) == ([], "safe")
    counting.go.set()
    assert text(first.response("POST").body) == "done 1"
    assert counting.asked == 1


@pytest.mark.promise("TWICE-6")
def test_a_lost_answer_is_replayed_to_one_duplicate_and_then_no_more(
    rig: Rig, counting: Counting, left: Begun
) -> None:
    left(call("write", {"a": 1}))
    counting.go.set()
    rig.ended_rows(1)
    assert text(rig.post(call("write", {"a": 1}, request_id=2))) == "done 1"
    assert text(rig.post(call("write", {"a": 1}, request_id=3))) == "done 2"
    assert [row.status for row in rig.ended_rows(3)] == ["ok", "replayed", "ok"]


@pytest.mark.promise("TWICE-5")
@pytest.mark.parametrize(
    "other", [call("write", {"a": 2}), call("write_other", {"a": 1})], ids=["input", "tool"]
)
def test_another_call_is_another_call(
    rig: Rig, counting: Counting, other: bytes, left: Begun
) -> None:
    left(call("write", {"a": 1}))
    counting.go.set()
    assert text(rig.post(other)) == "done 2"


@pytest.mark.promise("TWICE-5")
def test_another_session_is_another_caller(rig: Rig, counting: Counting, left: Begun) -> None:
    left(call("write", {"a": 1}))
    counting.go.set()
    rig.ended_rows(1)
    rig.session += "-other"
    assert text(rig.post(call("write", {"a": 1}))) == "done 2"


@pytest.mark.promise("TWICE-4")
def test_calls_that_begin_together_are_as_many_as_there_are(
    rig: Rig, counting: Counting, begun: Begun
) -> None:
    clients = [begun(call("write", {"a": 1}, request_id=n)) for n in range(3)]
    wait_until(lambda: counting.asked == 3, "all are at the server")
    counting.go.set()
    assert sorted(text(client.response("POST").body) for client in clients) == [
        "done 1",
        "done 2",
        "done 3",
    ]


@pytest.mark.promise("TWICE-1")
def test_a_call_of_an_unknown_effect_ends_with_its_caller(
    rig: Rig, counting: Counting, begun: Begun
) -> None:
    client = begun(call("something", {"a": 1}))
    wait_until(lambda: counting.asked == 1, "the server has the call")
    client.close()
    assert counting.hung_up.wait(BOUND)
    row = rig.row()
    assert (row.kind, row.status) == ("cancelled_by_caller", "unknown")
    assert rig.notes() == []


@pytest.mark.promise("TWICE-12")
def test_a_rule_cancels_a_call_whose_stream_is_closed_at_once(
    rig: Rig, counting: Counting, left: Begun
) -> None:
    left(call("write_cancelled", {"a": 1}), *STATELESS)
    assert counting.hung_up.wait(BOUND)
    assert counting.cancels == []
    assert rig.row().kind == "cancelled_by_caller"
    assert rig.notes() == ["abandoned", "cancel_forwarded"]


@pytest.mark.promise("TWICE-12")
def test_a_closed_stream_cancels_the_call_after_the_grace(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    grace = {"never_twice": {"cancel_grace": "300ms"}}
    settings = {"rules": ["rules.yaml"], **grace}
    counting = Counting()
    with (
        RawUpstream(counting) as upstream,
        proxy_beside(tmp_path, upstream.url, settings=settings) as proxy,
        Client(proxy.url) as client,
    ):
        client.ask("POST", "/s/one/mcp", call("write", {"a": 1}), headers=STATELESS)
        wait_until(lambda: counting.asked == 1, "the server has the call")
        client.close()
        assert counting.hung_up.wait(BOUND)
        counting.go.set()
    (left, left_at), (cancelled, cancelled_at) = timed_notes(proxy.data, "one")
    assert (left, cancelled) == ("abandoned", "cancel_forwarded")
    assert cancelled_at - left_at >= 300_000_000


def test_in_earlier_revisions_the_server_gets_a_cancel_notification(
    rig: Rig, counting: Counting, left: Begun
) -> None:
    left(call("write_cancelled", {"a": 1}, request_id="mine"))
    wait_until(lambda: counting.cancels, "a cancel comes")
    assert counting.cancels[0]["params"]["requestId"] == "mine"


@pytest.mark.promise("TWICE-13")
def test_the_repeat_of_a_cancelled_call_has_a_flag(
    rig: Rig, counting: Counting, left: Begun
) -> None:
    left(call("write_cancelled", {"a": 1}))
    rig.ended_rows(1)
    counting.go.set()
    assert text(rig.post(call("write_cancelled", {"a": 1}))) == "done 2"
    assert rig.ended_rows(2)[1].flags == ["repeat_of_unknown"]


@pytest.mark.promise("TWICE-11")
def test_a_cancel_by_the_caller_is_forwarded_at_once(
    rig: Rig, counting: Counting, begun: Begun
) -> None:
    client = begun(call("write", {"a": 1}, request_id=7), *rig.session_headers)
    wait_until(lambda: counting.asked == 1, "the server has the call")
    cancel = message("notifications/cancelled", {"requestId": 7}, request_id=None)
    with rig.client() as other:
        other.request("POST", rig.path, cancel, headers=rig.session_headers)
    wait_until(lambda: counting.cancels, "the cancel arrives")
    client.close()
    wait_until(lambda: "abandoned" in rig.notes(), "the proxy has noticed")
    assert rig.notes()[0] == "cancel_forwarded"
    counting.go.set()
    assert text(rig.post(call("write", {"a": 1}, request_id=8), *rig.session_headers[2:]))


def test_a_server_that_never_answers_a_cancelled_call_causes_only_a_short_delay(
    rig: Rig, counting: Counting, begun: Begun
) -> None:
    client = begun(call("write", {"a": 1}, request_id=7), *rig.session_headers)
    wait_until(lambda: counting.asked == 1, "the server has the call")
    cancel = message("notifications/cancelled", {"requestId": 7}, request_id=None)
    with rig.client() as other:
        other.request("POST", rig.path, cancel, headers=rig.session_headers)
    again = begun(call("write", {"a": 1}, request_id=8), *rig.session_headers)
    wait_until(lambda: counting.asked == 2, "the call is made again")
    client.close()
    counting.go.set()
    assert text(again.response("POST").body) == "done 2"
    assert rig.ended_rows(2)[1].flags == ["repeat_of_unknown"]


@pytest.mark.promise("TWICE-30")
def test_a_rule_can_forward_every_duplicate(
    rig: Rig, counting: Counting, left: Begun, begun: Begun
) -> None:
    left(call("write_freely", {"a": 1}))
    again = begun(call("write_freely", {"a": 1}))
    wait_until(lambda: counting.asked == 2, "the server has both calls, while the first one runs")
    counting.go.set()
    assert text(again.response("POST").body) == "done 2"


@pytest.mark.promise("TWICE-30")
def test_a_rule_can_refuse_a_duplicate(rig: Rig, counting: Counting, left: Begun) -> None:
    left(call("write_alone", {"a": 1}))
    said = json.loads(rig.post(call("write_alone", {"a": 1})))["result"]
    assert said["isError"] is True
    assert said["_meta"]["turnlog/outcome"]["kind"] == "policy_blocked"
    assert counting.asked == 1


@pytest.mark.promise("TWICE-30")
def test_an_answer_that_took_long_may_be_given_twice(
    rig: Rig, counting: Counting, begun: Begun
) -> None:
    client = begun(call("write_slowly", {"a": 1}))
    wait_until(lambda: counting.asked == 1, "the server has the call")
    counting.go.set()
    assert text(client.response("POST").body) == "done 1"
    wait_until(lambda: "delivered" in rig.notes(), "it is noted")
    assert text(rig.post(call("write_slowly", {"a": 1}))) == "done 1"


@pytest.mark.promise("TWICE-18")
def test_a_key_identifies_one_call_even_after_its_answer(rig: Rig, counting: Counting) -> None:
    counting.go.set()
    key = ("Idempotency-Key", rig.session)
    assert text(rig.post(call("anything", {"a": 1}), key)) == "done 1"
    assert text(rig.post(call("anything", {"a": 1}, request_id=2), key)) == "done 1"
    said = json.loads(rig.post(call("anything", {"a": 2}), key))["result"]
    assert said["_meta"]["turnlog/outcome"]["kind"] == "conflict"
    assert text(rig.post(call("anything", {"a": 1}))) == "done 2"
    named = call("anything", {"a": 1}, _meta={"turnlog/key": rig.session})
    assert text(rig.post(named)) == "done 1"


def test_a_key_identifies_the_call_that_answered_it(
    rig: Rig, counting: Counting, left: Begun
) -> None:
    left(call("write", {"a": 1}))
    counting.go.set()
    rig.ended_rows(1)
    key = ("Idempotency-Key", rig.session)
    for request_id in (2, 3, 4):
        asked = call("write", {"a": 1}, request_id=request_id)
        assert text(rig.post(asked, key)) == "done 1"
    said = json.loads(rig.post(call("write", {"a": 2}), key))["result"]
    assert said["_meta"]["turnlog/outcome"]["kind"] == "conflict"
    assert [row.status for row in rig.ended_rows(5)] == ["ok", *["replayed"] * 3, "error"]


def test_a_key_identifies_the_call_that_it_joined(
    rig: Rig, counting: Counting, left: Begun, begun: Begun
) -> None:
    left(call("write", {"a": 1}))
    key = ("Idempotency-Key", rig.session)
    joiner = begun(call("write", {"a": 1}, request_id=2), *MCP_HEADERS, key)
    other = begun(call("write", {"a": 1}, request_id=3))
    joiner.close()
    wait_until(lambda: rig.rows()[-1].status == "error", "the joiner's leaving is recorded")
    counting.go.set()
    assert text(other.response("POST").body) == "done 1"
    assert text(rig.post(call("write", {"a": 1}, request_id=4), key)) == "done 1"
    assert counting.asked == 1


@pytest.mark.promise("TWICE-18")
def test_another_key_is_another_call(rig: Rig, counting: Counting, left: Begun) -> None:
    keys = [("Idempotency-Key", f"{rig.session} {n}") for n in range(2)]
    left(call("write", {"a": 1}), *MCP_HEADERS, keys[0])
    counting.go.set()
    rig.ended_rows(1)
    assert text(rig.post(call("write", {"a": 1}, request_id=2), keys[1])) == "done 2"
    assert text(rig.post(call("write", {"a": 1}, request_id=3), keys[0])) == "done 1"


def test_a_plain_call_is_answered_as_the_first_one_was(
    rig: Rig, counting: Counting, left: Begun
) -> None:
    path = f"/s/{rig.session}/write"
    left(b'{"a": 1}', ("Content-Type", "application/json"), path=path)
    counting.go.set()
    rig.ended_rows(1)
    with rig.client() as again:
        given = again.request("POST", path, b'{"a": 1}')
    assert (given.status, counting.asked) == (200, 1)
    assert given.json()["result"]["content"][0]["text"] == "done 1"
    assert given.head.one("content-type") == "application/json"
    assert given.head.all("turnlog-status") == ["replayed"]


@pytest.mark.promise("TWICE-14")
@pytest.mark.parametrize("headers", [MCP_HEADERS, STATELESS], ids=["handshake", "stateless"])
@pytest.mark.parametrize("streams", [False, True])
def test_a_call_runs_on_after_its_timeout_and_a_duplicate_gets_its_answer(
    rig: Rig, counting: Counting, begun: Begun, streams: bool, headers: Headers
) -> None:
    counting.streams = streams
    given = begun(call("write_timed", {"a": 1}), *headers).response("POST")
    said = answer_in(given.body)
    assert said["_meta"]["turnlog/outcome"]["kind"] == "response_timeout"
    assert rig.ended_rows(1)[0].status == "unknown"
    counting.go.set()
    wait_until(lambda: rig.rows()[0].status == "ok", "the late answer is recorded")
    assert rig.rows()[0].flags == ["late"]
    again = begun(call("write_timed", {"a": 1}, request_id="two"), *headers).response("POST")
    assert text(again.body) == "done 1"
    assert (counting.asked, counting.cancels) == (1, [])
    wait_until(lambda: rig.notes() == ["abandoned", "delivered"], "it is noted")


@pytest.mark.parametrize("answered", [False, True], ids=["before the answer", "behind it"])
def test_an_answer_is_given_again_to_an_agent_that_had_cancelled_the_call(
    rig: Rig, counting: Counting, begun: Begun, answered: bool
) -> None:
    # Its connection stays open, and the answer is written to it; who has cancelled does not read it.
    first = begun(call("write", {"a": 1}, request_id=1))
    wait_until(lambda: counting.asked == 1, "the server has the call")
    if answered:
        counting.go.set()
        first.response("POST")
    cancel = message("notifications/cancelled", {"requestId": 1}, request_id=None)
    assert begun(cancel).response("POST").status == 202
    counting.go.set()
    first.response("POST") if not answered else None
    again = begun(call("write", {"a": 1}, request_id=2)).response("POST")
    assert text(again.body) == "done 1"
    assert counting.asked == 1
    third = begun(call("write", {"a": 1}, request_id=3)).response("POST")
    assert text(third.body) == "done 2"


@pytest.mark.parametrize("headers", [MCP_HEADERS, STATELESS], ids=["handshake", "stateless"])
def test_a_cancel_for_a_call_that_was_answered_does_not_end_the_one_that_runs_on(
    rig: Rig, counting: Counting, begun: Begun, headers: Headers
) -> None:
    told = begun(call("write_timed", {"a": 1}, request_id=7), *headers).response("POST")
    assert answer_in(told.body)["_meta"]["turnlog/outcome"]["kind"] == "response_timeout"
    cancel = message("notifications/cancelled", {"requestId": 7}, request_id=None)
    assert begun(cancel, *headers).response("POST").status == 202
    again = begun(call("write_timed", {"a": 1}, request_id=8), *headers)
    counting.go.set()
    assert text(again.response("POST").body) == "done 1"
    # The server knows the call by its id, and hears of none that it knows.
    (heard,) = counting.cancels
    assert heard["params"]["requestId"] != 7
    assert counting.asked == 1
    assert "cancel_forwarded" not in rig.notes()


def test_a_call_that_runs_on_after_its_timeout_cannot_be_resolved(
    rig: Rig, counting: Counting, begun: Begun
) -> None:
    begun(call("pay_timed", {"a": 1})).response("POST")
    data, name = rig.proxy.data, rig.ended_rows(1)[0].call
    wait_until(lambda: rig.notes() == ["abandoned"], "it is noted")
    assert json.loads(turnlog("dangling", rig.session, "--json", data=data).stdout)["standing"] == (
        "in_flight"
    )
    done = turnlog("resolve", name, "--did-not", data=data)
    assert (done.returncode, "is in flight" in done.stderr) == (2, True)
    counting.go.set()
    wait_until(lambda: rig.rows()[0].status == "ok", "the late answer is recorded")
    assert counting.asked == 1


def test_a_call_that_runs_on_after_its_timeout_and_is_lost_can_be_resolved(
    rig: Rig, begun: Begun
) -> None:
    breaks = threading.Event()

    def script(peer: Peer) -> None:
        peer.read()
        breaks.wait(BOUND)
        peer.close()

    rig.upstream.script = script
    begun(call("pay_timed", {"a": 1})).response("POST")
    breaks.set()
    wait_until(lambda: rig.notes() == ["abandoned", "unanswered"], "its end is noted")
    data, name = rig.proxy.data, rig.row().call
    assert json.loads(turnlog("dangling", rig.session, "--json", data=data).stdout)["standing"] == (
        "unknown"
    )
    assert turnlog("resolve", name, "--did-not", data=data).returncode == 0


def test_a_plain_call_runs_on_after_its_timeout(rig: Rig, counting: Counting, begun: Begun) -> None:
    path = f"/s/{rig.session}/write-timed"
    given = begun(b'{"a": 1}', path=path).response("POST")
    assert (given.status, given.json()["turnlog/outcome"]["kind"]) == (504, "response_timeout")
    counting.go.set()
    wait_until(lambda: rig.rows()[0].status == "ok", "the late answer is recorded")
    assert begun(b'{"a": 1}', path=path).response("POST").status == 200
    assert counting.asked == 1


@pytest.mark.promise("TWICE-15")
def test_a_server_request_ends_a_call_whose_caller_is_gone(
    rig: Rig, counting: Counting, begun: Begun
) -> None:
    asks = threading.Event()
    ended = threading.Event()

    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        asks.wait(BOUND)
        peer.send_event({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": {}})
        if peer.wait_for_hang_up():
            ended.set()

    rig.upstream.script = script
    client = begun(call("write", {"a": 1}))
    client.head()
    client.close()
    wait_until(lambda: "abandoned" in rig.notes(), "the proxy has noticed")
    asks.set()
    assert ended.wait(BOUND)
    assert rig.row().kind == "cancelled_by_caller"
    wait_until(lambda: b"cancelled" in rig.upstream.requests[-1].body, "the server is told")


@pytest.mark.promise("TWICE-16")
def test_a_stream_that_is_resumed_takes_over_a_call_that_runs_on(
    rig: Rig, counting: Counting, begun: Begun
) -> None:
    hung_up = threading.Event()

    def script(peer: Peer) -> None:
        request = peer.read()
        peer.start_events()
        if request.method == b"POST":
            peer.send_event({"jsonrpc": "2.0", "method": "notifications/message"}, event_id="1")
            if peer.wait_for_hang_up():
                hung_up.set()
            return
        assert hung_up.wait(BOUND)
        peer.send_event(text_result(1, "resumed"), event_id="2")
        peer.end()

    rig.upstream.script = script
    client = begun(call("write", {"a": 1}), *rig.session_headers)
    client.head()
    client.event()
    client.close()
    wait_until(lambda: "abandoned" in rig.notes(), "the proxy has noticed")
    with rig.client() as other:
        headers = (*rig.session_headers, ("Last-Event-ID", "1"))
        given = other.request("GET", rig.path, headers=headers)
    assert b"resumed" in given.body
    row = rig.row()
    assert (row.status, set(row.flags)) == ("ok", {"late", "resumed"})


@pytest.mark.parametrize("tool", ["write", "write_unrecorded"])
def test_a_call_whose_stream_ended_early_is_joined_until_another_stream_brings_its_answer(
    rig: Rig, counting: Counting, begun: Begun, tool: str
) -> None:
    def script(peer: Peer) -> None:
        resumes = peer.read().method == b"GET"
        peer.start_events()
        if resumes:
            peer.send_event(text_result(1, "resumed"), event_id="2")
        else:
            peer.send_event({"jsonrpc": "2.0", "method": "notifications/message"}, event_id="1")
        peer.end()

    rig.upstream.script = script
    keyed = (*rig.session_headers, ("Idempotency-Key", rig.session))
    begun(call(tool, {"a": 1}), *keyed).response("POST")
    again = begun(call(tool, {"a": 1}, request_id="two"), *keyed)
    with rig.client() as other:
        headers = (*rig.session_headers, ("Last-Event-ID", "1"))
        given = other.request("GET", rig.path, headers=headers)
    assert b"resumed" in given.body
    assert text(again.response("POST").body) == "resumed"
    assert [request.method for request in rig.upstream.requests] == [b"POST", b"GET"]
    assert [row.status for row in rig.ended_rows(2)] == ["ok", "replayed"]


def test_a_cancelled_call_can_be_joined_only_within_the_grace_period(
    rig: Rig, counting: Counting, begun: Begun
) -> None:
    keyed = (*rig.session_headers, ("Idempotency-Key", rig.session))
    begun(call("write", {"a": 1}, request_id=7), *keyed)
    wait_until(lambda: counting.asked == 1, "the server has the call")
    cancel = message("notifications/cancelled", {"requestId": 7}, request_id=None)
    begun(cancel, *rig.session_headers).response("POST")
    again = begun(call("write", {"a": 1}, request_id=8), *keyed)
    wait_until(lambda: counting.asked == 2, "the second call is sent")
    counting.go.set()
    assert text(again.response("POST").body) == "done 2"
    first, second = rig.ended_rows(2)
    assert (first.kind, second.flags) == ("cancelled_by_caller", ["repeat_of_unknown"])
    assert len(counting.cancels) == 1


def test_a_call_that_runs_on_and_breaks_leaves_the_connection_to_the_next_one(
    rig: Rig, counting: Counting, begun: Begun
) -> None:
    breaks = threading.Event()

    def script(peer: Peer) -> None:
        request = peer.read()
        if b"write_timed" not in request.body:
            counting.go.wait(BOUND)
            peer.send_json(text_result(2, "next"))
        elif breaks.is_set():
            peer.send_json(text_result(3, "again"))
        else:
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            peer.send(b"Content-Length: 100\r\n\r\n{")
            breaks.wait(BOUND)
            peer.close()

    rig.upstream.script = script
    client = begun(call("write_timed", {"a": 1}))
    assert b"response_timeout" in client.response("POST").body
    client.ask("POST", rig.path, call("next", request_id=2), headers=MCP_HEADERS)
    rig.upstream.wait_for_requests(2)
    other = begun(call("write_timed", {"a": 1}, request_id=3))
    breaks.set()
    other.response("POST")
    counting.go.set()
    assert text(client.response("POST").body) == "next"


def test_a_stream_that_takes_over_a_call_with_a_key_does_not_cancel_it(
    rig: Rig, counting: Counting, begun: Begun
) -> None:
    told: list[Any] = []
    hung_up = threading.Event()

    def script(peer: Peer) -> None:
        request = peer.read()
        if b"notifications/" in request.body:
            told.append(request.json())
            peer.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            return
        peer.start_events()
        if request.method == b"POST":
            peer.send_event({"jsonrpc": "2.0", "method": "notifications/message"}, event_id="1")
            peer.wait_for_hang_up()
            hung_up.set()
            return
        assert hung_up.wait(BOUND)
        peer.send_event(text_result(1, "resumed"), event_id="2")
        peer.end()

    rig.upstream.script = script
    client = begun(call("some"), *rig.session_headers, ("Idempotency-Key", rig.session))
    client.head()
    client.event()
    client.close()
    wait_until(lambda: "abandoned" in rig.notes(), "the proxy has noticed")
    headers = (*rig.session_headers, ("Last-Event-ID", "1"))
    with rig.client() as other:
        assert b"resumed" in other.request("GET", rig.path, headers=headers).body
    rig.post(message("notifications/initialized", request_id=None))
    assert [said["method"] for said in told] == ["notifications/initialized"]


@pytest.mark.parametrize("streams", [False, True])
def test_a_stream_that_continues_on_another_connection_does_not_end_a_detached_call(
    rig: Rig, counting: Counting, left: Begun, streams: bool
) -> None:
    counting.streams = streams
    left(call("write", {"a": 1}), *rig.session_headers)

    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        peer.end()

    rig.upstream.script = script
    with rig.client() as other:
        headers = (*rig.session_headers, ("Last-Event-ID", "another-stream"))
        assert other.request("GET", rig.path, headers=headers).status == 200
    assert not counting.hung_up.is_set()
    counting.go.set()
    row = rig.row()
    assert (row.status, row.flags) == ("ok", ["late"])


def test_a_call_ends_with_its_response_even_if_its_stream_goes_on(rig: Rig, begun: Begun) -> None:
    runs: list[int] = []
    over = threading.Event()

    def script(peer: Peer) -> None:
        said = json.loads(peer.read().body)
        runs.append(said["id"])
        peer.start_events()
        peer.send_event(text_result(said["id"], f"done {len(runs)}"))
        over.wait(BOUND)
        peer.end()

    rig.upstream.script = script
    first = begun(call("write_slowly", {"a": 1}, request_id=1))
    first.head()
    assert b"done 1" in first.event()
    wait_until(lambda: rig.rows()[0].status == "ok", "it is recorded")
    assert text(rig.post(call("write_slowly", {"a": 1}, request_id=2))) == "done 1"
    over.set()
    assert runs == [1]


@pytest.mark.promise("TWICE-17")
@pytest.mark.parametrize("request_id", [1, 8])
@pytest.mark.parametrize("session", [True, False])
def test_a_joined_call_that_is_cancelled_ends_alone_and_without_an_answer(
    rig: Rig, counting: Counting, left: Begun, begun: Begun, request_id: int, session: bool
) -> None:
    headers = rig.session_headers if session else MCP_HEADERS
    left(call("write", {"a": 1}), *headers)
    joiner = begun(call("write", {"a": 1}, request_id=request_id), *headers)
    rig.post(cancel(99), *headers[2:])  # what came before it has been seen
    rig.post(cancel(request_id), *headers[2:])
    with pytest.raises(ClosedEarlyError) as closed:
        joiner.response("POST")
    assert closed.value.received == b""
    counting.go.set()
    first, second = rig.ended_rows(2)
    assert (first.status, first.flags) == ("ok", ["late"])
    assert (second.status, second.kind) == ("error", "cancelled_by_caller")
    assert "joined" in second.flags
    assert rig.notes() == ["abandoned"]
    assert text(rig.post(call("write", {"a": 1}, request_id=9), *headers[2:])) == "done 1"


@pytest.mark.parametrize("how", ["leaves", "takes it back"])
def test_a_call_without_a_waiting_caller_is_cancelled(
    rig: Rig, counting: Counting, begun: Begun, how: str
) -> None:
    headers = (*rig.session_headers, ("Idempotency-Key", rig.session))
    first = begun(call("write_cancelled", {"a": 1}), *headers)
    wait_until(lambda: counting.asked == 1, "the server has the call")
    joiner = begun(call("write_cancelled", {"a": 1}, request_id=8), *headers)
    rig.post(cancel(99), *headers[2:3])  # what came before it has been seen
    first.close()
    wait_until(lambda: "abandoned" in rig.notes(), "the proxy has noticed")
    if how == "leaves":
        joiner.close()
    else:
        rig.post(cancel(8), *headers[2:3])
    assert counting.hung_up.wait(BOUND)
    kinds = [row.kind for row in rig.ended_rows(2)]
    assert kinds == ["cancelled_by_caller", "cancelled_by_caller"]
    assert rig.notes() == ["abandoned", "cancel_forwarded"]
    assert counting.asked == 1


def cancel(request_id: int) -> bytes:
    return message("notifications/cancelled", {"requestId": request_id}, request_id=None)


def test_an_answer_to_head_has_no_body_after_a_timeout(rig: Rig) -> None:
    slow = rig.upstream.script = SlowHead(ok(b""))
    with rig.client() as client:
        client.ask("HEAD", f"/s/{rig.session}/timed")
        given = client.response("HEAD")
        assert (given.status, rig.row().kind) == (504, "response_timeout")
        # What stands behind the head would be taken for the next answer.
        assert client.request("GET", "/turnlog/health").status == 200
    slow.go.set()


def as_client(
    name: str, request_id: int | str, *, version: str = "1", tool: str = "write"
) -> bytes:
    """Return a call of a client that says its name, in a session that nobody names."""
    info = {"io.modelcontextprotocol/clientInfo": {"name": name, "version": version}}
    return call(tool, {"a": 1}, request_id=request_id, _meta=info)


@pytest.fixture
def unnamed(rig: Rig, counting: Counting, begun: Begun) -> Begun:
    """Return what asks without naming a session, and leaves as soon as the server has the call."""

    def leave(body: bytes, *headers: tuple[str, str], path: str = "/mcp") -> Client:
        before, left = counting.asked, abandoned(rig)
        client = begun(body, *(headers or STATELESS), path=path)
        wait_until(lambda: counting.asked > before, "the server has the call")
        client.close()
        wait_until(lambda: abandoned(rig) > left, "the proxy has noticed")
        return client

    return leave


def abandoned(rig: Rig) -> int:
    """Return how many calls were left by their callers, in all sessions."""
    with LmdbReader.open(rig.proxy.data) as reader, reader.view() as view:
        return len(list(view.calls_with_note(NoteKind.ABANDONED)))


@pytest.mark.promise("TWICE-26")
@pytest.mark.parametrize("headers", [MCP_HEADERS, STATELESS], ids=["handshake", "stateless"])
def test_in_a_session_that_is_only_guessed_a_call_is_joined_while_it_runs_and_never_replayed(
    rig: Rig, counting: Counting, unnamed: Begun, begun: Begun, headers: Headers
) -> None:
    name = f"guessed-{len(headers)}"
    unnamed(as_client(name, 1), *headers)
    again = begun(as_client(name, "two"), *headers, path="/mcp")
    # Whoever is answered here came after it.
    begun(message("ping", request_id=9), *headers, path="/turnlog/nothing").response("POST")
    counting.go.set()
    said = again.response("POST")
    assert (text(said.body), counting.asked) == ("done 1", 1)
    assert set(rig.proxy.rows()[-1].flags) == {"replayed", "joined", "inferred"}
    third = begun(as_client(name, 3), *headers, path="/mcp").response("POST")
    assert text(third.body) == "done 2"


def test_a_guessed_caller_that_left_may_join_again(
    rig: Rig, counting: Counting, unnamed: Begun, begun: Begun
) -> None:
    unnamed(as_client("tries thrice", 1))
    second = begun(as_client("tries thrice", 2), *STATELESS, path="/mcp")
    # Whoever is answered here came after it.
    begun(message("ping", request_id=9), *STATELESS, path="/turnlog/nothing").response("POST")
    second.close()
    wait_until(lambda: "joined" in rig.proxy.rows()[-1].flags, "the proxy has noticed")
    third = begun(as_client("tries thrice", 3), *STATELESS, path="/mcp")
    begun(message("ping", request_id=9), *STATELESS, path="/turnlog/nothing").response("POST")
    counting.go.set()
    assert (text(third.response("POST").body), counting.asked) == ("done 1", 1)


@pytest.mark.parametrize("other", ["version", "connection"])
def test_a_call_is_not_joined_by_a_caller_that_may_be_another_one(
    counting: Counting, unnamed: Begun, begun: Begun, other: str
) -> None:
    name = f"others-{other}"
    if other == "connection":
        # Any call counts, of any tool: two agents of one name are at work.
        beside = begun(as_client(name, 7, tool="read"), *STATELESS, path="/mcp")
        wait_until(lambda: counting.asked == 1, "the server has the other call")
        assert beside is not None
    unnamed(as_client(name, 1))
    before = counting.asked
    version = "2" if other == "version" else "1"
    begun(as_client(name, 2, version=version), *STATELESS, path="/mcp")
    wait_until(lambda: counting.asked == before + 1, "the server has both")


def test_an_answer_of_an_earlier_revision_is_replayed_with_the_type_that_its_caller_needs(
    rig: Rig, counting: Counting
) -> None:
    counting.go.set()
    key = (*KEY[:1], f"revised-{rig.session}")
    first = rig.post(call("write", {"a": 1}), key)
    assert "resultType" not in answer_in(first)
    again = answer_in(rig.post(call("write", {"a": 1}), key, *STATELESS[len(MCP_HEADERS) :]))
    assert (again["resultType"], again["content"]) == ("complete", answer_in(first)["content"])
    assert again["_meta"]["turnlog/outcome"]["status"] == "replayed"
    assert counting.asked == 1


def test_a_call_that_comes_before_the_end_of_another_callers_stream_is_read_does_not_join_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    stop_point = StopPoint("turnlog.engine.duplicate_index:DuplicateIndex.find", tmp_path / "armed")
    settings, counting = {"rules": ["rules.yaml"], **SETTINGS}, Counting()
    with (
        RawUpstream(counting) as upstream,
        proxy_beside(
            tmp_path, upstream.url, settings=settings, environ=stop_point.environ
        ) as proxy,
        ExitStack() as clients,
    ):

        def ask(request_id: int, tool: str = "write") -> Client:
            client = clients.enter_context(Client(proxy.url))
            body = as_client("agent", request_id, tool=tool)
            client.ask("POST", "/mcp", body, headers=STATELESS)
            return client

        # Two agents of one name are at work.
        ask(7, tool="read")
        first = ask(1)
        wait_until(lambda: counting.asked == 2, "the server has both calls")
        stop_point.arm()
        ask(2)
        with stop_point.stopped(proxy.process.pid):
            first.close()
        wait_until(lambda: counting.asked == 3, "the server has the third call")
        counting.go.set()


@pytest.mark.promise("TWICE-12")
def test_a_cancel_of_a_call_that_cannot_be_joined_is_forwarded_at_once(
    counting: Counting, unnamed: Begun
) -> None:
    # Neither a credential nor a client name; the grace of these tests is an hour.
    unnamed(call("write", {"a": 1}))
    assert counting.hung_up.wait(BOUND)


def test_a_guarded_call_in_a_batch_ends_with_its_caller(rig: Rig) -> None:
    hangs = rig.upstream.script = Hangs()
    with rig.client() as client:
        client.ask("POST", rig.path, b"[" + call("write") + b"]", headers=MCP_HEADERS)
        assert hangs.asked.wait(BOUND)
    assert (rig.row().kind, rig.notes()) == ("cancelled_by_caller", [])


def test_a_whole_answer_counts_even_if_its_caller_leaves_before_its_transfer_ends(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        peer.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
        peer.send(chunked(b'{"done": 1}'))
        while not peer.wait_for_hang_up(0.01):  # with the next piece the first one is passed on
            peer.send(chunked(b" "))

    rig.upstream.script = script
    with rig.client() as client:
        client.ask("POST", f"/s/{rig.session}/write_cancelled", b"{}", headers=MCP_HEADERS)
        client.head()
        client.chunk()
    row = rig.row()
    assert (row.status, row.executed) == ("ok", "yes")


def test_a_call_that_is_cancelled_before_its_record_is_written_is_answered_and_never_sent(
    rig: Rig, counting: Counting, begun: Begun
) -> None:
    counting.go.set()
    with rig.client() as client:
        client.request("POST", rig.path, call("other"), headers=rig.session_headers)
    with nobody_writes(rig.proxy.data):
        waiting = begun(call("write", request_id=5), *rig.session_headers)
        cancel = message("notifications/cancelled", {"requestId": 5}, request_id=None)
        with rig.client() as client:
            client.request("POST", rig.path, cancel, headers=rig.session_headers)
    outcome = waiting.response("POST").json()["result"]["_meta"]["turnlog/outcome"]
    assert (outcome["kind"], outcome["executed"]) == ("cancelled_by_caller", "no")
    assert counting.asked == 1
