"""An MCP server of both eras, made of raw sockets, whose tools fail in the way that their name says."""

from typing import Any, Final

from kit.upstreams import Peer, chunked, result

KINDS: Final = (
    *("well", "reset", "slow", "slow_events", "null", "null_events"),
    *("busy", "busy_events", "flaky", "recovers", "raises"),
)
TYPED: Final = frozenset(KINDS) - {"null", "null_events"}
"""Also there with an output schema, as NAME_typed; an SDK refuses a null result of such a tool itself."""
RULES: Final = """
rules:
  - {match: {tool: slow*}, timeout: {response: 300ms}}
  - {match: {tool: null*}, effect: read, expects: content}
  - {match: {tool: busy*}, map_error: [{kind: rate_limited, text: slow down, retry_after: 2s}]}
  - match: {tool: [flaky*, recovers*]}
    effect: read
    retry: {on: connection, max_attempts: 2, base_interval: 1ms}
  - {match: {tool: raises*}, surface: error}
"""
_SCHEMA: Final = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
_WELL: Final = {"content": [{"type": "text", "text": "well"}], "structuredContent": {"n": 1}}
_BUSY: Final = {"content": [{"type": "text", "text": "slow down"}], "structuredContent": {"n": 1}}
_ACCEPTED: Final = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
_NO_STREAM: Final = b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n"


def serve(peer: Peer) -> None:
    """Answer one request."""
    request = peer.read()
    asked: dict[str, Any] = request.json() if request.method == b"POST" else {}
    match asked.get("method"):
        case "initialize":
            info = {"name": "misbehaving", "version": "1"}
            agreed = {"protocolVersion": asked["params"]["protocolVersion"], "serverInfo": info}
            _answer(peer, asked, {**agreed, "capabilities": {"tools": {}, "resources": {}}})
        case "server/discover":
            _answer(
                peer,
                asked,
                {
                    "supportedVersions": ["2026-07-28"],
                    "capabilities": {"tools": {}, "resources": {}},
                },
            )
        case "tools/list":
            _answer(peer, asked, {"tools": _tools()})
        case "tools/call":
            _call(peer, asked, asked["params"]["name"].removesuffix("_typed"))
        case "resources/read":
            # Before a head has left it would get 502, which tells an application nothing.
            peer.start_events()
            peer.send(chunked(b": working\n\n"))
            peer.reset()
        case None:
            peer.send(_NO_STREAM)
        case _:
            peer.send(_ACCEPTED)


def _call(peer: Peer, asked: dict[str, Any], kind: str) -> None:
    match kind:
        case "reset" | "flaky" | "raises":
            peer.reset()
        case "recovers" if not str(asked["id"]).startswith("turnlog-"):
            peer.reset()
        case "slow":
            peer.wait_for_hang_up()
        case "slow_events":
            peer.start_events()
            peer.send(chunked(b": working\n\n"))
            peer.wait_for_hang_up()
        case "null" | "null_events":
            _answer(peer, asked, {"content": []}, events=kind == "null_events")
        case "busy" | "busy_events":
            _answer(peer, asked, _BUSY, events=kind == "busy_events")
        case _:
            _answer(peer, asked, _WELL)


def _answer(
    peer: Peer, asked: dict[str, Any], value: dict[str, Any], *, events: bool = False
) -> None:
    """Answer with a result of either era: what only 2026-07-28 knows the others pass over."""
    of_both = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    said = result(asked["id"], {**of_both, **value})
    if not events:
        peer.send_json(said)
        return
    peer.start_events()
    peer.send_event(said)
    peer.end()


def _tools() -> list[dict[str, Any]]:
    empty: dict[str, Any] = {"type": "object", "properties": {}}
    plain = [{"name": kind, "inputSchema": empty} for kind in KINDS]
    typed = [
        {"name": f"{kind}_typed", "inputSchema": empty, "outputSchema": _SCHEMA}
        for kind in sorted(TYPED)
    ]
    return [*plain, *typed]
