"""Tainted outputs and the calls that used their values: marked, shown, labelled."""

import json
import shutil
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import turnlog
from kit.beside import Rig, proxy_beside, ruled
from kit.clients import MCP_HEADERS, call, wait_until
from kit.upstreams import Peer, RawUpstream, answer, ok, text_result
from turnlog.sessions.lineage.taint import (
    WHOLE,
    Contamination,
    ReadingBounds,
    read_contamination,
)
from turnlog.sessions.log import find_session
from turnlog.store.lmdb import LmdbReader

RULES = """
rules:
  - {name: mail, match: {tool: read_mail}, taint: mark}
  - {name: checks, match: {tool: check}, taint: endorse}
  - {name: no sending, match: {tool: send}, block_if: tainted}
  - {match: {tool: pay_block}, provenance: {inputs: sourced, then: block}}
  - {match: {tool: pay_surface}, provenance: {inputs: sourced, then: surface}}
  - {match: {tool: pay_flag}, provenance: {inputs: sourced}}
  - {match: {method: POST, path: /orders}, block_if: tainted}
  - {match: {tool: signed}, provenance: {result: verified, then: block}}
  - {match: {tool: checked}, provenance: {result: checked}}
"""
TOKEN, OTHER = "deploy-7f3a9c21", "build-55d01e77"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


def given(rig: Rig, tool: str, output: str, **arguments: object) -> None:
    """Make a call that is answered with a text."""
    rig.upstream.script = answer(ok(json.dumps(text_result(1, output)).encode()))
    rig.post(call(tool, arguments))


def ran(rig: Rig, *arguments: str, code: int = 0) -> str:
    """Return what a command prints."""
    done = turnlog(*arguments, data=rig.proxy.data)
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout


def shown(rig: Rig, *arguments: str) -> dict[str, Any]:
    """Return what `taint show` says of the test's session."""
    found: dict[str, Any] = json.loads(
        ran(rig, "taint", "show", rig.session, "--format", "json", *arguments)
    )
    return found


def used(found: dict[str, Any]) -> list[str]:
    return [one["tool"] for one in found["calls"]]


@pytest.mark.promise("TAINT-2")
def test_a_marked_output_is_shown_with_the_calls_that_used_it(rig: Rig) -> None:
    given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
    given(rig, "list", "nothing here", path="/srv/data-1")
    given(rig, "deploy", f"started {OTHER}", target=TOKEN)
    given(rig, "watch", "running", command=f"tail -f '{OTHER}.log' {OTHER}")
    mail, _, deploy, watch = rig.ended_rows(4)
    found = shown(rig)
    (source,) = found["sources"]
    assert (source["seq"], source["why"]) == (mail.seq, ["marked by a rule"])
    assert [(one["tool"], one["seq"]) for one in found["calls"]] == [
        ("deploy", deploy.seq),
        ("watch", watch.seq),
    ]
    assert found["calls"][0]["tainted_by"] == [
        {
            "session": mail.session,
            "seq": mail.seq,
            "evidence": "exact",
            "pointer": "/target",
            "place": "/content/0/text",
        }
    ]
    assert {by["seq"] for by in found["calls"][1]["tainted_by"]} == {deploy.seq}
    assert used(shown(rig, "--to", str(deploy.seq))) == ["deploy"]
    assert shown(rig, "--to", str(rig.ended_rows(4)[1].seq))["calls"] == []


def test_the_graph_is_drawn_as_a_tree_for_graphviz_and_for_mermaid(rig: Rig) -> None:
    given(rig, "read_mail", f'please "use" {TOKEN} <now>', id="mail-1234")
    given(rig, "deploy", f"started {OTHER}", target=TOKEN)
    given(rig, "read_mail", "another", id="mail-1235")
    mail, deploy, other = rig.ended_rows(3)
    lines = ran(rig, "taint", "show", rig.session).splitlines()
    assert lines[0] == f"session {mail.session}, up to commit {other.seq}"
    assert lines[1].startswith(f"{mail.seq} default/read_mail ")
    assert lines[2].startswith(f"└─ {deploy.seq} default/deploy ")
    assert lines[2].endswith("/target (exact)")
    assert lines[3].endswith("no use of it was found")
    dot = ran(rig, "taint", "show", rig.session, "--format", "dot")
    assert dot.startswith("digraph taint {")
    assert 'n0 -> n1 [label="/target (exact)"];' in dot
    mermaid = ran(rig, "taint", "show", rig.session, "--format", "mermaid")
    assert mermaid.startswith("flowchart LR\n")
    assert 'n0 -->|"/target (exact)"| n1' in mermaid


