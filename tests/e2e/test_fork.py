"""`turnlog fork` beside a running proxy: the fork is used under its name, and stands beside its parent."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from e2e.stores import Done, turnlog
from kit.beside import Rig, proxy_beside, ruled, session_notes
from kit.clients import MCP_HEADERS, call, wait_until
from kit.upstreams import Peer, RawUpstream, text_result
from kit.wraps import initialize, outcome, text_answer, wrapping

ORDERS = 5
RULES = """
rules:
  - {match: {tool: "read*"}, effect: read}
  - {match: {tool: "pay*"}, effect: irreversible, effect_key: [$.args.order]}
  - {match: {tool: "send*"}, effect: write}
  - match: {tool: "put*"}
    effect: idempotent_write
    delta: [{field: files_modified, op: modified, key: $.args.path}]
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


def cli(rig: Rig, *arguments: str) -> Done:
    return turnlog(*arguments, "--data", str(rig.proxy.data))


def found(rig: Rig, *arguments: str) -> list[Any]:
    done = cli(rig, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def ask(rig: Rig, session: str, tool: str, **arguments: Any) -> dict[str, Any]:
    """Make a call in a session; return its row."""
    rig.session = session
    before = len(rig.rows())
    rig.post(call(tool, arguments))
    rig.ended_rows(before + 1)
    (row,) = found(rig, "log", session, "--last", "1")
    answer: dict[str, Any] = row
    return answer


def forked(rig: Rig, parent: str, name: str, *options: str) -> dict[str, Any]:
    """Fork a session whose answers are all noted as delivered."""
    rig.session = parent.partition(":")[0]
    named = [row for row in rig.rows() if row.effect not in ("read", "unknown")]
    wait_until(lambda: rig.notes().count("delivered") >= len(named), "answers are noted")
    (made,) = found(rig, "fork", parent, "--name", name, *options)
    fork: dict[str, Any] = made
    return fork


@pytest.mark.promise("FORK-1")
def test_both_branches_are_there_and_go_on_under_their_names(rig: Rig) -> None:
    parent, fork = rig.session, f"{rig.session}-fork"
    ask(rig, parent, "put", path="/a")
    made = forked(rig, parent, fork)
    ask(rig, fork, "put", path="/b")
    ask(rig, parent, "put", path="/c")

    def files(session: str) -> set[str]:
        (state,) = found(rig, "state", session)
        return set(state["state"]["files_modified"])

    assert files(fork) == {"/a", "/b"}
    assert files(parent) == {"/a", "/c"}
    (line,) = [s for s in found(rig, "sessions") if s["names"] == [fork]]
    assert line["metadata"]["forked_from"] == f"{made['parent']}:{made['parent_seq']}"
    assert cli(rig, "verify", fork).returncode == 0
    assert cli(rig, "verify", parent).returncode == 0
    said = cli(rig, "diff", parent, fork).stdout
    assert f"parted at commit {made['parent_seq']} of {made['parent']}" in said


@pytest.mark.promise("LEDGER-1", "LEDGER-2")
def test_a_branch_does_not_run_again_what_another_one_has_done(rig: Rig) -> None:
    parent, fork = rig.session, f"{rig.session}-fork"
    ask(rig, parent, "send", to="before")
    seq = ask(rig, parent, "send", to="cut")["seq"]
    ask(rig, parent, "send", to="behind")
    forked(rig, f"{parent}:{seq}", fork)
    assert ask(rig, fork, "send", to="behind")["status"] == "replayed"
    assert ask(rig, fork, "send", to="before")["status"] == "ok"
    ask(rig, fork, "pay", order=1, amount=5)
    refused = ask(rig, parent, "pay", order=1, amount=6)
    assert (refused["kind"], refused["executed"]) == ("policy_blocked", "no")
    assert ask(rig, parent, "pay", order=2, amount=6)["status"] == "ok"
    assert len(rig.upstream.requests) == 6


@pytest.mark.promise("FORK-3")
def test_a_file_that_both_branches_changed_is_named_by_the_state_and_by_dangling(rig: Rig) -> None:
    parent, fork = rig.session, f"{rig.session}-fork"
    ask(rig, parent, "put", path="/a")
    forked(rig, parent, fork)
    ask(rig, fork, "put", path="/both")
    ask(rig, parent, "put", path="/both")
    (state,) = found(rig, "state", fork)
    assert [change["key"] for change in state["shared"]] == ["/both"]
    assert "changed on two branches: /both" in cli(rig, "state", parent).stdout
    assert "/both" in cli(rig, "dangling", parent).stderr


def test_the_api_forks_a_session(rig: Rig) -> None:
    ask(rig, rig.session, "put", path="/a")
    token = (rig.proxy.data / "token").read_text().strip()
    body = json.dumps({"name": f"{rig.session}-api"}).encode()
    headers = (("Authorization", f"Bearer {token}"),)
    path = f"/turnlog/api/v1/sessions/{rig.session}/fork"
    with rig.client() as client:
        made = client.request("POST", path, body, headers=headers)
        again = client.request("POST", path, body, headers=headers)
    assert (made.status, made.json()["mode"]) == (200, "live")
    assert (again.status, "choose another name" in again.json()["detail"]) == (400, True)


def told(rig: Rig, session: str, tool: str, **arguments: Any) -> str:
    """Make a call; return the text of its answer."""
    rig.session = session
    said = json.loads(rig.post(call(tool, arguments)))
    text: str = said["result"]["content"][0]["text"]
    return text


class Numbered:
    """Answers each call with its number."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, peer: Peer) -> None:
        asked = json.loads(peer.read().body)
        self.asked += 1
        peer.send_json(text_result(asked["id"], f"answer {self.asked}"))


@pytest.mark.promise("FORK-4")
def test_a_replay_answers_from_the_record_by_identity_and_sends_nothing(rig: Rig) -> None:
    numbered = rig.upstream.script = Numbered()
    parent, fork = rig.session, f"{rig.session}-replay"
    seq = ask(rig, parent, "read", path="/start")["seq"]
    for tool, arguments in (
        ("read", {"path": "/a"}),
        ("send", {"to": "you"}),
        ("read", {"path": "/a"}),
        ("shell", {"command": "make"}),
        ("put", {"path": "/made"}),
    ):
        ask(rig, parent, tool, **arguments)
    made = forked(rig, f"{parent}:{seq}", fork, "--mode", "replay")
    assert (made["mode"], made["then"]) == ("replay", "stop")
    # In another order than before; of two equal calls each gets its own answer.
    assert told(rig, fork, "shell", command="make") == "answer 5"
    assert told(rig, fork, "read", path="/a") == "answer 2"
    assert told(rig, fork, "send", to="you") == "answer 3"
    assert told(rig, fork, "read", path="/a") == "answer 4"
    assert told(rig, fork, "put", path="/made") == "answer 6"
    row = ask(rig, fork, "read", path="/a")
    assert (row["kind"], row["executed"], row["retry"]) == ("policy_blocked", "no", "never")
    assert numbered.asked == 6
    assert {row.status for row in rig.rows()[:5]} == {"replayed"}
    (state,) = found(rig, "state", fork)
    assert [*state["state"]["files_modified"]] == ["/made"]


def rewind(rig: Rig, session: str, target: int) -> None:
    def is_made() -> bool:
        # A call that was answered from the record may still move the head.
        (plan,) = found(rig, "rewind", session, str(target))
        expect = ("--yes", "--expect", str(plan["head"]))
        return cli(rig, "rewind", session, str(target), *expect).returncode == 0

    wait_until(is_made, "the rewind is made")


@pytest.mark.promise("FORK-4")
def test_a_replay_stops_at_the_first_divergence_until_the_fork_is_taken_back(rig: Rig) -> None:
    numbered = rig.upstream.script = Numbered()
    parent, fork = rig.session, f"{rig.session}-replay"
    seq = ask(rig, parent, "read", path="/start")["seq"]
    for path in ("/a", "/b", "/c"):
        ask(rig, parent, "read", path=path)
    forked(rig, f"{parent}:{seq}", fork, "--mode", "replay")
    assert told(rig, fork, "read", path="/a") == "answer 2"
    diverged = ask(rig, fork, "read", path="/new")
    assert "the replay stops with it" in cli(rig, "show", diverged["call"]).stdout
    rig.session = fork
    batch = b"[%b,%b]" % (call("read", {"path": "/b"}), call("read", request_id=2))
    rig.post(batch, ("MCP-Protocol-Version", "2025-03-26"))
    later = ask(rig, fork, "read", path="/b")
    ended = [(row.kind, row.executed, row.retry) for row in rig.rows()[1:]]
    assert ended == [("policy_blocked", "no", "never")] * 4
    named = f"no answer to call {diverged['call']} (commit {diverged['intent_seq']})"
    for row in rig.rows()[2:]:
        assert named in cli(rig, "show", row.call).stdout
    # Behind the one that came first nothing is different.
    rewind(rig, fork, later["intent_seq"] - 1)
    assert ask(rig, fork, "read", path="/b")["kind"] == "policy_blocked"
    rewind(rig, fork, diverged["intent_seq"] - 1)
    assert told(rig, fork, "read", path="/b") == "answer 3"
    rewind(rig, fork, seq + 2)
    assert told(rig, fork, "read", path="/a") == "answer 2"
    assert told(rig, fork, "read", path="/b") == "answer 3"
    assert numbered.asked == 4


class Refusing:
    """Answers each call but reads with an error: that of a tool, or of JSON-RPC for `send`."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, peer: Peer) -> None:
        asked = json.loads(peer.read().body)
        self.asked += 1
        content = [{"type": "text", "text": f"answer {self.asked}"}]
        answer: dict[str, Any] = {"result": {"content": content}}
        if asked["params"]["name"] == "put":
            answer["result"]["isError"] = True
        elif asked["params"]["name"] == "send":
            answer = {"error": {"code": -32603, "message": "no mail today"}}
        peer.send_json({"jsonrpc": "2.0", "id": asked["id"], **answer})


@pytest.mark.promise("FORK-4")
@pytest.mark.parametrize("then", ["stop", "live"])
def test_a_replay_answers_with_the_errors_that_the_parent_got(rig: Rig, then: str) -> None:
    server = rig.upstream.script = Refusing()
    parent, fork = rig.session, f"{rig.session}-{then}"
    seq = ask(rig, parent, "read", path="/start")["seq"]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("put", {"path": "/made"}),
        ("send", {"to": "you"}),
        ("read", {"path": "/a"}),
    ]
    for tool, arguments in calls:
        ask(rig, parent, tool, **arguments)
    forked(rig, f"{parent}:{seq}", fork, "--mode", "replay", "--then", then)
    rows = [ask(rig, fork, tool, **arguments) for tool, arguments in calls]
    assert [row["status"] for row in rows] == ["replayed"] * 3
    assert [row["kind"] for row in rows] == ["tool_failed", "upstream_internal", None]
    assert server.asked == 4
    # A tool that failed has changed nothing, neither at the parent nor here.
    (state,) = found(rig, "state", fork)
    assert state["state"]["files_modified"] == {}


