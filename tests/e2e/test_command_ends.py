"""How processes of commands start and end, and the outcomes of their calls."""

import json
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit import stdio_server
from kit.beside import proxy_beside
from kit.clients import (
    BOUND,
    MCP_HEADERS,
    Client,
    ClosedEarlyError,
    Response,
    call,
    message,
    wait_until,
)
from kit.processes import children_of
from kit.proxy import Proxy
from kit.wraps import is_gone

SERVER = f"{sys.executable} {stdio_server.__file__}"
MUTE = "exec sleep 300"
READS = "read line; exec sleep 300"
REVISION = "2025-06-18"
NEWEST = "2026-07-28"
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": NEWEST,
    "io.modelcontextprotocol/clientCapabilities": {},
}
SOON = "rules: [{match: {server: cmd}, timeout: {startup: 300ms}}]"


@contextmanager
def serving(folder: Path, script: str, rules: str = "") -> Generator[Proxy]:
    """Serve a shell script as the command `cmd`."""
    (folder / "rules.yaml").write_text(rules or "rules: []")
    upstreams = {"cmd": {"command": ["sh", "-c", script]}}
    settings = {"upstreams": upstreams, "rules": ["rules.yaml"]}
    with proxy_beside(folder, settings=settings) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[Client]:
    with Client(proxy.url) as one:
        yield one


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    with serving(tmp_path, f"exec {SERVER}") as one:
        yield one


Fields = tuple[tuple[str, str], ...]


def initialize(client: Client) -> Response:
    params: dict[str, Any] = {"protocolVersion": REVISION, "capabilities": {}}
    return client.request("POST", "/mcp", message("initialize", params), headers=MCP_HEADERS)


def opened(client: Client) -> Fields:
    """Begin a session; return the headers of its requests."""
    session = initialize(client).head.one("mcp-session-id")
    assert session is not None
    return (*MCP_HEADERS, ("Mcp-Session-Id", session))


def asked(client: Client, headers: Fields, tool: str, **arguments: Any) -> Any:
    """Call a tool in a session; return the result."""
    said = client.request("POST", "/mcp", call(tool, arguments), headers=headers)
    return said.json()["result"]


def text_of(result: Any) -> str:
    return str(result["content"][0]["text"])


def ask_alone(client: Client, tool: str, **arguments: Any) -> None:
    """Call a tool outside of any session."""
    named = (("MCP-Protocol-Version", NEWEST), ("Mcp-Method", "tools/call"), ("Mcp-Name", tool))
    body = call(tool, arguments, _meta={**META, "progressToken": tool})
    client.ask("POST", "/mcp", body, headers=(*MCP_HEADERS, *named))


def alone(client: Client) -> Any:
    """Call a tool outside of any session; return what turnlog says of it."""
    ask_alone(client, "say")
    return client.response("POST").json()["result"]["_meta"]["turnlog/outcome"]


def verdict(outcome: Any) -> tuple[str, str, str]:
    return outcome["kind"], outcome["executed"], outcome["retry"]


def events(proxy: Proxy, name: str, count: int) -> list[dict[str, Any]]:
    """Wait for so many log lines of an event, and no more."""
    found = proxy.told(name, count)
    assert len(found) == count
    return found


# -- flags ---------------------------------------------------------------------------------


@pytest.mark.promise("REC-3")
def test_a_stray_line_marks_the_calls_that_are_open_and_no_other(
    proxy: Proxy, client: Client
) -> None:
    headers = opened(client)
    for tool in ("say", "stray", "say"):
        asked(client, headers, tool, text="x")
    assert [row.flags for row in proxy.rows()] == [[], ["stray_output"], []]


@pytest.mark.promise("REC-3")
def test_the_end_of_a_process_marks_the_calls_that_it_did_not_answer(
    proxy: Proxy, client: Client
) -> None:
    headers = opened(client)
    with Client(proxy.url) as other:
        other.ask("POST", "/mcp", call("hang", request_id=9), headers=headers)
        wait_until(lambda: bool(proxy.rows()), "the call")
        asked(client, headers, "die", code=3)
        assert other.response("POST").json()["id"] == 9
    assert [(row.kind, row.flags) for row in proxy.rows()] == [
        ("connection_lost", ["process_exit"])
    ] * 2


# -- commands that fail to start -----------------------------------------------------------