def test_nothing_is_ever_said_to_be_absent(rig: Rig) -> None:
    given(rig, "list", "nothing here", path="/srv/data-1")
    assert ran(rig, "taint", "show", rig.session).splitlines()[1:] == [
        "no contamination found so far"
    ]
    state = ran(rig, "state", rig.session, "--field", "labels")
    assert state == "labels\n  tainted  no contamination found so far\n"
    labels = json.loads(ran(rig, "state", rig.session, "--field", "labels", "--json"))
    assert labels["state"] == {"labels": {"tainted": None}}


@pytest.mark.promise("TAINT-4")
def test_an_operator_marks_and_endorses_outputs_with_a_reason(rig: Rig) -> None:
    given(rig, "read", f"please use {TOKEN}", path="/srv/notes-1.txt")
    given(rig, "deploy", "started", target=TOKEN)
    read, deploy = rig.ended_rows(2)
    commit = f"{rig.session}:{read.intent_seq}"
    assert used(shown(rig)) == []
    ran(rig, "taint", "mark", commit, "--why", "the file was forged")
    found = shown(rig)
    assert (found["sources"][0]["why"], used(found)) == (
        ["marked: the file was forged"],
        ["deploy"],
    )
    label = json.loads(ran(rig, "state", rig.session, "--json"))["state"]["labels"]["tainted"]
    assert label == {"since": read.seq, "by": [read.seq]}
    written = json.loads(ran(rig, "taint", "endorse", commit, "--why", "it was not", "--json"))
    assert (written["kind"], written["session"]) == ("endorse", read.session)
    assert used(shown(rig)) == []
    endorsed = json.loads(ran(rig, "show", f"{rig.session}:{written['seq']}", "--json"))
    assert (endorsed["actor"], endorsed["ref"]) == ("operator", read.seq)
    assert endorsed["content"] == {"why": "it was not"}
    again = json.loads(ran(rig, "state", rig.session, "--json"))["state"]["labels"]["tainted"]
    assert again == label  # monotone
    assert deploy.flags == []


@pytest.mark.promise("TAINT-5")
def test_a_rewind_behind_it_restores_the_label_before(rig: Rig) -> None:
    given(rig, "list", "nothing", path="/srv/data-1")
    given(rig, "read", f"please use {TOKEN}", path="/srv/notes-1.txt")
    given(rig, "list", "nothing", path="/srv/data-2")
    first, read, last = rig.ended_rows(3)

    def label() -> dict[str, Any] | None:
        text = ran(rig, "state", rig.session, "--field", "labels", "--json")
        found: dict[str, Any] | None = json.loads(text)["state"]["labels"]["tainted"]
        return found

    def rewound(to: int) -> None:
        head = json.loads(ran(rig, "state", rig.session, "--json"))["at"]["seq"]
        ran(rig, "rewind", rig.session, str(to), "--yes", "--expect", str(head))

    ran(rig, "taint", "mark", f"{rig.session}:{read.seq}", "--why", "forged")
    changes = ran(rig, "diff", rig.session, "--seq", f"{last.seq}..{last.seq + 1}")
    assert f"labels tainted\n  + since commit {read.seq}" in changes
    assert "taint: forged" in changes
    rewound(last.seq - 2)  # the mark follows its call
    assert label() == {"since": read.seq, "by": [read.seq]}
    rewound(first.seq)
    assert label() is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("mark", "0:0", "--why", "x"), "no session"),
        (("mark", "no-commit", "--why", "x"), "is not a commit, write SESSION:SEQ"),
        (("mark", "{session}:0", "--why", "x"), "commit 0 of the session belongs to no call"),
        (("mark", "{session}:0", "--why", "x"), " --json` names its calls"),
        (("mark", "{session}:1", "--why", ""), "--why needs 1 to 2000 characters"),
        (
            (
                "endorse",
                "{session}:1",
            ),
            "missing option '--why'",
        ),
        (("show", "{session}", "--to", "99"), "commit 99 of the session belongs to no call"),
        (("show", "{session}", "--format", "svg"), "no format is called 'svg', they are tree"),
    ],
)
def test_a_mistake_is_refused_with_what_to_do(
    rig: Rig, arguments: tuple[str, ...], says: str
) -> None:
    given(rig, "list", "nothing", path="/srv/data-1")
    rig.ended_rows(1)
    told = [part.replace("{session}", rig.session) for part in arguments]
    done = turnlog("taint", *told, data=rig.proxy.data)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


