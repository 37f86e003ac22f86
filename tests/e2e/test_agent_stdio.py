"""`turnlog mcp`: an agent's own session as tools over stdin and stdout, beside other writers."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp
import pytest
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import TextContent

from e2e.stores import Call, call_id, fill, session_id, turnlog
from kit.beside import session_notes
from kit.clients import BOUND, call, message
from kit.proxy import environment, running
from kit.upstreams import RawUpstream
from turnlog.client import ErrorKind, outcome_of
from turnlog.core import ids
from turnlog.core.kinds import Rung
from turnlog.sessions.overview import SessionLine, list_sessions
from turnlog.store.lmdb import LmdbReader

MODES = ("2026-07-28", "legacy")
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def arguments(data: Path, session: str) -> list[str]:
    return ["-m", "turnlog", "mcp", "--session", session, "--data", str(data)]


@asynccontextmanager
async def agent(data: Path, session: str, mode: str) -> AsyncGenerator[mcp.Client]:
    """Start the tools for a session as a client does."""
    parameters = StdioServerParameters(
        command=sys.executable, args=arguments(data, session), env=environment()
    )
    async with mcp.Client(stdio_client(parameters), mode=mode) as client:
        yield client


async def used(client: mcp.Client, tool: str, **given: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, given)
    assert not result.is_error, result.content
    found: dict[str, Any] = result.structured_content
    return found


def said(data: Path, *lines: bytes, session: str = "work") -> list[Any]:
    """Return what is answered to lines, with the process's end."""
    done = subprocess.run(
        [sys.executable, *arguments(data, session)],
        input=b"".join(line + b"\n" for line in lines),
        capture_output=True,
        timeout=BOUND,
        check=False,
        env=environment(),
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(line) for line in done.stdout.splitlines()]


def listed(data: Path) -> list[SessionLine]:
    with LmdbReader.open(data) as reader, reader.view() as view:
        return list(list_sessions(view))


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    calls = [Call(tool="read", minute=0), Call(tool="send", minute=1, session="other")]
    fill(tmp_path, calls)
    return tmp_path


@pytest.mark.promise("AGENT-1", "AGENT-2")
@pytest.mark.parametrize("mode", MODES)
async def test_the_tools_read_and_note_the_session_they_were_started_for(
    filled: Path, mode: str
) -> None:
    async with agent(filled, "work", mode) as client:
        assert len((await client.list_tools()).tools) == 9
        (row,) = (await used(client, "log"))["items"]
        assert row["tool"] == "read"
        await used(client, "note", note={"kind": "evict", "keys": ["1"], "reason": "compaction"})
        assert (await used(client, "recall", key="1"))["text"] == "hello"
        state = await used(client, "state", field="evicted_keys")
        assert state["state"]["evicted_keys"] == {}
        result = await client.call_tool("recall", {"key": ids.to_text(call_id(1))})
        assert result.is_error
    assert session_notes(filled, "work") == ["evict", "recall"]


@pytest.mark.promise("AGENT-1")
async def test_two_agents_and_a_proxy_write_to_one_session(tmp_path: Path) -> None:
    with RawUpstream() as upstream:
        async with running(tmp_path, upstream.url) as proxy:
            url = proxy.url.replace("/mcp", "/s/shared/turnlog/mcp")
            async with (
                agent(proxy.data, "shared", MODES[0]) as piped,
                agent(proxy.data, "shared", MODES[1]) as other,
                mcp.Client(url) as direct,
            ):
                for number in range(3):
                    for place, client in enumerate((piped, other, direct)):
                        note = {"kind": "fact", "id": f"{place}.{number}", "action": "assert"}
                        await used(client, "note", note=note)
                seen = [await used(c, "state") for c in (piped, other, direct)]
            assert seen[0] == seen[1] == seen[2]
    assert seen[0]["at"]["seq"] == 9
    assert turnlog("verify", data=proxy.data).returncode == 0


