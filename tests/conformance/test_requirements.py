"""The list of requirements and the tests that prove them."""

import re
from pathlib import Path

from conformance.requirements import Requirement

_TESTS = Path(__file__).parents[1]


def test_each_requirement_is_proved_by_a_test() -> None:
    sources = [file.read_text("utf-8") for file in _TESTS.rglob("test_*.py")]

    named = {name for text in sources for name in re.findall(r"\bRequirement\.([A-Z_]+)\b", text)}

    assert {requirement.name for requirement in Requirement} - named == set()