@pytest.mark.promise("FORK-4")
def test_a_replay_diverges_at_an_answer_that_was_not_kept_whole(tmp_path: Path) -> None:
    limits = {"record": 2048}
    (tmp_path / "rules.yaml").write_text(RULES)
    settings = {"rules": ["rules.yaml"], "limits": limits}
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url, settings=settings) as proxy,
    ):
        upstream.script = Sized()
        rig = Rig(upstream, proxy)
        for size in (1, 4096, 1):
            ask(rig, "parent", "read", size=size)
        for then in ("stop", "live"):
            forked(rig, "parent:0", then, "--mode", "replay", "--then", then)
            assert ask(rig, then, "read", size=1)["status"] == "replayed"
        sent = len(upstream.requests)
        cut = ask(rig, "stop", "read", size=4096)
        assert (cut["kind"], cut["executed"]) == ("policy_blocked", "no")
        later = ask(rig, "stop", "read", size=1)
        assert later["kind"] == "policy_blocked"
        assert cut["call"] in cli(rig, "show", later["call"]).stdout
        assert len(upstream.requests) == sent
        for size in (4096, 1):
            assert ask(rig, "live", "read", size=size)["status"] == "ok"
        assert len(upstream.requests) == sent + 2


class Sized:
    """A server that answers with so many characters as it is asked for."""

    def __call__(self, peer: Peer) -> None:
        asked = json.loads(peer.read().body)
        peer.send_json(text_result(asked["id"], "x" * asked["params"]["arguments"]["size"]))


