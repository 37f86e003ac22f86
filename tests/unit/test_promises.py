"""docs/promises.md and the tests name the same promises."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _listed() -> list[str]:
    """Return the ids in the tables of the page, from top to bottom."""
    page = (ROOT / "docs" / "promises.md").read_text("utf-8")
    return re.findall(r"^\| `([A-Z]+-\d+)` \|", page, re.MULTILINE)


def _marked() -> set[str]:
    """Return the ids that the marks of all tests name."""
    return {
        ast.literal_eval(argument)
        for file in (ROOT / "tests").rglob("test_*.py")
        if "mark.promise(" in (source := file.read_text("utf-8"))
        for test in ast.walk(ast.parse(source))
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef)
        and test.name.startswith("test_")
        for mark in test.decorator_list
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise"
        for argument in mark.args
    }


def test_each_promise_has_a_test_and_each_mark_names_a_promise() -> None:
    listed = _listed()

    assert len(listed) == len(set(listed))
    assert set(listed) == _marked()
