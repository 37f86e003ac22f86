"""The wait for a command's first message, and which limit it has."""

import asyncio
from math import inf

import pytest

from turnlog.core.kinds import ErrorKind
from turnlog.engine.command.process import GRACE, KILLED, LAST_WORDS, Startup, startup_limit
from turnlog.engine.tools.tool_cache import ActiveRules
from turnlog.rules.model import Match, Rule, Timeouts
from turnlog.rules.policy import Rulebook


def limit(*rules: Rule) -> float:
    return startup_limit(ActiveRules(Rulebook(rules, {}, ())), "files")


def test_the_rules_for_the_server_count_and_not_those_for_one_of_its_tools() -> None:
    tool = Rule(match=Match(tool=("read_*",)), timeout=Timeouts(startup=1))
    call = Rule(match=Match(method=("tools/call",)), timeout=Timeouts(startup=2))
    other = Rule(match=Match(server=("web",)), timeout=Timeouts(startup=3))
    asked = Rule(match=Match(when=("$.args.path",)), timeout=Timeouts(startup=4))
    own = Rule(match=Match(server=("files",)), timeout=Timeouts(startup=5))
    assert limit(tool, call, other, asked, own) == 5
    assert limit(tool, call, other, asked) == 600
    assert limit(Rule(timeout=Timeouts(response=1)), own) == 600


@pytest.mark.parametrize(
    ("over", "untouched", "kind"),
    [
        (False, True, ErrorKind.CONNECT_FAILED),
        (False, False, ErrorKind.CONNECTION_LOST),
        (True, True, ErrorKind.CONNECT_TIMEOUT),
        (True, False, ErrorKind.RESPONSE_TIMEOUT),
    ],
)
async def test_the_kind_of_a_lost_call_depends_on_what_was_read_and_the_startup_limit(
    over: bool, untouched: bool, kind: ErrorKind
) -> None:
    reached = asyncio.Event()
    startup = Startup(0.001 if over else inf, reached.set)
    startup.on_request()
    if over:
        await reached.wait()
    assert startup.loss(untouched=untouched) is kind


async def test_output_before_the_first_request_counts_as_a_start() -> None:
    reached = asyncio.Event()
    startup, other = Startup(0.001, reached.clear), Startup(0.001, reached.set)
    assert not startup.is_awaited
    startup.on_message()
    startup.on_request()
    other.on_request()
    await reached.wait()
    assert (startup.is_awaited, startup.over) == (False, False)
    assert (other.is_awaited, other.over) == (True, True)


async def test_a_message_after_the_first_request_ends_the_limit() -> None:
    reached = asyncio.Event()
    startup, other = Startup(0.001, reached.clear), Startup(0.001, reached.set)
    startup.on_request()
    startup.on_message()
    other.on_request()
    await reached.wait()
    assert not startup.over


@pytest.mark.promise("CMD-3")
def test_a_command_has_less_than_two_seconds_to_end() -> None:
    # Clients of the official SDKs kill their server 2 s after SIGTERM.
    assert GRACE + KILLED + LAST_WORDS < 2
