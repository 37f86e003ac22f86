"""Typed values from plain data, with mistakes explained in an operator's words.

msgspec's errors end with a path such as `$.upstreams[...].url`, which lacks the keys of mappings, and
give no advice. Both are added here.
"""

import re
from typing import Any, TypeGuard, TypeVar, cast

import msgspec
from msgspec import Struct, inspect

from turnlog.core.text.units import READER, Reader

from .errors import suggest

T = TypeVar("T")
Step = str | int
Plain = Any
"""The data of a file: nested dicts, lists and scalars."""

_PLACE = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_WRONG_TYPE = re.compile(r"Expected `([^`]*)`(?:, got `([^`]*)`)?.*", re.DOTALL)
_OUTSIDE = re.compile(r"Expected `\w+` (of length )?([<>]=?) (\S+)")
_NO_TAG = re.compile(r"Invalid value .*", re.DOTALL)
_NO_MEMBER = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_ONE_WORD = re.compile(r"[\w.*/-]{1,40}")
_ANY_KEY = "..."
_LIMITS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}


class MismatchError(Exception):
    """Data that is not of the type, at `steps` or in the entry `key` of the mapping there.

    `missing` is the key of an entry that is missing.
    """

    def __init__(
        self,
        steps: tuple[Step, ...],
        message: str,
        key: str | None = None,
        missing: str | None = None,
    ) -> None:
        super().__init__(message)
        self.steps = steps
        self.message = message
        self.key = key
        self.missing = missing


class _ParsedError(Struct, frozen=True):
    """The parts of a msgspec error. A step `...` stands for any key of a mapping."""

    what: str
    steps: tuple[Step, ...]


def convert(data: Plain, kind: type[T], *, later: frozenset[str] = frozenset()) -> T:
    """Return `data` as a `kind`. Raises `MismatchError`.

    `later` names keys (dotted, `*` for any) and `key=value` pairs that are planned: they are refused
    as not supported yet, not as mistakes.
    """
    data = _read(data, inspect.type_info(kind), ())
    raw = _error_of(data, kind)
    if raw is None:
        return msgspec.convert(data, kind)
    steps = _with_keys(data, kind, raw)
    raise _translate(raw.what, steps, data, kind, later)


def mismatch_of(error: msgspec.ValidationError, data: Plain, kind: Any) -> MismatchError:
    """Return an error of msgspec for `data` in an operator's words."""
    raw = _parse_error(error)
    return _translate(raw.what, _with_keys(data, kind, raw), data, kind, frozenset())


def _read(data: Plain, info: inspect.Type | None, steps: tuple[Step, ...]) -> Plain:
    """Return `data` with each value whose type has a reader replaced by what that returns."""
    reader = _reader(info)
    if reader is not None:
        return _read_by(reader, data, steps)
    if is_mapping(data):
        key_reader = _reader(info.key_type) if isinstance(info, inspect.DictType) else None
        if key_reader is not None:
            for key in data:
                _read_by(key_reader, key, steps, key)
        return {key: _read(item, _inner(info, key), (*steps, key)) for key, item in data.items()}
    if is_list(data):
        return [_read(item, _inner(info, n), (*steps, n)) for n, item in enumerate(data)]
    return data


def _reader(info: inspect.Type | None) -> Reader | None:
    if isinstance(info, inspect.UnionType):
        found = (_reader(member) for member in info.types)
        return next((reader for reader in found if reader is not None), None)
    if not isinstance(info, inspect.Metadata):
        return None
    # Made by `units.reads`; msgspec's stubs leave the types of `extra` open.
    extra = cast("dict[str, Reader] | None", info.extra)  # pyright: ignore[reportUnknownMemberType]
    return extra.get(READER) if extra else None


def _read_by(reader: Reader, data: Plain, steps: tuple[Step, ...], key: str | None = None) -> Plain:
    try:
        return reader(data)
    except ValueError as error:
        raise MismatchError(steps, str(error), key) from None


def _translate(
    what: str, steps: tuple[Step, ...], data: Plain, kind: type[Any], later: frozenset[str]
) -> MismatchError:
    if unknown := _UNKNOWN.fullmatch(what):
        key = unknown[1]
        if _is_later((*steps, key), later):
            message = f"{key!r} is not supported yet, remove it"
        else:
            message = f"unknown key {key!r}, {_place_for(key, kind, steps)}"
        return MismatchError(steps, message, key)
    if missing := _MISSING.fullmatch(what):
        tags = _tags(kind, (*steps, missing[1]))
        message = f"{missing[1]!r} is missing, {suggest('', tags) if tags else 'add it'}"
        return MismatchError(steps, message, missing=missing[1])
    if _NO_MEMBER.fullmatch(what):
        return MismatchError(steps, _no_member(steps, data, kind, later))
    return MismatchError(steps, _wrong_value(what, steps, data, kind))


