"""Errors of the API speak of endpoints and fields, where those of the command line name commands and options."""

import re
from pathlib import Path

import pytest

import turnlog
from turnlog.api.api import ENDPOINT_OF_COMMAND, in_api_words
from turnlog.api.endpoints import ENDPOINTS, ReadEndpoint

PACKAGE = Path(turnlog.__file__).parent
HOST_ONLY = {
    "convert",
    "import",
    "resume",
    "rules schema",
    "rules",
    "serve",
    "status",
    "trust",
    "verify",
    "wrap",
}
"""Commands that no endpoint stands for: they are run where the store is."""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("`turnlog sessions` lists them", "`GET /sessions` lists them"),
        ("`turnlog log work --json` names them", "`GET /log` names them"),
        ("or by `turnlog sessions unclaim`", "or by `POST /sessions/{session}/lifecycle`"),
        ("as with `--at 5` or `--seq 5..`", "as with `at=5` or `seq=5..`"),
        ("say `anyway` (--anyway) to go on", "say `anyway` to go on"),
        ("give it by --fence", "give it by `fence`"),
        ("run `turnlog verify --rebuild`", "run `turnlog verify --rebuild`"),
    ],
)
def test_a_command_becomes_an_endpoint_and_an_option_a_field(said: str, told: str) -> None:
    assert in_api_words(said) == told


def test_each_command_that_a_use_case_names_has_an_endpoint_or_is_for_the_host() -> None:
    sources = [*(PACKAGE / "sessions").rglob("*.py"), PACKAGE / "core" / "lifecycle.py"]
    text = "".join(path.read_text() for path in sources)
    named = set(re.findall(r"`turnlog ((?:sessions )?[a-z]+)", text))
    assert named - ENDPOINT_OF_COMMAND.keys() <= HOST_ONLY


def test_the_endpoints_exist() -> None:
    there = {
        f"{'GET' if isinstance(each, ReadEndpoint) else 'POST'} {each.path}" for each in ENDPOINTS
    }
    assert set(ENDPOINT_OF_COMMAND.values()) <= there
