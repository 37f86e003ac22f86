"""What became of each file: the operations of calls, netted in the order in which they were known.

What surely happened is netted at once. What may have happened is kept apart, with its attempt, until
a later outcome tells.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Raw, Struct, structs

from turnlog.core.operation import Change, Field, Operation


class Touch(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One operation on one file, by one call."""

    op: Change
    key: str
    to: str = ""
    evidence: str = ""
    maybe: bool = False
    """Whether nobody knows if it happened, although the call ended well."""
    seq: int
    turn: int


class FileChange(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What became of a file since the session began."""

    op: Change
    first_seq: int
    last_seq: int
    first_turn: int
    last_turn: int
    evidence: str
    origin: str = ""
    """Its name before it was renamed."""
    to: str = ""
    """The name that it may have now."""
    maybe: bool = False
    """Whether nobody knows if `op` happened."""


Files = dict[str, FileChange]
_KNOWN: Final = frozenset(Change)


def touches(delta: Iterable[Raw], *, seq: int, turn: int) -> Iterator[Touch]:
    """Yield what a commit's delta says of files; what this version does not know is passed over."""
    for raw in delta:
        try:
            found = msgspec.msgpack.decode(raw, type=Operation)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if found.field == Field.FILES_MODIFIED and found.op in _KNOWN and found.key:
            yield Touch(
                op=Change(found.op),
                key=found.key,
                to=found.to,
                evidence=found.evidence,
                maybe=found.maybe,
                seq=seq,
                turn=turn,
            )


def apply(files: Files, touch: Touch) -> None:
    """Net what surely happened into `files`."""
    if touch.op is Change.RENAMED and touch.to:
        _move(files, touch)
    else:
        files[touch.key] = _netted(files.get(touch.key), touch)


def merged(files: Mapping[str, FileChange], unsure: Iterable[Touch]) -> Files:
    """Return `files` with what may have happened to them, besides."""
    found = dict(files)
    for touch in unsure:
        before = found.get(touch.key)
        after = _netted(before, touch)
        known = before is not None and before.op is after.op and not before.maybe
        to = touch.to or (before.to if before and before.maybe else "")
        found[touch.key] = structs.replace(after, to=to, maybe=not known)
    return found


def renamed(touch: Touch, source: str, target: str) -> Touch:
    """Return an operation that may have happened as one on the name that its file has now."""
    if not is_below(touch.key, source):
        return touch
    return structs.replace(touch, key=target + touch.key[len(source) :])


def is_below(key: str, folder: str) -> bool:
    """Tell whether `key` names `folder`, or something in it."""
    return key == folder or key.startswith(folder.rstrip("/") + "/")


def _move(files: Files, touch: Touch) -> None:
    """Move the entry of what was renamed, and those of what lies in it."""
    source, target = touch.key, touch.to
    inside = [key for key in files if key != source and is_below(key, source)]
    own = files.pop(source, None)
    for key in inside:
        files[target + key[len(source) :]] = files.pop(key)
    if own is None or own.op is Change.DELETED:
        files[target] = structs.replace(_begun(touch), origin=source)
        return
    origin = own.origin or source
    moved = _later(own, touch)
    if own.op is Change.CREATED:
        files[target] = moved
    elif origin == target:
        files[target] = structs.replace(moved, op=Change.MODIFIED, origin="")
    else:
        files[target] = structs.replace(moved, op=Change.RENAMED, origin=origin)


def _netted(before: FileChange | None, touch: Touch) -> FileChange:
    if before is None:
        return _begun(touch)
    return structs.replace(_later(before, touch), op=_op(before.op, touch.op))


def _op(before: Change, after: Change) -> Change:
    match before, after:
        case Change.CREATED, Change.MODIFIED:
            return Change.CREATED
        case Change.RENAMED, Change.MODIFIED | Change.CREATED:
            return Change.RENAMED
        case Change.MODIFIED, Change.CREATED:
            return Change.MODIFIED
        case _:
            return after


def _begun(touch: Touch) -> FileChange:
    return FileChange(
        op=touch.op,
        first_seq=touch.seq,
        last_seq=touch.seq,
        first_turn=touch.turn,
        last_turn=touch.turn,
        evidence=touch.evidence,
    )


def _later(before: FileChange, touch: Touch) -> FileChange:
    # A call of an earlier turn may end in a later one, after others.
    return structs.replace(
        before,
        first_seq=min(before.first_seq, touch.seq),
        last_seq=max(before.last_seq, touch.seq),
        first_turn=min(before.first_turn, touch.turn),
        last_turn=max(before.last_turn, touch.turn),
        evidence=touch.evidence,
    )
