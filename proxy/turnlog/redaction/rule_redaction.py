"""Redaction of what the `redact` expressions of rules select in a call.

Selected texts are redacted wherever they occur in the same call: tools repeat arguments in their
results, and servers repeat structured content as text.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, Union, cast

import msgspec
from msgspec import Struct

from turnlog.rules.expression import ExpressionInput, ValuePath, locate, root_member

from .redact import Redacted
from .values import PLACEHOLDER

SHORTEST: Final = 4
"""Characters of a text that is redacted wherever it occurs; shorter texts occur everywhere."""
SHORTEST_NUMBER: Final = 6
MAX_TEXTS: Final = 1000
"""Number of texts that are searched for; with more all content is redacted."""
_ALL: Final = b'"' + PLACEHOLDER.encode() + b'"'
_encode = msgspec.json.Encoder().encode

Side = Literal["args", "result"]
Tree = Union["Branch", None]
Branch = dict[int | str, Tree]


class RuleSecrets(Struct, frozen=True):
    """The selected places of a call, and the texts there, longest first."""

    expressions: tuple[str, ...] = ()
    places: tuple[ValuePath, ...] = ()
    texts: tuple[str, ...] = ()
    too_many: bool = False

    def may_select_in(self, side: Side) -> bool:
        """Return whether an expression may select something on a side of the call."""
        return any(root_member(text) in ("", side) for text in self.expressions)


def select_secrets(expressions: Sequence[str], values: ExpressionInput) -> RuleSecrets:
    """Return what the expressions select in a call; if one cannot be applied, everything."""
    selected = [locate(text, values) for text in expressions]
    found = [pair for pairs in selected for pair in pairs or ()]
    texts = {form for _, value in found for text in _texts(value) for form in _forms(text)}
    return RuleSecrets(
        expressions=tuple(expressions),
        places=tuple(place for place, _ in found),
        texts=tuple(sorted(texts, key=len, reverse=True))[:MAX_TEXTS],
        too_many=len(texts) > MAX_TEXTS or None in selected,
    )


def cut_json(data: bytes, side: Side, value: object, what: RuleSecrets) -> Redacted:
    """Return one side of a call without what was selected.

    `value` is the decoded `data`, `None` if it cannot be decoded: then all of it is redacted if an
    expression may select something in it.
    """
    if not data or not what.expressions:
        return Redacted(data, False)
    if what.too_many or (value is None and what.may_select_in(side) and data.strip() != b"null"):
        return Redacted(_ALL, True)
    if value is None:
        text, touched = cut_text(data.decode("utf-8", "surrogateescape"), what)
        return Redacted(text.encode("utf-8", "surrogateescape"), touched)
    tree = _tree(place[1:] for place in what.places if place[:1] in ((), (side,)))
    cut = _without(value, tree, what.texts)
    return Redacted(data, False) if cut is value else Redacted(_encode(cut), True)


def cut_text(text: str, what: RuleSecrets) -> tuple[str, bool]:
    """Return a text without the selected texts, and whether there were any."""
    cut = PLACEHOLDER if what.too_many and text else _replaced(text, what.texts)
    return cut, cut != text


def _texts(value: object) -> Iterator[str]:
    """Yield the texts and long numbers in a value."""
    match value:
        case str() if len(value) >= SHORTEST:
            yield value
        case bool():
            pass
        case int() | float() if len(str(value)) >= SHORTEST_NUMBER:
            yield str(value)
        case dict():
            for item in cast("dict[str, object]", value).values():
                yield from _texts(item)
        case list():
            for item in cast("list[object]", value):
                yield from _texts(item)
        case _:
            pass


def _forms(text: str) -> Iterator[str]:
    """Yield a text and its forms inside a JSON string."""
    yield text
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]


def _tree(places: Iterable[ValuePath]) -> Tree:
    """Return paths as one tree, with `None` at the end of each."""
    whole: Branch = {}
    # Short paths first: those below the end of one do not matter.
    for place in sorted(places, key=len):
        # One step on top, so that the root can be selected as well.
        *steps, last = (0, *place)
        node: Tree = whole
        for step in steps:
            node = node.setdefault(step, {}) if node is not None else None
        if node is not None:
            node[last] = None
    return whole.get(0, {})


def _without(value: object, tree: Tree, texts: Sequence[str]) -> object:
    """Return a value without what is selected; the same object if nothing is."""
    if tree is None:
        return PLACEHOLDER
    match value:
        case str():
            return _replaced(value, texts)
        case dict():
            members = cast("dict[str, object]", value)
            return _without_members(members, tree, texts)
        case list():
            items = cast("list[object]", value)
            kept = [_without(item, tree.get(n, {}), texts) for n, item in enumerate(items)]
            return items if all(a is b for a, b in zip(kept, items, strict=True)) else kept
        case _:
            return value


def _without_members(
    members: dict[str, object], tree: Branch, texts: Sequence[str]
) -> dict[str, object]:
    kept = {
        _replaced(name, texts): _without(item, tree.get(name, {}), texts)
        for name, item in members.items()
    }
    same = kept.keys() == members.keys() and all(kept[name] is members[name] for name in members)
    return members if same else kept


def _replaced(text: str, texts: Sequence[str]) -> str:
    for secret in texts:
        text = text.replace(secret, PLACEHOLDER)
    return text
