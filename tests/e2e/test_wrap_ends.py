"""How a wrap starts and ends: with its command, with its client, by signals, by force."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from kit.clients import BOUND, call, message, wait_until
from kit.proxy import environment
from kit.wraps import Wrap, is_gone, outcome, pumped, text_answer, wrapped, wrapping
from turnlog.engine.stdio.wrapped import MOST

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.mark.promise("PIPE-2")
def test_environment_folder_and_stderr_are_the_commands_as_well(tmp_path: Path) -> None:
    with wrapping(tmp_path, environ={"PLAIN": "é"}, cwd=tmp_path) as wrap:
        asked = "[os.getcwd(), dict(os.environ), os.getpgid(0) == os.getpid(), os.getsid(0)]"
        folder, environ, leads, session = wrap.server.do(asked)
        assert folder == str(tmp_path)
        assert environ.pop("PUPPET")
        assert environ == environment({"PLAIN": "é"})
        assert (leads, session) == (True, os.getsid(0))
        wrap.server.do("os.write(2, b'from the server\\n')")
        assert wrap.stderr.read_bytes() == b"from the server\n"
        wrap.stderr.write_bytes(b"")


def test_arguments_of_the_command_may_be_any_bytes(tmp_path: Path) -> None:
    code = "import os, sys; os.write(1, os.fsencode(sys.argv[1]) + bytes([10]))"
    with wrapped(tmp_path, (sys.executable, "-c", code, os.fsdecode(b"\xff"))) as wrap:
        assert wrap.stdout.line() == b"\xff\n"
        assert wrap.exited() == 0


def test_an_environment_that_python_would_add_to_is_kept(tmp_path: Path) -> None:
    bare = {"PATH": os.environ["PATH"]}
    command = ["env", "-i", *(f"{k}={v}" for k, v in bare.items()), "LC_ALL=", sys.executable]
    tail = ["-m", "turnlog", "wrap", "--data", str(tmp_path / "data"), "--"]
    direct = ["env", "-0"]
    through = subprocess.run([*command, *tail, *direct], capture_output=True, timeout=BOUND)
    names = {line.partition(b"=")[0] for line in through.stdout.split(b"\0")} - {b""}
    assert names == {b"PATH", b"LC_ALL"}


@pytest.mark.promise("PIPE-2")
def test_a_descriptor_that_the_client_hands_on_reaches_the_command(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with wrapping(tmp_path, pass_fds=(writing,)) as wrap:
        os.close(writing)
        wrap.server.do(f"os.write({writing}, b'here')")
        assert os.read(reading, 10) == b"here"
    assert os.read(reading, 10) == b""
    os.close(reading)


@pytest.mark.promise("PIPE-3")
@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_exit_code_is_the_commands(tmp_path: Path, code: int) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.server.exit(code)
        assert wrap.stdout.rest() == b""
        assert wrap.exited() == code
    (ended,) = wrap.events("process.ended")
    assert ended["process.exit.code"] == code
    assert ended["process.pid"] == wrap.server.pid


@pytest.mark.promise("PIPE-3")
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE], ids=lambda n: n.name
)
def test_a_signal_that_ends_the_command_ends_the_wrap(
    tmp_path: Path, number: signal.Signals
) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.server.die(number)
        assert wrap.exited() == -number
    assert wrap.events("process.ended")[0]["process.exit.code"] == -number


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("no-such-command-here", 127, "(no such file or directory), install it, or give its whole path"),
        ("/no/such/file", 127, "(no such file or directory), name a file that is there"),
        ("/etc/passwd", 126, "(permission denied), name a file that may be executed"),
    ],
)  # fmt: skip
def test_a_command_that_cannot_be_started_is_an_error_in_the_log_and_a_line_on_stderr(
    tmp_path: Path, command: str, code: int, told: str
) -> None:
    with wrapped(tmp_path, [command]) as wrap:
        assert wrap.stdout.rest() == b""
        assert wrap.exited() == code
        (line,) = wrap.stderr.read_text().splitlines()
        assert line.startswith(f"turnlog: cannot start {command!r} {told}")
        (failed,) = wrap.events("process.failed")
        assert failed["level"] == "error"
        assert failed["turnlog.reason"]


def test_a_command_that_ends_before_it_says_anything_is_an_error_in_the_log(
    tmp_path: Path,
) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(message("initialize", {}))
        wrap.server.exit(1)
        assert wrap.stdout.rest() == b""
        assert wrap.exited() == 1
    (failed,) = wrap.events("process.failed")
    assert failed["level"] == "error"


@pytest.mark.parametrize(
    "flags",
    [
        ("--rules", "no-such-pack"),
        ("--name", "a b"),
        ("--session", ""),
        ("--session", "a\nb"),
        ("--config", "no-such-file.yaml"),
    ],
)
def test_a_wrong_setting_is_one_line_and_the_command_is_gone(
    tmp_path: Path, flags: tuple[str, str]
) -> None:
    command = [sys.executable, "-c", "import os,sys; print(os.getpid()); sys.stdin.read()"]
    with wrapped(tmp_path, command, *flags) as wrap:
        assert wrap.exited() == 2
        assert wrap.stderr.read_text().count("\n") == 1
        for pid in wrap.stdout.rest().split():
            assert is_gone(int(pid))


@pytest.mark.promise("PIPE-6")
def test_the_end_of_input_passes_at_once_and_open_answers_are_delivered(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.send(call("put", request_id=1), message("resources/list", request_id=2))
        wrap.stdin.close()
        asked = [wrap.server.request(), wrap.server.request()]
        assert wrap.server.stdin.rest() == b""
        for request in asked:
            wrap.server.answer(request)
            assert wrap.stdout.json()["id"] == request["id"]
        wrap.server.exit()
        assert wrap.stdout.rest() == b""
        assert wrap.exited() == 0
    assert wrap.row().status == "ok"


@pytest.mark.promise("PIPE-6")
def test_a_client_that_has_closed_its_input_may_read_its_answers_slowly(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.send(*(message("resources/list", request_id=number) for number in range(20)))
        wrap.stdin.close()
        asked = [wrap.server.request() for _ in range(20)]
        assert wrap.server.stdin.rest() == b""
        for request in asked:
            wrap.server.answer(request, "x" * 100_000)
        wrap.server.exit()
        # It takes twice as long as a command has to end once its client has left.
        for request in asked:
            assert wrap.stdout.json()["id"] == request["id"]
            with suppress(subprocess.TimeoutExpired):
                wrap.exited(0.15)
        assert wrap.stdout.rest() == b""
        assert wrap.exited() == 0


@pytest.mark.promise("PIPE-6")
def test_late_output_of_the_command_reaches_a_client_that_has_closed_its_input(
    tmp_path: Path,
) -> None:
    note = message("notifications/message", {"data": "late"}, request_id=None)
    with wrapping(tmp_path) as wrap:
        wrap.server.answer(wrap.asked(call("put")))
        assert wrap.stdout.json() == text_answer(1)
        wrap.stdin.close()
        assert wrap.server.stdin.rest() == b""
        # Longer than a command has to end that is told to.
        assert wrap.stdout.can_read(3) is False
        wrap.server.stdout.send(note + b"\n")
        assert wrap.stdout.line() == note + b"\n"
        wrap.server.exit(5)
        assert wrap.stdout.rest() == b""
        assert wrap.exited() == 5


@pytest.mark.promise("PIPE-4")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda n: n.name)
def test_signals_reach_the_command_and_all_it_has_started(
    tmp_path: Path, number: signal.Signals
) -> None:
    with wrapping(tmp_path) as wrap:
        child = wrap.server.spawn()
        # It has begun: turnlog listens for signals.
        wrap.asked(message("ping"))
        # Python turns SIGINT into an exception, which ends it with 130 and a trace.
        wrap.server.do(f"signal.signal({int(number)}, signal.SIG_DFL) and None")
        wrap.process.send_signal(number)
        assert wrap.exited() == -number
        assert is_gone(child)


@pytest.mark.promise("PIPE-4")
@pytest.mark.parametrize("name", ["SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT"])
def test_a_signal_that_does_not_ask_to_end_is_the_commands_alone(tmp_path: Path, name: str) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.server.answer(wrap.asked(call("put")))  # turnlog listens for signals
        wrap.stdout.json()
        tell = f"lambda *_: os.write(1, b'{name}' + bytes([10]))"
        wrap.server.do(f"signal.signal(signal.{name}, {tell}) and None")
        wrap.process.send_signal(signal.Signals[name])
        assert wrap.stdout.line() == name.encode() + b"\n"
        wrap.server.answer(wrap.asked(call("put", request_id=2)))
        assert wrap.stdout.json() == text_answer(2)


@pytest.mark.promise("PIPE-4")
def test_a_signal_that_the_command_does_not_handle_ends_both(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(message("ping"))
        wrap.process.send_signal(signal.SIGUSR1)
        assert wrap.exited() == -signal.SIGUSR1


@pytest.mark.promise("PIPE-4")
def test_a_terminal_stops_and_continues_turnlog_and_the_command(tmp_path: Path) -> None:
    # A group of its own, whose leader's parent is in the same session: a job of a shell.
    with wrapping(tmp_path, process_group=0) as wrap:
        wrap.server.answer(wrap.asked(call("put")))
        wrap.stdout.json()
        both = (wrap.process.pid, wrap.server.pid)
        for number in (2, 3):
            wrap.process.send_signal(signal.SIGTSTP)
            wait_until(lambda: [_state(pid) for pid in both] == ["T", "T"], "both are stopped")
            wrap.process.send_signal(signal.SIGCONT)
            wrap.server.answer(wrap.asked(call("put", request_id=number)))
            assert wrap.stdout.json() == text_answer(number)


@pytest.mark.promise("PIPE-4")
def test_a_terminal_stop_is_ignored_where_no_shell_can_continue_the_wrap(tmp_path: Path) -> None:
    # The leader of a session is in an orphaned group (POSIX, 3.264): its stop would be for good.
    with wrapping(tmp_path, start_new_session=True) as wrap:
        wrap.server.answer(wrap.asked(call("put")))
        wrap.stdout.json()
        wrap.server.do(
            "signal.signal(signal.SIGCONT, lambda *_: os.write(1, b'on' + bytes([10]))) and None"
        )
        wrap.process.send_signal(signal.SIGTSTP)
        assert wrap.stdout.line() == b"on\n"
        wrap.server.answer(wrap.asked(call("put", request_id=2)))
        assert wrap.stdout.json() == text_answer(2)


def _state(pid: int) -> str:
    """Return the letter for the state of a process, see proc_pid_stat(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_stubborn_command_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    with wrapping(tmp_path) as wrap:
        child = wrap.server.spawn(stdout=True)
        wrap.asked(message("ping"))
        wrap.server.do("[signal.signal(n, signal.SIG_IGN) and None for n in (1, 2, 15)] and None")
        wrap.process.send_signal(number)
        assert wrap.exited() == -signal.SIGKILL
        assert is_gone(child)


def test_an_agent_that_reads_nothing_does_not_delay_the_end(tmp_path: Path) -> None:
    note = message("notifications/message", {"data": "x" * 4000}, request_id=None) + b"\n"
    with wrapping(tmp_path) as wrap:
        wrap.asked(message("ping"))
        while wrap.server.stdout.can_send(0.3):
            wrap.server.stdout.send_some(note)
        wrap.process.send_signal(signal.SIGTERM)
        assert wrap.exited() == -signal.SIGTERM


def test_output_that_goes_on_after_the_command_ended_does_not_delay_the_end(tmp_path: Path) -> None:
    loop = "exec 2>/dev/null; while :; do echo y; done"
    flood = f"subprocess.Popen(['sh', '-c', {loop!r}], stdin=-3).pid"
    with wrapping(tmp_path) as wrap:
        wrap.asked(message("ping"))
        flooding = wrap.server.do(flood)
        assert wrap.stdout.can_read(BOUND)
        wrap.server.exit(1)
        assert len(wrap.stdout.rest()) > 0
        assert wrap.exited() == 1
        assert is_gone(flooding)


def test_a_failed_command_ends_at_once_even_if_its_child_keeps_the_pipes_open(
    tmp_path: Path,
) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(call("put"))
        child = wrap.server.spawn(stdout=True)
        wrap.server.exit(3)
        assert outcome(wrap.stdout.json())["kind"] == "connection_lost"
        assert wrap.exited() == 3
        assert is_gone(child)


@pytest.mark.promise("PIPE-5")
def test_killed_turnlog_takes_the_command_with_it(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(call("put"))
        wrap.process.kill()
        wrap.exited()
        assert is_gone(wrap.server.pid)
        wrap.server.close()
    with wrapping(tmp_path) as wrap:
        wrap.asked(message("ping"))
    row = wrap.row()
    assert (row.status, row.kind) == ("unknown", "outcome_unknown")


def test_a_client_that_is_gone_ends_the_command(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(call("put"))
        wrap.server.do("signal.signal(15, signal.SIG_IGN) and None")
        wrap.stdin.close()
        wrap.stdout.close()
        assert wrap.exited() == -signal.SIGKILL
    assert wrap.row().status == "unknown"


def test_a_client_that_has_closed_only_its_output_ends_the_command_at_the_next_line(
    tmp_path: Path,
) -> None:
    with wrapping(tmp_path) as wrap:
        answered = wrap.asked(call("put", request_id=1))
        wrap.asked(call("put", request_id=2))
        wrap.stdout.close()
        wrap.server.answer(answered)
        assert wrap.server.stdin.rest() == b""
        with suppress(BrokenPipeError):  # it has ended by now
            wrap.send(call("put", request_id=3))
        assert wrap.exited() == -signal.SIGTERM
    done, lost, *unsent = wrap.rows()
    assert (done.status, lost.status, lost.kind) == ("ok", "unknown", "connection_lost")
    assert {row.executed for row in unsent} <= {"no"}


def test_a_client_that_closes_its_output_while_it_is_full_ends_the_command(tmp_path: Path) -> None:
    note = message("notifications/message", {"data": "x" * 4000}, request_id=None) + b"\n"
    with wrapping(tmp_path) as wrap:
        wrap.asked(call("put"))
        while wrap.server.stdout.can_send(0.3):
            wrap.server.stdout.send_some(note)
        wrap.stdout.close()
        assert wrap.exited() == -signal.SIGTERM
    assert wrap.row().kind == "connection_lost"


def test_a_call_that_comes_once_the_command_is_told_to_end_was_not_executed(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(message("ping", request_id="p"))
        wrap.server.do("signal.signal(15, signal.SIG_IGN) and None")
        wrap.process.send_signal(signal.SIGTERM)
        assert wrap.server.stdin.rest() == b""
        with suppress(BrokenPipeError):  # it has ended by now
            wrap.send(call("put", request_id=1))
        assert wrap.exited() == -signal.SIGKILL
    assert {row.executed for row in wrap.rows()} <= {"no"}


@pytest.mark.promise("PIPE-7")
def test_a_command_that_dies_ends_open_calls_and_answers_nothing_else(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(call("put", request_id="a"))
        wrap.asked(message("tools/list", request_id="b"))
        wrap.asked(call("get", request_id=3))
        wrap.server.die(signal.SIGKILL)
        answers = [json.loads(line) for line in wrap.stdout.rest().splitlines()]
        assert wrap.exited() == -signal.SIGKILL
    assert [one["id"] for one in answers] == ["a", 3]
    for one in answers:
        assert one["result"]["isError"] is True
        assert outcome(one)["kind"] == "connection_lost"
        assert outcome(one)["executed"] == "maybe"
    for row in wrap.rows():
        assert (row.status, row.kind, row.flags) == ("unknown", "connection_lost", ["process_exit"])


def test_calls_sent_after_the_command_died_are_answered_and_recorded(
    tmp_path: Path,
) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(call("put", request_id=1))
        wrap.server.die(signal.SIGKILL)
        assert outcome(wrap.stdout.json())["kind"] == "connection_lost"
        wrap.send(call("put", request_id=2))
        one = wrap.stdout.json()
        wrap.send(message("tools/list", request_id=3))  # what is no call is not answered
        wrap.send(b"[" + call("get", request_id=4) + b"]")
        (two,) = wrap.stdout.json()
        for number, answer in ((2, one), (4, two)):
            assert (answer["id"], outcome(answer)["kind"]) == (number, "connect_failed")
            assert (outcome(answer)["executed"], outcome(answer)["retry"]) == ("no", "safe")
        wrap.stdin.close()
        assert wrap.stdout.rest() == b""
        assert wrap.exited() == -signal.SIGKILL
    assert [row.kind for row in wrap.rows()] == ["connection_lost", *["connect_failed"] * 2]


def test_a_large_call_sent_after_the_command_died_is_answered(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(call("put", request_id=1))
        wrap.server.die(signal.SIGKILL)
        assert outcome(wrap.stdout.json())["kind"] == "connection_lost"
        wrap.send(call("put", {"text": "x" * 17_000_000}, request_id=2))
        assert outcome(wrap.stdout.json())["kind"] == "connect_failed"


@pytest.mark.parametrize("ending", [b"\r\n", b"\n"])
def test_a_command_that_uses_content_length_framing_is_reported_in_the_log(
    tmp_path: Path, ending: bytes
) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(message("initialize", {}))
        body = b'{"jsonrpc":"2.0","id":1,"result":{}}'
        wrap.server.stdout.send(b"Content-Length: %d" % len(body) + ending * 2 + body)
        wait_until(lambda: bool(wrap.events("process.failed")), "the log says so")
        (failed,) = wrap.events("process.failed")
        assert "Content-Length" in failed["turnlog.reason"]
        wrap.server.exit()


def test_when_the_command_dies_only_the_open_calls_of_a_batch_are_answered(
    tmp_path: Path,
) -> None:
    lines = (call("a", request_id=1), message("tools/list", request_id=2), call("b", request_id=3))
    with wrapping(tmp_path) as wrap:
        wrap.asked(b"[" + b",".join(lines) + b"]")
        wrap.server.say([text_answer(1)])
        assert wrap.stdout.json() == [text_answer(1)]
        wrap.server.exit(3)
        (answer,) = map(json.loads, wrap.stdout.rest().splitlines())
        assert [one["id"] for one in answer] == [3]


def test_a_large_call_that_was_sent_may_have_been_executed(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        start = call("put", {"text": "x" * 17_000_000})
        pumped(start, wrap.stdin, wrap.server.stdin, 16 << 20)
        wrap.server.exit(3)
        assert outcome(wrap.stdout.json())["executed"] == "maybe"
        wrap.exited()


def test_signals_that_the_client_ignores_stay_ignored(tmp_path: Path) -> None:
    with wrapping(
        tmp_path, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ) as wrap:
        wrap.server.answer(wrap.asked(call("put")))
        wrap.stdout.json()
        wrap.process.send_signal(signal.SIGHUP)
        wrap.server.answer(wrap.asked(call("put")))
        assert wrap.stdout.json() == text_answer(1)


def test_closed_standard_streams_are_no_descriptors_of_the_store(tmp_path: Path) -> None:
    tail = f"-m turnlog wrap --data {tmp_path / 'data'} -- cat"
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} {tail} <&-"], capture_output=True, timeout=BOUND
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_log_of_a_wrap_is_for_its_owner_alone(tmp_path: Path) -> None:
    with wrapping(tmp_path, umask=0o022) as wrap:
        wrap.asked(message("ping"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (wrap.data, wrap.data / "logs")}
    assert modes == {"data": 0o700, "logs": 0o700}


def _count(wrap: Wrap) -> int:
    return len(wrap.events("proxy.ready"))


def test_a_session_is_opened_by_its_first_call_alone(tmp_path: Path) -> None:
    with wrapping(tmp_path) as probe:
        wrap_answer(probe, message("initialize", {}))
    with wrapping(tmp_path) as used:
        wrap_answer(used, message("initialize", {}))
        wrap_answer(used, call("put"))
    wait_until(lambda: _count(used) == 2, "both wraps say that they are ready")
    assert len(used.events("session.opened")) == 1
    assert len(used.rows()) == 1


def test_a_call_sent_before_the_handshake_ends_opens_no_second_session(
    tmp_path: Path,
) -> None:
    with wrapping(tmp_path) as wrap:
        shake = wrap.asked(message("initialize", {"clientInfo": {"name": "hasty", "version": "1"}}))
        early = wrap.asked(call("put", request_id=2))
        wrap.server.say({"jsonrpc": "2.0", "id": shake["id"], "result": {}})
        wrap.server.answer(early)
        wrap.stdout.line()
        wrap.stdout.line()
        wrap_answer(wrap, call("put", request_id=3))
    assert len({row.session for row in wrap.rows()}) == 1


def wrap_answer(wrap: Wrap, line: bytes) -> None:
    """Let the server answer a line."""
    wrap.server.answer(wrap.asked(line))
    wrap.stdout.json()


@pytest.mark.parametrize("number", SIGNALS, ids=lambda n: n.name)
@pytest.mark.parametrize("loaded", range(0, 60, 12))
def test_a_signal_at_any_moment_of_the_start_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, loaded: int
) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(300)"
    with wrapped(tmp_path, [sys.executable, "-I", "-S", "-c", code], fresh=True) as wrap:

        def is_loaded() -> bool:
            mapped = Path(f"/proc/{wrap.process.pid}/maps").read_text()
            # Until turnlog runs, Python itself answers SIGINT with a traceback.
            begun = number != signal.SIGINT or "site-packages" in mapped
            return begun and mapped.count("\n") - 20 > loaded

        wait_until(is_loaded, "more of it is loaded")
        wrap.process.send_signal(number)
        assert wrap.exited() == -number
        for pid in wrap.stdout.rest().split():
            assert is_gone(int(pid))
        assert wrap.stderr.read_text() == ""


def test_a_queued_call_whose_caller_no_longer_reads_is_not_sent(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.server.answer(wrap.asked(call("put")))
        wrap.stdout.line()
        wrap.server.do("os.close(0)")
        wrap.server.stdin.close()
        asked = 1
        while True:
            # Who closes a pipe is noticed at once, but not before.
            asked += 1
            wrap.send(call("put", request_id=asked))
            if wrap.stdout.can_read(1):
                break
        failed = outcome(wrap.stdout.json())
        assert (failed["kind"], failed["executed"], failed["retry"]) == (
            "connect_failed",
            "no",
            "safe",
        )
        wrap.server.exit(3)
        wrap.exited()


@pytest.mark.parametrize("how", ["told", "command ends"])
def test_a_call_that_waits_for_a_retry_gets_the_held_answer(tmp_path: Path, how: str) -> None:
    retry = "{on: [tool_error], max_attempts: 3, base_interval: 60s, jitter: none, budget: 300s}"
    rules = f"rules: [{{match: {{tool: look}}, effect: read, retry: {retry}}}]"
    with wrapping(tmp_path, rules=rules) as wrap:
        asked = wrap.asked(call("look"))
        said = {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32603, "message": "no"}}
        wrap.server.say(said)
        wait_until(lambda: [row.status for row in wrap.rows()] == ["error"], "the attempt's end")
        if how == "told":
            wrap.process.send_signal(signal.SIGTERM)
        else:
            wrap.server.exit(3)
        assert wrap.stdout.json() == said
        assert wrap.stdout.rest() == b""
        assert wrap.exited() == (-signal.SIGTERM if how == "told" else 3)
    assert (wrap.row().attempt, wrap.row().kind) == (1, "upstream_internal")


@pytest.mark.promise("CMD-3")
@pytest.mark.parametrize("how", ["gone", *SIGNALS])
def test_a_stubborn_command_with_an_open_call_is_killed(
    tmp_path: Path, how: signal.Signals | str
) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(call("put"))
        wrap.server.do("[signal.signal(n, signal.SIG_IGN) and None for n in (1, 2, 15)] and None")
        if isinstance(how, str):
            wrap.stdin.close()
            wrap.stdout.close()
        else:
            wrap.process.send_signal(how)
            assert outcome(wrap.stdout.json())["kind"] == "connection_lost"
        assert wrap.exited() == -signal.SIGKILL
    row = wrap.row()
    assert (row.status, row.kind, row.flags) == ("unknown", "connection_lost", ["process_exit"])


@pytest.mark.promise("CMD-2")
def test_a_call_that_the_command_never_read_was_not_executed(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.send(call("put"))
        wait_until(lambda: bool(wrap.events("proxy.ready")), "the store")
        wait_until(lambda: [row.status for row in wrap.rows()] == ["pending"], "the call")
        wrap.server.exit(3)
        failed = outcome(wrap.stdout.json())
        assert (failed["kind"], failed["executed"]) == ("connect_failed", "no")
        assert wrap.exited() == 3
    (event,) = wrap.events("process.failed")
    assert event["process.exit.code"] == 3
    assert (wrap.row().phase, wrap.row().flags) == ("connecting", ["process_exit"])


def test_a_launcher_that_exits_and_leaves_its_server_running_has_not_failed(tmp_path: Path) -> None:
    child = "exec 3<&0; (read line; echo '[]'; exec cat) <&3 3<&- & exit 0"
    with wrapped(tmp_path, ["sh", "-c", child]) as wrap:
        wrap.send(message("ping"))
        assert wrap.stdout.line() == b"[]\n"
        # It has had the time in which what reads nothing is ended.
        assert wrap.stdout.can_read(1) is False
        wrap.send(message("ping"))
        assert wrap.stdout.json()["method"] == "ping"
        wrap.stdin.close()
        assert wrap.exited() == 0


def test_a_leftover_process_that_reads_nothing_is_not_taken_for_the_server(
    tmp_path: Path,
) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(call("put"))
        child = wrap.server.spawn(stdout=True)
        wrap.server.exit(0)
        assert outcome(wrap.stdout.json())["kind"] == "connection_lost"
        assert wrap.exited() == 0
        assert is_gone(child)


STARTUP = "rules: [{timeout: {startup: 300ms}}]"


@pytest.mark.promise("CMD-2")
def test_a_command_that_answers_nothing_in_time_is_ended(tmp_path: Path) -> None:
    with wrapping(tmp_path, rules=STARTUP) as wrap:
        # It may take its time until it is asked something.
        assert wrap.stdout.can_read(0.5) is False
        wrap.send(message("initialize", {}))
        assert wrap.stdout.rest() == b""
        assert wrap.exited() == -signal.SIGTERM
    (event,) = wrap.events("process.failed")
    assert event["turnlog.reason"] == "the limit timeout.startup of 0.3 s was reached"


@pytest.mark.promise("CMD-2")
@pytest.mark.parametrize("sent", ["whole", "in pieces"])
def test_a_call_to_a_command_that_reads_and_answers_nothing_may_have_been_executed(
    tmp_path: Path, sent: str
) -> None:
    started = message("notifications/initialized", request_id=None)
    with wrapping(tmp_path, rules=STARTUP) as wrap:
        wrap.asked(started)
        line = call("put") + b"\n"
        if sent == "in pieces":
            # The limit runs from the first piece, and how long the others take depends on the machine.
            line = call("put", {"text": "x" * MOST})[: MOST + 1]
        wrap.stdin.send(line)
        assert wrap.server.stdin.exactly(30) == line[:30]
        failed = outcome(wrap.stdout.json())
        assert (failed["kind"], failed["executed"]) == ("response_timeout", "maybe")
        assert wrap.stdout.rest() == b""
        assert wrap.exited() == -signal.SIGTERM


def test_a_call_to_a_command_that_never_starts_was_not_executed(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(STARTUP)
    rules = ("--rules", str(tmp_path / "rules.yaml"))
    with wrapped(tmp_path, ["sleep", "300"], *rules) as wrap:
        wrap.send(call("put"))
        failed = outcome(wrap.stdout.json())
        assert (failed["kind"], failed["executed"]) == ("connect_timeout", "no")
        assert wrap.exited() == -signal.SIGTERM


def test_a_command_with_any_output_has_started(tmp_path: Path) -> None:
    note = message("notifications/message", {"data": "here"}, request_id=None)
    with wrapping(tmp_path, rules=STARTUP) as wrap:
        wrap.server.stdout.send(note + b"\n")
        assert wrap.stdout.line() == note + b"\n"
        wrap.asked(call("put"))
        assert wrap.stdout.can_read(0.5) is False
        wrap.server.answer({"id": 1})
        assert wrap.stdout.json() == text_answer(1)


def test_a_command_that_answers_late_to_a_client_that_reads_on_has_not_failed(
    tmp_path: Path,
) -> None:
    with wrapping(tmp_path) as wrap:
        asked = wrap.asked(message("initialize", {}))
        wrap.stdin.close()
        # Longer than a command has to end whose client is gone.
        assert wrap.stdout.can_read(2) is False
        wrap.server.answer(asked)
        assert wrap.stdout.json()["id"] == 1
        wrap.server.exit()
        assert wrap.stdout.rest() == b""
        assert wrap.exited() == 0
    assert wrap.events("process.failed") == []


def test_what_a_command_failed_of_is_logged_after_the_end_of_its_input(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(message("initialize", {}))
        wrap.stdin.close()
        assert wrap.stdout.can_read(2) is False
        wrap.server.exit(3)
        assert wrap.exited() == 3
    (failed,) = wrap.events("process.failed")
    assert failed["turnlog.reason"] == "it ended before it answered anything"
    assert failed["process.exit.code"] == 3


def test_a_client_that_leaves_before_the_first_answer_is_what_the_command_failed_of(
    tmp_path: Path,
) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(message("initialize", {}))
        wrap.stdin.close()
        assert wrap.stdout.can_read(2) is False
        wrap.stdout.close()
        wrap.exited()
    (failed,) = wrap.events("process.failed")
    assert failed["turnlog.reason"] == "it has answered nothing yet, and its client has left"


def test_a_foreign_framing_is_logged_once_however_the_command_ends(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(message("initialize", {}))
        wrap.server.stdout.send(b"Content-Length: 2\r\n\r\n{}")
        wait_until(lambda: bool(wrap.events("process.failed")), "the log says so")
        wrap.server.exit(1)
        wrap.stdout.rest()
        assert wrap.exited() == 1
    assert len(wrap.events("process.failed")) == 1