@pytest.mark.promise("CMD-2")
def test_a_command_that_ends_without_output_is_reported_and_nothing_was_executed(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, "exit 3") as proxy, Client(proxy.url) as client:
        assert initialize(client).status == 502
        assert verdict(alone(client)) == ("connect_failed", "no", "safe")
        for event in events(proxy, "process.failed", 2):
            assert (event["turnlog.server"], event["process.exit.code"]) == ("cmd", 3)
        kinds = [event["turnlog.kind"] for event in events(proxy, "upstream.failed", 2)]
        assert kinds == ["connect_failed"] * 2
        (row,) = proxy.rows()
        assert (row.status, row.phase, row.flags) == ("error", "connecting", ["process_exit"])


@pytest.mark.promise("REC-2")
def test_a_call_that_the_command_read_before_it_ended_may_have_been_executed(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, "read line; exit 3") as proxy, Client(proxy.url) as client:
        assert verdict(alone(client)) == ("connection_lost", "maybe", "unsafe")
        events(proxy, "process.failed", 1)


def test_a_command_that_is_asked_to_end_has_not_failed(tmp_path: Path) -> None:
    with serving(tmp_path, MUTE) as proxy:
        with Client(proxy.url) as client:
            params: dict[str, Any] = {"protocolVersion": REVISION, "capabilities": {}}
            client.ask("POST", "/mcp", message("initialize", params), headers=MCP_HEADERS)
            wait_until(lambda: bool(children_of(proxy.process.pid)), "the command")
        assert proxy.told("process.ended")
        assert proxy.events("process.failed") == []


def test_a_command_that_uses_content_length_framing_is_reported_in_the_log(
    tmp_path: Path,
) -> None:
    says = r"read line; printf 'Content-Length: 36\r\n\r\n'; exec sleep 300"
    with serving(tmp_path, says) as proxy, Client(proxy.url) as client:
        asked: dict[str, Any] = {"protocolVersion": REVISION, "capabilities": {}}
        client.ask("POST", "/mcp", message("initialize", asked), headers=MCP_HEADERS)
        (failed,) = events(proxy, "process.failed", 1)
        assert "Content-Length" in failed["turnlog.reason"]


# -- timeout.startup -----------------------------------------------------------------------


@pytest.mark.promise("CMD-2")
def test_a_command_that_stays_silent_at_start_is_killed_and_its_call_is_a_connect_timeout(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, MUTE, SOON) as proxy, Client(proxy.url) as client:
        assert initialize(client).status == 504
        assert verdict(alone(client)) == ("connect_timeout", "no", "safe")
        kinds = [event["turnlog.kind"] for event in events(proxy, "upstream.failed", 2)]
        assert kinds == ["connect_timeout"] * 2
        reasons = {event["turnlog.reason"] for event in events(proxy, "process.failed", 2)}
        assert reasons == {"the limit timeout.startup of 0.3 s was reached"}
        wait_until(lambda: not children_of(proxy.process.pid), "the end of the commands")


@pytest.mark.promise("REC-2")
def test_a_command_that_read_the_call_but_stays_silent_ran_into_a_response_timeout(
    tmp_path: Path,
) -> None:
    # Time enough to read one line on a busy machine.
    later = SOON.replace("300ms", "4s")
    with serving(tmp_path, READS, later) as proxy, Client(proxy.url) as client:
        assert verdict(alone(client)) == ("response_timeout", "maybe", "unsafe")
        assert initialize(client).status == 504
        assert events(proxy, "upstream.failed", 2)[1]["turnlog.kind"] == "connect_timeout"


def test_the_handshake_is_repeated_within_the_limit(tmp_path: Path) -> None:
    script = f"if [ -e {tmp_path}/before ]; then {MUTE}; fi; touch {tmp_path}/before; exec {SERVER}"
    with serving(tmp_path, script) as proxy, Client(proxy.url) as client:
        headers = opened(client)
        (tmp_path / "rules.yaml").write_text(SOON)
        assert proxy.told("rules.reloaded")
        asked(client, headers, "die", code=3)
        outcome = asked(client, headers, "say", text="x")["_meta"]["turnlog/outcome"]
        assert verdict(outcome) == ("connect_timeout", "no", "safe")


# -- the end -------------------------------------------------------------------------------


def test_a_launcher_that_exits_and_leaves_its_server_running_has_not_failed(tmp_path: Path) -> None:
    script = f"exec 3<&0; {SERVER} <&3 3<&- & exit 0"
    with serving(tmp_path, script) as proxy, Client(proxy.url) as client:
        headers = opened(client)
        pid = int(text_of(asked(client, headers, "pid")))
        wait_until(lambda: not children_of(proxy.process.pid), "the end of the launcher")
        # What reads nothing would be ended meanwhile.
        assert text_of(asked(client, headers, "later", seconds=0.7)) == str(pid)
        client.request("DELETE", "/mcp", headers=headers)
        assert is_gone(pid)


