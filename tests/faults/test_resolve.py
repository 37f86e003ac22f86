"""Calls without an answer, and their settling, while proxies run and after they were killed."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import Done, process, turnlog
from kit.beside import proxy_beside, session_rows
from kit.clients import BOUND, MCP_HEADERS, Client, ClosedEarlyError, Response, call, wait_until
from kit.faults import Hangs, ResetAfterRequest, SlowHead
from kit.proxy import Proxy
from kit.upstreams import Peer, RawUpstream, echo, ok, text_result
from turnlog.core.kinds import Status

V1 = "/turnlog/api/v1"


def api(proxy: Proxy, path: str, said: dict[str, str] | None = None) -> Response:
    token = (proxy.data / "token").read_text().strip()
    body = json.dumps(said).encode() if said else b""
    with Client(proxy.url) as client:
        headers = (("Authorization", f"Bearer {token}"),)
        return client.request("POST" if said else "GET", V1 + path, body, headers=headers)


def dangling(proxy: Proxy) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api(proxy, "/dangling").json()["items"]
    return found


def leave_in_flight(proxy: Proxy, upstream: RawUpstream, count: int) -> threading.Thread:
    """Begin calls that nothing answers, and return once the server has them all."""

    def one(number: int) -> None:
        try:
            with Client(proxy.url) as client:
                client.request(
                    "POST",
                    f"/s/agent-{number}/mcp",
                    call("send", {"n": number}),
                    headers=MCP_HEADERS,
                )
        except (ClosedEarlyError, OSError):
            pass

    def all_of_them() -> None:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(one, range(count)))

    thread = threading.Thread(target=all_of_them, daemon=True)
    thread.start()
    upstream.wait_for_requests(count)
    return thread


def resolve(proxy: Proxy, name: str, *how: str) -> Done:
    return process("resolve", name, *how, "--json", "--data", str(proxy.data))


@pytest.mark.promise("OPEN-1", "OPEN-2")
def test_what_a_killed_proxy_left_is_listed_and_settled_beside_the_next(tmp_path: Path) -> None:
    with RawUpstream(Hangs()) as upstream:
        with proxy_beside(tmp_path, upstream.url) as first:
            agents = leave_in_flight(first, upstream, 4)
            assert {one["standing"] for one in dangling(first)} == {"in_flight"}
            first.kill()
            agents.join(BOUND)
        # Beside no proxy at all, the facts are the same as after the next start.
        early = [json.loads(line) for line in _dangling(first).splitlines()]
        upstream.script = echo
        with proxy_beside(tmp_path, upstream.url) as second:
            found = dangling(second)
            assert [one["standing"] for one in found] == ["unknown"] * 4
            told = ("call", "status", "kind", "executed", "retry", "error")
            assert [[one["row"][key] for key in told] for one in found] == [
                [one["row"][key] for key in told] for one in early
            ]
            names = [one["row"]["call"] for one in found]
            verdict = {"verdict": "happened"}
            assert api(second, f"/calls/{names[0]}/resolve", verdict).status == 200
            assert resolve(second, names[1], "--did-not").returncode == 0
            assert [one["row"]["call"] for one in dangling(second)] == names[2:]
            with Client(second.url) as client:
                client.request("POST", second.url, call("send"), headers=MCP_HEADERS)
    assert turnlog("verify", data=second.data).returncode == 0


def _dangling(proxy: Proxy) -> str:
    done = turnlog("dangling", "--json", data=proxy.data)
    assert done.returncode == 0
    return done.stdout


@pytest.mark.promise("OPEN-2", "OPEN-3")
def test_a_call_that_a_proxy_waits_for_is_settled_by_nobody(tmp_path: Path) -> None:
    slow = SlowHead(ok(json.dumps(text_result(1, "sent")).encode()))
    with (
        RawUpstream(slow) as upstream,
        proxy_beside(tmp_path, upstream.url) as one,
        proxy_beside(tmp_path, upstream.url) as other,
        Client(one.url) as client,
    ):
        client.ask("POST", one.url, call("send"), headers=MCP_HEADERS)
        assert slow.asked.wait(BOUND)
        # The other proxy, and a command, see that the first one lives.
        (found,) = dangling(other)
        assert found["standing"] == "in_flight"
        name = found["row"]["call"]
        refused = api(other, f"/calls/{name}/resolve", {"verdict": "happened"})
        assert (refused.status, refused.json()["reason"]) == (409, "in_flight")
        done = resolve(one, name, "--happened")
        assert (done.returncode, "is in flight" in done.stderr) == (2, True)
        slow.go.set()
        assert client.response("POST").status == 200
        wait_until(lambda: dangling(other) == [], "the answer is recorded")
        known = api(other, f"/calls/{name}/resolve", {"verdict": "happened"})
        assert (known.status, known.json()["reason"]) == (409, "known")


@pytest.mark.promise("OPEN-2")
def test_of_many_words_at_once_about_a_call_one_is_heard(tmp_path: Path) -> None:
    with (
        RawUpstream(ResetAfterRequest()) as upstream,
        proxy_beside(tmp_path, upstream.url) as one,
        proxy_beside(tmp_path, upstream.url) as other,
    ):
        with Client(one.url) as client:
            client.request("POST", one.url, call("send"), headers=MCP_HEADERS)
        (found,) = dangling(other)
        path = f"/calls/{found['row']['call']}/resolve"
        proxies = [one, other] * 4
        with ThreadPoolExecutor(len(proxies)) as pool:
            said = [
                pool.submit(api, proxy, path, {"verdict": ("happened", "did_not")[n % 2]})
                for n, proxy in enumerate(proxies)
            ]
            answers = [future.result(BOUND).status for future in said]
        assert sorted(answers) == [200] + [409] * 7
        upstream.script = echo
        with Client(one.url) as client:
            for _ in range(3):
                client.request("POST", one.url, call("send"), headers=MCP_HEADERS)
        assert [row.status for row in one.rows()[1:]] == [Status.OK] * 3
    assert turnlog("verify", data=one.data).returncode == 0
    shown = turnlog("show", found["row"]["call"], "--json", data=one.data).stdout
    assert [commit["kind"] for commit in json.loads(shown)["commits"]] == [
        "intent", "outcome", "outcome",
    ]  # fmt: skip


@pytest.mark.promise("OPEN-2", "OPEN-5")
def test_a_verdict_that_was_answered_outlives_a_kill(tmp_path: Path) -> None:
    with RawUpstream(ResetAfterRequest()) as upstream:
        with proxy_beside(tmp_path, upstream.url) as proxy:
            with Client(proxy.url) as client:
                client.request("POST", proxy.url, call("send"), headers=MCP_HEADERS)
            (found,) = dangling(proxy)
            name = found["row"]["call"]
            given = api(proxy, f"/calls/{name}/resolve", {"verdict": "happened", "why": "seen"})
            proxy.kill()
        assert given.status == 200
    (line,) = turnlog("log", "--json", data=proxy.data).stdout.splitlines()
    assert json.loads(line) == given.json()


RULES = """
rules:
  - match: {tool: pay}
    effect: irreversible
  - match: {tool: pay_slowly}
    effect: irreversible
    timeout: {response: 200ms}
