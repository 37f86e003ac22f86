"""`turnlog rewind` beside a running proxy. The situations are those in which other systems went wrong."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import Done, turnlog
from kit.beside import Rig, proxy_beside, ruled
from kit.clients import MCP_HEADERS, call, wait_until
from kit.faults import Hangs, ResetAfterRequest, SlowHead
from kit.upstreams import RawUpstream, answer, echo, ok, text_result

RULES = """
rules:
  - match: {tool: "read*"}
    effect: read
  - match: {tool: "put*"}
    effect: idempotent_write
    delta: [{field: files_modified, op: modified, key: $.args.path}]
    compensate:
      tool: remove
      args: {path: $.args.path}
      look: {tool: read, args: {path: $.args.path}, expect: $.args.text}
  - match: {tool: "mail*"}
    effect: irreversible
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


def cli(rig: Rig, *arguments: str) -> Done:
    return turnlog(*arguments, "--data", str(rig.proxy.data))


def settle(rig: Rig, calls: int = 1) -> None:
    """Wait until as many calls have ended, and nothing more is noted about them."""
    rows = rig.ended_rows(calls)
    named = sum(row.effect in ("write", "idempotent_write", "irreversible") for row in rows)
    wait_until(lambda: rig.notes().count("delivered") == named, "answers are noted as delivered")


