"""The net change of each file, folded from the operations of calls in the order they were known.

Certain operations are combined at once. Uncertain ones stay with their attempt until a later outcome
decides.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Raw, Struct, structs

from turnlog.core.commit import decoder
from turnlog.core.operation import ChangedField, Operation, OperationType


class FileTouch(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One operation on one file, by one call."""

    op: OperationType
    key: str
    to: str = ""
    evidence: str = ""
    maybe: bool = False
    """Whether it is unknown if it happened, although the call succeeded."""
    seq: int
    turn: int


class FileChange(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The net change of a file since the session began."""

    op: OperationType
    first_seq: int
    last_seq: int
    first_turn: int
    last_turn: int
    evidence: str
    origin: str = ""
    """Name before a rename."""
    to: str = ""
    """The name that it may have now."""
    maybe: bool = False
    """Whether it is unknown if `op` happened."""


Files = dict[str, FileChange]
_KNOWN: Final = frozenset(OperationType)
_decode_operation = decoder(Operation)


def touches(delta: Iterable[Raw], *, seq: int, turn: int) -> Iterator[FileTouch]:
    """Yield the file operations of a commit's delta; those that this version does not know are skipped."""
    for raw in delta:
        try:
            found = _decode_operation(raw)
        except msgspec.DecodeError:
            continue
        if found.field == ChangedField.FILES_MODIFIED and found.op in _KNOWN and found.key:
            yield FileTouch(
                op=OperationType(found.op),
                key=found.key,
                to=found.to,
                evidence=found.evidence,
                maybe=found.maybe,
                seq=seq,
                turn=turn,
            )


def apply_touch(files: Files, touch: FileTouch) -> None:
    """Combine a certain operation into `files`."""
    if touch.op is OperationType.RENAMED and touch.to:
        _move(files, touch)
    else:
        files[touch.key] = _combined(files.get(touch.key), touch)


def with_uncertain(files: Mapping[str, FileChange], unsure: Iterable[FileTouch]) -> Files:
    """Return `files` with uncertain operations added."""
    found = dict(files)
    for touch in unsure:
        before = found.get(touch.key)
        after = _combined(before, touch)
        known = before is not None and before.op is after.op and not before.maybe
        to = touch.to or (before.to if before and before.maybe else "")
        found[touch.key] = structs.replace(after, to=to, maybe=not known)
    return found


def follow_rename(touch: FileTouch, source: str, target: str) -> FileTouch:
    """Return an operation with the name that its file has after a rename."""
    if not is_inside(touch.key, source):
        return touch
    return structs.replace(touch, key=target + touch.key[len(source) :])


def is_inside(key: str, folder: str) -> bool:
    """Return whether `key` is `folder`, or lies in it."""
    return key == folder or key.startswith(folder.rstrip("/") + "/")


def _move(files: Files, touch: FileTouch) -> None:
    """Move the entry of a renamed file or folder, and the entries inside it."""
    source, target = touch.key, touch.to
    inside = [key for key in files if key != source and is_inside(key, source)]
    own = files.pop(source, None)
    for key in inside:
        files[target + key[len(source) :]] = files.pop(key)
    if own is None or own.op is OperationType.DELETED:
        files[target] = structs.replace(_first_change(touch), origin=source)
        return
    origin = own.origin or source
    moved = _extended(own, touch)
    if own.op is OperationType.CREATED:
        files[target] = moved
    elif origin == target:
        files[target] = structs.replace(moved, op=OperationType.MODIFIED, origin="")
    else:
        files[target] = structs.replace(moved, op=OperationType.RENAMED, origin=origin)


def _combined(before: FileChange | None, touch: FileTouch) -> FileChange:
    if before is None:
        return _first_change(touch)
    return structs.replace(_extended(before, touch), op=_combined_kind(before.op, touch.op))


def _combined_kind(before: OperationType, after: OperationType) -> OperationType:
    match before, after:
        case OperationType.CREATED, OperationType.MODIFIED:
            return OperationType.CREATED
        case OperationType.RENAMED, OperationType.MODIFIED | OperationType.CREATED:
            return OperationType.RENAMED
        case OperationType.MODIFIED, OperationType.CREATED:
            return OperationType.MODIFIED
        case _:
            return after


def _first_change(touch: FileTouch) -> FileChange:
    return FileChange(
        op=touch.op,
        first_seq=touch.seq,
        last_seq=touch.seq,
        first_turn=touch.turn,
        last_turn=touch.turn,
        evidence=touch.evidence,
    )


def _extended(before: FileChange, touch: FileTouch) -> FileChange:
    # A call of an earlier turn may end in a later one, after others.
    return structs.replace(
        before,
        first_seq=min(before.first_seq, touch.seq),
        last_seq=max(before.last_seq, touch.seq),
        first_turn=min(before.first_turn, touch.turn),
        last_turn=max(before.last_turn, touch.turn),
        evidence=touch.evidence,
    )