@pytest.mark.promise("TAINT-2")
def test_flags_and_rows_say_what_was_used_when_it_was_called(rig: Rig) -> None:
    given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
    given(rig, "list", "nothing here", path="/srv/data-1")
    given(rig, "deploy", f"started {OTHER}", target=f"--now {TOKEN}")
    given(rig, "check", f"{OTHER} is known", build=OTHER)
    given(rig, "watch", "running", build=OTHER)
    mail, other, deploy, check, watch = rig.ended_rows(5)
    assert mail.flags == ["taint_marked", "tainted_out"]
    assert (other.flags, watch.flags) == ([], [])
    assert deploy.flags == ["tainted_in", "tainted_out"]
    assert check.flags == ["taint_endorsed", "tainted_in"]
    found = [json.loads(line) for line in ran(rig, "log", rig.session, "--json").splitlines()]
    assert "tainted_by" not in found[0]
    assert found[2]["tainted_by"] == [
        {"session": mail.session, "seq": mail.seq, "evidence": "entity"}
    ]
    label = json.loads(ran(rig, "state", rig.session, "--json"))["state"]["labels"]["tainted"]
    assert label == {"since": mail.seq, "by": [mail.seq, deploy.seq, check.seq]}


@pytest.mark.promise("TAINT-7")
def test_a_rule_blocks_calls_with_values_of_tainted_outputs(rig: Rig) -> None:
    given(rig, "read_mail", f"please use {TOKEN} on port 4711", id="mail-1234")
    before = len(rig.upstream.requests)
    rig.post(call("send", {"text": f"it is '{TOKEN}'"}))
    assert len(rig.upstream.requests) == before
    mail, refused = rig.ended_rows(2)
    assert (refused.kind, refused.executed, refused.flags) == (
        "policy_blocked",
        "no",
        ["tainted_in"],
    )
    assert json.loads(ran(rig, "show", refused.call, "--json"))["detail"] == (
        "the rule 'no sending' refuses calls with values of tainted outputs: "
        f"/text of {mail.session}:{mail.seq} (entity)"
    )
    given(rig, "send", "sent", text="port 4711")  # weak evidence
    given(rig, "send", "sent", text="hello-1234")
    assert [row.kind for row in rig.ended_rows(4)[2:]] == [None, None]


@pytest.mark.promise("TAINT-7")
def test_a_running_proxy_takes_up_marks_and_endorsements(rig: Rig) -> None:
    given(rig, "read", f"please use {TOKEN}", path="/srv/notes-1.txt")
    given(rig, "send", "sent", text=TOKEN)
    read, _ = rig.ended_rows(2)
    ran(rig, "taint", "mark", f"{rig.session}:{read.seq}", "--why", "forged")
    rig.post(call("send", {"text": TOKEN}))
    ran(rig, "taint", "endorse", f"{rig.session}:{read.seq}", "--why", "it was not")
    given(rig, "send", "sent", text=TOKEN)
    assert [row.kind for row in rig.ended_rows(4)[1:]] == [None, "policy_blocked", None]


@pytest.mark.promise("TAINT-7")
def test_a_running_proxy_takes_up_a_mark_of_the_last_output(rig: Rig) -> None:
    given(rig, "read", f"please use {TOKEN}", path="/srv/notes-1.txt")
    ran(rig, "taint", "mark", f"{rig.session}:{rig.ended_rows(1)[0].seq}", "--why", "forged")
    rig.post(call("send", {"text": TOKEN}))
    assert [row.kind for row in rig.ended_rows(2)] == [None, "policy_blocked"]


@pytest.mark.promise("TAINT-7")
def test_long_arguments_are_looked_up_to_their_end_before_a_rule_lets_them_pass(rig: Rig) -> None:
    given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
    rig.post(call("send", {"text": "word " * 50_000 + TOKEN}))
    assert rig.ended_rows(2)[-1].kind == "policy_blocked"


@pytest.mark.promise("TAINT-7")
@pytest.mark.parametrize(
    "body",
    [
        call("send", {"text": "x"}).replace(b'"send"', b'"other", "name": "send"'),
        b"[" + call("list", {}) + b"," + call("send", {"text": TOKEN}, id=2) + b"]",
    ],
)
def test_what_cannot_be_read_for_certain_is_refused_as_by_access_rules(
    rig: Rig, body: bytes
) -> None:
    given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
    before = len(rig.upstream.requests)
    rig.post(body)
    assert len(rig.upstream.requests) == before
    assert {row.kind for row in rig.ended_rows(2)[1:]} == {"policy_blocked"}