def _wrong_value(what: str, steps: tuple[Step, ...], data: Plain, kind: type[Any]) -> str:
    if outside := _OUTSIDE.fullmatch(what):
        verb = "have a length of" if outside[1] else "be"
        return f"{dotted_path(steps)} must {verb} {_LIMITS[outside[2]]} {outside[3]}"
    if wrong := _WRONG_TYPE.fullmatch(what):
        wanted, got = (_in_words(names) for names in (wrong[1], wrong[2] or "something else"))
        return f"{dotted_path(steps)} must be {wanted}, not {got}{_instead(data, kind, steps)}"
    if _NO_TAG.fullmatch(what):
        value = value_at(data, steps)
        # Few words with a meaning each: one that is spelled alike is hardly what is meant.
        tags = ", ".join(sorted(_tags(kind, steps)))
        return f"{dotted_path(steps)} cannot be {value!r}, use one of: {tags}"
    return what


def _place_for(key: str, kind: type[Any], steps: tuple[Step, ...]) -> str:
    """Return where an unknown key belongs, or what to write in its place."""
    known = _keys_at(kind, steps)
    for name in known:
        if key in _keys_at(kind, (*steps, name)):
            return f"it belongs under {name!r}"
    return suggest(key, known)


def _instead(data: Plain, kind: type[Any], steps: tuple[Step, ...]) -> str:
    """Return what to write in place of a text where a list or a mapping is wanted; may be empty."""
    value = value_at(data, steps)
    if not isinstance(value, str):
        return ""
    if tagged := _tagged(kind, steps):
        names = ", ".join(sorted(str(member.tag) for member in tagged))
        return f"; write a mapping with the key {tagged[0].tag_field!r}, one of: {names}"
    if keys := _keys_at(kind, steps):
        return f"; its keys are {', '.join(sorted(keys))}"
    is_list_wanted = isinstance(_type_at(kind, steps), inspect.ListType | inspect.VarTupleType)
    return f"; write [{value}]" if is_list_wanted and _ONE_WORD.fullmatch(value) else ""


def _error_of(data: Plain, kind: type[Any]) -> _ParsedError | None:
    try:
        msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        return _parse_error(error)
    return None


def _parse_error(error: msgspec.ValidationError) -> _ParsedError:
    match = _PLACE.fullmatch(str(error))
    assert match is not None  # every part of the pattern is optional
    steps = tuple(
        int(index) if index.isdigit() else name or index
        for name, index in _STEP.findall(match["path"] or "")
    )
    return _ParsedError(match["what"], steps)


def _with_keys(data: Plain, kind: type[Any], raw: _ParsedError) -> tuple[Step, ...]:
    """Return steps with the key in place of each `...`: the entry that alone causes the same error."""
    steps: tuple[Step, ...] = ()
    for step in raw.steps:
        if step == _ANY_KEY:
            here = value_at(data, steps)
            keys = list(here) if is_mapping(here) else []
            alone = ((key, _replaced(data, steps, {key: here[key]})) for key in keys)
            found = next(((k, d) for k, d in alone if _error_of(d, kind) == raw), None)
            if found is None:
                return steps
            step, data = found
        steps = (*steps, step)
    return steps


def value_at(data: Plain, steps: tuple[Step, ...]) -> Plain:
    """Return the value at `steps`, or `None` where there is none."""
    for step in steps:
        if is_mapping(data):
            data = data.get(step)
        elif is_list(data) and isinstance(step, int):
            data = data[step]
        else:
            return None
    return data


def is_mapping(data: Plain) -> TypeGuard[dict[Plain, Plain]]:
    """Return whether `data` is a mapping."""
    return isinstance(data, dict)


def is_list(data: Plain) -> TypeGuard[list[Plain]]:
    """Return whether `data` is a list."""
    return isinstance(data, list)


def _replaced(data: Plain, steps: tuple[Step, ...], value: Plain) -> Plain:
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if is_mapping(data):
        return {**data, step: _replaced(data[step], rest, value)}
    return [_replaced(item, rest, value) if n == step else item for n, item in enumerate(data)]


