"""Definitions of tools: their stored form, without secrets and of bounded size, and differences.

In a schema the names of secrets are names of parameters: `{"password": {"type": "string"}}` is not a
secret. So only values in the schema of such a parameter (`default`, `const`, `enum`, `examples`) are
removed.
"""

import json
from collections.abc import Iterator
from difflib import unified_diff
from enum import StrEnum
from typing import Any, Final, TypeGuard

import msgspec
from msgspec import Struct

from turnlog.core.canon import SHA256, canonical
from turnlog.redaction.redact import Redactor
from turnlog.redaction.values import PLACEHOLDER

Json = Any
"""A tool definition as plain JSON values."""

LARGEST: Final = 64 * 1024
"""Bytes of the largest stored definition; the largest parts of a larger one are left out."""
_VALUES: Final = frozenset({"default", "const", "enum", "example", "examples"})
_NAMES: Final = frozenset({"required", "dependentRequired"})
"""Members of a schema whose keys are names of parameters."""
_DEEPEST: Final = 64
_NOTE: Final = 40
"""Most bytes of the note in place of a part that is left out."""


_DIFFED: Final = 4_000_000
"""Largest product of the numbers of lines of two sides that are compared line by line."""
_CONTEXT: Final = 3


class KeptDefinition(Struct, frozen=True, gc=False):
    """A stored definition: canonical JSON, or a JSON string if it is not strict JSON."""

    text: bytes
    partial: bool
    """Whether something is missing, so that the hash cannot be checked against the text."""

    @property
    def value(self) -> Json:
        """The definition as plain values."""
        return json.loads(self.text)


def kept(raw: bytes, redactor: Redactor) -> KeptDefinition:
    """Return the stored form of a definition as its server sent it."""
    scheme, form = canonical(raw)
    if scheme != SHA256:
        return _kept_text(raw, redactor)
    short = form if len(form) <= LARGEST else encoded(_shortened(json.loads(form)))
    if not redactor.json(short).touched:
        return KeptDefinition(short, partial=short != form)
    text = encoded(_cut(json.loads(short), redactor, hidden=False, depth=0))
    return KeptDefinition(text, partial=text != form)


def _kept_text(raw: bytes, redactor: Redactor) -> KeptDefinition:
    seen = redactor.json(raw[:LARGEST], complete=len(raw) <= LARGEST)
    text = seen.data.decode("utf-8", "replace")
    return KeptDefinition(encoded(text), partial=text.encode() != raw)


def _cut(value: Json, redactor: Redactor, *, hidden: bool, depth: int) -> Json:
    """Return a schema without secrets; `hidden` is whether it is that of a secret parameter."""
    if depth > _DEEPEST:
        return _redacted(value, redactor)
    if is_object(value):
        return _cut_members(value, redactor, hidden=hidden, depth=depth)
    if _is_array(value) and all(map(_is_nested, value)):
        return [_cut(item, redactor, hidden=hidden, depth=depth + 1) for item in value]
    return _redacted(value, redactor)


def _cut_members(
    members: dict[str, Json], redactor: Redactor, *, hidden: bool, depth: int
) -> dict[str, Json]:
    # Together, because one member may name the other: {"name": "PASSWORD", "value": ...}.
    flat = {name: value for name, value in members.items() if not _is_nested(value)}
    left = _redacted(flat, redactor)
    made: dict[str, Json] = left if is_object(left) else {}
    for name, value in members.items():
        if hidden and name in _VALUES:
            made[name] = PLACEHOLDER
        elif name in _NAMES:
            made[name] = _cut_names(value, redactor)
        elif _is_nested(value):
            below = hidden or _is_secret(name, redactor)
            made[name] = _cut(value, redactor, hidden=below, depth=depth + 1)
    return made


def _cut_names(value: Json, redactor: Redactor) -> Json:
    if _is_array(value) and all(isinstance(item, str) for item in value):
        return [redactor.text(item)[0] for item in value]
    return _redacted(value, redactor)


