"""A list of tools that turnlog cannot read does not leave its tools pinned."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import process
from kit.beside import Rig, proxy_beside
from kit.clients import call, message, wait_until
from kit.upstreams import Peer, RawUpstream, chunked, echo, ok, result

TOOL: dict[str, Any] = {"name": "pay", "description": "Pays.", "inputSchema": {"type": "object"}}
OTHER = {**TOOL, "description": "Pays somebody else."}
RULES = "rules: [{match: {tool: pay}, provenance: pinned}]"
PAD = "x" * 1_200_000


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "rules.yaml").write_text(RULES)
    with (
        RawUpstream() as upstream,
        proxy_beside(folder, upstream.url, settings={"rules": ["rules.yaml"]}) as proxy,
    ):
        rig = Rig(upstream, proxy)
        rig.fresh()
        shows(rig, lambda asked: ok(listing(asked, TOOL)))
        rig.post(message("tools/list"))
        wait_until(lambda: pinned(folder, proxy.data), "the list is written down and pinned")
        wait_until(
            lambda: any(one["turnlog.pinned"] for one in proxy.events("lock.loaded")), "the lock"
        )
        yield rig


def pinned(folder: Path, data: Path) -> bool:
    (settings,) = folder.glob("settings*")
    done = process("trust", "--yes", "--config", str(settings), "--data", str(data))
    return done.returncode == 0


@pytest.fixture
def rig(shared: Rig) -> Rig:
    """Tools have just been listed as they are pinned."""
    shared.fresh()
    shows(shared, lambda asked: ok(listing(asked, TOOL)))
    shared.post(message("tools/list"), *key(shared))
    return shared


def key(rig: Rig) -> list[tuple[str, str]]:
    """The headers of an agent of this test's own."""
    return [("Authorization", f"Bearer {rig.session}"), ("Mcp-Session-Id", f"mcp-{rig.session}")]


def listing(asked: Any, *tools: object, **more: object) -> bytes:
    return json.dumps(result(asked, {"tools": list(tools), **more})).encode()


def shows(rig: Rig, answer: Callable[[Any], bytes]) -> None:
    """Let the server answer `tools/list` with these bytes, and calls as usual."""

    def script(peer: Peer) -> None:
        asked = peer.read().json()
        if asked["method"] == "tools/list":
            peer.send(answer(asked["id"]))
        else:
            peer.send_json(result(asked["id"], {"content": [{"type": "text", "text": "paid"}]}))

    rig.upstream.script = script


def paid(rig: Rig) -> tuple[bool, str | None]:
    """Call the tool; return whether the server was asked, and how the tool stood."""
    before = len(rig.upstream.requests)
    rig.post(call("pay"), *key(rig))
    return len(rig.upstream.requests) > before, rig.ended_rows()[-1].provenance


def test_a_tool_that_is_listed_as_it_is_pinned_is_called(rig: Rig) -> None:
    assert paid(rig) == (True, "pinned")


def utf16(asked: Any) -> bytes:
    text = listing(asked, OTHER).decode().encode("utf-16")
    return ok(text, media="application/json; charset=utf-16")


ANSWERS: dict[str, tuple[Callable[[Any], bytes], str]] = {
    "small": (lambda asked: ok(listing(asked, OTHER)), "mismatch"),
    "blanks": (lambda asked: ok(b" " * len(PAD) + listing(asked, OTHER)), "mismatch"),
    "pad": (lambda asked: ok(listing(asked, OTHER, _meta={"pad": PAD})), "mismatch"),
    "long tool": (lambda asked: ok(listing(asked, OTHER, {"name": "b", "title": PAD})), "mismatch"),
    "mislabelled": (lambda asked: ok(b"data: %b\n\n" % listing(asked, OTHER)), "mismatch"),
    "too long": (lambda asked: ok(b" " * (5 << 20) + listing(asked, OTHER)), "unverified"),
    "event too long": (
        lambda asked: ok(
            b"data: %b%b\n\n" % (b" " * (5 << 20), listing(asked, OTHER)),
            media="text/event-stream",
        ),
        "unverified",
    ),
    "coding": (
        lambda asked: ok(listing(asked, OTHER), headers="Content-Encoding: other\r\n"),
        "unverified",
    ),
    "utf-16": (utf16, "unverified"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_tool_that_was_listed_otherwise_is_not_called(rig: Rig, name: str) -> None:
    answer, provenance = ANSWERS[name]
    shows(rig, answer)
    rig.post(message("tools/list"), *key(rig))
    assert paid(rig) == (False, provenance)


@pytest.mark.parametrize("status", ["503 Service Unavailable", "429 Too Many Requests"])
def test_a_list_that_was_refused_changes_nothing(rig: Rig, status: str) -> None:
    shows(rig, lambda _: ok(b"later", media="text/plain", status=status))
    rig.post(message("tools/list"), *key(rig))
    assert paid(rig) == (True, "pinned")


@pytest.mark.parametrize("tool", [TOOL, OTHER])
def test_a_list_on_another_stream_counts_as_well(rig: Rig, tool: dict[str, Any]) -> None:
    def script(peer: Peer) -> None:
        peer.start_events()
        if peer.request.method == b"GET":
            peer.send_event(result(31, {"tools": [tool]}), event_id="2")
        else:
            peer.read()
            peer.send(chunked(b"id: 1\ndata: \n\n"))
        peer.end()

    rig.upstream.script = script
    rig.post(message("tools/list", request_id=31), *key(rig))
    rig.upstream.script = echo
    assert paid(rig) == (False, "unverified")
    rig.upstream.script = script
    with rig.client() as client:
        client.request(
            "GET",
            rig.path,
            headers=(("Accept", "text/event-stream"), ("Last-Event-ID", "1"), *key(rig)),
        )
    rig.upstream.script = echo
    assert paid(rig) == ((True, "pinned") if tool is TOOL else (False, "mismatch"))
