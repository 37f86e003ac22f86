"""Several wraps and a serve on one store at once; sessions; kills; a real client."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mcp
import pytest
from mcp.client.stdio import StdioServerParameters, stdio_client

from e2e.stores import process
from kit.beside import proxy_beside, session_rows
from kit.clients import MCP_HEADERS, Client, call, message, wait_until
from kit.proxy import data_of, environment, findings, rows
from kit.upstreams import RawUpstream
from kit.wraps import Wrap, events_of, text_answer, wrapped, wrapping
from turnlog.store.lmdb import LmdbReader

ECHO = """
import sys
for line in sys.stdin.buffer:
    number = line.partition(b'"id": ')[2].partition(b"}")[0].partition(b",")[0]
    sys.stdout.buffer.write(b'{"jsonrpc":"2.0","id":%b,"result":{"content":[]}}\\n' % number)
    sys.stdout.buffer.flush()
"""
"""A server that answers each line."""
EACH = 200
WRITES = "rules: [{match: {tool: put}, effect: write}, {match: {tool: look}, effect: read}]"


def exchanged(wrap: Wrap, count: int = 1) -> None:
    """Make calls, and let the server answer each."""
    for number in range(count):
        wrap.server.answer(wrap.asked(call("put", request_id=number)))
        wrap.stdout.line()


def sessions(data: Path) -> list[tuple[str, int]]:
    """Return the rungs of all sessions, and how many commits each has."""
    reader = LmdbReader.open(data)
    try:
        with reader.view() as view:
            return [(str(one.rung), one.head_seq) for one in view.sessions()]
    finally:
        reader.close()


def note_seqs(data: Path) -> list[int]:
    """Return the numbers of all notes: each answer to a write arrived."""
    reader = LmdbReader.open(data)
    try:
        with reader.view() as view:
            commits = [c for one in view.sessions() for c in view.commits(one.session)]
            return [commit.link.seq for commit in commits if commit.facts.note]
    finally:
        reader.close()


def asked_writes(wraps: int) -> int:
    """Return how many of the calls of so many wraps are writes."""
    return wraps * len(range(0, EACH, 10))


def ten_times() -> list[list[bytes]]:
    """Return the calls of ten wraps; no two are the same, or a slow machine would see them joined."""
    tools = ["put" if n % 10 == 0 else "look" for n in range(EACH)]
    return [
        [call(tool, {"by": wrap, "number": n}, request_id=n) for n, tool in enumerate(tools)]
        for wrap in range(10)
    ]


@pytest.mark.promise("REC-25")
def test_ten_wraps_at_once_on_one_store_are_gapless_and_verified(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(WRITES)
    flags = ("--rules", str(tmp_path / "rules.yaml"), "--session", "shared")
    command = [sys.executable, "-I", "-S", "-c", ECHO]
    with ExitStack() as stack:
        wraps = [stack.enter_context(wrapped(tmp_path, command, *flags)) for _ in range(10)]
        for wrap, asked in zip(wraps, ten_times(), strict=True):
            wrap.send(*asked)
        for wrap in wraps:
            for _ in range(EACH):
                wrap.stdout.line()
            # Not before: a command has 2 s to end once its client has left, and may need more.
            wrap.stdin.close()
            assert wrap.stdout.rest() == b""
            assert wrap.exited() == 0
            assert wrap.stderr.read_text() == ""
    assert process("verify", "--data", str(data_of(tmp_path))).returncode == 0
    kept = rows(data_of(tmp_path))
    assert len(kept) == 10 * EACH
    assert {row.status for row in kept} == {"ok"}
    # One session: its numbers are gapless, whoever wrote.
    ((_, head),) = sessions(data_of(tmp_path))
    told = note_seqs(data_of(tmp_path))
    assert len(told) == asked_writes(10)
    rest = {s for row in kept for s in (row.intent_seq, row.seq)}
    assert sorted([*rest, *told]) == list(range(1, head + 1))


@pytest.mark.promise("REC-26")
def test_a_wrap_and_a_serve_share_a_store(tmp_path: Path) -> None:
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url) as proxy,
        wrapping(tmp_path, "--session", "both") as wrap,
        Client(proxy.url) as client,
    ):
        for number in range(5):
            body = call("get", request_id=number)
            assert client.request("POST", "/s/both/mcp", body, headers=MCP_HEADERS).status == 200
            exchanged(wrap)
        wait_until(lambda: len(session_rows(proxy.data, "both")) == 10, "the rows of both")
        kept = session_rows(proxy.data, "both")
    assert [row.server for row in kept] == ["default", "puppet"] * 5
    assert all(finding.verdict.intact for finding in findings(data_of(tmp_path)))


@pytest.mark.parametrize(
    ("flags", "environ", "rung"),
    [
        (("--session", "mine"), {"CLAUDE_CODE_SESSION_ID": "theirs"}, "explicit"),
        ((), {"CLAUDE_CODE_SESSION_ID": "theirs"}, "environment"),
        ((), {}, "implicit"),
    ],
)
def test_a_session_is_named_by_flag_or_environment(
    tmp_path: Path, flags: tuple[str, ...], environ: dict[str, str], rung: str
) -> None:
    for _ in range(2):
        with wrapping(tmp_path, *flags, environ=environ) as wrap:
            exchanged(wrap)
    found = sessions(data_of(tmp_path))
    assert [name for name, _ in found] == ([rung] if rung != "implicit" else [rung, rung])


def test_a_session_named_in_a_call_precedes_the_environment(tmp_path: Path) -> None:
    with wrapping(tmp_path, environ={"CLAUDE_CODE_SESSION_ID": "theirs"}) as wrap:
        wrap.asked(call("put", _meta={"turnlog/session": "own", "turnlog/turn": "t1"}))
        wrap.server.answer({"id": 1})
        wrap.stdout.line()
    assert [rung for rung, _ in sessions(wrap.data)] == ["explicit"]
    assert wrap.row().turn_source == "explicit"


KILLED: dict[str, list[str | None]] = {
    "before": [],
    "sent": ["outcome_unknown"],
    "answered": [None],
    "cancelled": ["cancelled_by_caller"],
}
"""What the log says of the only call, by when turnlog was killed."""


def until_phase(wrap: Wrap, folder: Path, phase: str) -> None:
    """Make a call, and let it come that far."""
    if phase != "before":
        wrap.asked(call("put", request_id=1))
    if phase == "answered":
        wrap.server.answer({"id": 1})
        wrap.stdout.json()
    if phase == "cancelled":
        wrap.asked(message("notifications/cancelled", {"requestId": 1}, request_id=None))
        wait_until(lambda: _kinds(folder, "dead") == KILLED[phase], "its row")


@pytest.mark.parametrize("phase", KILLED)
def test_a_kill_leaves_calls_of_others_alone(tmp_path: Path, phase: str) -> None:
    with wrapping(tmp_path, "--session", "living", name="living") as living:
        living.asked(call("put", request_id="open"))
        with wrapping(tmp_path, "--session", "dead", name="dead") as dying:
            until_phase(dying, tmp_path, phase)
            dying.process.kill()
            dying.exited()
            dying.server.close()
        with wrapping(tmp_path, name="next") as later:
            later.asked(message("ping"))
        assert _kinds(tmp_path, "dead") == KILLED[phase]
        assert [row.status for row in session_rows(living.data, "living")] == ["pending"]
        living.server.answer({"id": "open"})
        assert living.stdout.json() == text_answer("open")
    assert [row.status for row in session_rows(living.data, "living")] == ["ok"]
    assert len(events_of(living.data, "call.recovered")) == (phase == "sent")
    assert all(finding.verdict.intact for finding in findings(living.data))


def _kinds(folder: Path, session: str) -> list[str | None]:
    return [row.kind for row in session_rows(data_of(folder), session)]


def test_the_log_is_set_aside_when_it_is_large(tmp_path: Path) -> None:
    logs = data_of(tmp_path) / "logs"
    logs.mkdir(parents=True, mode=0o700)
    data_of(tmp_path).chmod(0o700)
    with (logs / "wrap.jsonl").open("wb") as stream:
        stream.truncate((16 << 20) + 1)
    with wrapping(tmp_path) as wrap:
        wrap.asked(message("ping"))
    assert (logs / "wrap.1.jsonl").stat().st_size > 16 << 20
    assert len(wrap.events("proxy.ready")) == 1


def test_a_store_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "letter.txt").write_text("no store")
    with wrapped(tmp_path, ["cat"]) as wrap:
        assert wrap.exited() == 3
        assert wrap.stdout.rest() == b""
        assert wrap.stderr.read_text().count("\n") == 1


SERVER = '''
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel
server = MCPServer("real", version="1")

class Name(BaseModel):
    name: str

@server.tool()
def add(a: int, b: int) -> int:
    """Add."""
    return a + b

@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("no")

@server.tool()
async def steps(ctx: Context) -> str:
    """Report progress."""
    for n in range(3):
        await ctx.report_progress(n, 3, "step")
    return "done"

@server.tool()
def large() -> str:
    """Return much."""
    return "x" * 3_000_000

server.run()
'''


async def conversation(parameters: StdioServerParameters) -> list[Any]:
    """Return what a client sees of the server, as plain data."""
    seen: list[Any] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        seen.append([progress, total, message])

    async with mcp.Client(stdio_client(parameters)) as client:
        seen.append((await client.list_tools()).model_dump(mode="json"))
        for tool, arguments in (("add", {"a": 1, "b": 2}), ("fail", {}), ("large", {}), ("?", {})):
            try:
                result = await client.call_tool(tool, arguments)
            except mcp.MCPError as error:
                seen.append(str(error))
            else:
                seen.append(result.model_dump(mode="json"))
        done = await client.call_tool("steps", {}, progress_callback=progressed)
        seen.append(done.model_dump(mode="json"))
    return seen


@pytest.mark.promise("PIPE-11")
async def test_the_official_client_sees_the_same_with_and_without(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    command = [sys.executable, str(tmp_path / "server.py")]
    tail = ["-m", "turnlog", "wrap", "--data", str(data_of(tmp_path)), "--", *command]
    direct = await conversation(StdioServerParameters(command=command[0], args=command[1:]))
    through = await conversation(
        StdioServerParameters(command=sys.executable, args=tail, env=environment())
    )
    assert through == direct
    kept = rows(data_of(tmp_path))
    assert [row.tool for row in kept] == ["add", "fail", "large", "?", "steps"]
    assert {row.server for row in kept} == {"server"}
