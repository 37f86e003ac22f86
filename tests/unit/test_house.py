"""The house rules of the package, as numbers that may fall and must not rise.

Each constant is what was true when it was set. Lower it when you have lowered the number. Raise one
only with the reason in the commit message: a new feature may need lines, nothing else needs more.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import turnlog

PACKAGE = Path(turnlog.__file__).parent
CODE_LINES = 46_351  # without blank lines, comments and docstrings
MODULES = 16  # in one folder
CROWDED: dict[str, int] = {}  # folders that hold more
SMALL = 60  # lines; a module with fewer belongs to the module of its subject
SMALL_MODULES = 6
FLOORS = 7  # modules that import each other in a row, inside one folder
TALL: dict[str, int] = {}  # folders whose longest chain is still longer
SHARED_CLASS_NAMES = 0  # class names that mean more than one thing
HOT = {  # modules that bind members of enums to names of their own: a lookup is slow in Python 3.11
    "turnlog.engine.mcp.mcp_exchange",
    "turnlog.record.drafts",
    "turnlog.transport.http_client",
    "turnlog.wire.jsonrpc",
    "turnlog.wire.tool_result",
}
RIDDLES = 0  # docstrings that open with one of the words below
OPENINGS = re.compile(
    r"(?:(?:Ask|Find|Give|Hand|Hear|Know|Learn|Let|Mind|Put|Say|Take|Tell)s?|Have|What|Who)\b"
)


Nodes = list[ast.AST]


@cache
def _modules() -> dict[str, tuple[Path, Nodes, str]]:
    """Every module of the package by its dotted name: its file, all nodes of its tree, its text."""
    found: dict[str, tuple[Path, Nodes, str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        dotted = path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", ".")
        found[dotted.removesuffix(".__init__")] = (path, [*ast.walk(ast.parse(text))], text)
    return found


def _folder(path: Path) -> str:
    return path.parent.relative_to(PACKAGE).as_posix()


def _imported(name: str, path: Path, nodes: Nodes) -> Iterator[tuple[str, str]]:
    """Every module that a module imports from the package, with the name taken from it or ""."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, (package if node.level else "", node.module)))
            for alias in node.names:
                module = f"{base}.{alias.name}"
                yield (module, "") if module in _modules() else (base, alias.name)


def _docstrings() -> Iterator[tuple[str, ast.AST, str]]:
    for name, (_, nodes, _) in _modules().items():
        for node in nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield name, node, text


def _code_lines(nodes: Nodes, text: str) -> int:
    lines = {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def test_the_package_does_not_grow() -> None:
    lines = sum(_code_lines(nodes, text) for _, nodes, text in _modules().values())
    assert lines <= CODE_LINES, (
        f"the package has {lines} lines of code, {CODE_LINES} are agreed: delete what is no longer "
        "needed; for a new feature raise CODE_LINES and say why in the commit message"
    )


def test_a_folder_holds_at_most_sixteen_modules() -> None:
    held = Counter(_folder(p) for p, _, _ in _modules().values() if p.name != "__init__.py")
    crowded = {at: n for at, n in held.items() if n > CROWDED.get(at, MODULES)}
    assert not crowded, f"too many modules in {crowded}: merge what belongs together, or make rooms"


def test_small_modules_are_merged() -> None:
    small = sorted(
        f"{name} ({len(text.splitlines())})"
        for name, (path, _, text) in _modules().items()
        if not path.name.startswith("__")
        and not name.startswith("turnlog.cli.commands.")  # each command is a module
        and len(text.splitlines()) < SMALL
    )
    assert len(small) <= SMALL_MODULES, (
        f"{len(small)} modules have under {SMALL} lines, {SMALL_MODULES} are known: move what is "
        f"in yours into the module of its subject; all of them: {', '.join(small)}"
    )


def test_chains_of_imports_inside_a_folder_are_short() -> None:
    below: dict[str, set[str]] = defaultdict(set)
    for name, (path, nodes, _) in _modules().items():
        for other, _ in _imported(name, path, nodes):
            if other in _modules() and other != name and _modules()[other][0].parent == path.parent:
                below[name].add(other)

    @cache
    def chain(name: str) -> tuple[str, ...]:
        return max(((name, *chain(other)) for other in below[name]), key=len, default=(name,))

    longest: dict[str, tuple[str, ...]] = {}
    for name, (path, _, _) in _modules().items():
        longest[_folder(path)] = max(longest.get(_folder(path), ()), chain(name), key=len)
    tall = {at: names for at, names in longest.items() if len(names) > TALL.get(at, FLOORS)}
    assert not tall, f"each imports the next: {tall}; let one module use several side by side"


def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for name, (_, nodes, _) in _modules().items():
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
    shared = {cls: modules for cls, modules in homes.items() if len(modules) > 1}
    assert len(shared) <= SHARED_CLASS_NAMES, (
        f"{len(shared)} class names mean several things, {SHARED_CLASS_NAMES} are known: give your "
        f"class a name of its own; all of them: {shared}"
    )


def test_a_docstring_says_what_a_caller_gets() -> None:
    riddles = [
        f"{name}.{getattr(node, 'name', '')}: {text.splitlines()[0]}"
        for name, node, text in _docstrings()
        if OPENINGS.match(text)
    ]
    assert len(riddles) <= RIDDLES, (
        f"{len(riddles)} docstrings open with a word of the old dialect, {RIDDLES} are known: say "
        "in the first line what a caller gets, and why in a comment; all of them:\n"
        + "\n".join(riddles)
    )


def test_no_module_takes_another_ones_private_names() -> None:
    taken = [
        f"{name} takes {private} from {other}"
        for name, (path, nodes, _) in _modules().items()
        for other, private in _imported(name, path, nodes)
        if private.startswith("_") and not private.startswith("__")
    ]
    assert not taken, f"make them public, or ask the module for what you need: {taken}"


def test_members_of_enums_have_short_names_in_hot_modules_alone() -> None:
    enums = {
        node.name
        for _, nodes, _ in _modules().values()
        for node in nodes
        if isinstance(node, ast.ClassDef)
        and {"StrEnum", "IntEnum", "Enum"} & {getattr(base, "id", "") for base in node.bases}
    }
    found = {
        name
        for name, (_, nodes, _) in _modules().items()
        for tree in nodes[:1]
        for node in (tree.body if isinstance(tree, ast.Module) else ())
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Attribute)
        and getattr(node.value.value, "id", "") in enums
    }
    assert found <= HOT, f"use the members directly in {sorted(found - HOT)}"
