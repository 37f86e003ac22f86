"""Hold a run through turnlog against a run without it, and both against what the case expects.

Each function returns what differs: the aspect, and what was seen instead. Pure.
"""

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import permutations
from typing import Any, Final

from msgspec import Struct

from conformance.cases.reports import Answered, Case, Direct, Entry, Run, Wanted
from conformance.cases.ruled import Ruled, without
from turnlog.core.kinds import ErrorKind, Executed, Flag, RetryClass
from turnlog.sessions.rows import Row
from turnlog.sessions.verify import Finding

Differences = dict[str, str]

_SLACK: Final = 3.0
"""s that a busy machine may add to a limit of a case; a hang is longer."""

_APART: Final = 0.4
"""s between two answers of which a busy machine does not make the later one the first."""
_UNCOUNTED: Final = 1 << 20
"""bytes by which the data folder may exceed its limit: the bound that came with the cases."""

# RFC 9110, 7.6.1; and how a body ends is each connection's own affair.
_HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "trailer", "te"})
_ADDED_TO_REQUESTS: Final = frozenset({"host", "via", "x-forwarded-host"})

ENDINGS: Final[Mapping[str, frozenset[str]]] = {
    "connection_lost": frozenset({"connection_lost"}),
    "rate_limited": frozenset({"rate_limited"}),
    "null_result": frozenset({"null_result"}),
    "upstream_unreachable": frozenset(
        {"connect_failed", "connect_timeout", "upstream_unavailable"}
    ),
    "timeout": frozenset(
        {"response_timeout", "progress_timeout", "deadline_exhausted", "connect_timeout"}
    ),
    "tool_error": frozenset({"tool_failed"}),
    "protocol_error": frozenset({"invalid_request", "tool_not_found", "not_found", "conflict"}),
    "malformed_response": frozenset({"malformed_result"}),
    "auth_required": frozenset({"unauthenticated"}),
    "session_lost": frozenset({"session_lost"}),
    "too_large": frozenset({"result_too_large"}),
    "cancelled": frozenset({"cancelled_by_caller"}),
    "interrupted": frozenset({"outcome_unknown"}),
    "none": frozenset({"ok"}),
}
"""A case's word for an error, and turnlog's kinds; after the table that came with the cases."""

FLAGS: Final[Mapping[str, Flag]] = {
    "empty_result": Flag.EMPTY,
    "null_content": Flag.NULL_RESULT,
    "null_result": Flag.NULL_RESULT,
    "not_json": Flag.NOT_JSON,
    "id_reused": Flag.ID_REUSED,
    "id_mismatch": Flag.ID_MISMATCH,
    "definition_changed": Flag.CHANGED_DEFINITION,
    "late_result": Flag.LATE,
    "repeat_of_earlier": Flag.REPEAT_OF_UNKNOWN,
    "lone_surrogate": Flag.LONE_SURROGATE,
    "record_cut": Flag.TRUNCATED_RECORD,
    "retried": Flag.RETRIED,
    "resumed": Flag.RESUMED,
    "tainted_input": Flag.TAINTED_IN,
    "duplicate_keys": Flag.DUPLICATE_KEYS,
    "server_request": Flag.SERVER_REQUEST,
    "content_type_mismatch": Flag.CONTENT_TYPE_MISMATCH,
    "redacted": Flag.REDACTED,
    "store_full": Flag.UNRECORDED,
    "session_suspect": Flag.SESSION_SUSPECT,
}
"""A case's word for a mark, and turnlog's flag, one to one."""

IN_FIELDS: Final[Mapping[str, Callable[[Row], bool]]] = {
    "outcome_unknown": lambda row: row.executed is Executed.MAYBE,
    "rate_limited": lambda row: row.kind == ErrorKind.RATE_LIMITED,
}
"""Marks that turnlog says in other fields, of at least one attempt."""
IN_EVENTS: Final[Mapping[str, str]] = {"cursor_stuck": "turnlog.cursor.stuck"}
"""Marks of what is no call: fields of turnlog's log lines."""


