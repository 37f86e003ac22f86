"""What the known clients send with their calls names a session, on the rung that says how sure that is.

The fields are those that each of them sends (docs/supported.md): also what says nothing of the conversation,
which must not count.
"""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import Struct

from e2e.stores import turnlog
from kit.beside import Rig
from kit.clients import MCP_HEADERS, call
from kit.wraps import wrapping
from turnlog.sessions.rows import Row

Fields = tuple[tuple[str, str], ...]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333{}-01"


class Said(Struct, frozen=True, kw_only=True):
    """What comes with one call."""

    headers: Fields = ()
    meta: Mapping[str, object] = {}


class Client(Struct, frozen=True, kw_only=True):
    """A client, the calls of two of its conversations, and what is to be known of the first."""

    one: tuple[Said, Said]
    other: Said
    named_by: str
    why: str
    confidence: str
    client: str
    turns: tuple[int, int] = (1, 1)
    turn_source: str = "gap"


def codex(session: str, turn: str, number: int) -> Said:
    """Codex CLI 0.171, over HTTP and stdio."""
    return Said(
        headers=(("User-Agent", "codex_cli_rs/0.171.0"), ("Mcp-Session-Id", "of-the-launch")),
        meta={
            "threadId": session,
            "sessionId": session,
            "windowId": "w-1",
            "callId": f"call_{number}",
            "itemId": f"item_{number}",
            "progressToken": number,
            "x-codex-turn-metadata": {
                "session_id": session,
                "thread_id": session,
                "turn_id": turn,
                "turn_started_at_unix_ms": 1_790_000_000_000 + number,
                "model": "gpt-x",
                "sandbox": "workspace-write",
                "workspaces": {"/home/me/work": {"associated_remote_urls": None}},
            },
        },
    )


def chatgpt(session: str, number: int) -> Said:
    """ChatGPT: a protocol session of its own for each call, and much about the user."""
    return Said(
        headers=(("User-Agent", "openai-mcp/1.0.0"), ("Mcp-Session-Id", f"fresh-{number}")),
        meta={
            "openai/session": session,
            "openai/subject": "v1/who",
            "openai/organization": "v1/org",
            "openai/locale": "en-US",
            "openai/userAgent": "ChatGPT/1.2025",
            "openai/userLocation": {"city": "Berlin", "country": "DE"},
        },
    )


def vscode(session: str, request: str, number: int) -> Said:
    """VS Code's chat."""
    return Said(
        headers=(("User-Agent", "Visual Studio Code/1.108.0"), ("Mcp-Session-Id", "of-the-window")),
        meta={
            "progressToken": f"p-{number}",
            "vscode.conversationId": session,
            "vscode.requestId": request,
            "traceparent": TRACE.format(number),
            "tracestate": "a=b",
        },
    )


def opencode(session: str, number: int) -> Said:
    return Said(
        headers=(("Mcp-Session-Id", "of-the-process"),),
        meta={"progressToken": number, "ai.opencode/sessionID": session},
    )


def antigravity(session: str, number: int) -> Said:
    return Said(
        meta={
            "progressToken": number,
            "antigravity.google/conversation_id": session,
            "antigravity.google/parent_conversation_id": "parent",
            "antigravity.google/agent_name": "coder",
            "antigravity.google/artifacts_dir": "/home/me/.artifacts",
        }
    )


def zcode(session: str) -> Said:
    return Said(meta={"com.zcode/request-context": {"session_id": session, "user": "me"}})


def claude_code(protocol_session: str, number: int) -> Said:
    """Claude Code, over HTTP: it names its calls, and no conversation."""
    return Said(
        headers=(
            ("User-Agent", "claude-code/2.1.0 (cli)"),
            ("Mcp-Session-Id", protocol_session),
        ),
        meta={"claudecode/toolUseId": f"toolu_{number}", "progressToken": number},
    )


def connector(user: str, number: int) -> Said:
    """The connector of claude.ai: it echoes no protocol session, and a trace is none."""
    return Said(
        headers=(
            ("User-Agent", "Claude-User"),
            ("Authorization", f"Bearer {user}"),
            ("traceparent", TRACE.format(number)),
            ("baggage", "session.id=abc"),
        )
    )


def sdk(protocol_session: str, number: int) -> Said:
    """A client of an SDK that says nothing of its own (Gemini CLI, LangChain's adapters, ...)."""
    return Said(
        headers=(("Mcp-Session-Id", protocol_session), ("User-Agent", "node")),
        meta={"progressToken": number},
    )


def given(session: str, number: int) -> Said:
    """An agent that is told to name its session, whatever its client sends besides."""
    said = vscode("of-the-client", f"r{number}", number)
    return Said(headers=(*said.headers, ("Turnlog-Session", session)), meta=said.meta)