def plan(rig: Rig, target: int, *arguments: str) -> dict[str, Any]:
    rules = str(rig.proxy.data.parent / "rules.yaml")
    done = cli(rig, "rewind", rig.session, str(target), "--rules", rules, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rewind(rig: Rig, target: int, *arguments: str) -> dict[str, Any]:
    """Make a rewind as its plan says."""
    head = plan(rig, target, *arguments)["head"]
    return plan(rig, target, *arguments, "--yes", "--expect", str(head))


def rewinds_told(rig: Rig) -> list[tuple[int, str]]:
    """Return seq and actor of the rewinds of this test's session that the log has."""
    session = plan(rig, 0)["session"]
    events = rig.proxy.events("session.changed")
    mine = [event for event in events if event["turnlog.session"] == session]
    return [(event["turnlog.seq"], event["turnlog.actor"]) for event in mine]


def api(rig: Rig, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    token = (rig.proxy.data / "token").read_text().strip()
    with rig.client() as client:
        given = client.request(
            "POST",
            f"/turnlog/api/v1/sessions/{rig.session}/{path}",
            json.dumps(body).encode(),
            headers=(("Authorization", f"Bearer {token}"),),
        )
    found: dict[str, Any] = given.json()
    return given.status, found


@pytest.mark.promise("REWIND-2")
def test_the_work_of_a_session_beside_it_is_neither_discarded_nor_proposed_for_undoing(
    rig: Rig,
) -> None:
    rig.post(call("put", {"path": "/a", "text": "one"}))
    settle(rig)
    before = rig.session
    rig.session = f"{before}-beside"
    rig.post(call("put", {"path": "/b", "text": "two"}))
    settle(rig)
    beside = [row.hash for row in rig.rows()]
    rig.session = before
    found = rewind(rig, 0)
    assert [one["preview"] for one in found["discarded"]] == ['{"path": "/a", "text": "one"}']
    rig.session = f"{before}-beside"
    assert [row.hash for row in rig.rows()] == beside
    assert plan(rig, 0)["head"] == 3


@pytest.mark.promise("REWIND-4")
def test_what_somebody_changed_after_the_call_is_not_proposed_for_undoing(rig: Rig) -> None:
    rig.post(call("put", {"path": "/mine", "text": "done"}))
    settle(rig)

    def fit() -> str:
        (one,) = [one for one in plan(rig, 0)["discarded"] if one["tool"] == "put"]
        said: str = one["compensation"]["fit"]
        return said

    assert fit() == "unchecked"
    rig.post(call("read", {"path": "/mine"}))
    settle(rig, 2)
    assert fit() == "fits"
    rig.upstream.script = answer(ok(json.dumps(text_result(1, "edited by hand")).encode()))
    rig.post(call("read", {"path": "/mine"}))
    settle(rig, 3)
    assert fit() == "refused"


@pytest.mark.promise("REWIND-2")
def test_what_a_tool_without_a_rule_did_is_said_to_be_unknown(rig: Rig) -> None:
    rig.post(call("shell", {"command": "make"}))
    settle(rig)
    (one,) = plan(rig, 0)["discarded"]
    assert (one["group"], one["tracked"]) == ("stands", False)
    said = cli(rig, "rewind", rig.session, "0").stdout
    assert "effect unknown, not restorable" in said
    rewind(rig, 0)
    nothing = cli(rig, "rewind", rig.session, "2").stdout
    assert "nothing outside is undone" in nothing
    assert "what was done without turnlog is not known" in nothing


def test_a_plan_names_the_command_that_carries_it_out(rig: Rig) -> None:
    rig.post(call("put", {"path": "/a", "text": "x"}))
    settle(rig)
    plain = cli(rig, "rewind", rig.session, "0").stdout.splitlines()
    assert "no rules were given, so no compensation is shown: --config or --rules" in plain
    rules, data = str(rig.proxy.data.parent / "rules.yaml"), str(rig.proxy.data)
    *_, ruled, last = cli(rig, "rewind", rig.session, "0", "--rules", rules).stdout.splitlines()
    head = plan(rig, 0)["head"]
    place = f"{rig.session} 0 --data {data} --rules {rules}"
    assert last == f"to do it: turnlog rewind {place} --yes --expect {head}"
    assert "no rules" not in ruled
    done = turnlog(*last.removeprefix("to do it: turnlog ").split())
    assert done.stdout.startswith("rewound")


@pytest.mark.promise("REWIND-2")
def test_decisions_after_the_cut_are_void(rig: Rig) -> None:
    rig.post(call("put", {"path": "/a", "text": "x"}))
    settle(rig)
    status, _ = api(rig, "notes", {"kind": "decision", "text": "send it", "why": "approved"})
    assert status == 200
    (void,) = plan(rig, 2)["voided"]
    assert void["kind"] == "decision"


@pytest.mark.promise("REWIND-2")
def test_what_cannot_be_restored_is_listed_before_anything_begins(rig: Rig) -> None:
    rig.post(call("mail", {"to": "you"}))
    rig.post(call("shell", {}))
    settle(rig, 2)
    found = plan(rig, 0)
    assert found["groups"] == {"irreversible": 1, "stands": 1, "idempotent": 0, "no_effect": 0}
    assert (found["untracked"], found["rewound"]) == (1, None)
    assert plan(rig, 0)["head"] == found["head"]


def test_a_call_in_flight_is_counted_and_its_caller_gets_the_answer(rig: Rig) -> None:
    slow = rig.upstream.script = SlowHead(ok(json.dumps(text_result(1, "late")).encode()))
    with rig.client() as client:
        client.ask("POST", rig.path, call("put", {"path": "/a", "text": "x"}), headers=MCP_HEADERS)
        assert slow.asked.wait(30)
        found = rewind(rig, 0)
        assert (found["in_flight"], found["discarded"][0]["standing"]) == (1, "in_flight")
        slow.go.set()
        assert client.response().json()["result"]["content"][0]["text"] == "late"


@pytest.mark.promise("REWIND-6")
def test_a_result_after_the_cut_is_listed_as_detached_or_goes_to_its_call(rig: Rig) -> None:
    slow = rig.upstream.script = SlowHead(ok(json.dumps(text_result(1, "late")).encode()))
    with rig.client() as before, rig.client() as behind:
        put = call("put", {"path": "/before", "text": "x"})
        before.ask("POST", rig.path, put, headers=MCP_HEADERS)
        wait_until(lambda: len(rig.rows()) == 1, "the first call is recorded")
        slow.asked.clear()
        behind.ask("POST", rig.path, call("mail", {"to": "you"}), headers=MCP_HEADERS)
        assert slow.asked.wait(30)
        wait_until(lambda: len(rig.rows()) == 2, "the second call is recorded")
        rewind(rig, 1)
        slow.go.set()
        for client in (before, behind):
            assert client.response().json()["result"]["content"][0]["text"] == "late"
    wait_until(lambda: rig.notes().count("delivered") == 2, "answers are noted as delivered")
    state = json.loads(cli(rig, "state", rig.session, "--json").stdout)
    assert list(state["state"]["files_modified"]) == ["/before"]
    (late,) = state["detached"]
    assert (late["tool"], late["status"], late["executed"]) == ("mail", "ok", "yes")
    lines = cli(rig, "dangling", rig.session, "--json").stdout.splitlines()
    (dangling,) = map(json.loads, lines)
    assert (dangling["standing"], dangling["row"]["tool"]) == ("detached", "mail")


@pytest.mark.promise("REWIND-6")
def test_the_agents_next_look_at_its_state_says_what_was_not_undone(rig: Rig) -> None:
    rig.post(call("put", {"path": "/a", "text": "x"}))
    settle(rig)
    rig.post(call("mail", {"to": "you"}))
    settle(rig, 2)
    rewind(rig, 3, "--why", "the wrong customer")
    with rig.client() as client:
        path = f"/s/{rig.session}/turnlog/mcp"
        answer = client.request("POST", path, call("state"), headers=MCP_HEADERS).json()
    state = json.loads(answer["result"]["content"][0]["text"])
    (made,) = state["rewinds"]
    assert (made["target"], made["why"]) == (3, "the wrong customer")
    (stands,) = made["standing"]
    assert (stands["tool"], stands["effect"]) == ("mail", "irreversible")
    assert list(state["state"]["files_modified"]) == ["/a"]
    said = cli(rig, "state", rig.session).stdout
    assert "rewound to commit 3" in said
    assert "discarded: 1 irreversible; nothing" in said
    assert "stands: " in said


@pytest.mark.promise("REWIND-7")
def test_the_calls_that_a_rewind_kept_are_named_afterwards(rig: Rig) -> None:
    rig.post(call("put", {"path": "/a", "text": "x"}))
    settle(rig)
    kept = rig.rows()[0].intent_seq
    rig.post(call("mail", {"to": "you"}))
    settle(rig, 2)
    rewind(rig, 0, "--keep", str(kept), "--why", "the wrong customer")
    (made,) = json.loads(cli(rig, "state", rig.session, "--json").stdout)["rewinds"]
    assert [(one["seq"], one["tool"]) for one in made["kept"]] == [(kept, "put")]
    commit = f"{rig.session}:{made['seq']}"
    content = json.loads(cli(rig, "show", commit, "--json").stdout)["content"]
    assert (content["keep"], content["why"]) == ([kept], "the wrong customer")
    assert f"[{kept}]" in cli(rig, "show", commit).stdout
    for command in ("state", "resume"):
        said = cli(rig, command, rig.session).stdout
        assert f"kept: {kept} " in said, command
        assert "stands: " in said, command


@pytest.mark.promise("REWIND-5")
def test_listings_show_what_was_discarded_only_if_asked(rig: Rig) -> None:
    rig.post(call("put", {"path": "/a", "text": "x"}))
    settle(rig)
    rewind(rig, 0)
    assert "no attempts" in cli(rig, "log", rig.session).stdout
    assert "[discarded]" in cli(rig, "log", rig.session, "--all").stdout
    for command in ("log", "export"):
        assert cli(rig, command, rig.session, "--path", "/*").stdout.count("discarded") == 0
        rows = cli(rig, command, rig.session, "--all", *(["--json"] if command == "log" else []))
        assert json.loads(rows.stdout)["discarded"] is True
    assert "/a" not in cli(rig, "state", rig.session, "--field", "files_modified").stdout
    assert "/a" in cli(rig, "state", rig.session, "--all").stdout
    assert "/a" in cli(rig, "diff", rig.session, "--all").stdout


@pytest.mark.promise("REWIND-1")
def test_the_old_branch_is_still_there_and_the_rewind_can_be_taken_back(rig: Rig) -> None:
    rig.post(call("put", {"path": "/a", "text": "x"}))
    settle(rig)
    first = rewind(rig, 0)["rewound"]
    back = rewind(rig, 3)
    assert (back["discarded"], back["returning"], back["rewound"]) == ([], 1, first + 1)
    assert cli(rig, "verify", rig.session).returncode == 0


def test_a_rewind_writes_into_the_data_folder_alone(rig: Rig, tmp_path: Path) -> None:
    rig.post(call("put", {"path": str(tmp_path / "a"), "text": "x"}))
    settle(rig)
    sent = len(rig.upstream.requests)
    rewind(rig, 0)
    assert list(tmp_path.iterdir()) == []
    assert len(rig.upstream.requests) == sent


@pytest.mark.promise("REWIND-3")
def test_of_two_operators_one_gets_the_conflict_with_the_head(rig: Rig) -> None:
    rig.post(call("put", {"path": "/a", "text": "x"}))
    settle(rig)
    status, found = api(rig, "rewind", {"seq": 0})
    assert (status, found["rewound"], found["head"]) == (200, None, 3)
    status, made = api(rig, "rewind", {"seq": 0, "expect": 3, "why": "wrong file"})
    assert (status, made["rewound"]) == (200, 4)
    status, said = api(rig, "rewind", {"seq": 0, "expect": 3})
    assert (status, said["head"]) == (409, 4)
    wait_until(lambda: rewinds_told(rig) == [(4, "operator")], "the log has the rewind")
    done = cli(rig, "rewind", rig.session, "0", "--yes", "--expect", "3")
    assert (done.returncode, "newest commit is 4, not 3" in done.stderr) == (2, True)


@pytest.mark.promise("SESS-14")
def test_a_rewind_under_an_old_lease_is_refused(rig: Rig) -> None:
    rig.post(call("put", {"path": "/a", "text": "x"}))
    settle(rig)
    claimed = cli(rig, "sessions", "claim", rig.session, "--ttl", "1h", "--json")
    assert json.loads(claimed.stdout)["seq"] == 4
    command = ("rewind", rig.session, "0", "--yes", "--expect", "4", "--fence")
    done = cli(rig, *command, "3")
    assert (done.returncode, "the lease 3 is not the newest, 4 is" in done.stderr) == (2, True)
    status, said = api(rig, "rewind", {"seq": 0, "expect": 4, "fence": 3})
    assert (status, said["fence"], said["head"]) == (409, 4, 4)
    assert cli(rig, *command, "4").returncode == 0


def test_a_rewind_without_a_target_or_without_the_head_is_wrong_use(rig: Rig) -> None:
    rig.post(call("put", {"path": "/a", "text": "x"}))
    settle(rig)
    assert "give SEQ or --turn" in cli(rig, "rewind", rig.session).stderr
    assert "--yes needs --expect" in cli(rig, "rewind", rig.session, "0", "--yes").stderr
    long = cli(rig, "rewind", rig.session, "0", "--why", "x" * 2001)
    assert (long.returncode, "it has 2001 characters, 2000 are kept" in long.stderr) == (2, True)
    status, said = api(rig, "rewind", {"keep": [1]})
    assert (status, said["detail"]) == (400, "give seq or turn, one of them")


@pytest.mark.promise("REWIND-2")
def test_after_a_crash_in_a_batch_of_calls_each_is_known_to_be_done_or_not_to_be_known(
    tmp_path: Path,
) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    settings = {"rules": ["rules.yaml"]}
    with RawUpstream() as upstream:
        with proxy_beside(tmp_path, upstream.url, settings=settings) as proxy:
            rig = Rig(upstream, proxy)
            rig.session = "batch"
            rig.post(call("mail", {"to": "one"}))
            settle(rig)
            hangs = upstream.script = Hangs()
            with rig.client() as client:
                client.ask("POST", rig.path, call("mail", {"to": "two"}), headers=MCP_HEADERS)
                assert hangs.asked.wait(30)
                proxy.kill()
        upstream.script = echo
        with proxy_beside(tmp_path, upstream.url, settings=settings) as proxy:
            rig = Rig(upstream, proxy)
            rig.session = "batch"
            wait_until(lambda: all(row.status != "pending" for row in rig.rows()), "it is closed")
            two, one = plan(rig, 0)["discarded"]
            assert (one["status"], one["executed"]) == ("ok", "yes")
            assert (two["status"], two["executed"], two["standing"]) == (
                "unknown",
                "maybe",
                "unknown",
            )
            rewind(rig, 0)
            sent = len(upstream.requests)
            # The done one is answered from the record, the unknown one waits for somebody to look.
            for name in ("one", "two", "two"):
                rig.post(call("mail", {"to": name}))
            again = rig.ended_rows(3)
            assert [row.kind or row.status for row in again] == [
                "replayed",
                "outcome_unknown",
                "outcome_unknown",
            ]
            rig.post(call("mail", {"to": "three"}))
            assert rig.ended_rows(4)[-1].status == "ok"
            assert len(upstream.requests) == sent + 1


def test_a_dropped_connection_makes_turnlog_send_nothing_again_that_no_rule_names(rig: Rig) -> None:
    rig.upstream.script = ResetAfterRequest()
    for tool in ("mail", "shell", "put"):
        rig.post(call(tool, {"path": "/a", "text": "x"}))
    assert [row.kind for row in rig.ended_rows(3)] == ["connection_lost"] * 3
    assert len(rig.upstream.requests) == 3


def test_an_agent_that_gave_up_waiting_and_asks_again_gets_the_running_calls_answer(
    rig: Rig,
) -> None:
    slow = rig.upstream.script = SlowHead(ok(json.dumps(text_result(1, "once")).encode()))
    mail = call("mail", {"to": "you"})
    with rig.client() as first:
        first.ask("POST", rig.path, mail, headers=MCP_HEADERS)
        assert slow.asked.wait(30)
    wait_until(lambda: "abandoned" in rig.notes(), "the first caller is gone")
    with rig.client() as second:
        second.ask("POST", rig.path, mail, headers=MCP_HEADERS)
        slow.go.set()
        assert second.response().json()["result"]["content"][0]["text"] == "once"
    assert len(rig.upstream.requests) == 1


def test_an_answer_that_nobody_waited_for_is_kept_and_listed(rig: Rig) -> None:
    slow = rig.upstream.script = SlowHead(ok(json.dumps(text_result(1, "kept")).encode()))
    with rig.client() as client:
        client.ask("POST", rig.path, call("mail", {"to": "you"}), headers=MCP_HEADERS)
        assert slow.asked.wait(30)
    wait_until(lambda: "abandoned" in rig.notes(), "the caller is gone")
    slow.go.set()
    (row,) = rig.ended_rows()
    assert (row.status, row.flags) == ("ok", ["late"])
    (line,) = cli(rig, "dangling", rig.session, "--json").stdout.splitlines()
    found = json.loads(line)
    assert (found["standing"], "kept" in found["output"]["text"]) == ("undelivered", True)


def test_the_choice_about_one_branchs_call_does_not_hold_for_another_call(rig: Rig) -> None:
    rig.post(call("mail", {"to": "you"}))
    rig.post(call("mail", {"to": "me"}))
    settle(rig, 2)
    (one, _) = rig.rows()
    rewind(rig, 0)
    assert cli(rig, "effect", one.call, "--redo").returncode == 0
    for name, status in (("you", "ok"), ("me", "replayed")):
        rig.post(call("mail", {"to": name}))
        assert rig.ended_rows()[-1].status == status
    # Made again on this branch, then discarded: the choice was about the earlier call.
    wait_until(lambda: rewound(rig), "the rewind is made")
    rig.post(call("mail", {"to": "you"}))
    assert rig.ended_rows()[-1].status == "replayed"


def rewound(rig: Rig) -> bool:
    head = str(plan(rig, 0)["head"])
    return cli(rig, "rewind", rig.session, "0", "--yes", "--expect", head).returncode == 0
