"""Named effects that a rewind discarded stand outside: a call that would have one again is not just sent."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event
from typing import Any, cast

import pytest

from e2e.stores import Done, turnlog
from kit.beside import Rig, proxy_beside, ruled
from kit.clients import BOUND, MCP_HEADERS, Client, call, message, wait_until
from kit.faults import ResetAfterRequest
from kit.proxy import Proxy
from kit.upstreams import Peer, RawUpstream, answer, echo, ok, text_result
from turnlog.client import outcome_of

BATCHES = ("MCP-Protocol-Version", "2025-03-26")
AT_ONCE = 6
"""Calls that are made at once."""
PAYMENT = call("pay", {"order": 1, "amount": 5})
RULES = """
rules:
  - {match: {tool: "pay*"}, effect: irreversible, effect_key: [$.args.order]}
  - {match: {tool: "free*"}, effect: write, effect_key: [$.args.order], on_duplicate: pass}
  - {match: {tool: "send*"}, effect: write}
  - {match: {tool: "put*"}, effect: idempotent_write}
  - match: {tool: "append*"}
    effect: write
    delta: [{field: files_modified, op: modified, key: $.args.path}]
  - {match: {tool: "read*"}, effect: read}
"""


def answers_batches(peer: Peer) -> None:
    """Answer each call of a request, which may be a batch."""
    content: Any = json.loads(peer.read().body)
    messages = cast("list[dict[str, Any]]", content if isinstance(content, list) else [content])
    answers = [text_result(one["id"], "done") for one in messages]
    peer.send(ok(json.dumps(answers if isinstance(content, list) else answers[0]).encode()))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


def cli(rig: Rig, *arguments: str) -> Done:
    return turnlog(*arguments, "--data", str(rig.proxy.data))


def ask(rig: Rig, tool: str, **arguments: Any) -> dict[str, Any]:
    """Make a call; return its row."""
    before = len(rig.rows())
    rig.post(call(tool, arguments))
    rig.ended_rows(before + 1)
    lines = cli(rig, "log", rig.session, "--last", "1", "--all", "--json").stdout
    found: dict[str, Any] = json.loads(lines)
    return found


def rewind(rig: Rig, target: int = 0) -> None:
    def is_made() -> bool:
        # Notes about delivered answers may still move the head.
        plan = json.loads(cli(rig, "rewind", rig.session, str(target), "--json").stdout)
        expect = ("--yes", "--expect", str(plan["head"]))
        return cli(rig, "rewind", rig.session, str(target), *expect).returncode == 0

    wait_until(is_made, "the rewind is made")


def sent(rig: Rig) -> int:
    return len(rig.upstream.requests)


@pytest.mark.promise("LEDGER-1", "TWICE-10")
def test_a_call_that_was_discarded_is_answered_from_the_record(rig: Rig) -> None:
    first = ask(rig, "send", to="you")
    rewind(rig)
    again = ask(rig, "send", to="you")
    assert (again["status"], again["executed"], again["flags"]) == ("replayed", "yes", ["replayed"])
    assert again["call"] != first["call"]
    other = ask(rig, "send", to="me")
    assert (other["status"], sent(rig)) == ("ok", 2)


@pytest.mark.promise("LEDGER-1", "STATE-5")
def test_what_is_answered_from_the_record_counts_in_the_state(rig: Rig) -> None:
    ask(rig, "append", path="/b")
    rewind(rig)
    again = ask(rig, "append", path="/b")
    ask(rig, "append", path="/b")
    state = json.loads(cli(rig, "state", rig.session, "--json").stdout)["state"]
    assert state["files_modified"]["/b"]["first_seq"] == again["seq"]
    (used,) = state["tools_used"].values()
    assert (used["replayed"], used["ok"]) == (2, 0)
    found = cli(rig, "log", rig.session, "--field", "files_modified", "--json").stdout
    assert len(found.splitlines()) == 2


@pytest.mark.promise("LEDGER-2")
def test_the_same_effect_with_another_input_is_refused(rig: Rig) -> None:
    first = ask(rig, "pay", order=1, amount=5)
    rewind(rig)
    refused = ask(rig, "pay", order=1, amount=6)
    assert (refused["kind"], refused["retry"], refused["executed"]) == (
        "policy_blocked",
        "never",
        "no",
    )
    shown = cli(rig, "show", refused["call"]).stdout
    assert f"call {first['call']}, done at commit {first['intent_seq']}" in shown
    assert f"`turnlog effect {first['call']}` with --replay, --redo or --override" in shown
    assert ask(rig, "pay", order=1, amount=5)["status"] == "replayed"
    assert ask(rig, "pay", order=2, amount=6)["status"] == "ok"
    assert sent(rig) == 2


@pytest.mark.promise("LEDGER-2")
def test_an_unknown_outcome_blocks_until_it_is_resolved(rig: Rig) -> None:
    script = rig.upstream.script
    rig.upstream.script = ResetAfterRequest()
    first = ask(rig, "send", to="you")
    assert first["status"] == "unknown"
    rig.upstream.script = script
    rewind(rig)
    for _ in range(3):
        assert ask(rig, "send", to="you")["kind"] == "outcome_unknown"
    assert cli(rig, "resolve", first["call"], "--did-not").returncode == 0
    assert ask(rig, "send", to="you")["status"] == "ok"
    assert sent(rig) == 2


def batched(rig: Rig, *calls: bytes) -> list[dict[str, Any]]:
    """Make calls and a ping in one batch of MCP 2025-03-26; return the messages of its answer."""
    batch = b"[%b]" % b",".join((*calls, message("ping", request_id="ping")))
    said: list[dict[str, Any]] = json.loads(rig.post(batch, BATCHES))
    return said


def kinds(said: list[dict[str, Any]]) -> list[tuple[str, str] | None]:
    """Return kind and executed of turnlog's own answers to the calls in a batch."""
    found = [outcome_of(one) for one in said if one["id"] != "ping"]
    return [(str(one.kind), str(one.executed)) if one is not None else None for one in found]