"""


def _ruled(folder: Path) -> dict[str, object]:
    (folder / "rules.yaml").write_text(RULES)
    return {"rules": ["rules.yaml"]}


@pytest.mark.promise("OPEN-1")
def test_the_answer_that_an_agent_left_before_is_in_the_list_until_one_has_it(
    tmp_path: Path,
) -> None:
    slow = SlowHead(ok(json.dumps(text_result(1, "paid")).encode()))
    settings = _ruled(tmp_path)
    with RawUpstream(slow) as upstream:
        with proxy_beside(tmp_path, upstream.url, settings=settings) as first:
            with Client(first.url) as client:
                client.ask("POST", "/s/orders/mcp", call("pay", {"sum": 5}), headers=MCP_HEADERS)
                assert slow.asked.wait(BOUND)
            wait_until(lambda: [one["abandoned"] for one in dangling(first)] == [True], "it leaves")
            assert dangling(first)[0]["standing"] == "in_flight"
            slow.go.set()
            wait_until(lambda: dangling(first)[0]["standing"] == "undelivered", "the answer")
            (before,) = dangling(first)
            first.kill()
        assert json.loads(before["output"]["text"])["content"][0]["text"] == "paid"
        assert (before["row"]["status"], before["row"]["flags"]) == ("ok", ["late"])
        with proxy_beside(tmp_path, upstream.url, settings=settings) as second:
            assert dangling(second) == [before]
            refused = api(
                second, f"/calls/{before['row']['call']}/resolve", {"verdict": "happened"}
            )
            assert (refused.status, refused.json()["reason"]) == (409, "known")
            with Client(second.url) as client:
                again = client.request(
                    "POST", "/s/orders/mcp", call("pay", {"sum": 5}), headers=MCP_HEADERS
                )
            assert again.json()["result"]["content"][0]["text"] == "paid"
            wait_until(lambda: dangling(second) == [], "the delivery is noted")
    assert len(upstream.requests) == 1
    assert turnlog("verify", data=second.data).returncode == 0


@pytest.mark.promise("OPEN-1")
def test_an_answer_of_which_nothing_was_noted_when_the_proxy_died_is_in_the_list_and_given_again(
    tmp_path: Path,
) -> None:
    def goes_on(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        peer.send_event(text_result(1, "paid"))
        peer.wait_for_hang_up()

    settings = _ruled(tmp_path)
    with RawUpstream(goes_on) as upstream:
        with (
            proxy_beside(tmp_path, upstream.url, settings=settings) as first,
            Client(first.url) as client,
        ):
            client.ask("POST", "/s/orders/mcp", call("pay", {"sum": 5}), headers=MCP_HEADERS)
            wait_until(
                lambda: [row.status for row in session_rows(first.data, "orders")] == ["ok"],
                "it has ended",
            )
            first.kill()
        with proxy_beside(tmp_path, upstream.url, settings=settings) as second:
            (one,) = dangling(second)
            assert (one["standing"], one["abandoned"]) == ("undelivered", False)
            assert json.loads(one["output"]["text"])["content"][0]["text"] == "paid"
            assert pay(second, 5)["content"][0]["text"] == "paid"
            wait_until(lambda: dangling(second) == [], "the delivery is noted")
    assert len(upstream.requests) == 1


@pytest.mark.promise("OPEN-2", "OPEN-4")
def test_what_did_not_happen_may_be_done_and_what_did_is_not_done_again(tmp_path: Path) -> None:
    settings = _ruled(tmp_path)
    with (
        RawUpstream(ResetAfterRequest()) as upstream,
        proxy_beside(tmp_path, upstream.url, settings=settings) as proxy,
    ):
        names: list[str] = []
        for amount in (5, 6):
            pay(proxy, amount)
            names.append(dangling(proxy)[-1]["row"]["call"])
        upstream.script = echo
        sent = len(upstream.requests)
        # Irreversible: turnlog waits for somebody who knows.
        assert pay(proxy, 5)["isError"] is True
        assert len(upstream.requests) == sent
        assert api(proxy, f"/calls/{names[0]}/resolve", {"verdict": "did_not"}).status == 200
        assert resolve(proxy, names[1], "--happened").returncode == 0
        assert "isError" not in pay(proxy, 5)
        assert len(upstream.requests) == sent + 1
        for _ in range(2):
            told = pay(proxy, 6)["_meta"]["turnlog/outcome"]
            assert (told["status"], told["executed"], told["retry"]) == ("replayed", "yes", "never")
        assert len(upstream.requests) == sent + 1
        wait_until(lambda: dangling(proxy) == [], "the delivery is noted")


def pay(proxy: Proxy, amount: int) -> dict[str, Any]:
    """Ask for a payment, and return the result."""
    body = call("pay", {"sum": amount})
    with Client(proxy.url) as client:
        given = client.request("POST", "/s/orders/mcp", body, headers=MCP_HEADERS)
    result: dict[str, Any] = given.json()["result"]
    return result


@pytest.mark.promise("OPEN-2")
def test_a_call_that_was_timed_out_and_runs_on_is_not_settled_where_it_runs(tmp_path: Path) -> None:
    slow = SlowHead(ok(json.dumps(text_result(1, "paid")).encode()))
    with (
        RawUpstream(slow) as upstream,
        proxy_beside(tmp_path, upstream.url, settings=_ruled(tmp_path)) as proxy,
        Client(proxy.url) as client,
    ):
        given = client.request("POST", "/s/orders/mcp", call("pay_slowly"), headers=MCP_HEADERS)
        assert given.json()["result"]["isError"] is True
        (found,) = dangling(proxy)
        assert (found["standing"], found["row"]["kind"]) == ("in_flight", "response_timeout")
        path = f"/calls/{found['row']['call']}/resolve"
        refused = api(proxy, path, {"verdict": "did_not"})
        assert (refused.status, refused.json()["reason"]) == (409, "in_flight")
        slow.go.set()
        wait_until(lambda: dangling(proxy)[0]["standing"] == "undelivered", "the late answer")
        assert dangling(proxy)[0]["row"]["flags"] == ["late"]