@pytest.mark.promise("STATE-3")
async def test_a_second_note_about_a_fact_must_know_the_first(tmp_path: Path) -> None:
    fact = {"kind": "fact", "id": "port", "subject": "port"}
    with RawUpstream() as upstream:
        async with running(tmp_path, upstream.url) as proxy:
            url = proxy.url.replace("/mcp", "/s/shared/turnlog/mcp")
            async with agent(proxy.data, "shared", MODES[0]) as piped, mcp.Client(url) as direct:
                told = {**fact, "action": "assert"}
                first = await used(piped, "note", note={**told, "value": "80"})
                for client in (direct, piped):
                    result = await client.call_tool("note", {"note": {**told, "value": "81"}})
                    (block,) = result.content
                    assert isinstance(block, TextContent)
                    assert block.text.startswith(
                        f"commit {first['seq']} says something of the same"
                    )
                async with asyncio.TaskGroup() as both:
                    given = [
                        both.create_task(
                            client.call_tool(
                                "note",
                                {"note": {**fact, "action": action}, "head": first["seq"]},
                            )
                        )
                        for client, action in ((piped, "verify"), (direct, "dispute"))
                    ]
                assert sorted(task.result().is_error or False for task in given) == [False, True]
                state = (await used(direct, "state"))["state"]
                assert len(state["facts"]["port"]["sources"]) == 2
                assert state["facts"]["port"]["value"] == "80"


@pytest.mark.promise("SEC-1")
def test_secrets_are_cut_as_the_settings_of_the_proxy_say(
    filled: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    told = "case AB-123456 of hunter2"
    fact = {"kind": "fact", "id": "case", "action": "assert", "subject": "codename", "value": told}
    entry = {"kind": "fact", "id": "codename", "action": "assert", "value": "bluebird"}
    notes = [
        call("note", {"note": note}, request_id=number) for number, note in enumerate((fact, entry))
    ]
    config = tmp_path_factory.mktemp("settings") / "turnlog.yaml"
    config.write_text(
        f"data: {filled}\nredact: {{keys: [codename], patterns: ['AB-[0-9]+', hunter2]}}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "turnlog", "mcp", "--session", "work", "--config", str(config)],
        input=b"\n".join(notes) + b"\n",
        capture_output=True,
        timeout=BOUND,
        check=True,
        env=environment(),
    )
    assert done.stderr == b""
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["result"]["isError"] for answer in answers] == [False, False]
    shown = turnlog("state", "work", "--field", "facts", "--json", data=filled).stdout
    facts = json.loads(shown)["state"]["facts"]
    assert list(facts) == ["case", "codename"]
    files = [path.read_bytes() for path in filled.rglob("*") if path.is_file()]
    for secret in ("AB-123456", "hunter2", "bluebird"):
        assert secret not in shown
        assert not any(secret.encode() in data for data in files)


@pytest.mark.parametrize("mode", MODES)
async def test_a_first_note_opens_the_session_and_the_store(tmp_path: Path, mode: str) -> None:
    data = tmp_path / "data"
    async with agent(data, "new", mode) as client:
        result = await client.call_tool("state", {})
        outcome = outcome_of(result)
        assert outcome is not None
        assert outcome.kind is ErrorKind.SESSION_UNAVAILABLE
        assert not data.exists()
        await used(client, "note", note={"kind": "turn", "name": "one"})
        assert (await used(client, "state"))["at"]["seq"] == 1
    (line,) = listed(data)
    assert (line.names, line.named_by, line.metadata["why"]) == (
        ["new"], Rung.EXPLICIT, "turnlog mcp --session",
    )  # fmt: skip


async def test_a_named_session_is_the_same_one_as_of_a_wrapped_command(tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    said = {'jsonrpc': '2.0', 'id': json.loads(line)['id'], 'result': {'content': []}}\n"
        "    print(json.dumps(said), flush=True)\n"
    )
    data = tmp_path / "data"
    async with agent(data, "both", MODES[0]) as client:
        noted = await used(client, "note", note={"kind": "turn"})
        wrap = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "turnlog", "wrap", "--data", str(data), "--session", "both"),
            *("--", sys.executable, str(server)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )
        async with asyncio.timeout(BOUND):
            await wrap.communicate(call("read_file") + b"\n")
        (row,) = (await used(client, "log"))["items"]
    assert (row["session"], row["tool"]) == (noted["session"], "read_file")


@pytest.mark.promise("AGENT-3")
def test_a_name_of_several_sessions_is_no_ones(tmp_path: Path) -> None:
    fill(tmp_path, [Call(tool="read", minute=0, session=name) for name in ("ab", "ba")])
    start = ids.to_text(session_id("ab"))[:12]
    assert ids.to_text(session_id("ba")).startswith(start)
    (answer,) = said(tmp_path, call("state"), session=start)
    text = answer["result"]["content"][0]["text"]
    assert text.startswith(f"{start!r} means 2 sessions, start turnlog mcp with one of: ")