@pytest.mark.promise("PROV-20")
def test_a_rule_may_demand_that_inputs_were_seen_before(rig: Rig) -> None:
    given(rig, "list", f"here is {TOKEN}", path="/srv/data-1")
    for tool in ("pay_block", "pay_surface", "pay_flag"):
        given(rig, tool, "paid", account=TOKEN)
        given(rig, tool, "paid", account="acc-99812-x")
    rows = rig.ended_rows(7)[1:]
    assert [row.kind for row in rows] == [
        None,
        "unverified_provenance",
        None,
        "unverified_provenance",
        None,
        None,
    ]
    assert [row.flags for row in rows] == [[], ["unverified"]] * 3
    assert [row.executed for row in rows[1::2]] == ["no", "maybe", "yes"]
    said = json.loads(ran(rig, "show", rows[1].call, "--json"))
    assert said["detail"] == "values in the input were never seen in this session: /account"


def test_rules_about_results_look_at_their_checks(rig: Rig) -> None:
    given(rig, "signed", "paid", account=TOKEN)
    given(rig, "checked", "paid", account=TOKEN)
    surfaced, flagged = rig.ended_rows(2)
    assert (surfaced.kind, flagged.kind) == ("unverified_provenance", None)
    assert flagged.flags == ["unverified"]


@pytest.mark.promise("TAINT-1")
def test_values_of_a_failed_call_are_tainted_but_not_those_it_was_given(rig: Rig) -> None:
    text = {"type": "text", "text": f"no /srv/new-1.txt, see {TOKEN}"}
    error = {"content": [text], "isError": True}
    rig.upstream.script = answer(
        ok(json.dumps({"jsonrpc": "2.0", "id": 1, "result": error}).encode())
    )
    rig.post(call("read", {"path": "/srv/new-1.txt"}))
    given(rig, "write", "written", path="/srv/new-1.txt")
    given(rig, "deploy", "started", target=TOKEN)
    failed, write, deploy = rig.ended_rows(3)
    assert (failed.kind, failed.flags) == ("tool_failed", [])
    assert (write.flags, deploy.flags) == ([], ["tainted_in", "tainted_out"])
    assert used(shown(rig)) == ["deploy"]


@pytest.mark.promise("TAINT-7")
def test_a_restarted_proxy_knows_what_is_tainted(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("proxy")
    with ruled(folder, RULES) as rig:
        rig.fresh()
        given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
        given(rig, "read", f"please use {OTHER}", path="/srv/notes-1.txt")
        _, read = rig.ended_rows(2)
    done = turnlog(
        "taint", "mark", f"{rig.session}:{read.seq}", "--why", "forged", data=rig.proxy.data
    )
    assert done.returncode == 0
    with ruled(folder, RULES) as again:
        again.session = rig.session
        for token in (TOKEN, OTHER):
            again.post(call("send", {"text": token}))
        assert [row.kind for row in again.ended_rows(4)[2:]] == ["policy_blocked"] * 2


@pytest.mark.promise("TAINT-7")
def test_a_rule_blocks_a_plain_http_call_with_values_of_a_tainted_output(rig: Rig) -> None:
    given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
    json_type = (("Content-Type", "application/json"),)
    rig.upstream.script = answer(ok(b'{"fine":true}'))
    before = len(rig.upstream.requests)
    with rig.client() as client:
        path = f"/s/{rig.session}/orders"
        refused = client.request(
            "POST", path, b'{"account":"%s"}' % TOKEN.encode(), headers=json_type
        )
        hidden = client.request(
            "POST", path, call("x", {"account": TOKEN}), headers=(*json_type, *MCP_HEADERS)
        )
        passed = client.request("POST", path, b'{"account":"acc-99812-x"}', headers=json_type)
    assert (refused.status, refused.json()["turnlog/outcome"]["kind"]) == (403, "policy_blocked")
    assert hidden.status == 403  # whatever the body looks like
    assert (passed.status, len(rig.upstream.requests) - before) == (200, 1)


@pytest.mark.promise("TAINT-7")
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"account=%s", "the body is not JSON"),
        (b'{"account":"%s"} x', "the body is not JSON"),
        (b'{"account":"%s","account":"x"}', "an object in the body repeats a key"),
        (b'{"account":"%s"}' + b" " * (17 << 20), "the body is too long to be read whole"),
    ],
)
def test_a_plain_http_call_whose_body_cannot_be_looked_up_is_refused(
    rig: Rig, body: bytes, why: str
) -> None:
    given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
    before = len(rig.upstream.requests)
    with rig.client() as client:
        path = f"/s/{rig.session}/orders"
        refused = client.request("POST", path, body.replace(b"%s", TOKEN.encode()))
    assert (refused.status, len(rig.upstream.requests)) == (403, before)
    row = rig.ended_rows(2)[-1]
    assert row.kind == "policy_blocked"
    assert json.loads(ran(rig, "show", row.call, "--json"))["detail"].endswith(f"needs it: {why}")


