"""The process log writes one line per event, loses none at exit and never blocks the caller."""

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import BinaryIO

import pytest

from turnlog.core.kinds import Effect, Executed, Phase, Rung, Status
from turnlog.core.text.terminal import display_width
from turnlog.observe.events import (
    CallEnded,
    CallStarted,
    LogDropped,
    LogEvent,
    ProxyFaulted,
    ProxyReady,
    RefusalReason,
    RequestRefused,
    RulesMissing,
    SessionOpened,
    StoreFailed,
    ToolsListed,
)
from turnlog.observe.logs import LIMIT_BYTES, Logs, StandardLogging, configure, short_line

AT = 1_795_824_000_123_456_789


def call_ended(tool: str = "read_file", asked: str = "") -> CallEnded:
    return CallEnded(
        input_summary=asked,
        session="s",
        call="c",
        server="files",
        tool=tool,
        status=Status.OK,
        executed=Executed.YES,
        effect=Effect.READ,
        phase=Phase.DONE,
        duration_ns=5,
    )


def written(*given: LogEvent, level: str = "debug", form: str = "json") -> list[str]:
    """The lines that a log writes of these events."""
    stream = io.BytesIO()
    logs = configure(form, level, stream, clock=lambda: AT)  # type: ignore[arg-type]
    for event in given:
        logs.emit(event)
    logs.close()
    return stream.getvalue().decode().splitlines()


def wait_until(met: Callable[[], bool]) -> None:
    end = monotonic() + 10
    while not met():
        assert monotonic() < end, "the condition was not met within 10 s"
        sleep(0.005)


def test_a_line_begins_with_timestamp_level_and_event() -> None:
    (line,) = written(call_ended())
    head = '{"timestamp":"2026-11-28T00:00:00.123456Z","level":"info","event":"call.ended",'
    assert line.startswith(head)
    assert json.loads(line)["gen_ai.tool.name"] == "read_file"


def test_a_field_with_its_default_is_left_out() -> None:
    (line,) = written(call_ended())
    assert "trace_id" not in json.loads(line)


@pytest.mark.parametrize(
    ("level", "names"),
    [
        ("debug", ["call.started", "call.ended", "request.refused", "store.failed"]),
        ("info", ["call.ended", "request.refused", "store.failed"]),
        ("warning", ["request.refused", "store.failed"]),
        ("error", ["store.failed"]),
    ],
)
def test_events_below_the_log_level_are_not_written(level: str, names: list[str]) -> None:
    lines = written(
        CallStarted(session="s", call="c", server="files", tool="t"),
        call_ended(),
        RequestRefused(reason=RefusalReason.HOST),
        StoreFailed(reason="no space"),
        level=level,
    )
    assert [json.loads(line)["event"] for line in lines] == names


def test_a_line_names_its_level() -> None:
    lines = written(
        CallStarted(session="s", call="c", server="files", tool="t"),
        RequestRefused(reason=RefusalReason.HOST),
        StoreFailed(reason="no space"),
    )
    assert [json.loads(line)["level"] for line in lines] == ["debug", "warning", "error"]


def test_a_name_that_is_not_valid_unicode_is_escaped() -> None:
    (line,) = written(call_ended(tool="bad\udcff"))
    assert json.loads(line)["gen_ai.tool.name"] == "bad\\udcff"


def test_the_console_shows_the_urls_when_ready() -> None:
    (line,) = written(ProxyReady(urls=("http://h:1/a",), version="1"), form="console")
    assert "turnlog ready http://h:1/a" in line
    assert not line.startswith("{")


def test_the_console_names_the_servers_without_rules() -> None:
    (line,) = written(RulesMissing(upstreams=("a", "b"), advice="give them some"), form="console")
    assert "the servers 'a', 'b' have no rules: give them some" in line


def test_the_console_shows_a_new_session_in_a_short_line() -> None:
    event = SessionOpened(
        session="0193a1b2-c3d4-7000-8000-000000000000", rung=Rung.IMPLICIT, client="claude-code"
    )
    (line,) = written(event, form="console")
    assert line[8:] == "  session       0193a1b2-c3d4  opened  client claude-code  (implicit)"


def test_the_console_shows_a_tool_list_in_a_short_line() -> None:
    first, second = written(
        ToolsListed(server="files", tools=12, added=2, changed=1),
        ToolsListed(server="git", tools=50, complete=False),
        form="console",
    )
    assert first[8:] == "  tools         files  12 listed, 2 new, 1 changed"
    assert second[8:] == "  tools         git  50 listed, more to come"