def test_lines_that_are_no_requests_are_answered_as_the_protocol_has_it(tmp_path: Path) -> None:
    long = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"' + b"y" * (3 << 20) + b'"}}'
    stateless = message("tools/list", {"_meta": META}, request_id="s")
    lines = [
        b"", b"{", b"7", b"[" + message("ping") + b"]",
        message("notifications/initialized", request_id=None), long,
        message("ping", request_id=2), stateless, message("ping", {"_meta": META}, request_id=3),
        message("initialize", {"_meta": META}, request_id=4),
    ]  # fmt: skip
    answers = said(tmp_path, *lines)
    assert [a.get("error", {}).get("code") for a in answers] == [
        -32700, -32600, -32600, -32700, None, None, -32601, -32601,
    ]  # fmt: skip
    assert [a["id"] for a in answers] == [None, None, None, None, 2, "s", 3, 4]
    assert answers[5]["result"]["resultType"] == "complete"


def test_a_batch_is_answered_if_the_negotiated_revision_has_batches(
    tmp_path: Path,
) -> None:
    begin: dict[str, Any] = {"protocolVersion": "2025-03-26", "capabilities": {}}
    batch = [message("ping", request_id=2), b"{}", message("x", request_id=None)]
    _, answer, empty = said(
        tmp_path,
        message("initialize", begin),
        b"[" + b",".join(batch) + b"]",
        b"[" + batch[2] + b"]",
        b"[]",
    )
    assert empty["error"]["code"] == -32600
    assert [item.get("error", {}).get("code") for item in answer] == [None, -32600]


def test_a_session_name_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    done = turnlog("mcp", "--session", "a\nb", data=tmp_path)
    assert done.returncode == 2
    told = "turnlog: --session: 'a\\nb' can name no session, write one line of text"
    assert done.stderr.startswith(told)


def test_a_session_whose_name_holds_a_secret_is_refused_without_showing_it(tmp_path: Path) -> None:
    secret = "ghp_" + "a8Zk3Lq9Xw2Mv7Bn4Rt6Yc1Ph5Ds0Jf8Ge"
    done = turnlog("mcp", "--session", secret, data=tmp_path)
    assert done.returncode == 2
    told = "turnlog: --session: this holds a secret, give the id that `turnlog sessions` shows"
    assert done.stderr.startswith(told)
    assert secret not in done.stderr


def test_a_store_that_cannot_be_used_is_reported_to_the_operator(filled: Path) -> None:
    (filled / "log" / "data.mdb").write_bytes(b"no database" * 4096)
    done = subprocess.run(
        [sys.executable, *arguments(filled, "work")],
        input=call("state") + b"\n", capture_output=True, timeout=BOUND, check=True, env=environment(),
    )  # fmt: skip
    answer = json.loads(done.stdout)["result"]
    assert answer["content"][0]["text"] == "the log cannot be read or written now"
    assert done.stderr.startswith(b"turnlog: ")
    assert str(filled).encode() in done.stderr


@pytest.mark.promise("SESS-10")
async def test_the_tools_pause_and_resume_the_session_they_were_started_for(filled: Path) -> None:
    async with agent(filled, "work", MODES[0]) as client:
        assert (await used(client, "pause", why="a break"))["stage"] == "paused"
        assert {line.names[0]: line.stage for line in listed(filled)} == {
            "work": "paused",
            "other": "active",
        }
        assert (await used(client, "resume"))["stage"] == "active"
        result = await client.call_tool("resume", {})
        assert result.is_error


async def test_a_session_that_goes_on_elsewhere_is_not_resumed_by_its_agent(filled: Path) -> None:
    words = ("resume", "work", "--bundle", str(filled.with_name("b")))
    moved = await asyncio.to_thread(turnlog, *words, data=filled)
    assert moved.returncode == 0, moved.stderr
    async with agent(filled, "work", MODES[0]) as client:
        result = await client.call_tool("resume", {})
        assert result.is_error
        (said,) = result.content
        assert isinstance(said, TextContent)
        assert "has packed the session for another store" in said.text
        assert (await client.call_tool("log", {})).is_error is False