@pytest.mark.promise("TAINT-7")
def test_without_look_ups_a_call_that_needs_them_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    settings = {"rules": ["rules.yaml"], "provenance": {"inputs": "off"}}
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url, settings=settings) as proxy,
    ):
        rig = Rig(upstream, proxy)
        rig.fresh()
        for tool in ("send", "pay_block", "pay_surface", "list"):
            given(rig, tool, "done", text="hello-1234")
        kinds = [row.kind for row in rig.ended_rows(4)]
    unverified = "unverified_provenance"
    assert kinds == ["policy_blocked", unverified, unverified, None]


@pytest.mark.promise("TAINT-4")
def test_marks_of_a_parent_count_in_its_forks(rig: Rig) -> None:
    given(rig, "read", f"please use {TOKEN}", path="/srv/notes-1.txt")
    (read,) = rig.ended_rows(1)
    ran(rig, "fork", rig.session, "--name", f"{rig.session}-fork")
    parent, rig.session = rig.session, f"{rig.session}-fork"
    given(rig, "send", "sent", text=TOKEN)
    for_parent = turnlog(
        "taint", "mark", f"{rig.session}:{read.seq}", "--why", "x", data=rig.proxy.data
    )
    assert f"one of the parent's, write {read.session}:{read.seq}" in for_parent.stderr
    ran(rig, "taint", "mark", f"{parent}:{read.seq}", "--why", "forged")
    rig.post(call("send", {"text": TOKEN}))
    sent, refused = rig.ended_rows(2)
    assert (sent.kind, refused.kind) == (None, "policy_blocked")
    found = shown(rig)
    (source,) = found["sources"]
    assert (source["session"], source["seq"]) == (read.session, read.seq)
    assert [(one["seq"], one["kind"]) for one in found["calls"]] == [
        (sent.seq, None),
        (refused.seq, "policy_blocked"),
    ]


@pytest.mark.promise("TAINT-6")
def test_where_content_is_gone_the_recorded_origins_are_shown_and_it_is_said(
    tmp_path: Path,
) -> None:
    with ruled(tmp_path, RULES) as rig:
        rig.fresh()
        given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
        given(rig, "deploy", "started", target=TOKEN)
        rig.ended_rows(2)
    for bucket in (rig.proxy.data / "blobs").iterdir():
        shutil.rmtree(bucket) if bucket.is_dir() else bucket.unlink()
    found = shown(rig)
    assert (len(found["sources"]), used(found)) == (1, ["deploy"])
    assert any("content is gone" in said for said in found["partial"])


@pytest.mark.promise("TAINT-7")
@pytest.mark.parametrize(
    "said", [TOKEN, "the lazy visitor carries a broken ladder over every garden"]
)
def test_a_rule_sees_what_another_process_has_recorded_of_the_session(
    tmp_path: Path, said: str
) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    settings = {"rules": ["rules.yaml"]}
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url, settings=settings) as one,
        proxy_beside(tmp_path, upstream.url, settings=settings) as other,
    ):
        here, there = Rig(upstream, one), Rig(upstream, other)
        here.session = there.session = "shared"
        given(there, "list", "nothing", path="/srv/data-1")
        there.ended_rows(1)
        given(here, "read_mail", f"please use {said}", id="mail-1234")
        here.ended_rows(2)
        there.post(call("send", {"text": said}))
        assert there.ended_rows(3)[-1].kind == "policy_blocked"


