"""Say in a sentence what is wrong with JSON that a caller sent: what, where, and what to write."""

from typing import Any

import msgspec

from turnlog.packs import shape

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises."""


def mistake(error: Exception, data: bytes | str, kind: Any, whole: str) -> str:
    """Return what is wrong with `data` that a decoder of `kind` refused; `whole` is what to call it."""
    if not isinstance(error, msgspec.ValidationError):
        return _no_json(error, whole)
    try:
        plain = msgspec.json.decode(data)
    except UNREADABLE as earlier:
        return _no_json(earlier, whole)
    found = shape.mismatch(error, plain, kind)
    if found.steps:
        return found.message
    return found.message.replace(shape.called(()), whole, 1)


def _no_json(error: Exception, whole: str) -> str:
    match error:
        case RecursionError():
            return f"{whole} is nested too deeply, use fewer levels"
        case UnicodeDecodeError():
            return f"{whole} is no UTF-8, encode it so"
        case _:
            reason = str(error).removeprefix("JSON is malformed: ")
            return f"{whole} is no JSON ({reason[:1].lower()}{reason[1:]}), write a JSON object"
