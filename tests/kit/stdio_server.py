"""A stdio tool server whose tools do what a test asks for: `python stdio_server.py`.

It does not check what it gets. `asks` is answered as soon as its question is, and so is
`asks_at_once`, which asks and reports in one array, under the id of its own request; `hang` once somebody
calls `release`, and it makes the file `begun` that its arguments name; `told` says what the server was told before: how often `initialize`, and which
notifications and answers. It takes no `initialize` for the revision `none`, and asks a client that
has roots for them. `flood` reports progress so often, and writes into a file after how many bytes
nobody read on for a while. After `stubborn` it ends by nothing but SIGKILL.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_told: list[str] = []
_asking: dict[Any, dict[str, Any]] = {}
"""Calls by the questions that they have asked."""
_hanging: list[dict[str, Any]] = []
_client: dict[str, Any] = {}
"""What the client can do."""
_stubborn: list[bool] = []


def main() -> None:
    """Answer until stdin ends."""
    for line in sys.stdin:
        for message in json.loads(line if line.startswith("[") else f"[{line}]"):
            _take(message)
    while _stubborn:
        signal.pause()


def _take(message: dict[str, Any]) -> None:
    if "id" not in message:
        _told.append(message["method"] + _about(message))
        if message["method"] == "notifications/initialized" and _client.get("roots") is not None:
            _write({"jsonrpc": "2.0", "id": "roots", "method": "roots/list"})
    elif "method" in message:
        _answer(message)
    else:
        _told.append(f"{message['id']}: {_said(message)}")
        if message["id"] in _asking:
            _text(_asking.pop(message["id"]), _said(message))


def _about(message: dict[str, Any]) -> str:
    return f" {message['params']['requestId']}" if "cancelled" in message["method"] else ""


def _answer(message: dict[str, Any]) -> None:
    match message["method"]:
        case "initialize" if message["params"]["protocolVersion"] == "none":
            error = {"code": -32602, "message": "unsupported"}
            _write({"jsonrpc": "2.0", "id": message["id"], "error": error})
        case "initialize":
            _told.append("initialize")
            _client.update(message["params"].get("capabilities", {}))
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


def _asks(message: dict[str, Any], arguments: dict[str, Any]) -> None:
    question, method = (
        arguments.get("as", "question"),
        arguments.get("method", "elicitation/create"),
    )
    _asking[question] = message
    _write({"jsonrpc": "2.0", "id": question, "method": method, "params": {}})


def _asks_at_once(message: dict[str, Any], _: dict[str, Any]) -> None:
    _asking[message["id"]] = message
    method, request_id = "elicitation/create", message["id"]
    token = message["params"]["_meta"]["progressToken"]
    params = {"progressToken": token, "progress": 1}
    note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
    asked: dict[str, Any] = {}
    question = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": asked}
    sys.stdout.write(json.dumps([note, question]) + "\n")
    sys.stdout.flush()


def _said(answer: dict[str, Any]) -> str:
    if "error" in answer:
        return str(answer["error"]["message"])
    return str(answer["result"].get("content", {}).get("answer", "nothing"))


def _notifies(message: dict[str, Any], arguments: dict[str, Any]) -> None:
    _write({"jsonrpc": "2.0", "method": arguments["method"], "params": arguments.get("params", {})})
    _text(message, "notified")


def _hang(message: dict[str, Any], arguments: dict[str, Any]) -> None:
    _hanging.append(message)
    if begun := arguments.get("begun"):
        Path(begun).touch()


def _release(message: dict[str, Any], arguments: dict[str, Any]) -> None:
    if arguments.get("at_once"):
        content = [{"type": "text", "text": "released at once"}]
        calls = [*_hanging, message]
        said = [
            {"jsonrpc": "2.0", "id": one["id"], "result": {"content": content}} for one in calls
        ]
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    else:
        for hanging in _hanging:
            _text(hanging, "released")
        _text(message, "released all")
    _hanging.clear()


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


def _be_stubborn(message: dict[str, Any], _: dict[str, Any]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _stubborn.append(True)
    _text(message, str(os.getpid()))


def _later(message: dict[str, Any], arguments: dict[str, Any]) -> None:
    select.select([], [], [], arguments["seconds"])
    _text(message, str(os.getpid()))


def _leaves(_: dict[str, Any], arguments: dict[str, Any]) -> None:
    with subprocess.Popen(["sleep", "300"], stdin=subprocess.DEVNULL):
        os._exit(arguments["code"])


def _flood(message: dict[str, Any], arguments: dict[str, Any]) -> None:
    token = message["params"]["_meta"]["progressToken"]
    params = {"progressToken": token, "progress": 1, "message": "x" * 100_000}
    note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
    line = json.dumps(note).encode() + b"\n"
    told = Path(arguments["told"])
    os.set_blocking(1, False)
    written = 0
    for _ in range(arguments["notes"]):
        rest = memoryview(line)
        while rest:
            while not select.select([], [1], [], 1.0)[1]:
                if not told.exists():
                    part = told.with_suffix(".part")  # who waits for the file reads it at once
                    part.write_text(str(written))
                    part.rename(told)
            size = os.write(1, rest)
            rest, written = rest[size:], written + size
    os.set_blocking(1, True)
    _text(message, str(written))


_TOOLS: dict[str, Callable[[dict[str, Any], dict[str, Any]], None]] = {
    "say": lambda message, arguments: _text(message, arguments["text"]),
    "pid": lambda message, _: _text(message, str(os.getpid())),
    "told": lambda message, _: _text(message, json.dumps(_told)),
    "id": lambda message, _: _text(message, str(message["id"])),
    "large": lambda message, arguments: _text(message, arguments["text"] * arguments["times"]),
    "hang": _hang,
    "release": _release,
    "notifies": _notifies,
    "die": lambda message, arguments: os._exit(arguments["code"]),
    "progress": _progress,
    "asks": _asks,
    "asks_at_once": _asks_at_once,
    "nameless": _nameless,
    "last": _last,
    "stray": _stray,
    "stubborn": _be_stubborn,
    "later": _later,
    "leaves": _leaves,
    "flood": _flood,
}

if __name__ == "__main__":
    main()
