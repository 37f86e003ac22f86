"""The words for hints of errors: commands on the command line, endpoints in the API."""

import re
from collections.abc import Mapping

import click
import pytest

from turnlog.api import api
from turnlog.api.agent_mcp import server
from turnlog.api.agent_tools import TOOLS
from turnlog.api.endpoints import ENDPOINTS, ReadEndpoint
from turnlog.cli import failures
from turnlog.cli.main import turnlog
from turnlog.core.hints import Hint


@pytest.mark.parametrize("words", [api.HINTS, failures.HINTS])
def test_there_are_words_for_each_hint(words: Mapping[Hint, str]) -> None:
    assert words.keys() == set(Hint)


def test_the_api_names_endpoints_that_exist_and_no_command() -> None:
    there = {
        f"{'GET' if isinstance(each, ReadEndpoint) else 'POST'} {each.path}" for each in ENDPOINTS
    }
    said = " ".join(api.HINTS.values())
    named = set(re.findall(r"`((?:GET|POST) [^`]+)`", said))
    assert named
    assert named <= there
    assert not re.search("turnlog|--", said)


def test_the_command_line_names_commands_that_exist() -> None:
    for name in re.findall(r"`turnlog ([a-z ]+)", " ".join(failures.HINTS.values())):
        command: click.Command | None = turnlog
        for word in name.split():
            assert isinstance(command, click.Group)
            command = command.get_command(click.Context(command), word)
        assert command is not None, name


def test_an_agent_is_told_of_tools_that_it_has() -> None:
    said = " ".join(server.HINTS.values())
    assert set(re.findall(r"tool '([a-z]+)'", said)) <= {tool.name for tool in TOOLS}
    assert not re.search("turnlog|--", said)
