"""Tainted outputs and the calls that used their values: marked, shown, labelled."""

import json
from collections.abc import Generator
from typing import Any

import pytest

from e2e.stores import turnlog
from kit.beside import Rig, ruled
from kit.clients import call
from kit.upstreams import answer, ok, text_result

RULES = """
rules:
  - {name: mail, match: {tool: read_mail}, taint: mark}
  - {name: checks, match: {tool: check}, taint: endorse}
"""
TOKEN, OTHER = "deploy-7f3a9c21", "build-55d01e77"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


@pytest.fixture
def rig(shared: Rig) -> Rig:
    shared.fresh()
    return shared


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