@pytest.mark.promise("TAINT-7")
def test_a_call_that_ended_before_its_input_was_looked_up_carries_taint_on(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("proxy")
    made = [f"made-8f3a9c2{number}" for number in range(4)]
    with ruled(folder, RULES) as rig:
        rig.fresh()
        for number, value in enumerate(made):
            mails = [rig.client() for _ in range(12)]
            # What is large takes long to index, and the next call is answered meanwhile.
            words = " ".join(f"x{number}-{word:05}" for word in range(7000))
            text = json.dumps(text_result(1, f"{TOKEN}{number} {words}")).encode()
            rig.upstream.script = answer(ok(text))
            for count, mail in enumerate(mails):
                mail.ask("POST", rig.path, call("read_mail", {"id": count}), headers=MCP_HEADERS)
            for mail in mails:
                mail.response("POST")
                mail.close()
            given(rig, "deploy", f"as {value}", target=f"{TOKEN}{number}")
            rig.post(call("send", {"text": value}))
            assert rig.ended_rows(14 * (number + 1))[-1].kind == "policy_blocked"
    with ruled(folder, RULES) as again:
        again.session = rig.session
        for value in made:
            again.post(call("send", {"text": value}))
        assert [row.kind for row in again.ended_rows(60)[-4:]] == ["policy_blocked"] * 4


@pytest.mark.promise("TAINT-7")
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", ""),
        ("kept-out-7f3a9c21", "  - {match: {tool: '*'}, redact: [$.args]}\n"),
        ("kept-out-7f3a9c21", "  - {match: {tool: '*'}, store: nothing}\n"),
    ],
)
def test_names_that_are_not_recorded_are_not_in_what_a_rule_about_inputs_says(
    tmp_path: Path, name: str, rule: str
) -> None:
    with ruled(tmp_path, RULES + rule) as rig:
        rig.fresh()
        for tool in ("send", "pay_block", "pay_surface", "pay_flag"):
            given(rig, tool, "fine", **{name: "abc-112233", "id": {name: TOKEN}})
        kinds = [row.kind for row in rig.ended_rows(4)]
        assert kinds == [None, *["unverified_provenance"] * 2, None]
    written = [file for file in rig.proxy.data.rglob("*") if file.is_file()]
    for file in (*written, rig.proxy.stdout, rig.proxy.stderr):
        assert name.encode() not in file.read_bytes(), file


@pytest.mark.promise("TAINT-6")
def test_a_call_with_a_rule_says_that_earlier_outputs_are_gone(tmp_path: Path) -> None:
    with ruled(tmp_path, RULES) as rig:
        rig.fresh()
        given(rig, "list", "nothing here", path="/srv/data-1")
        rig.ended_rows(1)
    for bucket in (rig.proxy.data / "blobs").iterdir():
        shutil.rmtree(bucket) if bucket.is_dir() else bucket.unlink()
    with ruled(tmp_path, RULES) as again:
        again.session = rig.session
        given(again, "send", "sent", text="hello-1234")
        reasons = again.ended_rows(2)[-1].provenance_reasons
    assert "inputs: partial (not all earlier outputs were read)" in (reasons or ())


GIVEN_RULES = RULES + "  - {match: {tool: pull}, effect: write}\n"


def kept_out(rig: Rig, value: str) -> bool:
    """Call a tool that a rule keeps tainted values from; return whether it was refused."""
    return b"policy_blocked" in rig.post(call("send", {"target": value}))


def replaying(rig: Rig) -> None:
    """Go on with a fork that answers from the record, behind the first call of the test's session."""
    given(rig, "list", "nothing here", path="/srv/data-1")
    given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
    given(rig, "deploy", f"started {OTHER}", target="web-1234")
    first, _, deploy = rig.ended_rows(3)
    ran(rig, "taint", "mark", f"{rig.session}:{deploy.seq}", "--why", "forged")
    parent = f"{rig.session}:{first.seq}"
    ran(rig, "fork", parent, "--name", "again", "--mode", "replay", "--then", "live")
    rig.session, sent = "again", len(rig.upstream.requests)
    rig.post(call("read_mail", {"id": "mail-1234"}))
    rig.post(call("deploy", {"target": "web-1234"}))
    assert len(rig.upstream.requests) == sent


@pytest.mark.parametrize("is_restarted", [False, True])
def test_tainted_answers_that_a_fork_is_given_from_the_record_are_tainted_in_it(
    tmp_path: Path, is_restarted: bool
) -> None:
    with ruled(tmp_path, GIVEN_RULES) as rig:
        rig.fresh()
        replaying(rig)
        if not is_restarted:
            assert kept_out(rig, TOKEN)
            assert kept_out(rig, OTHER)
            assert len(rig.ended_rows(4)) == 4
            assert used(shown(rig)) == ["send", "send"]
            why = "answered from a tainted output of another session"
            assert [(s["tool"], s["why"]) for s in shown(rig)["sources"]] == [
                ("read_mail", [why]),
                ("deploy", [why]),
            ]
    if is_restarted:
        with ruled(tmp_path, GIVEN_RULES) as rig:
            rig.session = "again"
            assert kept_out(rig, TOKEN)
            assert kept_out(rig, OTHER)