def _is_later(steps: tuple[Step, ...], later: frozenset[str], value: Plain = None) -> bool:
    """Return whether a `later` pattern names the key at `steps`, or that key with `value`."""
    for pattern in later:
        path, _, wanted = pattern.partition("=")
        names = path.split(".")
        fits = len(names) == len(steps) and all(
            name in ("*", str(step)) for name, step in zip(names, steps, strict=True)
        )
        if fits and wanted == ("" if value is None else value):
            return True
    return False


def _no_member(steps: tuple[Step, ...], data: Plain, kind: type[Any], later: frozenset[str]) -> str:
    value = value_at(data, steps)
    if _is_later(steps, later, value):
        return f"{dotted_path(steps)} {value!r} is not supported yet, leave it out"
    info = _type_at(kind, steps)
    members = [str(item.value) for item in info.cls] if isinstance(info, inspect.EnumType) else []
    return f"{dotted_path(steps)} cannot be {value!r}, {suggest(str(value), members)}"


def _keys_at(kind: type[Any], steps: tuple[Step, ...]) -> list[str]:
    if tagged := _tagged(kind, steps):
        keys = (field.encode_name for member in tagged for field in member.fields)
        return list(dict.fromkeys((str(tagged[0].tag_field), *keys)))
    info = _type_at(kind, steps)
    if isinstance(info, inspect.StructType):
        return [field.encode_name for field in info.fields]
    return []


def _type_at(kind: type[Any], steps: tuple[Step, ...]) -> inspect.Type | None:
    info = _whole_type_at(kind, steps)
    while isinstance(info, inspect.Metadata | inspect.UnionType):
        if isinstance(info, inspect.Metadata):
            info = info.type
        else:
            info = next((k for k in info.types if not isinstance(k, inspect.NoneType)), None)
    return info


def _whole_type_at(kind: type[Any], steps: tuple[Step, ...]) -> inspect.Type | None:
    info: inspect.Type | None = inspect.type_info(kind)
    for step in steps:
        info = _inner(info, step)
    return info


def _tags(kind: type[Any], steps: tuple[Step, ...]) -> list[str]:
    """Return the tags of a union if the value at `steps` is its tag."""
    members = _tagged(kind, steps[:-1])
    return [str(member.tag) for member in members if member.tag_field == steps[-1]]


def _tagged(kind: type[Any], steps: tuple[Step, ...]) -> list[inspect.StructType]:
    """Return the members of a union that a tag tells apart; none for another type."""
    info = _whole_type_at(kind, steps)
    members = info.types if isinstance(info, inspect.UnionType) else ()
    return [one for one in members if isinstance(one, inspect.StructType) and one.tag_field]


def _inner(info: inspect.Type | None, step: Step) -> inspect.Type | None:
    match info:
        case inspect.Metadata():
            return _inner(info.type, step)
        case inspect.StructType():
            return next((field.type for field in info.fields if field.encode_name == step), None)
        case inspect.DictType():
            return info.value_type
        case inspect.ListType() | inspect.VarTupleType() | inspect.FrozenSetType():
            return info.item_type
        case inspect.UnionType():
            inner = (_inner(member, step) for member in info.types)
            return next((found for found in inner if found is not None), None)
        case _:
            return None


def dotted_path(steps: tuple[Step, ...]) -> str:
    """Return the name of a value for people: its dotted path."""
    return repr(".".join(str(step) for step in steps)) if steps else "the file"


def _in_words(names: str) -> str:
    return " or ".join(_WORDS.get(name.strip(), name.strip()) for name in names.split("|"))


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of a JSON decoder."""


def describe_json_error(error: Exception, data: bytes | str, kind: Any, whole: str) -> str:
    """Return why JSON is not a `kind`, with advice; `whole` names the JSON in the message."""
    if not isinstance(error, msgspec.ValidationError):
        return _no_json(error, whole)
    try:
        plain = msgspec.json.decode(data)
    except UNREADABLE as earlier:
        return _no_json(earlier, whole)
    found = mismatch_of(error, plain, kind)
    return found.message if found.steps else found.message.replace(dotted_path(()), whole, 1)


def _no_json(error: Exception, whole: str) -> str:
    match error:
        case RecursionError():
            return f"{whole} is nested too deeply, use fewer levels"
        case UnicodeDecodeError():
            return f"{whole} is not UTF-8, encode it so"
        case _:
            reason = str(error).removeprefix("JSON is malformed: ")
            return f"{whole} is not JSON ({reason[:1].lower()}{reason[1:]}), write a JSON object"