@pytest.mark.promise("LEDGER-7")
@pytest.mark.parametrize(
    "arguments", [{"order": 1, "amount": 5}, {"order": 1, "amount": 6}], ids=["same", "other"]
)
def test_a_batch_with_an_effect_that_was_discarded_is_not_sent(
    rig: Rig, arguments: dict[str, int]
) -> None:
    rig.upstream.script = answers_batches
    first = ask(rig, "pay", order=1, amount=5)
    rewind(rig)
    calls = [call("read", {"n": 1}, request_id=1), call("pay", arguments, request_id=2)]
    said = batched(rig, *calls)
    assert kinds(said) == [("policy_blocked", "no")] * 2
    assert f"(call {first['call']}, done at commit {first['intent_seq']})" in json.dumps(said)
    assert sent(rig) == 1
    assert [row.kind for row in rig.ended_rows(2)] == ["policy_blocked"] * 2
    # What was chosen is for a call alone, which may still be made.
    assert cli(rig, "effect", first["call"], "--override", "--why", "asked").returncode == 0
    assert kinds(batched(rig, *calls)) == [("policy_blocked", "no")] * 2
    assert ask(rig, "pay", **arguments)["status"] == "ok"
    assert kinds(batched(rig, *calls)) == [None, None]
    assert sent(rig) == 3


@pytest.mark.promise("LEDGER-7")
def test_a_batch_is_sent_whose_effects_this_branch_shows_or_are_no_named_writes(rig: Rig) -> None:
    rig.upstream.script = answers_batches
    calls = [
        call(tool, {"order": 1}, request_id=tool) for tool in ("free", "put", "read", "unnamed")
    ]
    assert kinds(batched(rig, *calls)) == [None] * 4
    rewind(rig)
    new = call("send", {"to": "you"}, request_id="send")
    assert kinds(batched(rig, *calls, new, new.replace(b'"send"', b'"again"', 1))) == [None] * 6
    assert sent(rig) == 2
    assert rig.ended_rows(6)[-3].flags == ["repeat_of_discarded"]


