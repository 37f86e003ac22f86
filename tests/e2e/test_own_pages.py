"""Requests to turnlog's own pages: relayed from the proxy's port to the application, and back."""

import base64
import json

import pytest

from kit.beside import Rig
from kit.clients import MCP_HEADERS, Response, call, message
from kit.upstreams import Peer, text_result

LOG = "/turnlog/api/v1/log"
PING = message("ping")
PONG: dict[str, object] = {"jsonrpc": "2.0", "id": 1, "result": {}}


def bearer(rig: Rig) -> tuple[str, str]:
    return ("Authorization", f"Bearer {(rig.proxy.data / 'token').read_text().strip()}")


def ask(rig: Rig, method: str, target: str, *headers: tuple[str, str]) -> Response:
    with rig.client() as client:
        return client.request(method, target, headers=headers)


def test_an_answer_has_the_fields_of_its_page_and_no_others(rig: Rig) -> None:
    asked = {
        LOG: {"Content-Type", "Cache-Control", "Content-Length"},
        "/turnlog/mcp": {"Content-Type", "Allow", "Content-Length"},
        "/turnlog/nothing": {"Content-Type", "Content-Length"},
        "/turnlog/health": {"Content-Type", "Content-Length"},
    }
    for target, names in asked.items():
        answer = ask(rig, "GET", target, bearer(rig))
        assert {name for name, _ in answer.head.headers} == names, target


def test_one_connection_carries_calls_and_own_pages_in_turn(rig: Rig) -> None:
    with rig.client() as client:
        for _ in range(3):
            assert client.request("GET", LOG, headers=(bearer(rig),)).status == 200
            assert (
                client.request("POST", rig.path, call("write"), headers=MCP_HEADERS).status == 200
            )
            assert client.request("HEAD", LOG, headers=(bearer(rig),)).body == b""
            assert client.request("POST", "/turnlog/mcp", PING).json() == PONG
            assert client.request("GET", "/turnlog/ready").json() == {"status": "ready"}
            assert client.request("GET", "/turnlog/nothing").status == 404


@pytest.mark.promise("AGENT-1")
def test_a_caller_cannot_name_itself_by_the_fields_of_the_relay(rig: Rig) -> None:
    rig.post(call("write"))
    rig.row()
    caller = base64.b64encode(json.dumps({"path_session": rig.session}).encode()).decode()
    forged = (("Turnlog-Caller", caller), ("Turnlog-Secret", "guess"), ("Turnlog-Method", "PUT"))
    with rig.client() as client:
        given = client.request("POST", "/turnlog/mcp", call("log"), headers=(*MCP_HEADERS, *forged))
    assert given.json()["result"]["isError"]
    assert "no session of this credential" in given.json()["result"]["content"][0]["text"]


async def test_any_token_is_a_method_and_is_logged_as_written(rig: Rig) -> None:
    refused = ask(rig, "FETCH", LOG, ("Turnlog-Method", "GET"))
    assert refused.status == 401
    await rig.proxy.event("request.refused", **{"http.request.method": "FETCH"})
    answer = ask(rig, "get", LOG, bearer(rig))
    assert (answer.status, answer.head.one("allow")) == (405, "GET, HEAD")
    assert ask(rig, "FETCH", "/turnlog/mcp").head.one("allow") == "POST"


@pytest.mark.parametrize(
    "target",
    [
        "/turnlog/api/v1/l%6Fg", "/turnlog/%61pi/v1/log", "/turnlog/api/v1/../v1/log",
        "/turnlog/api//v1/log", f"{LOG}/", f"{LOG}#x", "/turnlog/api/v1/sessions/\xff/log",
    ],
)  # fmt: skip
def test_a_path_is_taken_as_it_was_written(rig: Rig, target: str) -> None:
    assert ask(rig, "GET", target, bearer(rig)).status == 404


def test_the_target_may_be_absolute_and_have_a_query(rig: Rig) -> None:
    origin = rig.proxy.url.rpartition("/")[0]
    answer = ask(rig, "GET", f"{origin}{LOG}?tool=%C3%A9+b%26", bearer(rig))
    assert (answer.status, answer.json()["items"]) == (200, [])


@pytest.mark.promise("API-1")
def test_a_repeated_token_is_refused(rig: Rig) -> None:
    answer = ask(rig, "GET", LOG, bearer(rig), bearer(rig))
    assert answer.status == 401
    challenge = 'Bearer realm="turnlog", error="invalid_token"'
    assert answer.head.one("www-authenticate") == challenge


def test_fields_that_stand_there_twice_do_no_harm(rig: Rig) -> None:
    twice = (("User-Agent", "a"), ("User-Agent", "b"), ("Content-Type", "x"), ("Content-Type", "y"))
    with rig.client() as client:
        assert client.request("POST", "/turnlog/mcp", PING, headers=twice).json() == PONG


@pytest.mark.promise("API-1")
def test_a_request_without_the_token_is_refused_before_its_body_is_there(rig: Rig) -> None:
    with rig.client() as client:
        length = ("Content-Length", str(1 << 20))  # up to 64 KiB are read first in any case
        client.ask("POST", "/turnlog/api/v1/sessions/x/notes", headers=(length,))
        assert client.response("POST").status == 401


def test_a_body_may_come_after_its_head_in_chunks_or_by_invitation(rig: Rig) -> None:
    with rig.client() as client:
        client.ask("POST", "/turnlog/mcp", headers=(("Transfer-Encoding", "chunked"),))
        for piece in (PING[:10], PING[10:]):
            client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        client.send(b"0\r\n\r\n")
        assert client.response("POST").json() == PONG
        expects = (("Expect", "100-continue"), ("Content-Length", str(len(PING))))
        client.ask("POST", "/turnlog/mcp", headers=expects)
        assert client.head().status == 100
        client.send(PING)
        assert client.response("POST").json() == PONG


def test_a_body_in_a_coding_is_not_decoded(rig: Rig) -> None:
    with rig.client() as client:
        coded = (("Content-Encoding", "gzip"),)
        assert client.request("POST", "/turnlog/mcp", PING, headers=coded).json() == PONG


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 413)])
def test_a_body_has_a_limit(rig: Rig, more: int, status: int) -> None:
    body = PING + b" " * ((256 << 10) - len(PING) + more)
    with rig.client() as client:
        assert client.request("POST", "/turnlog/mcp", body).status == status


def test_a_large_answer_comes_whole(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        peer.send_json(text_result(peer.read().json()["id"], "x" * 900_000))

    rig.upstream.script = script
    for _ in range(4):
        rig.post(call("read_all"))
    rig.ended_rows(4)
    answer = ask(
        rig, "GET", f"/turnlog/api/v1/sessions/{rig.session}/log?payloads=true", bearer(rig)
    )
    texts = [item["output"]["text"] for item in answer.json()["items"]]
    assert [text.count("x") >= 900_000 for text in texts] == [True] * 4
    assert answer.head.one("content-length") == str(len(answer.body))


def test_a_caller_that_leaves_midway_disturbs_no_other_call(rig: Rig) -> None:
    for sent in (b"", b"{"):
        with rig.client() as client:
            client.ask("POST", "/turnlog/mcp", headers=(("Content-Length", "99"),))
            client.send(sent)
            client.reset()
    with rig.client() as client:
        assert client.request("POST", "/turnlog/mcp", PING).json() == PONG