@pytest.mark.promise("FORK-4")
def test_a_replay_stops_with_a_call_that_no_record_can_answer(rig: Rig) -> None:
    parent, fork = rig.session, f"{rig.session}-replay"
    ask(rig, parent, "read", path="/a")
    forked(rig, f"{parent}:0", fork, "--mode", "replay")
    rig.session = fork
    batch = b"[%b,%b]" % (call("read", {"path": "/a"}), call("read", request_id=2))
    rig.post(batch, ("MCP-Protocol-Version", "2025-03-26"))
    assert ask(rig, fork, "read", path="/a")["kind"] == "policy_blocked"
    first = rig.rows()[0]
    assert f"no answer to call {first.call}" in cli(rig, "show", rig.rows()[-1].call).stdout
    assert len(rig.upstream.requests) == 1


@pytest.mark.promise("FORK-4")
def test_a_replay_that_has_stopped_has_stopped_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    settings = {"rules": ["rules.yaml"]}
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url, settings=settings) as one,
        proxy_beside(tmp_path, upstream.url, settings=settings) as other,
    ):
        rig, beside = Rig(upstream, one), Rig(upstream, other)
        for path in ("/a", "/b"):
            ask(rig, "parent", "read", path=path)
        forked(rig, "parent:0", "fork", "--mode", "replay")
        assert ask(beside, "fork", "read", path="/a")["status"] == "replayed"
        diverged = ask(rig, "fork", "read", path="/new")
        later = ask(beside, "fork", "read", path="/b")
        assert later["kind"] == "policy_blocked"
        assert diverged["call"] in cli(rig, "show", later["call"]).stdout
        assert len(upstream.requests) == 2