@pytest.mark.promise("LEDGER-7", "LEDGER-1")
def test_another_branch_meets_the_effects_of_a_batch(rig: Rig) -> None:
    rig.upstream.script = answers_batches
    ask(rig, "read", n=1)
    fork = f"{rig.session}-fork"
    assert cli(rig, "fork", rig.session, "--name", fork).returncode == 0
    payment = call("pay", {"order": 1, "amount": 5}, request_id=1)
    assert kinds(batched(rig, payment, call("send", {"to": "you"}, request_id=2))) == [None, None]
    rig.ended_rows(3)
    rig.session = fork
    assert kinds(batched(rig, payment)) == [("policy_blocked", "no")]
    assert ask(rig, "send", to="you")["status"] == "replayed"
    assert sent(rig) == 2


@pytest.mark.promise("LEDGER-1")
def test_a_later_call_that_was_not_executed_hides_no_effect_of_another_branch(rig: Rig) -> None:
    ask(rig, "read", n=1)
    fork = f"{rig.session}-fork"
    assert cli(rig, "fork", rig.session, "--name", fork).returncode == 0
    first = ask(rig, "pay", order=1, amount=5)
    script = rig.upstream.script
    rig.upstream.script = answer(ok(b"later", media="text/plain", status="429 Too Many Requests"))
    for amount in (6, 7):
        assert ask(rig, "pay", order=1, amount=amount)["executed"] == "no"
    rig.upstream.script = script
    sent_before = sent(rig)
    rig.session = fork
    refused = ask(rig, "pay", order=1, amount=6)
    assert refused["kind"] == "policy_blocked"
    assert f"call {first['call']}" in cli(rig, "show", refused["call"]).stdout
    assert ask(rig, "pay", order=1, amount=5)["status"] == "replayed"
    assert sent(rig) == sent_before


@pytest.mark.promise("LEDGER-3")
@pytest.mark.parametrize(
    ("choice", "amount", "status"),
    [("redo", 5, "ok"), ("override", 6, "ok"), ("replay", 6, "replayed")],
)
def test_an_operator_decides_what_becomes_of_an_irreversible_effect(
    rig: Rig, choice: str, amount: int, status: str
) -> None:
    first = ask(rig, "pay", order=1, amount=5)
    rewind(rig)
    done = cli(rig, "effect", first["call"], f"--{choice}", "--why", "the customer asked")
    assert (done.returncode, done.stdout.split()[0]) == (0, choice)
    assert ask(rig, "pay", order=1, amount=amount)["status"] == status
    # Once it was made on this branch, it is an effect of this branch.
    again = ask(rig, "pay", order=1, amount=7)
    assert again["status"] == ("ok" if status == "ok" else "replayed")


def test_it_is_said_that_a_choice_about_a_call_that_stands_changes_nothing(rig: Rig) -> None:
    first = ask(rig, "pay", order=1, amount=5)
    done = cli(rig, "effect", first["call"], "--redo")
    assert done.returncode == 0
    assert f"call {first['call']} stands in session {first['session']}: no rewind" in done.stderr
    rewind(rig)
    assert cli(rig, "effect", first["call"], "--redo").stderr == ""


@pytest.mark.promise("LEDGER-6")
def test_a_rewind_voids_a_choice_until_it_is_taken_back(rig: Rig) -> None:
    first = ask(rig, "pay", order=1, amount=5)
    rewind(rig)
    chosen = json.loads(cli(rig, "effect", first["call"], "--redo", "--json").stdout)["seq"]
    planned = cli(rig, "rewind", rig.session, str(chosen - 1), "--json").stdout
    assert [(one["seq"], one["kind"]) for one in json.loads(planned)["voided"]] == [
        (chosen, "effect")
    ]
    rewind(rig, chosen - 1)
    assert ask(rig, "pay", order=1, amount=5)["status"] == "replayed"
    rewind(rig, chosen)
    assert ask(rig, "pay", order=1, amount=5)["status"] == "ok"
    assert sent(rig) == 2