class Kept(Struct, frozen=True, kw_only=True):
    """What turnlog kept of a run."""

    rows: list[Row]
    findings: list[Finding]
    payloads: list[bytes]
    files: Mapping[str, bytes]
    events: list[dict[str, Any]]
    """turnlog's log lines."""
    size: int
    """bytes on disk."""


def differences(
    case: Case,
    direct: Run,
    through: Run,
    kept: Kept,
    ports: Mapping[str, str],
    ruled: Ruled | None = None,
) -> Differences:
    """Return all that differs. `ports` are words to write for each run's ports."""
    plain, found = without(case, direct, through, ruled) if ruled else (through, {})
    # Without an upstream there is no answer to compare with.
    found |= relayed(direct, plain, ports) if case.listens else {}
    found |= requests(case, direct, through)
    return found | upstream(case, through) | record(case, through, kept)


# -- relaying --------------------------------------------------------------------------------


def relayed(direct: Run, through: Run, ports: Mapping[str, str]) -> Differences:
    """Compare what client and upstream saw."""
    found: Differences = {}
    for near, far in zip(direct.report.requests, through.report.requests, strict=True):
        found |= _answers(near, far, ports)
    came, passed = _in_order(direct), _in_order(through)
    found |= _unequal("upstream: requests", list(map(_line, came)), list(map(_line, passed)))
    for near_entry, far_entry in zip(came, passed, strict=False):
        found |= _unequal(
            f"upstream: headers of {_line(near_entry)[:2]}",
            _headers(near_entry.headers, _ADDED_TO_REQUESTS, ports),
            _headers(far_entry.headers, _ADDED_TO_REQUESTS, ports),
        )
    found |= _overtaken(direct, through)
    return found | _unequal("upstream: requests abandoned", direct.left(), through.left())


def _in_order(run: Run) -> list[Entry]:
    """Return what reached the upstream; calls made at the same moment may come in any order."""
    return sorted(run.requests(), key=_line)


def _overtaken(direct: Run, through: Run) -> Differences:
    """Find answers that came clearly before another one when direct, and after it here.

    So that nothing waits for what it need not wait for; a busy machine delays both.
    """
    pairs = list(zip(direct.report.requests, through.report.requests, strict=True))
    return {
        f"{first[0].name}: order": f"after {second[0].name}"
        for first, second in permutations(pairs, 2)
        if first[0].t_end < second[0].t_end - _APART and first[1].t_end > second[1].t_end
    }


def _answers(direct: Answered, through: Answered, ports: Mapping[str, str]) -> Differences:
    near, far = _ending(direct), _ending(through)
    found = _unequal(f"{direct.name}: ending", near, far)
    found |= _unequal(f"{direct.name}: body", direct.body_sha256, through.body_sha256)
    return found | _unequal(
        f"{direct.name}: headers",
        _headers(direct.headers, frozenset(), ports),
        _headers(through.headers, frozenset(), ports),
    )


def _ending(answer: Answered) -> tuple[int | None, bool, str | None]:
    return answer.status, answer.complete, answer.error


def _line(request: Entry) -> tuple[str, str, str]:
    return request.http, request.path, request.body_sha256


