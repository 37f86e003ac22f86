"""An answer whose id has another JSON type belongs to the call, as SDKs treat it."""

import json
import queue
import sys
from pathlib import Path

import pytest

from kit.beside import Rig, proxy_beside
from kit.clients import BOUND, MCP_HEADERS, call, message
from kit.commands import COMMAND, Agent, settings
from kit.upstreams import Peer, chunked, event, text_result
from kit.wraps import initialize, text_answer, wrapping
from turnlog.sessions.rows import Row

SWITCHED = f"""
import json, subprocess, sys
server = subprocess.Popen({COMMAND!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
for line in sys.stdin:
    asked = json.loads(line)
    server.stdin.write(line)
    server.stdin.flush()
    if "id" in asked:
        said = json.loads(server.stdout.readline())
        its = said["id"]
        said["id"] = int(its) if isinstance(its, str) and its.isdigit() else str(its)
        print(json.dumps(said), flush=True)
"""
"""A command whose answers have ids of the other type."""


def good(row: Row) -> bool:
    flags = set(row.flags) - {"truncated_record"}
    return (row.status, row.executed, flags) == ("ok", "yes", {"id_mismatch"})


@pytest.mark.promise("OUT-16")
@pytest.mark.parametrize(("asked", "said"), [(7, "7"), ("7", 7)])
@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("size", [4, 2 << 20])
def test_over_http_the_answer_is_the_calls(
    rig: Rig, asked: int | str, said: int | str, events: bool, size: int
) -> None:
    answer = text_result(said, "x" * size)

    def script(peer: Peer) -> None:
        peer.read()
        if not events:
            peer.send_json(answer)
            return
        peer.start_events()
        peer.send(chunked(event(answer)))
        peer.end()

    rig.upstream.script = script
    given = rig.post(call("add", request_id=asked))
    assert json.dumps(answer).encode() in given
    assert good(rig.row())


def test_with_both_ids_open_each_answer_belongs_to_its_own_request(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send_json([text_result("7", "string"), text_result(7, "number")])

    rig.upstream.script = script
    rig.post(b"[%b,%b]" % (call("a", request_id=7), call("b", request_id="7")))
    found = {row.tool: (row.output_summary, row.flags) for row in rig.ended_rows(2)}
    assert found == {"a": ("number", []), "b": ("string", [])}


def test_on_the_stream_of_the_old_transport_the_answer_is_the_calls(rig: Rig) -> None:
    posted: queue.SimpleQueue[int] = queue.SimpleQueue()

    def script(peer: Peer) -> None:
        request = peer.read()
        if request.method == b"POST":
            peer.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            posted.put(request.json()["id"])
            return
        peer.start_events()
        peer.send(chunked(b"event: endpoint\ndata: /messages?id=1\n\n"))
        peer.send_event(text_result(str(posted.get(timeout=BOUND)), "done"))
        peer.end()

    rig.upstream.script = script
    with rig.client() as agent, rig.client() as poster:
        agent.ask("GET", rig.path, headers=(("Accept", "text/event-stream"),))
        agent.head()
        endpoint = agent.event().decode().partition("\ndata: ")[2].rstrip("\n")
        poster.request("POST", endpoint, call("add", request_id=4), headers=MCP_HEADERS)
        agent.event()
    assert good(rig.row())


@pytest.mark.parametrize("text", ["done", "x" * (2 << 20)], ids=["small", "large"])
def test_on_a_pipe_the_answer_is_the_calls(tmp_path: Path, text: str) -> None:
    with wrapping(tmp_path) as wrap:
        initialize(wrap)
        asked = message("tools/call", {"name": "add", "arguments": {}}, request_id=7)
        assert wrap.asked(asked)["id"] == 7
        wrap.server.say(text_answer("7", text))
        assert wrap.stdout.json() == text_answer("7", text)
    (row,) = (row for row in wrap.rows() if row.tool == "add")
    assert good(row)


def test_a_commands_answer_with_an_id_of_another_type_belongs_to_its_call(tmp_path: Path) -> None:
    command = settings([sys.executable, "-c", SWITCHED])
    with proxy_beside(tmp_path, settings=command) as proxy:
        agent = Agent(proxy)
        said = agent.post(call("pid", request_id=5)).json()
        assert str(said["id"]) == "5"
        assert said["result"]["content"]
        agent.client.close()
    (row,) = (row for row in proxy.rows() if row.tool == "pid")
    assert good(row)