@pytest.mark.parametrize("asked", ["x" * 200, "日本語のテキスト" * 20, "e\u0301" * 100])
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_the_line_of_a_call_is_no_wider_than_the_terminal(asked: str, columns: int) -> None:
    line = short_line(call_ended(asked=asked), columns, colors=False)
    assert display_width(f"00:00:00  {line}") <= columns


def test_the_console_shows_no_control_characters() -> None:
    (line,) = written(call_ended(tool="a\x1b]0;owned\x07b"), form="console")
    assert line.isprintable()
    assert "/a\\u001b]0;owned\\u0007b " in line


@pytest.mark.parametrize(
    "mark", ["\x9b31m", "\x85", "\x7f", "\u202e", "\u2066", "\u2028", "\U000e0041"]
)
def test_control_characters_are_escaped_in_json_lines(mark: str) -> None:
    name = f"naïve{mark}tool 工具"
    (line,) = written(call_ended(tool=name))
    assert line.isprintable()
    assert json.loads(line)["gen_ai.tool.name"] == name
    assert "naïve" in line


def test_lines_are_written_without_a_flush(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as stream:
        logs = configure("json", "info", stream)
        logs.emit(call_ended())
        wait_until(lambda: path.read_bytes().endswith(b"}\n"))
        logs.close()


def test_many_lines_are_written_whole_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as stream:
        logs = configure("json", "info", stream)
        for number in range(20_000):
            logs.emit(call_ended(tool=str(number)))
        logs.close()
    tools = [json.loads(line)["gen_ai.tool.name"] for line in path.read_bytes().splitlines()]
    assert tools == [str(number) for number in range(20_000)]


@pytest.mark.promise("CLI-10")
def test_a_stalled_reader_costs_bounded_memory_and_sees_how_many_lines_were_dropped() -> None:
    logs, reader = piped()
    big = call_ended(tool="x" * 60_000)
    for _ in range(2 * LIMIT_BYTES // 60_000):
        logs.emit(big)
    with os.fdopen(reader, "rb") as stream:
        while json.loads(stream.readline())["event"] != "log.dropped":
            pass
    logs.close()


def test_a_non_blocking_pipe_loses_no_lines() -> None:
    logs, reader = piped()
    os.set_blocking(reader, True)
    count = 40
    for _ in range(count):
        logs.emit(call_ended(tool="y" * 10_000))
    with os.fdopen(reader, "rb") as stream:
        for _ in range(count):
            assert json.loads(stream.readline())["event"] == "call.ended"
    logs.close()


def piped() -> tuple[Logs, int]:
    """A log into a non-blocking pipe, and the pipe's other end."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    stream: BinaryIO = os.fdopen(writer, "wb", buffering=0, closefd=False)
    return configure("json", "info", stream), reader


def test_lines_are_written_at_exit_without_close() -> None:
    program = (
        "import sys\n"
        "from turnlog.observe.logs import configure\n"
        "from turnlog.observe.events import LogDropped\n"
        "logs = configure('json', 'info', sys.stdout.buffer)\n"
        "logs.emit(LogDropped(lines=3))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(ran.stdout)["turnlog.lines"] == 3
    assert ran.stderr == b""


class Kept:
    """A log that keeps what it is given."""

    tells_content = False

    def __init__(self) -> None:
        self.events: list[LogEvent] = []

    def wants(self, kind: type[LogEvent]) -> bool:
        return True

    def emit(self, event: LogEvent) -> None:
        self.events.append(event)


def test_errors_logged_by_libraries_become_events_without_their_text() -> None:
    kept = Kept()
    logger = logging.getLogger("tests.borrowed")
    handler = StandardLogging(kept)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        int("password=hunter2")
    except ValueError:
        logger.exception("failed with %s", "hunter2")
    logger.warning("not worth it")
    for _ in range(1000):
        logger.error("no exception")
    logger.removeHandler(handler)
    first, second = kept.events
    assert isinstance(first, ProxyFaulted)
    assert first.exception == "ValueError"
    assert first.where.startswith("tests.borrowed.")
    assert "hunter2" not in repr(kept.events)
    assert isinstance(second, ProxyFaulted)
    assert second.exception == ""


def test_a_dropped_line_is_a_warning() -> None:
    (line,) = written(LogDropped(lines=2))
    assert json.loads(line)["level"] == "warning"