@pytest.mark.parametrize("code", [0, 3])
def test_a_leftover_process_that_reads_nothing_is_not_taken_for_the_server(
    proxy: Proxy, client: Client, code: int
) -> None:
    headers = opened(client)
    died = asked(client, headers, "leaves", code=code)
    assert died["_meta"]["turnlog/outcome"]["kind"] == "connection_lost"
    assert text_of(asked(client, headers, "say", text="again")) == "again"


@pytest.mark.promise("CMD-3")
def test_a_session_that_ends_ends_a_stubborn_command(
    proxy: Proxy, client: Client, tmp_path: Path
) -> None:
    headers, begun = opened(client), tmp_path / "begun"
    pid = int(text_of(asked(client, headers, "stubborn")))
    with Client(proxy.url) as other:
        other.ask(
            "POST", "/mcp", call("hang", {"begun": str(begun)}, request_id=9), headers=headers
        )
        wait_until(begun.exists, "the command has the call")
        client.request("DELETE", "/mcp", headers=headers)
        outcome = other.response("POST").json()["result"]["_meta"]["turnlog/outcome"]
        assert is_gone(pid)
    assert verdict(outcome) == ("connection_lost", "maybe", "unsafe")
    assert proxy.rows()[-1].flags == ["process_exit"]


@pytest.mark.promise("CMD-3")
def test_turnlog_that_stops_ends_stubborn_commands_and_types_their_calls(
    proxy: Proxy, client: Client, tmp_path: Path
) -> None:
    headers, begun = opened(client), tmp_path / "begun"
    pid = int(text_of(asked(client, headers, "stubborn")))
    client.ask("POST", "/mcp", call("hang", {"begun": str(begun)}, request_id=9), headers=headers)
    wait_until(begun.exists, "the command has the call")
    proxy.process.send_signal(signal.SIGTERM)
    assert proxy.process.wait(BOUND) == 0
    assert is_gone(pid)
    row = proxy.rows()[-1]
    assert (row.status, row.kind) == ("unknown", "outcome_unknown")


# -- agents that read slowly ---------------------------------------------------------------


@pytest.mark.promise("CMD-4")
def test_a_command_waits_for_an_agent_that_reads_slowly_and_nothing_is_lost(
    proxy: Proxy, client: Client, tmp_path: Path
) -> None:
    headers = opened(client)
    told, notes = tmp_path / "told", 1000
    flood = call("flood", {"notes": notes, "told": str(told)}, _meta={"progressToken": "t"})
    client.ask("POST", "/mcp", flood, headers=headers)
    head = client.head()
    wait_until(told.exists, "that nobody reads the command any more")
    assert int(told.read_text()) < 40 << 20
    body = client.body(head)
    lines = [line for line in body.split(b"\n") if line.startswith(b"data: ")]
    assert len(lines) == notes + 1
    assert int(text_of(json.loads(lines[-1][6:])["result"])) > 100_000 * notes


@pytest.mark.promise("CMD-3")
def test_a_command_that_dies_while_an_agent_reads_slowly_keeps_no_other_call_waiting(
    proxy: Proxy, client: Client, tmp_path: Path
) -> None:
    headers, begun = opened(client), tmp_path / "begun"
    pid = int(text_of(asked(client, headers, "pid")))
    told = tmp_path / "told"
    with Client(proxy.url) as other:
        other.ask(
            "POST", "/mcp", call("hang", {"begun": str(begun)}, request_id=9), headers=headers
        )
        wait_until(begun.exists, "the command has the call")
        flood = call("flood", {"notes": 1000, "told": str(told)}, _meta={"progressToken": "t"})
        client.ask("POST", "/mcp", flood, headers=headers)
        wait_until(told.exists, "that nobody reads the command any more")
        os.kill(pid, signal.SIGKILL)
        outcome = other.response("POST").json()["result"]["_meta"]["turnlog/outcome"]
    assert verdict(outcome) == ("connection_lost", "maybe", "unsafe")


@pytest.mark.promise("CMD-4")
def test_an_agent_that_reads_slowly_keeps_no_other_agent_of_its_command_waiting(
    proxy: Proxy, client: Client, tmp_path: Path
) -> None:
    ask_alone(client, "flood", notes=1000, told=str(tmp_path / "told"))
    head = client.head()
    with Client(proxy.url) as other:
        ask_alone(other, "say", text="here")
        assert text_of(other.response("POST").json()["result"]) == "here"
    with pytest.raises(ClosedEarlyError):
        client.body(head)
    wait_until(lambda: proxy.rows()[0].kind == "cancelled_by_caller", "the end of the slow call")
