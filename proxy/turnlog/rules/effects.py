"""Effects of a call that rules read from its arguments and result: changes, and the effect key."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct, structs

from turnlog.core.canon import canonical
from turnlog.core.classify import Ending
from turnlog.core.kinds import Executed
from turnlog.core.operation import Evidence, Operation, had_effect

from .expression import (
    MAX_SEARCHED_BYTES,
    UNREADABLE,
    ExpressionInput,
    is_search,
    locate,
    select,
)
from .model import Extractor

MAX_OPERATIONS: Final = 256  # of one call; further ones are dropped
MAX_KEY_BYTES: Final = 2048
"""A longer key or new name is dropped: a part of it would name something else."""
MAX_DELTA_BYTES: Final = 16 * 1024  # of all keys and new names together


class Delta(Struct, frozen=True, gc=False):
    """The operations of one call; `cut` is whether some were dropped."""

    operations: tuple[Operation, ...] = ()
    cut: bool = False


def extract_delta(
    extractors: Sequence[Extractor],
    values: ExpressionInput,
    ending: Ending,
    redact: Callable[[str], str],
) -> Delta:
    """Return the changes that a call made, or may have made. `redact` removes secrets from a key."""
    if not had_effect(ending.executed, ending.status, ending.kind):
        return Delta()
    maybe = ending.executed is Executed.MAYBE
    found: dict[tuple[str, str, str, str], Operation] = {}
    for operation in _operations(extractors, values):
        made = structs.replace(
            operation, key=redact(operation.key), to=redact(operation.to), maybe=maybe
        )
        name = (made.field, made.op, made.key, made.to)
        if name not in found or made.evidence == Evidence.OBSERVED:
            found[name] = made
    return _bounded(list(found.values()))


def _operations(extractors: Sequence[Extractor], values: ExpressionInput) -> Iterator[Operation]:
    for extractor in extractors:
        if not all(select(wanted, values) for wanted in extractor.when):
            continue
        for evidence, key, to in _selected(extractor, values):
            yield Operation(
                field=extractor.field, op=extractor.op, key=key, to=to, evidence=evidence
            )


def _selected(extractor: Extractor, values: ExpressionInput) -> Iterator[tuple[Evidence, str, str]]:
    """Yield the evidence, key and new name of each match; those that are not text are skipped."""
    keys = locate(extractor.key, values) or []
    names: list[object] = [""] * len(keys)
    if extractor.to:
        names = select(extractor.to, values)
    for (place, key), to in zip(keys, names, strict=False):
        if isinstance(key, str) and key and isinstance(to, str) and (to or not extractor.to):
            yield Evidence.OBSERVED if place[0] == "result" else Evidence.DECLARED, key, to


def _bounded(found: list[Operation]) -> Delta:
    kept: list[Operation] = []
    room = MAX_DELTA_BYTES
    for operation in found[:MAX_OPERATIONS]:
        sizes = [len(text.encode("utf-8", "replace")) for text in (operation.key, operation.to)]
        if max(sizes) <= MAX_KEY_BYTES and sum(sizes) <= room:
            room -= sum(sizes)
            kept.append(operation)
    return Delta(tuple(kept), cut=len(kept) < len(found))


def effect_key(wanted: Sequence[str], args: object, *, size: int) -> bytes:
    """Return the values that the expressions select of a call's arguments, in canonical form.

    Empty if nothing is selected, the arguments cannot be read, or they are too large (`size` in
    bytes) to be searched while the call waits.
    """
    if args is UNREADABLE or (size > MAX_SEARCHED_BYTES and any(map(is_search, wanted))):
        return b""
    found = [select(expression, ExpressionInput(args=args)) for expression in wanted]
    if not any(found):
        return b""
    return canonical(json.dumps(found).encode())[1]
