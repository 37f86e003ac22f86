"""Reads one page of a `tools/list` answer."""

from hashlib import sha256

from msgspec import Raw, Struct

from turnlog.core.canon import canonical

from .json_text import items, load, text_of


class Definition(Struct, frozen=True, kw_only=True):
    """One tool as its server defines it. The hints are claims; `None` for one that is missing."""

    digest: bytes
    """sha256 of the whole definition in canonical form."""
    read_only: bool | None = None
    idempotent: bool | None = None


class ToolPage(Struct, frozen=True):
    """One page of a list."""

    definitions: dict[str, Definition]
    next_cursor: str = ""
    """Empty on the last page."""
    texts: dict[str, Raw] = {}
    """The definitions as they were sent."""


class _List(Struct, rename="camel"):
    tools: Raw = Raw()
    next_cursor: Raw = Raw()


class _Tool(Struct, rename="camel"):
    name: Raw = Raw()
    annotations: Raw = Raw()


class _Hints(Struct, rename="camel"):
    read_only_hint: Raw = Raw()
    idempotent_hint: Raw = Raw()


def read_tools_list(result: Raw) -> ToolPage:
    """Read a `tools/list` result without unreadable tools. Of equal names the last counts."""
    page = load(_List, result)
    definitions: dict[str, Definition] = {}
    texts: dict[str, Raw] = {}
    for raw in items(page.tools):
        tool = load(_Tool, raw)
        if name := text_of(bytes(tool.name)):
            definitions[name] = _definition(raw, tool)
            texts[name] = raw
    return ToolPage(definitions, text_of(bytes(page.next_cursor)), texts)


def _definition(raw: Raw, tool: _Tool) -> Definition:
    hints = load(_Hints, tool.annotations)
    return Definition(
        digest=sha256(canonical(bytes(raw))[1]).digest(),
        read_only=_flag(hints.read_only_hint),
        idempotent=_flag(hints.idempotent_hint),
    )


def _flag(raw: Raw) -> bool | None:
    match bytes(raw):
        case b"true":
            return True
        case b"false":
            return False
        case _:
            return None