@pytest.mark.promise("FORK-4")
def test_a_replay_goes_live_at_the_first_divergence_if_that_was_chosen(rig: Rig) -> None:
    numbered = rig.upstream.script = Numbered()
    parent, fork = rig.session, f"{rig.session}-replay"
    seq = ask(rig, parent, "read", path="/start")["seq"]
    ask(rig, parent, "read", path="/a")
    ask(rig, parent, "read", path="/b")
    forked(rig, f"{parent}:{seq}", fork, "--mode", "replay", "--then", "live")
    assert told(rig, fork, "read", path="/a") == "answer 2"
    assert told(rig, fork, "read", path="/new") == "answer 4"
    assert told(rig, fork, "read", path="/b") == "answer 5"
    assert numbered.asked == 5


@pytest.mark.promise("FORK-4")
def test_a_replay_sends_no_batch_and_no_plain_call_either(rig: Rig) -> None:
    parent, fork = rig.session, f"{rig.session}-replay"
    with rig.client() as client:
        for number in (b"1", b"2"):
            path = f"/s/{parent}/orders"
            assert client.request("POST", path, b'{"n":%b}' % number).status == 200
    rig.ended_rows(2)
    forked(rig, f"{parent}:0", fork, "--mode", "replay")
    sent = len(rig.upstream.requests)
    rig.session = fork
    with rig.client() as client:
        assert client.request("POST", f"/s/{fork}/orders", b'{"n":2}').status == 200
        assert client.request("POST", f"/s/{fork}/orders", b'{"n":3}').status == 403
        batch = b"[%b,%b]" % (call("send"), call("read", request_id=2))
        headers = (*MCP_HEADERS, ("MCP-Protocol-Version", "2025-03-26"))
        client.request("POST", rig.path, batch, headers=headers)
    assert {row.kind for row in rig.ended_rows(4)[1:]} == {"policy_blocked"}
    assert len(rig.upstream.requests) == sent


@pytest.mark.promise("FORK-4", "LEDGER-1")
def test_a_wrapped_command_gets_nothing_that_another_branch_has_done(tmp_path: Path) -> None:
    def line(session: str, tool: str, request_id: str) -> bytes:
        meta = {"turnlog/session": session}
        return call(tool, {"path": "/a"}, request_id=request_id, _meta=meta)

    with wrapping(tmp_path, rules=RULES) as wrap:
        initialize(wrap)
        for number, tool in enumerate(("read", "send")):
            asked = wrap.asked(line("work", tool, f"first-{number}"))
            wrap.server.say(text_answer(asked["id"], f"{tool} done"))
            assert wrap.stdout.json() == text_answer(asked["id"], f"{tool} done")
        wait_until(lambda: session_notes(wrap.data, "work") == ["delivered"], "it is delivered")
        data = ("--data", str(wrap.data))
        for name, options in (("live", ()), ("replay", ("--mode", "replay"))):
            done = turnlog("fork", "work:0", "--name", name, *options, *data)
            assert done.returncode == 0, done.stderr
        for name, tool in (("replay", "read"), ("replay", "send"), ("live", "send")):
            wrap.send(line(name, tool, f"{name}-{tool}"))
            answer = wrap.stdout.json()["result"]
            assert answer["content"][0]["text"] == f"{tool} done"
            assert answer["_meta"]["turnlog/outcome"]["status"] == "replayed"
        # The first one behind them that the command gets.
        assert wrap.asked(line("live", "read", "sent"))["id"] == "sent"
        wrap.server.say(text_answer("sent", "read again"))
        assert wrap.stdout.json() == text_answer("sent", "read again")
        wrap.send(line("replay", "read", "diverged"))
        assert outcome(wrap.stdout.json())["kind"] == "policy_blocked"