@pytest.mark.promise("LEDGER-3")
def test_an_agent_decides_about_a_write_and_not_about_what_is_irreversible(rig: Rig) -> None:
    written = ask(rig, "send", to="you")
    paid = ask(rig, "pay", order=1)
    rewind(rig)

    def choose(row: dict[str, Any]) -> dict[str, Any]:
        arguments = {"call": row["call"], "choice": "redo"}
        with rig.client() as client:
            path = f"/s/{rig.session}/turnlog/mcp"
            given = client.request("POST", path, call("effect", arguments), headers=MCP_HEADERS)
        found: dict[str, Any] = given.json()["result"]
        return found

    assert not choose(written).get("isError")
    refused = choose(paid)
    assert refused["isError"]
    assert "an operator chooses" in refused["content"][0]["text"]
    assert ask(rig, "send", to="you")["status"] == "ok"
    assert ask(rig, "pay", order=1)["status"] == "replayed"


@pytest.mark.promise("LEDGER-3")
def test_the_api_takes_a_choice_and_a_rule_makes_one(rig: Rig) -> None:
    paid, free = ask(rig, "pay", order=1), ask(rig, "free", order=1)
    rewind(rig)
    token = (rig.proxy.data / "token").read_text().strip()
    with rig.client() as client:
        path = f"/turnlog/api/v1/calls/{paid['call']}/effect"
        headers = (("Authorization", f"Bearer {token}"),)
        given = client.request("POST", path, b'{"choice": "redo"}', headers=headers)
        assert (given.status, given.json()["kind"]) == (200, "effect")
    assert ask(rig, "pay", order=1)["status"] == "ok"
    assert (free["status"], ask(rig, "free", order=1, note="x")["status"]) == ("ok", "ok")


@pytest.mark.promise("LEDGER-4")
def test_everything_else_passes_as_without_it(rig: Rig) -> None:
    calls = [("put", {"path": "/a"}), ("read", {"path": "/a"}), ("shell", {"command": "make"})]
    for tool, arguments in calls:
        ask(rig, tool, **arguments)
    rewind(rig)
    again = [ask(rig, tool, **arguments) for tool, arguments in calls]
    assert [row["status"] for row in again] == ["ok", "ok", "ok"]
    # What no rule names is only said to be a repeat.
    assert [row["flags"] for row in again] == [[], [], ["repeat_of_discarded"]]
    assert ask(rig, "shell", command="other")["flags"] == []
    assert sent(rig) == 7


@pytest.mark.promise("LEDGER-1")
def test_an_effect_is_the_branchs_own_again_once_its_rewind_is_taken_back(rig: Rig) -> None:
    first = ask(rig, "send", to="you")
    rewind(rig)
    assert ask(rig, "send", to="you")["status"] == "replayed"
    rewind(rig, first["seq"])
    assert ask(rig, "send", to="you")["status"] == "ok"


@pytest.mark.promise("LEDGER-1")
def test_the_ledger_holds_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    settings = {"rules": ["rules.yaml"]}
    with RawUpstream() as upstream:
        with proxy_beside(tmp_path, upstream.url, settings=settings) as proxy:
            rig = Rig(upstream, proxy)
            rig.session = "moved"
            ask(rig, "send", to="you")
            rewind(rig)
        with proxy_beside(tmp_path, upstream.url, settings=settings) as proxy:
            rig = Rig(upstream, proxy)
            rig.session = "moved"
            assert ask(rig, "send", to="you")["status"] == "replayed"
            assert sent(rig) == 1


def pay_at_once(rig: Rig, proxies: Sequence[Proxy], amount: int) -> tuple[int, list[str]]:
    """Pay several times at once; return how many calls were sent, and the statuses of the others.

    No call ends at the server before all are sent or answered.
    """
    rows, before, at_once, go_on = len(rig.rows()), sent(rig), Barrier(AT_ONCE), Event()

    def hold(peer: Peer) -> None:
        peer.read()
        assert go_on.wait(BOUND)
        echo(peer)

    def pay(number: int) -> None:
        with Client(proxies[number % len(proxies)].url) as client:
            at_once.wait()
            asked = call("pay", {"order": 1, "amount": amount})
            client.request("POST", rig.path, asked, headers=MCP_HEADERS)

    def ended() -> list[str]:
        return [row.status for row in rig.rows()[rows:] if row.status != "pending"]

    rig.upstream.script = hold
    with ThreadPoolExecutor(AT_ONCE) as pool:
        paid = [pool.submit(pay, number) for number in range(AT_ONCE)]
        try:
            wait_until(lambda: len(ended()) + sent(rig) - before == AT_ONCE, "all are decided")
            found = sent(rig) - before, ended()
        finally:
            go_on.set()
        for each in paid:
            each.result(BOUND)
    rig.upstream.script = echo
    rig.ended_rows(rows + AT_ONCE)
    return found


