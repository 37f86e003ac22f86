"""A stdio tool server whose tools do what a test asks for: `python stdio_server.py`.

It does not check what it gets. `asks` waits for the agent's answer and says it; `told` says what it
was told before: how often `initialize`, and which notifications.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

_told: list[str] = []


def main() -> None:
    """Answer until stdin ends."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            _told.append(message["method"] + _about(message))
        elif "method" in message:
            _answer(message)


def _about(message: dict[str, Any]) -> str:
    return f" {message['params']['requestId']}" if "cancelled" in message["method"] else ""


def _answer(message: dict[str, Any]) -> None:
    match message["method"]:
        case "initialize":
            _told.append("initialize")
            revision = message["params"]["protocolVersion"]
            info = {"name": "scripted", "version": "1"}
            _say(message, {"protocolVersion": revision, "capabilities": {}, "serverInfo": info})
        case "tools/call":
            params = message["params"]
            _TOOLS[params["name"]](message, params.get("arguments", {}))
        case _:
            error = {"code": -32601, "message": "no such method"}
            _write({"jsonrpc": "2.0", "id": message["id"], "error": error})


def _say(message: dict[str, Any], result: dict[str, Any]) -> None:
    _write({"jsonrpc": "2.0", "id": message["id"], "result": result})


def _text(message: dict[str, Any], text: str) -> None:
    _say(message, {"content": [{"type": "text", "text": text}]})


def _write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _progress(message: dict[str, Any], arguments: dict[str, Any]) -> None:
    token = message["params"]["_meta"]["progressToken"]
    for step in (1, 2):
        params = {"progressToken": token, "progress": step}
        _write({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
    _text(message, f"progress for {arguments['for']}")


def _asks(message: dict[str, Any], _: dict[str, Any]) -> None:
    _write({"jsonrpc": "2.0", "id": "question", "method": "elicitation/create", "params": {}})
    _text(message, json.loads(sys.stdin.readline())["result"]["content"]["answer"])


def _stray(message: dict[str, Any], _: dict[str, Any]) -> None:
    sys.stdout.write("no message\n")
    _text(message, "said")


def _nameless(message: dict[str, Any], _: dict[str, Any]) -> None:
    _write({"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "broken"}})


def _last(message: dict[str, Any], _: dict[str, Any]) -> None:
    result = {"content": [{"type": "text", "text": "last"}]}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))
    sys.stdout.flush()
    os._exit(0)


_TOOLS: dict[str, Callable[[dict[str, Any], dict[str, Any]], None]] = {
    "say": lambda message, arguments: _text(message, arguments["text"]),
    "pid": lambda message, _: _text(message, str(os.getpid())),
    "told": lambda message, _: _text(message, json.dumps(_told)),
    "id": lambda message, _: _text(message, str(message["id"])),
    "hang": lambda message, _: None,
    "die": lambda message, arguments: os._exit(arguments["code"]),
    "progress": _progress,
    "asks": _asks,
    "nameless": _nameless,
    "last": _last,
    "stray": _stray,
}

if __name__ == "__main__":
    main()