@pytest.mark.promise("LEDGER-7")
def test_a_wrapped_command_gets_no_batch_with_an_effect_of_another_branch(tmp_path: Path) -> None:
    def line(session: str, tool: str, request_id: int) -> bytes:
        meta = {"turnlog/session": session}
        return call(tool, {"path": "/a"}, request_id=request_id, _meta=meta)

    with wrapping(tmp_path, rules=RULES) as wrap:
        initialize(wrap, "2025-03-26")
        asked = wrap.asked(line("work", "send", 1))
        wrap.server.say(text_answer(asked["id"], "sent"))
        assert wrap.stdout.json() == text_answer(1, "sent")
        done = turnlog("fork", "work:0", "--name", "fork", data=wrap.data)
        assert done.returncode == 0, done.stderr
        wrap.send(b"[%b,%b]" % (line("fork", "read", 2), line("fork", "send", 3)))
        refused = wrap.stdout.json()
        assert [(one["id"], outcome(one)["kind"]) for one in refused] == [
            (2, "policy_blocked"),
            (3, "policy_blocked"),
        ]
        # The first one behind it that the command gets.
        assert wrap.asked(line("fork", "read", 4))["id"] == 4


@pytest.mark.promise("LEDGER-1", "LEDGER-2")
def test_a_fork_sends_nothing_again_once_its_parent_is_purged(rig: Rig) -> None:
    parent, fork = rig.session, f"{rig.session}-fork"
    seq = ask(rig, parent, "read")["seq"]
    paid = ask(rig, parent, "pay", order=1, amount=5)
    forked(rig, f"{parent}:{seq}", fork)
    assert cli(rig, "purge", parent, "--yes").returncode == 0
    again = ask(rig, fork, "pay", order=1, amount=5)
    assert (again["status"], again["executed"], again["retry"]) == ("replayed", "yes", "never")
    said = cli(rig, "show", again["call"]).stdout
    assert "already executed and its result is not available" in said
    assert ask(rig, fork, "pay", order=1, amount=6)["kind"] == "policy_blocked"
    assert len(rig.upstream.requests) == 2
    done = cli(rig, "effect", paid["call"], "--override")
    assert done.returncode == 0, done.stderr
    assert ask(rig, fork, "pay", order=1, amount=6)["status"] == "ok"


@pytest.mark.promise("LEDGER-1", "LEDGER-2")
def test_a_fork_that_is_imported_without_its_parent_sends_nothing_again(
    rig: Rig, tmp_path: Path
) -> None:
    parent, fork = rig.session, f"{rig.session}-fork"
    seq = ask(rig, parent, "read")["seq"]
    paid = ask(rig, parent, "pay", order=1, amount=5)
    forked(rig, f"{parent}:{seq}", fork)
    bundle = str(tmp_path / "fork.bundle")
    assert cli(rig, "resume", fork, "--bundle", bundle, "--copy").returncode == 0
    with ruled(tmp_path, RULES) as there:
        done = cli(there, "import", bundle)
        assert done.returncode == 0, done.stderr
        again = ask(there, fork, "pay", order=1, amount=5)
        assert (again["status"], again["executed"], again["retry"]) == ("replayed", "yes", "never")
        refused = ask(there, fork, "pay", order=1, amount=6)
        assert refused["kind"] == "policy_blocked"
        assert f"(call {paid['call']}," in cli(there, "show", refused["call"]).stdout
        assert there.upstream.requests == []
        unknown = cli(there, "effect", "0123456789ab", "--override")
        assert (unknown.returncode, "has left one behind" in unknown.stderr) == (2, True)
        for name, choice in ((paid["input_hash"], "--replay"), (paid["call"], "--override")):
            chosen = cli(there, "effect", name, choice)
            assert chosen.returncode == 0, chosen.stderr
        assert ask(there, fork, "pay", order=1, amount=6)["status"] == "ok"
        assert len(there.upstream.requests) == 1


