"""The values that the outputs of a session contained, and their look-up in the arguments of a call."""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from msgspec import Struct

from turnlog.core.commit import Lineage
from turnlog.core.kinds import MatchEvidence, ValueOrigin

from . import atoms

ATOMS: Final = 16384
"""Atoms of a session that are remembered in a generation; there are two."""
CUT: Final = "first 64 KiB"
FORGOTTEN: Final = "oldest values forgotten"


class ValueSource(Struct, frozen=True, gc=False):
    """The attempt whose output is looked at."""

    call: bytes
    attempt: int = 1


class Inputs(Struct, frozen=True, gc=False):
    """The origins of the values in the arguments of a call."""

    lineage: tuple[Lineage, ...] = ()
    partial: str = ""
    """What was left out, as values may have stood there; empty for nothing."""


class _FirstSeen(Struct, frozen=True, kw_only=True, gc=False):
    """A leaf of an output, or what the runtime declared."""

    origin: ValueOrigin
    call: bytes
    attempt: int
    pointer: str


class _Memory:
    """Where each atom was first seen: two dicts, of which the older one goes when the newer is full."""

    __slots__ = ("_most", "forgotten", "newer", "older")

    def __init__(self, most: int) -> None:
        self._most = most
        self.newer: dict[int, _FirstSeen] = {}
        self.older: dict[int, _FirstSeen] = {}
        self.forgotten = False

    def add(self, found: set[int], place: _FirstSeen) -> None:
        if len(self.newer) + len(found) > self._most:
            self.forgotten = self.forgotten or bool(self.older)
            self.older, self.newer = self.newer, {}
        if len(found) > self._most:
            self.forgotten = True
        first = self.newer.setdefault
        for atom in islice(found, self._most):
            first(atom, place)

    def find(self, atom: int) -> _FirstSeen | None:
        # What was seen earlier is where the value entered.
        return self.older.get(atom) or self.newer.get(atom)


class SessionValues:
    """The bounded memory of the values that a session's outputs and declarations contained."""

    def __init__(self, most: int = ATOMS) -> None:
        self._clean = _Memory(most)
        self._tainted = _Memory(most)
        self._cut = False

    def __len__(self) -> int:
        """Return the number of atoms that are remembered."""
        held = (self._clean, self._tainted)
        return sum(len(memory.newer) + len(memory.older) for memory in held)

    def add(
        self, source: ValueSource, content: bytes, *, tainted: bool = False, besides: bytes = b""
    ) -> None:
        """Remember the values of an output, without those of `besides`, which are not from there."""
        memory = self._tainted if tainted else self._clean
        without: set[int] = set()
        for leaf in atoms.leaves(besides[: atoms.LOOKED_AT]) if besides else ():
            without |= atoms.atoms(leaf.text)
        for leaf in atoms.leaves(self._start_of(content)):
            place = _FirstSeen(
                origin=ValueOrigin.SOURCED,
                call=source.call,
                attempt=source.attempt,
                pointer=leaf.pointer,
            )
            found = atoms.atoms(leaf.text)
            memory.add(found - without if without else found, place)

    def declare(self, text: str, by: str) -> None:
        """Remember the values of a text that the runtime declared."""
        content = self._start_of(text.encode("utf-8", "replace"))
        place = _FirstSeen(origin=ValueOrigin.DECLARED, call=b"", attempt=1, pointer=by)
        for leaf in atoms.leaves(content):
            self._clean.add(atoms.atoms(leaf.text), place)

    def look_up(self, arguments: bytes) -> Inputs:
        """Return the origin of each value in the arguments of a call."""
        found: dict[Lineage, None] = {}
        for leaf in atoms.leaves(arguments[: atoms.LOOKED_AT]):
            found.update(dict.fromkeys(self._origins(leaf)))
        return Inputs(tuple(found), self._partial(arguments))

    def _origins(self, leaf: atoms.Leaf) -> list[Lineage]:
        folded = atoms.fold(leaf.text)
        found = folded.split()
        whole = b" ".join(found)
        if len(whole) >= atoms.PHRASE or (len(found) == 1 and atoms.may_be_value(whole)):
            evidence = MatchEvidence.WEAK if atoms.is_weak(whole) else MatchEvidence.EXACT
            if entry := self._entry(leaf.pointer, hash(whole), evidence):
                return [entry]
        entries: list[Lineage] = []
        for token in filter(atoms.may_be_value, dict.fromkeys(found)):
            entries += self._of_token(leaf.pointer, token, alone=len(found) == 1)
        named = [*atoms.grouped_numbers(leaf.text), *atoms.phrases(folded)]
        entries += self._entries(leaf.pointer, map(hash, named), MatchEvidence.ENTITY)
        entries += self._entries(leaf.pointer, atoms.shingles(found), MatchEvidence.SHINGLE)
        return entries

    def _of_token(self, pointer: str, token: bytes, *, alone: bool) -> list[Lineage]:
        evidence = MatchEvidence.WEAK if atoms.is_weak(token) else MatchEvidence.ENTITY
        if entry := self._entry(pointer, hash(token), evidence):
            return [entry]
        parts = filter(atoms.may_be_value, atoms.parts(token))
        entries = self._entries(pointer, map(hash, parts), MatchEvidence.WEAK)
        if atoms.is_entity(token, alone=alone):
            entries.append(Lineage(pointer=pointer, origin=ValueOrigin.UNVERIFIED))
        return entries

    def _entries(
        self, pointer: str, found: Iterable[int], evidence: MatchEvidence
    ) -> list[Lineage]:
        looked_up = (self._entry(pointer, atom, evidence) for atom in found)
        return [entry for entry in looked_up if entry]

    def _entry(self, pointer: str, atom: int, evidence: MatchEvidence) -> Lineage | None:
        place = self._clean.find(atom)
        tainted = place is None
        if place is None:
            place = self._tainted.find(atom)
        if place is None:
            return None
        return Lineage(
            pointer=pointer,
            origin=place.origin,
            call=place.call,
            attempt=place.attempt,
            place=place.pointer,
            evidence=evidence,
            tainted=tainted,
        )

    def _start_of(self, content: bytes) -> bytes:
        self._cut = self._cut or len(content) > atoms.LOOKED_AT
        return content[: atoms.LOOKED_AT]

    def _partial(self, arguments: bytes) -> str:
        if self._cut or len(arguments) > atoms.LOOKED_AT:
            return CUT
        return FORGOTTEN if self._clean.forgotten or self._tainted.forgotten else ""
