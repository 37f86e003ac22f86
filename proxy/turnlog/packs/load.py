"""YAML 1.2 files read into Structs, with file, line and column of every mistake.

The parser gives nodes with positions, msgspec checks types and gives the path of a mistake; the node
at the end of that path has its position.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.reader import ReaderError

from turnlog.host import opened

from . import shape
from .errors import ConfigError
from .plain import BadYamlError, Node, compose, to_plain
from .shape import MismatchError, Plain, Step

T = TypeVar("T")

LARGEST_FILE = 1 << 20
"""Bytes. A configuration is written by hand; the parser needs a second for this much."""

_OLD_YAML = re.compile(r"^%YAML\s+1\.[01]\b", re.MULTILINE)


class Document(Struct, frozen=True, kw_only=True):
    """A parsed file: its plain data, and the nodes with the position of each value."""

    path: str
    root: Node
    data: Plain

    def error(self, steps: tuple[Step, ...], message: str, key: str | None = None) -> ConfigError:
        """Return the error for the value at `steps`, or for the entry `key` of the mapping there."""
        node = _node_at(self.root, steps)
        entry = None if key is None else _key_and_value(node, key)[0]
        return _error_at(self.path, entry or node, message)

    def line(self, steps: tuple[Step, ...]) -> int:
        """Return the line, from 1, on which the value at `steps` begins."""
        line: int = _node_at(self.root, steps).start_mark.line
        return line + 1


def load(path: Path, kind: type[T], *, later: frozenset[str] = frozenset()) -> T:
    """Return the file at `path` as a `kind`. Raises `ConfigError`.

    `later` names keys (dotted, `*` for any) and `key=value` pairs that are planned: they are refused
    as not supported yet, not as mistakes.
    """
    return convert(read(path), kind, later=later)


def convert(document: Document, kind: type[T], *, later: frozenset[str] = frozenset()) -> T:
    """Return a document's data as a `kind`. Raises `ConfigError`."""
    try:
        return shape.convert(document.data, kind, later=later)
    except MismatchError as error:
        raise document.error(error.steps, error.message, error.key) from None


def read(path: Path, *, shown: str = "", wanted: str = "setting") -> Document:
    """Return a parsed file. Raises `ConfigError`, which names the file as `shown` if given.

    `wanted` is what the file should have at least one of.
    """
    shown = shown or str(path)
    text = _text(path, shown)
    try:
        root = compose(text)
        if root is None:
            raise ConfigError(shown, 1, 1, f"the file is empty, write at least one {wanted}")
        return Document(path=shown, root=root, data=to_plain(root))
    except MarkedYAMLError as error:
        raise _syntax_error(shown, error) from None
    except ReaderError as error:
        raise _bad_character(shown, text, error) from None
    except BadYamlError as error:
        raise _error_at(shown, error.node, error.message) from None
    except RecursionError:
        raise ConfigError(shown, 1, 1, "nested too deeply, use fewer levels") from None


def read_regular(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of a regular file. Raises `OSError`."""
    # Reading a pipe might block forever.
    with opened(path, os.O_RDONLY | os.O_NONBLOCK) as descriptor:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)


def _text(path: Path, shown: str) -> str:
    try:
        data = read_regular(path, LARGEST_FILE + 1)
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise ConfigError(shown, 0, 0, f"{reason}, name a readable file") from None
    if len(data) > LARGEST_FILE:
        raise ConfigError(shown, 1, 1, f"larger than {LARGEST_FILE} bytes, split it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8-sig")
        line, column = _position(good, len(good))
        raise ConfigError(shown, line, column, "not UTF-8, save the file as UTF-8") from None
    if old := _OLD_YAML.search(text):
        line, column = _position(text, old.start())
        raise ConfigError(shown, line, column, "only YAML 1.2 is read, remove the directive")
    return text


def _syntax_error(shown: str, error: Any) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    problem = (error.problem or "not YAML").replace("<stream end>", "the end of the file")
    if "'\\t'" in problem:
        message = "a tab cannot indent, use spaces"
    elif "another document" in problem:
        message = "a second document begins here, keep one document per file"
    else:
        context = f" ({error.context})" if error.context else ""
        message = f"{problem}{context}, correct the syntax"
    return ConfigError(shown, line, column, message)


def _bad_character(shown: str, text: str, error: Any) -> ConfigError:
    # ruamel gives the character as a number, and its position in the last buffer only.
    character = chr(error.character) if isinstance(error.character, int) else error.character
    line, column = _position(text, max(text.find(character), 0))
    return ConfigError(shown, line, column, f"{character!r} is not allowed, remove it")


def _position(text: str, at: int) -> tuple[int, int]:
    """Return line and column, from 1, of the character at index `at`."""
    before = text[:at]
    return before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1


def _error_at(shown: str, node: Node, message: str) -> ConfigError:
    mark = node.start_mark
    return ConfigError(shown, mark.line + 1, mark.column + 1, message)


def _node_at(node: Node, steps: tuple[Step, ...]) -> Node:
    for step in steps:
        key, inner = _key_and_value(node, step)
        if inner is None:
            return node
        # A value that is left out has no position of its own.
        node = key if inner.value == "" and not inner.style and key is not None else inner
    return node


def _key_and_value(node: Node, step: Step) -> tuple[Node | None, Node | None]:
    if node.id == "sequence" and isinstance(step, int):
        return None, node.value[step]
    if node.id == "mapping":
        pairs = (pair for pair in node.value if pair[0].value == step)
        return next(pairs, (None, None))
    return None, None


def file_versions(files: Iterable[Path]) -> list[tuple[int, int, int] | None]:
    """Return time, size and inode of each file, to detect changes; `None` for a missing one."""
    return [_version(file) for file in files]


def _version(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