CLIENTS: dict[str, Client] = {
    "told by the runtime": Client(
        one=(given("S", 1), given("S", 2)), other=given("T", 3),
        named_by="explicit", why="header Turnlog-Session", confidence="given", client="vscode",
        turns=(1, 2), turn_source="vendor",
    ),
    "Codex": Client(
        one=(codex("S", "t1", 1), codex("S", "t2", 2)), other=codex("T", "t1", 3),
        named_by="vendor", why="meta x-codex-turn-metadata.session_id", confidence="observed",
        client="codex", turns=(1, 2), turn_source="vendor",
    ),
    "ChatGPT": Client(
        one=(chatgpt("v1/S", 1), chatgpt("v1/S", 2)), other=chatgpt("v1/T", 3),
        named_by="vendor", why="meta openai/session", confidence="observed", client="openai",
    ),
    "VS Code": Client(
        one=(vscode("S", "r1", 1), vscode("S", "r2", 2)), other=vscode("T", "r1", 3),
        named_by="vendor", why="meta vscode.conversationId", confidence="observed", client="vscode",
        turns=(1, 2), turn_source="vendor",
    ),
    "OpenCode": Client(
        one=(opencode("ses_S", 1), opencode("ses_S", 2)), other=opencode("ses_T", 3),
        named_by="vendor", why="meta ai.opencode/sessionID", confidence="observed", client="opencode",
    ),
    "Antigravity": Client(
        one=(antigravity("S", 1), antigravity("S", 2)), other=antigravity("T", 3),
        named_by="vendor", why="meta antigravity.google/conversation_id", confidence="observed",
        client="antigravity",
    ),
    "ZCode": Client(
        one=(zcode("S"), zcode("S")), other=zcode("T"),
        named_by="vendor", why="meta com.zcode/request-context.session_id", confidence="observed",
        client="zcode",
    ),
    "Claude Code": Client(
        one=(claude_code("S", 1), claude_code("S", 2)), other=claude_code("T", 3),
        named_by="transport", why="header Mcp-Session-Id", confidence="transport",
        client="claude-code",
    ),
    "a client of an SDK": Client(
        one=(sdk("S", 1), sdk("S", 2)), other=sdk("T", 3),
        named_by="transport", why="header Mcp-Session-Id", confidence="transport", client="node",
    ),
    "claude.ai": Client(
        one=(connector("S", 1), connector("S", 2)), other=connector("T", 3),
        named_by="implicit", why="credential and client name", confidence="inferred", client="Claude-User",
    ),
}  # fmt: skip


def own(rig: Rig, text: str) -> str:
    """Return what a client says as this test's own: the conversations S and T exist once only."""
    for name in ("S", "T"):
        for form in (name, f"v1/{name}", f"ses_{name}", f"Bearer {name}"):
            text = text.replace(f'"{form}"', f'"{form}-{rig.session}"')
    return text


def asked(rig: Rig, number: int, said: Said) -> Row:
    """Make a call on a connection of its own; return its row."""
    headers: list[list[str]] = json.loads(own(rig, json.dumps(said.headers)))
    meta: dict[str, Any] = json.loads(own(rig, json.dumps(dict(said.meta))))
    tool = f"{rig.session}-{number}"
    with rig.client() as client:
        body = call(tool, _meta=meta) if meta else call(tool)
        client.request("POST", "/mcp", body, headers=(*MCP_HEADERS, *((n, v) for n, v in headers)))
    assert rig.upstream.requests[-1].body == body
    (row,) = [row for row in rig.proxy.rows() if row.tool == tool]
    return row


def printed(rig: Rig, *arguments: str) -> str:
    done = turnlog(*arguments, data=rig.proxy.data)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.promise("SESS-1")
@pytest.mark.parametrize("name", CLIENTS)
def test_a_known_client_names_its_conversations(rig: Rig, name: str) -> None:
    client = CLIENTS[name]
    first, second, third = (
        asked(rig, number, said) for number, said in enumerate((*client.one, client.other))
    )
    assert first.session == second.session != third.session
    assert (first.turn, second.turn) == client.turns
    assert {first.turn_source, second.turn_source} == {client.turn_source}
    assert first.client == client.client
    lines = map(json.loads, printed(rig, "sessions", "--json").splitlines())
    (line,) = [line for line in lines if line["session"] == first.session]
    told = line["metadata"]
    assert (line["named_by"], told["why"], told["confidence"], told["client"]) == (
        client.named_by, client.why, client.confidence, client.client,
    )  # fmt: skip
    # People see the same, in the list and of the session's first commit; so does the API.
    (row,) = [row for row in printed(rig, "sessions").splitlines() if row.startswith(first.session)]
    assert f"{client.named_by} ({client.confidence})" in row
    shown = printed(rig, "show", f"{first.session}:0").splitlines()
    assert {f"why         {client.why}", f"confidence  {client.confidence}"} <= set(shown)
    token = (rig.proxy.data / "token").read_text().strip()
    with rig.client() as raw:
        api = raw.request(
            "GET",
            f"/turnlog/api/v1/sessions/{first.session}",
            headers=(("Authorization", f"Bearer {token}"),),
        )
    assert api.json() == line


@pytest.mark.promise("SESS-1")
@pytest.mark.parametrize(
    ("environ", "client"),
    [
        ({"CLAUDE_CODE_SESSION_ID": "S", "CLAUDECODE": "1"}, "claude-code"),
        ({"GROK_SESSION_ID": "S"}, "grok"),
    ],
)
def test_the_environment_of_a_command_names_the_conversation(
    tmp_path: Any, environ: dict[str, str], client: str
) -> None:
    said = claude_code("", 1).meta if client == "claude-code" else {"progressToken": 1}
    with wrapping(tmp_path, environ=environ) as wrap:
        wrap.send(call("read", request_id=1, _meta=dict(said)))
        wrap.server.answer(wrap.server.request())
        wrap.stdout.json()
    (line,) = map(json.loads, turnlog("sessions", "--json", data=wrap.data).stdout.splitlines())
    told = line["metadata"]
    assert (line["named_by"], told["confidence"], told["client"], line["names"]) == (
        "environment", "observed", client, [f"{client}/S"],
    )  # fmt: skip
    assert told["why"] == f"environment {next(iter(environ))}"
