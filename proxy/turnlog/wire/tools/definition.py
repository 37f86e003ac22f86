"""A tool's definition as it is kept: without secrets, and of bounded size.

In a schema the names of secrets are names of parameters: `{"password": {"type": "string"}}` says
nothing secret. So what vanishes under such a name is what stands for its value there (`default`,
`const`, `enum`, `examples`), while its schema stays.
"""

import json
from typing import Any, Final, TypeGuard

import msgspec
from msgspec import Struct

from turnlog.core.canon import SHA256, canonical
from turnlog.redaction.redact import Redactor
from turnlog.redaction.values import PLACEHOLDER

Json = Any
"""A tool's own JSON, as plain values."""

LARGEST: Final = 64 * 1024
"""Bytes of a definition that are kept; of a larger one the largest parts are left out."""
_VALUES: Final = frozenset({"default", "const", "enum", "example", "examples"})
_NAMES: Final = frozenset({"required", "dependentRequired"})
"""Where a schema lists names of parameters."""
_DEEPEST: Final = 64
_NOTE: Final = 40
"""Bytes of a note that something is left out, at most."""


class Kept(Struct, frozen=True, gc=False):
    """A definition as it is kept: canonical JSON, or a JSON string where it is no proper JSON."""

    text: bytes
    partial: bool
    """Whether something is missing, so that the hash cannot be checked against the text."""

    @property
    def value(self) -> Json:
        """The definition as plain values."""
        return json.loads(self.text)


def kept(raw: bytes, redactor: Redactor) -> Kept:
    """Return what is kept of a definition as its server sent it."""
    scheme, form = canonical(raw)
    if scheme != SHA256:
        return _kept_text(raw, redactor)
    short = form if len(form) <= LARGEST else encoded(_shortened(json.loads(form)))
    if not redactor.json(short).touched:
        return Kept(short, partial=short != form)
    text = encoded(_cut(json.loads(short), redactor, hidden=False, depth=0))
    return Kept(text, partial=text != form)


def _kept_text(raw: bytes, redactor: Redactor) -> Kept:
    seen = redactor.json(raw[:LARGEST], complete=len(raw) <= LARGEST)
    text = seen.data.decode("utf-8", "replace")
    return Kept(encoded(text), partial=text.encode() != raw)


def _cut(value: Json, redactor: Redactor, *, hidden: bool, depth: int) -> Json:
    """Cut secrets out of a schema; `hidden` where it is that of a secret parameter."""
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
    # Together, because one may say what another is: {"name": "PASSWORD", "value": ...}.
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
    """Tell whether this is a JSON object."""
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