def leave(rig: Rig, result: object) -> Event:
    """Pay, and leave before the answer `result`, which comes once the returned event is set."""
    go_on, before = Event(), sent(rig)

    def hold(peer: Peer) -> None:
        peer.read()
        assert go_on.wait(BOUND)
        peer.send_json(result)

    rig.upstream.script = hold
    with rig.client() as client:
        client.ask("POST", rig.path, PAYMENT, headers=MCP_HEADERS)
        rig.upstream.wait_for_requests(before + 1)
    wait_until(lambda: "abandoned" in rig.notes(), "its caller has left")
    return go_on


@pytest.mark.promise("LEDGER-5")
@pytest.mark.parametrize(
    ("choice", "amount", "status"), [("redo", 5, "replayed"), ("override", 6, "error")]
)
def test_a_choice_lets_exactly_one_of_several_calls_at_once_through(
    rig: Rig, choice: str, amount: int, status: str
) -> None:
    first = ask(rig, "pay", order=1, amount=5)
    rewind(rig)
    assert cli(rig, "effect", first["call"], f"--{choice}").returncode == 0
    assert pay_at_once(rig, [rig.proxy], amount) == (1, [status] * (AT_ONCE - 1))


@pytest.mark.promise("LEDGER-5", "LEDGER-1")
def test_a_choice_lets_exactly_one_call_through_two_proxies_on_one_store(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    settings = {"rules": ["rules.yaml"]}
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url, settings=settings) as one,
        proxy_beside(tmp_path, upstream.url, settings=settings) as other,
    ):
        rig = Rig(upstream, one)
        rig.session = "shared"
        first = ask(rig, "pay", order=1, amount=5)
        rewind(rig)
        assert cli(rig, "effect", first["call"], "--redo").returncode == 0
        assert pay_at_once(rig, [one, other], 5) == (1, ["replayed"] * (AT_ONCE - 1))


@pytest.mark.promise("LEDGER-5")
def test_a_choice_is_there_again_after_a_call_that_was_not_executed(rig: Rig) -> None:
    first = ask(rig, "pay", order=1, amount=5)
    rewind(rig)
    assert cli(rig, "effect", first["call"], "--redo").returncode == 0
    rig.upstream.script = answer(ok(b"", status="429 Too Many Requests"))
    assert ask(rig, "pay", order=1, amount=5)["executed"] == "no"
    assert pay_at_once(rig, [rig.proxy], 5) == (1, ["replayed"] * (AT_ONCE - 1))


@pytest.mark.promise("LEDGER-5", "TWICE-10")
def test_a_repeat_of_the_call_that_a_choice_let_through_joins_it(rig: Rig) -> None:
    first = ask(rig, "pay", order=1, amount=5)
    rewind(rig)
    assert cli(rig, "effect", first["call"], "--redo").returncode == 0
    go_on = leave(rig, text_result(1, "again"))
    with ThreadPoolExecutor() as pool:
        repeated = pool.submit(rig.post, PAYMENT)
        go_on.set()
        assert "again" in json.loads(repeated.result(BOUND))["result"]["content"][0]["text"]
    assert sent(rig) == 2


@pytest.mark.promise("LEDGER-5")
def test_a_choice_holds_although_the_answer_to_the_call_was_not_delivered(rig: Rig) -> None:
    leave(rig, text_result(1, "paid")).set()
    (first,) = rig.ended_rows()
    rewind(rig)
    assert cli(rig, "effect", first.call, "--redo").returncode == 0
    rig.upstream.script = echo
    assert ask(rig, "pay", order=1, amount=5)["status"] == "ok"
    assert sent(rig) == 2