@pytest.mark.promise("FORK-4")
def test_what_a_replay_answers_is_on_disk_before_the_answer_leaves(rig: Rig) -> None:
    rig.upstream.script = Numbered()
    parent, fork = rig.session, f"{rig.session}-replay"
    ask(rig, parent, "read", path="/a")
    forked(rig, f"{parent}:0", fork, "--mode", "replay")
    rig.session = fork
    with rig.client() as client:
        given = client.request("POST", rig.path, call("read", {"path": "/a"}), headers=MCP_HEADERS)
    (row,) = rig.rows()
    assert given.head.one("turnlog-commit") == f"{row.session}:{row.seq}"


@pytest.mark.promise("LEDGER-6")
def test_a_fork_does_not_spend_what_was_chosen_for_its_parent(rig: Rig) -> None:
    parent, fork = rig.session, f"{rig.session}-fork"
    seq = ask(rig, parent, "read")["seq"]
    paid = ask(rig, parent, "pay", order=1)
    rewind(rig, parent, seq)
    found(rig, "effect", paid["call"], "--redo")
    forked(rig, parent, fork)
    assert ask(rig, fork, "pay", order=1)["status"] == "replayed"
    unclear = cli(rig, "effect", paid["call"], "--redo")
    assert (
        unclear.returncode,
        "; name the one whose later calls your choice is for by --session" in unclear.stderr,
    ) == (2, True)
    again = ask(rig, parent, "pay", order=1)
    assert again["status"] == "ok"
    # Only the fork does not show that one.
    found(rig, "effect", again["call"], "--redo")
    assert ask(rig, fork, "pay", order=1)["status"] == "ok"


@pytest.mark.promise("LEDGER-6")
def test_a_choice_is_for_the_branch_that_is_named(rig: Rig) -> None:
    parent = rig.session
    seq = ask(rig, parent, "read")["seq"]
    paid = ask(rig, parent, "pay", order=1)
    one, other = (f"{parent}-one", f"{parent}-other")
    for name in (one, other):
        forked(rig, f"{parent}:{seq}", name)
    found(rig, "effect", paid["call"], "--redo", "--session", other)
    assert ask(rig, one, "pay", order=1)["status"] == "replayed"
    assert ask(rig, other, "pay", order=1)["status"] == "ok"


@pytest.mark.promise("LEDGER-3")
def test_an_agent_chooses_about_an_effect_that_another_branch_had(rig: Rig) -> None:
    parent, fork = rig.session, f"{rig.session}-fork"
    ask(rig, parent, "read")
    made = ask(rig, parent, "send", to="you")
    forked(rig, f"{parent}:0", fork)
    ask(rig, fork, "read")
    with rig.client() as client:
        asked = call("effect", {"call": made["call"], "choice": "redo"})
        path = f"/s/{fork}/turnlog/mcp"
        given = client.request("POST", path, asked, headers=MCP_HEADERS).json()["result"]
    assert not given.get("isError"), given
    assert ask(rig, fork, "send", to="you")["status"] == "ok"


@pytest.mark.promise("LEDGER-1")
def test_branches_that_ask_for_the_same_effect_at_once_have_it_once(rig: Rig) -> None:
    parent = rig.session
    ask(rig, parent, "read")
    branches = [parent, f"{parent}-x", f"{parent}-y"]
    for name in branches[1:]:
        forked(rig, parent, name)
    sent, at_once = len(rig.upstream.requests), Barrier(len(branches))

    def pay(session: str) -> None:
        path = f"/s/{session}{rig.path.removeprefix(f'/s/{parent}')}"
        with rig.client() as client:
            for order in range(ORDERS):
                at_once.wait()
                client.request("POST", path, call("pay", {"order": order}), headers=MCP_HEADERS)

    with ThreadPoolExecutor() as pool:
        list(pool.map(pay, branches))
    assert len(rig.upstream.requests) == sent + ORDERS


@pytest.mark.parametrize(("then", "said"), [("stop", "refused"), ("live", "sent")])
def test_a_replay_of_nothing_is_made_with_a_warning(rig: Rig, then: str, said: str) -> None:
    parent = rig.session
    seq = ask(rig, parent, "read")["seq"]
    done = cli(rig, "fork", parent, "--mode", "replay", "--then", then)
    assert done.returncode == 0
    assert f"has no call behind commit {seq}, so nothing can be replayed" in done.stderr
    assert f"the fork's calls are {said}" in done.stderr
    assert cli(rig, "fork", f"{parent}:0", "--mode", "replay").stderr == ""
    assert cli(rig, "fork", parent).stderr == ""