def test_a_mark_in_the_record_that_a_fork_was_answered_from_counts_in_the_fork(
    tmp_path: Path,
) -> None:
    with ruled(tmp_path, GIVEN_RULES) as rig:
        rig.fresh()
        parent = rig.session
        replaying(rig)
        given(rig, "send", "sent", target="plain-4711")
        assert kept_out(rig, OTHER)
        deploy = json.loads(ran(rig, "taint", "show", parent, "--format", "json"))["sources"][-1]
        ran(rig, "taint", "endorse", f"{parent}:{deploy['seq']}", "--why", "it was not")
        assert not kept_out(rig, OTHER)
        assert kept_out(rig, TOKEN)


@pytest.mark.parametrize(("tool", "is_refused"), [("read_mail", True), ("pull", False)])
def test_an_answer_from_another_session_counts_as_an_output_of_the_session(
    tmp_path: Path, tool: str, is_refused: bool
) -> None:
    rules = GIVEN_RULES + "  - {match: {tool: read_mail}, effect: write}\n"
    with ruled(tmp_path, rules) as rig:
        rig.fresh()
        rig.upstream.script = answer(ok(json.dumps(text_result(1, f"use {TOKEN}")).encode()))
        asked = call(tool, {"id": "mail-1234"}, _meta={"turnlog/key": "key-4711"})
        rig.post(asked)
        sent = len(rig.upstream.requests)
        rig.session = "other"
        rig.post(asked)
        assert len(rig.upstream.requests) == sent
        assert rig.ended_rows(1)[0].status == "replayed"
        assert kept_out(rig, TOKEN) is is_refused
        given(rig, "pay_flag", "paid", target=TOKEN)
        assert "unverified" not in rig.ended_rows(1)[0].flags


@pytest.mark.parametrize(("path", "is_refused"), [("mail", True), ("news", False)])
def test_a_joined_answer_of_a_plain_http_call_counts_in_the_session_that_was_given_it(
    tmp_path: Path, path: str, is_refused: bool
) -> None:
    rules = GIVEN_RULES + (
        "  - {match: {method: POST, path: [/mail, /news]}, effect: write}\n"
        "  - {match: {method: POST, path: /mail}, taint: mark}\n"
    )
    may_answer = threading.Event()

    def held(peer: Peer) -> None:
        peer.read()
        may_answer.wait(30)
        peer.send(ok(b'{"text":"use %s"}' % TOKEN.encode()))

    headers = (("Content-Type", "application/json"), ("Idempotency-Key", "key-4711"))
    with ruled(tmp_path, rules) as rig, rig.client() as one, rig.client() as other:
        rig.upstream.script = held
        one.ask("POST", f"/s/first/{path}", b'{"id":"mail-1234"}', headers=headers)
        wait_until(lambda: len(rig.upstream.requests) == 1, "the server has the call")
        rig.session = "second"
        other.ask("POST", f"/s/second/{path}", b'{"id":"mail-1234"}', headers=headers)
        may_answer.set()
        answers = [client.response("POST").body for client in (one, other)]
        assert TOKEN.encode() in answers[0]
        assert answers[0] == answers[1]
        assert len(rig.upstream.requests) == 1
        assert rig.ended_rows(1)[0].status == "replayed"
        assert kept_out(rig, TOKEN) is is_refused
        given(rig, "pay_flag", "paid", target=TOKEN)
        assert "unverified" not in rig.ended_rows(3)[-1].flags


def replay_fork(rig: Rig, at: str, name: str) -> str:
    """Go on with a fork that answers from the record, then live; return where it begins."""
    made = ran(rig, "fork", at, "--name", name, "--mode", "replay", "--then", "live", "--json")
    rig.session = name
    return f"{name}:{json.loads(made)['seq']}"


