"""Plain data from YAML text: dicts with text as keys, lists, text, numbers, booleans and `None`."""

# ruamel.yaml parses YAML 1.2 into nodes with positions. Its own constructor is not used: it follows
# tags, merges mappings, and fails on odd scalars without a position. Dates stay text.

import warnings
from collections.abc import Callable
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.error import ReusedAnchorWarning

from .shape import Plain

Node = Any
"""A node of ruamel, which has no types: `id`, `tag`, `value`, `style`, `start_mark`."""

MAX_VALUES = 100_000
"""Values in a file once its aliases are written out."""

_DEEPEST = 102
"""Levels of nesting: 100 brackets in a member of the top mapping, and a value in them."""
_TAG = "tag:yaml.org,2002:"
_BASES = {"0x": 16, "0o": 8, "0b": 2}


class BadYamlError(Exception):
    """YAML that is well formed but refused."""

    def __init__(self, node: Node, message: str) -> None:
        super().__init__(message)
        self.node = node
        self.message = message


def compose(text: str) -> Node:
    """Return the root node; `None` for an empty text.

    Raises ruamel's `YAMLError`, and `RecursionError` if it nests too deeply.
    """
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.max_depth = _DEEPEST
    with warnings.catch_warnings():
        # YAML 1.2 (section 7.1) lets a later anchor take an earlier one's name.
        warnings.simplefilter("ignore", ReusedAnchorWarning)
        try:
            return yaml.compose(text)
        except MaxDepthExceededError as error:
            raise RecursionError from error


def to_plain(root: Node) -> Plain:
    """Return the data of a node. Raises `BadYamlError`, and `RecursionError` if it nests too deeply."""
    _refuse_bomb(root)
    return _plain(root)


def _refuse_bomb(root: Node) -> None:
    """Refuse too many values with every alias expanded; one inside its own anchor never ends."""
    waiting = [root]
    count = 0
    while waiting:
        node = waiting.pop()
        count += 1
        if count > MAX_VALUES:
            message = f"more than {MAX_VALUES} values with aliases written out, use fewer aliases"
            raise BadYamlError(node, message)
        if node.id == "sequence":
            waiting.extend(node.value)
        elif node.id == "mapping":
            waiting.extend(part for pair in node.value for part in pair)


def _plain(node: Node) -> Plain:
    if node.id == "sequence":
        _refuse_tag(node, "seq")
        return [_plain(item) for item in node.value]
    if node.id == "mapping":
        _refuse_tag(node, "map")
        return _mapping(node)
    return _scalar(node)


def _mapping(node: Node) -> dict[str, Plain]:
    made: dict[str, Plain] = {}
    for key_node, value_node in node.value:
        key = _key(key_node)
        if key in made:
            raise BadYamlError(key_node, f"{key!r} is given twice, keep one")
        made[key] = _plain(value_node)
    return made


def _key(node: Node) -> str:
    if node.tag == _TAG + "merge":
        raise BadYamlError(node, "'<<' does not merge in YAML 1.2, write the keys out")
    key = _plain(node)
    if not isinstance(key, str):
        shown = node.value if node.id == "scalar" else ""
        raise BadYamlError(node, f"the key {shown!r} is no text, quote it")
    return key


def _scalar(node: Node) -> Plain:
    text: str = node.value
    kind = str(node.tag).removeprefix(_TAG)
    if kind in ("str", "timestamp", "value", "merge"):
        return text if text.isascii() else _text(node)
    reader = _SCALARS.get(kind)
    if reader is None:
        raise _refused_tag(node)
    try:
        return reader(text)
    except ValueError:
        raise BadYamlError(node, f"{text[:40]!r} is no {kind}, quote it to make it text") from None


def _text(node: Node) -> str:
    """Return a text with the escapes of surrogate pairs joined."""
    text: str = node.value
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise BadYamlError(node, f"{text[:40]!r} holds half a character, write all of it") from None


def _refuse_tag(node: Node, expected: str) -> None:
    if node.tag != _TAG + expected:
        raise _refused_tag(node)


def _refused_tag(node: Node) -> BadYamlError:
    return BadYamlError(node, f"the tag {str(node.tag)!r} is not allowed, remove it")


def _integer(text: str) -> int:
    digits = text.replace("_", "").lower()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    base = _BASES.get(digits[:2])
    return sign * (int(digits[2:], base) if base else int(digits))


def _float(text: str) -> float:
    # YAML writes `.inf` and `.nan` where Python has no dot.
    digits = text.replace("_", "").lower()
    special = digits.lstrip("+-")
    return float(digits.replace(".", "") if special in (".inf", ".nan") else digits)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _null(text: str) -> None:
    if text.lower() not in ("", "~", "null"):
        raise ValueError(text)


_SCALARS: dict[str, Callable[[str], Plain]] = {
    "int": _integer,
    "float": _float,
    "bool": _boolean,
    "null": _null,
}
