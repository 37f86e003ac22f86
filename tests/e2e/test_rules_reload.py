"""Rules change while a proxy runs: its events, and the effect on later calls."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from kit.beside import proxy_beside
from kit.clients import MCP_HEADERS, Client, call, wait_until
from kit.faults import SlowHead
from kit.proxy import Proxy
from kit.upstreams import RawUpstream, ok, text_result
from turnlog.core.kinds import Effect


class Stage(Struct):
    """A proxy whose rules a test changes."""

    upstream: RawUpstream
    proxy: Proxy
    rules: Path

    def write(self, text: str) -> None:
        """Change the file as most editors do: another file takes its place."""
        beside = self.rules.with_name("mine.yaml~")
        beside.write_text(text)
        beside.replace(self.rules)

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        """Wait for so many lines of an event; return the last one."""
        return self.proxy.told(event, count)[count - 1]

    def effect_of_a_call(self) -> Effect:
        """Call the tool; return the effect that its row shows."""
        count = len(self.proxy.rows()) + 1
        with Client(self.proxy.url) as client:
            client.request("POST", "/mcp", call("write_file"), headers=MCP_HEADERS)
        wait_until(lambda: len(self.proxy.rows()) == count, f"{count} rows")
        return self.proxy.rows()[-1].effect


def effect_rule(effect: str) -> str:
    return f"rules:\n  - name: mine\n    match: {{tool: write_*}}\n    effect: {effect}\n"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    rules = tmp_path / "mine.yaml"
    rules.write_text(effect_rule("write"))
    settings = {"rules": ["mine.yaml"]}
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url, settings=settings) as proxy,
    ):
        yield Stage(upstream, proxy, rules)


@pytest.mark.promise("RULE-6")
def test_a_file_that_changes_counts_for_the_calls_that_follow(stage: Stage) -> None:
    before = stage.effect_of_a_call()

    stage.write(effect_rule("idempotent_write"))

    assert stage.wait_for("rules.reloaded")["turnlog.rules"] == 2
    assert before is Effect.WRITE
    assert stage.effect_of_a_call() is Effect.IDEMPOTENT_WRITE


@pytest.mark.promise("RULE-6")
def test_a_hangup_reads_the_rules_again(stage: Stage) -> None:
    stage.proxy.process.send_signal(signal.SIGHUP)

    stage.wait_for("rules.reloaded")
    assert stage.effect_of_a_call() is Effect.WRITE


@pytest.mark.promise("RULE-7")
def test_an_unusable_file_changes_nothing_and_is_reported_once(stage: Stage) -> None:
    stage.write("rules:\n  - name: mine\n    effect: reed\n")

    told = stage.wait_for("rules.rejected")
    assert told["error.message"] == (
        f"{stage.rules}:3:13: 'rules.0.effect' cannot be 'reed', did you mean 'read'?"
    )
    assert (told["level"], told["code.file.path"]) == ("error", str(stage.rules))
    assert (told["code.line.number"], told["code.column.number"]) == (3, 13)
    assert stage.effect_of_a_call() is Effect.WRITE

    stage.write(effect_rule("read"))
    stage.wait_for("rules.reloaded")
    assert stage.effect_of_a_call() is Effect.READ
    assert len(stage.proxy.events("rules.rejected")) == 1


def test_an_expression_that_no_library_can_compile_changes_nothing(stage: Stage) -> None:
    stage.write('rules:\n  - match: {when: "$[?@.a == 1e999999]"}\n    effect: read\n')

    told = stage.wait_for("rules.rejected")
    assert told["error.message"].startswith(f"{stage.rules}:2:19: '$[?@.a == 1e999999]' cannot")
    assert stage.effect_of_a_call() is Effect.WRITE

    stage.write(effect_rule("read"))
    stage.wait_for("rules.reloaded")
    assert stage.effect_of_a_call() is Effect.READ


def test_a_file_that_goes_and_comes_back(stage: Stage) -> None:
    stage.rules.unlink()
    assert stage.wait_for("rules.rejected")["error.message"] == (
        f"{stage.rules}: no such file or directory, name a readable file"
    )
    assert stage.effect_of_a_call() is Effect.WRITE

    stage.rules.write_text(effect_rule("irreversible"))
    stage.wait_for("rules.reloaded")
    assert stage.effect_of_a_call() is Effect.IRREVERSIBLE


@pytest.mark.promise("RULE-6")
def test_a_call_in_flight_keeps_the_rules_it_began_with(stage: Stage) -> None:
    slow = SlowHead(ok(json.dumps(text_result(1, "done")).encode()))
    stage.upstream.script = slow
    with Client(stage.proxy.url) as client:
        client.ask("POST", "/mcp", call("write_file"), headers=MCP_HEADERS)
        slow.asked.wait()
        stage.write(effect_rule("read"))
        stage.wait_for("rules.reloaded")
        slow.go.set()
        client.response("POST")

    assert stage.wait_for("call.ended")["turnlog.effect"] == "write"
    assert stage.effect_of_a_call() is Effect.READ
