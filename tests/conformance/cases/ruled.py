"""Where a case's rules change what client and server see, and exactly into what.

`without` takes this out of a run, so that all the rest is held against the run without turnlog.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, structs

from conformance.cases.reports import Answered, Case, Entry, Run

_CANCEL: Final = "notifications/cancelled"
_CALL: Final = "tools/call"
_PARTS: Final = b"\n\n"
_EVENT: Final = b"event: message\ndata: "
_OF_A_BODY: Final = frozenset({"content-length", "accept-encoding", "host"})


class Own(Struct, frozen=True):
    """turnlog says that the call failed, behind the whole events that came before."""

    kind: str


class Scripted(Struct, frozen=True):
    """What this exchange of the script replies, to the caller's id."""

    exchange: int


class Ruled(Struct, frozen=True, kw_only=True):
    """What becomes of the request `call`, and why."""

    why: str
    answer: Own | Scripted
    more: tuple[str, ...] = ()
    """Methods of the messages that the server gets besides."""


_MANAGED: Final = "a rule of retries makes turnlog answerable: it says how the call ended"

RULED: Final[Mapping[str, Ruled]] = {
    "C01": Ruled(
        why="`total` is over; the server is told",
        answer=Own("deadline_exhausted"),
        more=(_CANCEL,),
    ),
    "C25": Ruled(why="429 is repeated", answer=Scripted(1), more=(_CALL,)),
    "C53": Ruled(why=_MANAGED, answer=Own("connection_lost")),
    "C61": Ruled(
        why="`response` is over; the server is told, and asked again",
        answer=Scripted(1),
        more=(_CANCEL, _CALL),
    ),
    "C65": Ruled(why=_MANAGED, answer=Own("connection_lost")),
}


def without(case: Case, direct: Run, through: Run, ruled: Ruled) -> tuple[Run, dict[str, str]]:
    """Return the run through turnlog without what rules changed, and what is not as they want."""
    (spec,) = (spec for spec in case.client if spec["name"] == "call")
    asked: dict[str, Any] = json.loads(spec["body"])
    found: dict[str, str] = {}
    pairs = zip(direct.report.requests, through.report.requests, strict=True)
    answers: list[Answered] = []
    for near, far in pairs:
        if near.name == "call" and not _fits(case, asked, near, far, ruled.answer):
            found["call: ruled answer"] = far.body
        answers.append(_as(near, far) if near.name == "call" else far)
    known = {entry.body_sha256 for entry in direct.requests()}
    more = [entry for entry in through.requests() if entry.body_sha256 not in known]
    if sorted(map(_method, more)) != sorted(ruled.more):
        found["upstream: ruled requests"] = str([*map(_method, more)])
    original = next(entry for entry in through.requests() if _said(entry) == asked)
    found |= {f"upstream: ruled {_method(e)}": str(e) for e in more if not _follows(original, e)}
    entries = [entry for entry in through.upstream if entry not in more]
    return Run(structs.replace(through.report, requests=answers), entries), found


def _as(near: Answered, far: Answered) -> Answered:
    """Return an answer with the content of the other; the times stay."""
    kept = {name: getattr(far, name) for name in ("t_start", "t_end", "chunks")}
    return structs.replace(near, **kept)


def _fits(
    case: Case, asked: dict[str, Any], near: Answered, far: Answered, wanted: Own | Scripted
) -> bool:
    if (far.status, far.complete, far.error) != (200, True, None):
        return False
    match wanted:
        case Own():
            return _is_own(asked, near, far, wanted.kind)
        case Scripted():
            return _is_scripted(case, asked, far, wanted.exchange)


def _is_own(asked: dict[str, Any], near: Answered, far: Answered, kind: str) -> bool:
    body, headers = base64.b64decode(far.body_base64), _headers(far)
    if ["Content-Type", "text/event-stream"] in map(list, near.headers):
        whole, gap, _ = base64.b64decode(near.body_base64).rpartition(_PARTS)
        before = whole + gap + _EVENT
        if headers != _headers(near) or not (body.startswith(before) and body.endswith(_PARTS)):
            return False
        body = body.removeprefix(before)
    elif headers != [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]:
        return False
    message = json.loads(body)
    outcome = message["result"]["_meta"]["turnlog/outcome"]
    return (message["id"], message["result"]["isError"], outcome["kind"]) == (
        asked["id"],
        True,
        kind,
    )


def _is_scripted(case: Case, asked: dict[str, Any], far: Answered, exchange: int) -> bool:
    steps = case.upstream["exchanges"][exchange]["steps"]
    (reply,) = (step["reply"] for step in steps if "reply" in step)
    body = reply["body"].replace("${id}", json.dumps(asked["id"])).encode()
    length = ("Content-Length", str(len(body)))
    headers = [*map(tuple, reply["headers"]), length]
    return base64.b64decode(far.body_base64) == body and _headers(far) == headers


def _headers(answer: Answered) -> list[tuple[str, str]]:
    return [
        (name, value)
        for name, value in answer.headers
        if not name.startswith("Turnlog-") and name != "Transfer-Encoding"
    ]


def _follows(original: Entry, entry: Entry) -> bool:
    """Tell whether a message is the original once more under another id, or takes it back."""
    said, before = _said(entry), _said(original)
    fields, known = (
        [(name, value) for name, value in one.headers if name.lower() not in _OF_A_BODY]
        for one in (entry, original)
    )
    if fields != known or entry.path != original.path:
        return False
    if said["method"] == _CANCEL:
        return bool(said["params"]["requestId"] == before["id"])
    return said == before | {"id": said["id"]} and said["id"].startswith("turnlog-")


def _method(entry: Entry) -> str:
    return str(_said(entry).get("method"))


def _said(entry: Entry) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(base64.b64decode(entry.body_base64) or b"{}")
    return said