def _headers(
    headers: Iterable[tuple[str, str]], besides: frozenset[str], ports: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return the fields that have to be the same on both sides, in order; `turnlog-*` are ours."""
    left_out = _HOP_BY_HOP | besides
    return [
        (name, _without(value, ports))
        for name, value in headers
        if name.lower() not in left_out and not name.lower().startswith("turnlog-")
    ]


def _without(text: str, ports: Mapping[str, str]) -> str:
    for port, word in ports.items():
        text = text.replace(port, word)
    return text


def _unequal(aspect: str, near: object, far: object) -> Differences:
    return {} if near == far else {aspect: f"{far!r} instead of {near!r}"}


# -- what the case expects of the requests ---------------------------------------------------


def requests(case: Case, direct: Run, through: Run) -> Differences:
    """Compare each request with the case's expectations of it."""
    found: Differences = {}
    pairs = zip(direct.report.requests, through.report.requests, strict=True)
    for near, far in pairs:
        wanted = case.expect.requests.get(near.name)
        if wanted is None:
            continue
        found |= _unequal(f"{near.name}: direct", wanted.direct, Direct(*_ending(near)))
        checks = {
            "status": _in_class(far.status, wanted.status),
            "answer": wanted.answer != "proxy_error" or _is_own_failure(far),
            "body": wanted.body_contains in far.body,
            "bytes": far.bytes >= wanted.bytes_min,
            "chunks": len(far.chunks) >= wanted.chunks_min,
            "time": _in_time(far, wanted),
            "first chunk": _is_passed_on(near, far, wanted),
            "header kept": _has_header(far, wanted.header_kept.partition(" ")[0]),
        }
        found |= {f"{near.name}: {what}": _seen(far) for what, fine in checks.items() if not fine}
    return found


def _in_class(status: int | None, wanted: str) -> bool:
    if status is None:
        return wanted == "none"
    return f"{status // 100}xx" in wanted.split("-or-")


def _in_time(answer: Answered, wanted: Wanted) -> bool:
    took = answer.t_end - answer.t_start
    late = wanted.within_s is not None and took > wanted.within_s + _SLACK
    early = wanted.not_before_s is not None and took < wanted.not_before_s
    return not late and not early


def _is_passed_on(direct: Answered, through: Answered, wanted: Wanted) -> bool:
    """Tell whether the first chunk came long before the last; a buffer would have held it back.

    Measured from the end, so that a slow start of a busy machine says nothing.
    """
    if wanted.first_chunk_within_s is None:
        return True
    gap = (direct.t_end - direct.t_start) - wanted.first_chunk_within_s
    return bool(through.chunks) and through.t_end - through.chunks[0][0] >= gap


def _is_own_failure(answer: Answered) -> bool:
    """Tell whether turnlog said by itself that a `tools/call` failed."""
    if answer.status != 200:
        return False
    result = json.loads(base64.b64decode(answer.body_base64)).get("result", {})
    return result.get("isError") is True and "turnlog/outcome" in result.get("_meta", {})


def _has_header(answer: Answered, name: str) -> bool:
    return not name or any(have.lower() == name.lower() for have, _ in answer.headers)


def _seen(answer: Answered) -> str:
    return f"{answer.status}, {len(answer.chunks)} chunks, {answer.bytes} bytes"


# -- what the case expects of the upstream and of the log --------------------------------------


def upstream(case: Case, through: Run) -> Differences:
    """Compare what the upstream did with the case's expectations."""
    wanted, ran = case.expect.upstream, through.executions()
    found: Differences = {}
    if not wanted.executions_min <= ran <= wanted.executions_max:
        found["upstream: executions"] = str(ran)
    if wanted.requests_max is not None and len(through.requests()) > wanted.requests_max:
        found["upstream: requests_max"] = str(len(through.requests()))
    return found


def record(case: Case, through: Run, kept: Kept) -> Differences:
    """Compare the log with the case's expectations."""
    wanted = case.expect.record
    calls = _calls(case, through)
    found = _unequal("record: commits", wanted.commits, len({row.call for row in kept.rows}))
    last = list({row.call: row for row in kept.rows}.values())
    found |= _unequal("record: rows", len(calls) + _repeats(last), len(kept.rows))
    for call, row in _paired(calls, last):
        found |= _row(call, row, case.expect.requests.get(call.answer.name))
    found |= _flags(wanted.flags, kept)
    found |= _unequal(
        "record: attempts", wanted.attempts, max((row.attempt for row in kept.rows), default=1)
    )
    broken = [finding for finding in kept.findings if not finding.verdict.intact]
    found |= _unequal("record: chain", [], broken)
    limit = case.proxy_settings.get("store_limit_bytes")
    if limit is not None and kept.size > limit + _UNCOUNTED:
        found["record: size"] = str(kept.size)
    return found | _texts(case, kept)


def _repeats(last: Iterable[Row]) -> int:
    """Return how many attempts came before the last one of each call."""
    return sum(row.attempt - 1 for row in last)


class _Call(Struct, frozen=True):
    answer: Answered
    server: str
    tool: str


def _calls(case: Case, through: Run) -> list[_Call]:
    """Return the tool calls in the order in which they were made."""
    asked = [spec for spec in case.client for _ in range(spec.get("loop", 1))]
    pairs = zip(asked, through.report.requests, strict=True)
    calls = [
        _Call(answer, _server(case, spec), tool)
        for spec, answer in pairs
        if (tool := _tool(case, spec)) is not None
    ]
    return sorted(calls, key=lambda call: call.answer.t_start)


def _server(case: Case, spec: Mapping[str, Any]) -> str:
    upstreams: dict[str, str] = case.proxy_settings.get("upstreams", {})
    return next((name for name, path in upstreams.items() if path == spec["path"]), "default")


def _tool(case: Case, spec: Mapping[str, Any]) -> str | None:
    if case.transport == "http-json":
        return f"{spec.get('method', 'POST')} {spec['path']}"
    parts: list[dict[str, Any]] = spec.get("body_parts", [{"text": spec.get("body", "{}")}])
    text = "".join(part["text"] * part.get("times", 1) for part in parts)
    message = json.loads(text.replace("${server_id}", "0"))
    if message.get("method") != "tools/call":
        return None
    return str(message["params"]["name"])


def _paired(calls: list[_Call], rows: list[Row]) -> list[tuple[_Call, Row]]:
    """Give each call its row: the first one of its tool that no earlier call has."""
    left = list(rows)
    pairs: list[tuple[_Call, Row]] = []
    for call in calls:
        row = next((row for row in left if row.tool == call.tool), left[0] if left else None)
        if row is not None:
            left.remove(row)
            pairs.append((call, row))
    return pairs


def _row(call: _Call, row: Row, wanted: Wanted | None) -> Differences:
    name = call.answer.name
    found = _unequal(f"{name}: tool", (call.server, call.tool), (row.server, row.tool))
    if wanted is None:
        return found
    ending = row.kind or row.status.value
    if ending not in ENDINGS[wanted.error]:
        found[f"{name}: error"] = ending
    known = "no" if row.executed is Executed.MAYBE else "yes"
    if known != wanted.outcome_known:
        found[f"{name}: outcome_known"] = f"executed {row.executed}"
    # What did not run can be done over, if perhaps not as it is.
    safe = row.retry == RetryClass.SAFE or row.executed is Executed.NO
    if row.kind and safe != (wanted.retry_safe == "yes"):
        found[f"{name}: retry_safe"] = f"executed {row.executed}, retry {row.retry}"
    return found


def _flags(words: Sequence[str], kept: Kept) -> Differences:
    told = {word for word, fits in IN_FIELDS.items() if any(map(fits, kept.rows))}
    told |= {word for word, name in IN_EVENTS.items() if any(e.get(name) for e in kept.events)}
    elsewhere = {*IN_FIELDS, *IN_EVENTS}
    wanted = {FLAGS[word] for word in set(words) - elsewhere}
    seen = {flag for row in kept.rows for flag in row.flags}
    missing = {f"record: no flag {flag}": "" for flag in sorted(wanted - seen)}
    unsaid = (set(words) & elsewhere) - told
    missing |= {f"record: no mark {word}": "" for word in sorted(unsaid)}
    # What is said of every call is no mark.
    missing |= {f"record: mark {word}": "" for word in sorted((told & set(IN_EVENTS)) - set(words))}
    return missing | {f"record: flag {flag}": "" for flag in sorted(seen - wanted)}


def _texts(case: Case, kept: Kept) -> Differences:
    everything = [*kept.files.values(), *kept.payloads]
    wanted = case.expect.record
    counts: Counter[str] = Counter()
    for text in (*wanted.must_contain, *wanted.must_not_contain):
        counts[text] = sum(data.count(text.encode()) for data in everything)
    missing = {f"record: lacks {t!r}": "" for t in wanted.must_contain if not counts[t]}
    return missing | {f"record: holds {t!r}": "" for t in wanted.must_not_contain if counts[t]}