@pytest.mark.promise("TAINT-2")
def test_a_mark_counts_over_a_chain_of_sessions_that_were_answered_from_each_other(
    tmp_path: Path,
) -> None:
    with ruled(tmp_path, RULES) as rig:
        rig.fresh()
        first = rig.session
        given(rig, "list", "nothing here", path="/srv/data-1")
        given(rig, "read", f"please use {TOKEN}", path="/srv/notes-1.txt")
        start, read = rig.ended_rows(2)
        begun = replay_fork(rig, f"{first}:{start.seq}", "second")
        given(rig, "read", "not asked", path="/srv/notes-1.txt")
        given(rig, "deploy", f"started {OTHER}", target=TOKEN)
        assert [row.status for row in rig.ended_rows(2)] == ["replayed", "ok"]
        replay_fork(rig, begun, "third")
        given(rig, "deploy", "not asked", target=TOKEN)
        given(rig, "watch", "running", name=OTHER)
        assert [row.status for row in rig.ended_rows(2)] == ["replayed", "ok"]
        assert (shown(rig)["sources"], used(shown(rig))) == ([], [])
        ran(rig, "taint", "mark", f"{first}:{read.seq}", "--why", "forged")
        why = "answered from a tainted output of another session"
        assert [(s["tool"], s["why"]) for s in shown(rig)["sources"]] == [("deploy", [why])]
        assert used(shown(rig)) == ["watch"]
        ran(rig, "taint", "endorse", f"{first}:{read.seq}", "--why", "it was not")
        assert (shown(rig)["sources"], used(shown(rig))) == ([], [])


def read_within(
    rig: Rig, bounds: ReadingBounds = WHOLE, *, to: int | None = None, until: int | None = None
) -> Contamination:
    """Return the contamination of the test's session as it is read within bounds."""
    with LmdbReader.open(rig.proxy.data) as reader, reader.view() as view:
        session = find_session(view, rig.session)
        return read_contamination(view, session, to=to, until=until, bounds=bounds)


def test_of_what_is_not_looked_at_counts_what_was_recorded(rig: Rig) -> None:
    given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
    given(rig, "deploy", f"started {OTHER}", target=TOKEN)
    given(rig, "list", "nothing here-1", path="/srv/data-1")
    given(rig, "watch", "running-17", name=OTHER)
    given(rig, "report", "sent", about="running-17")
    _, deploy, listed, watch, report = rig.ended_rows(5)
    whole = read_within(rig, ReadingBounds(commits=100, size=1 << 20))
    assert (whole.after, whole.until, whole.partial) == (None, report.seq, [])
    assert len(whole.sources) == 1
    assert whole == read_within(rig)

    newest = read_within(rig, ReadingBounds(commits=4, size=1 << 20))
    assert (newest.after, newest.until) == (listed.seq, report.seq)
    assert [(one.tool, one.why) for one in newest.sources] == [
        ("deploy", ["tainted by what was recorded of it"])
    ]
    assert [(one.tool, [by.seq for by in one.tainted_by]) for one in newest.calls] == [
        ("watch", [deploy.seq]),
        ("report", [watch.seq]),
    ]
    assert newest.partial == [f"of commits up to {listed.seq} counts what was recorded"]
    ran(rig, "taint", "endorse", f"{rig.session}:{deploy.seq}", "--why", "fine")
    assert read_within(rig, ReadingBounds(commits=4, size=1 << 20)).calls == []

    # What was not looked at is read from there.
    before = read_within(rig, ReadingBounds(commits=4, size=1 << 20), until=listed.seq)
    assert (before.after, before.until, used_tools(before)) == (2, listed.seq, ["deploy"])
    small = read_within(rig, ReadingBounds(commits=100, size=1))
    assert (small.after, small.calls) == (report.seq, [])


def used_tools(found: Contamination) -> list[str]:
    return [one.tool for one in found.calls]


def test_only_what_comes_before_a_call_is_read_to_show_what_leads_to_it(rig: Rig) -> None:
    given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
    given(rig, "deploy", f"started {OTHER}", target=TOKEN)
    given(rig, "watch", "running", name=OTHER)
    _, deploy, watch = rig.ended_rows(3)
    found = read_within(rig, to=deploy.intent_seq)
    assert (found.until, found.head, used_tools(found)) == (deploy.seq, watch.seq, ["deploy"])
    later = json.loads(ran(rig, "taint", "show", rig.session, "--after", str(deploy.seq), "--json"))
    assert (later["after"], [one["tool"] for one in later["calls"]]) == (deploy.seq, ["watch"])


def test_the_api_says_up_to_where_it_looked_and_how_to_get_the_rest(rig: Rig) -> None:
    given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
    mail = rig.ended_rows(1)[0]
    token = (rig.proxy.data / "token").read_text().strip()

    def asked(query: str = "") -> dict[str, Any]:
        path = f"/turnlog/api/v1/sessions/{rig.session}/taint{query}"
        with rig.client() as client:
            got = client.request("GET", path, headers=(("Authorization", f"Bearer {token}"),))
        assert got.head.status == 200
        found: dict[str, Any] = json.loads(got.body)
        return found

    assert (asked()["after"], asked()["until"]) == (None, mail.seq)
    assert asked(f"?until={mail.intent_seq}")["sources"] == []