def _is_secret(name: str, redactor: Redactor) -> bool:
    return redactor.json(msgspec.json.encode({name: "x"})).touched


def _redacted(value: Json, redactor: Redactor) -> Json:
    if not value:
        return value
    seen = redactor.json(msgspec.json.encode(value))
    try:
        return json.loads(seen.data)
    except ValueError:
        return PLACEHOLDER


def _is_nested(value: Json) -> bool:
    return is_object(value) or _is_array(value)


def is_object(value: Json) -> TypeGuard[dict[str, Json]]:
    """Return whether this is a JSON object."""
    return isinstance(value, dict)


def _is_array(value: Json) -> TypeGuard[list[Json]]:
    return isinstance(value, list)


def _shortened(value: Json) -> Json:
    """Leave out the largest members until the rest is small enough."""
    if not is_object(value):
        return _left_out(len(encoded(value)))
    members = dict(value)
    sizes = {name: len(encoded(member)) for name, member in members.items()}
    whole = left = len(encoded(value))
    for name in sorted(members, key=lambda name: (-sizes[name], name)):
        if sizes[name] <= _NOTE:
            break
        members[name] = _left_out(sizes[name])
        left -= sizes[name] - _NOTE
        if left <= LARGEST:
            return members
    return _left_out(whole)


def _left_out(size: int) -> str:
    return f"[left out: {size} bytes]"


def encoded(value: Json) -> bytes:
    """Return plain values as canonical JSON."""
    return canonical(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))[1]


# -- differences ---------------------------------------------------------------------------------


class Part(StrEnum):
    """The parts of a definition that are compared."""

    NAME = "name"
    TITLE = "title"
    DESCRIPTION = "description"
    INPUT_SCHEMA = "inputSchema"
    OUTPUT_SCHEMA = "outputSchema"
    ANNOTATIONS = "annotations"
    OTHER = "other"
    """Members of other names, or the whole definition if one is not strict JSON."""
    HIDDEN = "hidden"
    """Something that is not kept: a secret, or a part that is too large."""


_PARTS: Final = tuple(part for part in Part if part not in (Part.OTHER, Part.HIDDEN))


def parts_changed(old: Json, new: Json) -> list[Part]:
    """Return the parts in which two definitions differ, as far as they are stored."""
    if not (is_object(old) and is_object(new)):
        return [Part.OTHER if encoded(old) != encoded(new) else Part.HIDDEN]
    names = {name for name in {*old, *new} if _member(old, name) != _member(new, name)}
    known = {str(part) for part in _PARTS}
    parts = [part for part in _PARTS if part in names]
    return parts + ([Part.OTHER] if names - known else []) or [Part.HIDDEN]


def _member(value: dict[str, Json], name: str) -> bytes | None:
    return encoded(value[name]) if name in value else None


def diff(old: Json | None, new: Json | None) -> list[str]:
    """Return a unified diff of two definitions, without its header; `None` is no definition."""
    before = [] if old is None else list(_lines(old))
    after = [] if new is None else list(_lines(new))
    if len(before) * len(after) > _DIFFED:
        # Comparing by line would take minutes, and the server chooses the number of lines.
        return [*(f"-{line}" for line in before), *(f"+{line}" for line in after)]
    return list(unified_diff(before, after, n=_CONTEXT, lineterm=""))[2:]


def _lines(value: Json) -> Iterator[str]:
    """Yield a definition for people, part by part."""
    if not is_object(value):
        yield from _text_lines(value if isinstance(value, str) else _pretty(value))
        return
    known = [str(part) for part in _PARTS if part in value]
    for name in (*known, *sorted(value.keys() - set(known))):
        part = value[name]
        if isinstance(part, str) and "\n" not in part:
            yield f"{name}: {part}"
        else:
            yield f"{name}:"
            text = part if isinstance(part, str) else _pretty(part)
            yield from (f"  {line}" for line in _text_lines(text))


def _text_lines(text: str) -> list[str]:
    # Not `splitlines`, which splits at characters that a terminal does not treat as line ends.
    return text.split("\n")


def _pretty(value: Json) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
