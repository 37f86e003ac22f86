"""The values that the outputs of a session contained, and their look-up in the arguments of a call."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, filterfalse, groupby, islice
from typing import Final

from msgspec import Struct

from turnlog.core.commit import Lineage
from turnlog.core.kinds import MatchEvidence, ValueOrigin

from .atoms import (
    WORD,
    WORDS,
    atoms_of,
    below_folders,
    encoded,
    fold,
    has_parts,
    is_entity,
    is_phrase,
    is_strong_in_text,
    is_strong_part,
    is_strong_value,
    labels,
    may_be_value,
    may_be_word,
    parts,
    phrases,
    plain,
    quoted,
    shingles,
    shortest,
    some_shingles,
    trim,
    without_groups,
)
from .leaves import PIECE, is_json, leaves

LOOKED_AT: Final = 65536
"""Bytes of a content that are looked at, from its start."""
LOOKED_AT_FOR_TAINT: Final = 1 << 20
"""Bytes of a tainted output, and of the input of an output that may be tainted, that are looked at."""
OVERLAP: Final = 4096
"""Bytes that two slices of a long content share, so that a value at their border is whole in one of them."""
ATOMS: Final = 16384
"""Atoms of a session that are remembered in a generation; there are two."""
CUT: Final = "first 64 KiB"
MANY: Final = "more values than are looked up"
MANY_SOURCED: Final = "more sourced values than are recorded"
FORGOTTEN: Final = "oldest values forgotten"
NOT_YET: Final = "the call ended before its input was looked up"
TOO_MUCH: Final = "too much waited to be looked at"
NOT_RECORDED: Final = "the input is not recorded"
CUT_INPUT: Final = "the input is not recorded whole"
OLDER: Final = "not all earlier outputs were read"
UNREAD: Final = "earlier outputs could not be read"
LEFT_OUT: Final = "outputs were left out, because too much waited to be looked at"
NOT_WHOLE: Final = frozenset(
    {NOT_YET, TOO_MUCH, MANY, NOT_RECORDED, CUT_INPUT, OLDER, UNREAD, LEFT_OUT}
)
"""Why an input was not looked up, not all of it, or not in all outputs."""
LONG_OUTPUT: Final = "only its first 1 MiB is looked at"
FORGOTTEN_OUTPUT: Final = "its values were forgotten for those of later tainted outputs"
MOST_MISSED: Final = 256
"""Tainted outputs of which it is remembered that values may be missing."""
_MOST_LEAVES: Final = 2048  # of arguments; takes 10 ms at most
_MOST_ENTRIES: Final = 64  # of a call, so that its body stays small
_MOST_THAT_MATTER: Final = 4 * _MOST_ENTRIES  # to rules: of tainted and of unverified values
_LEAVES: Final = 64  # of an input that are looked up in one step
_LEAF: Final = 32  # characters: looking them up takes as long as a leaf takes without its text
_RUN: Final = 4  # shingles, eight words; of unrelated prose of one author 0.01 has as many
_LINE: Final = 16  # words: a shorter leaf, such as a command line, is not prose
_STRENGTH: Final = {evidence: place for place, evidence in enumerate(MatchEvidence)}

# Looking a member of an enum up takes longer than a function of Python.
_SOURCED, _DECLARED, _UNVERIFIED = ValueOrigin
_EXACT, _ENTITY, _SHINGLE, _WEAK = MatchEvidence
_Strength = Callable[[bytes], bool]


class ValueSource(Struct, frozen=True, gc=False):
    """The attempt whose output is looked at."""

    call: bytes
    attempt: int = 1


class Inputs(Struct, frozen=True, gc=False):
    """The origins of the values in the arguments of a call."""

    lineage: tuple[Lineage, ...] = ()
    partial: str = ""
    """What was left out, as values may have stood there; empty for nothing."""
    has_tainted: bool = False
    """Whether a value is from a tainted output, by evidence of any kind."""


def carried(lineage: Iterable[Lineage]) -> tuple[Lineage, ...]:
    """Return the entries of values from tainted outputs, without those by weak evidence."""
    return tuple(e for e in lineage if e.tainted and e.evidence is not _WEAK)


def has_values(content: bytes) -> bool:
    """Return whether a content has anything that is compared."""
    return any(atoms_of(text) for _, text in leaves(content))


def slices(content: bytes) -> Iterator[bytes]:
    """Yield a content in slices of which each can be looked at."""
    yield content[:LOOKED_AT]
    for begin in range(LOOKED_AT - OVERLAP, len(content) - OVERLAP, LOOKED_AT - OVERLAP):
        yield content[begin : begin + LOOKED_AT]


def every_leaf(content: bytes) -> Iterable[tuple[str, str]]:
    """Return the leaves of a long content; of one that is not JSON they are found as they are read."""
    return (
        leaves(content) if is_json(content) else chain.from_iterable(map(leaves, slices(content)))
    )


def unsourced(inputs: Inputs) -> tuple[str, ...]:
    """Return the JSON Pointers of the values that were never seen before."""
    return tuple({e.pointer: e for e in inputs.lineage if e.origin is _UNVERIFIED})


class _FirstSeen(Struct, frozen=True, eq=False, gc=False):
    """A leaf of an output, or a declaration. Without `eq` no two of them are equal."""

    origin: ValueOrigin
    call: bytes
    attempt: int
    pointer: str
    is_tainted: bool = False


class _Generations:
    """Where each atom was first seen: two dicts, of which the older one goes when the newer is full."""

    __slots__ = ("_most", "forgotten", "newer", "older")

    def __init__(self, most: int) -> None:
        self._most = most
        self.newer: dict[int, _FirstSeen] = {}
        self.older: dict[int, _FirstSeen] = {}
        self.forgotten: _FirstSeen | None = None
        """Where an atom was first seen that has been forgotten; `None` while all are remembered."""

    def __len__(self) -> int:
        return len(self.newer) + len(self.older)

    def add(self, atoms: list[int], place: _FirstSeen) -> None:
        first = self.newer.setdefault
        for atom in atoms:
            first(atom, place)
        if len(self.newer) >= self._most:
            self.forgotten = self.forgotten or next(iter(self.older.values()), None)
            self.older, self.newer = self.newer, {}


class SessionValues:
    """The bounded memory of the values that a session's outputs and declarations contained."""

    def __init__(self, most: int = ATOMS) -> None:
        self._clean = _Generations(most)
        self._tainted = _Generations(most)
        self._cut = False
        self._missed: dict[ValueSource, str] = {}

    def __len__(self) -> int:
        """Return the number of atoms that are remembered."""
        return len(self._clean) + len(self._tainted)

    @property
    def missed(self) -> dict[ValueSource, str]:
        """The tainted outputs of which values may be missing here, and why; at most `MOST_MISSED` and one."""
        place = self._tainted.forgotten
        if place is None:
            return self._missed
        return self._missed | {ValueSource(place.call, place.attempt): FORGOTTEN_OUTPUT}

    @property
    def has_tainted(self) -> bool:
        """Whether there are values of tainted outputs, or may have been."""
        return bool(len(self._tainted) or self._missed)

    def miss(self, source: ValueSource, why: str) -> None:
        """Note that values of a tainted output may be missing here."""
        if len(self._missed) < MOST_MISSED:
            self._missed.setdefault(source, why)

    def add(
        self, source: ValueSource, content: bytes, *, tainted: bool = False, own_input: bytes = b""
    ) -> None:
        """Remember the values of an output, without those of the call's `own_input`, which it only repeats."""
        for _ in self.adding(source, content, tainted=tainted, own_input=own_input):
            pass

    def adding(
        self, source: ValueSource, content: bytes, *, tainted: bool = False, own_input: bytes = b""
    ) -> Iterator[None]:
        """Do what `add` does in steps of some 100 us each, as the iterator is read."""
        # The first step is longer where the content is JSON: 1 MiB of it is parsed at once, in some 50 ms.
        memory = self._tainted if tainted else self._clean
        repeated = leaves(own_input[:LOOKED_AT]) if own_input else ()
        without = {atom for _, text in repeated for atom in atoms_of(text)}
        is_long = len(content) > LOOKED_AT
        texts = self._long(source, content, tainted=tainted) if is_long else leaves(content)
        place, work = None, 0
        for pointer, text in texts:
            if place is None or pointer != place.pointer:
                place = _FirstSeen(_SOURCED, source.call, source.attempt, pointer, tainted)
            found = atoms_of(text)
            memory.add([a for a in found if a not in without] if without else found, place)
            work += len(text) + _LEAF
            if work > PIECE:
                work = 0
                yield

    def _long(
        self, source: ValueSource, content: bytes, *, tainted: bool
    ) -> Iterable[tuple[str, str]]:
        """Return the leaves of a long output, as far as it is looked at."""
        most = LOOKED_AT_FOR_TAINT if tainted else LOOKED_AT
        if len(content) > most:
            self._cut = True
            if tainted:
                self.miss(source, LONG_OUTPUT)
        return every_leaf(content[:most])

    def declare(self, text: str, by: str) -> None:
        """Remember the values of a text that the runtime declared."""
        content = text.encode("utf-8", "replace")
        self._cut = self._cut or len(content) > LOOKED_AT
        place = _FirstSeen(_DECLARED, b"", 1, by)
        for _, leaf in leaves(content[:LOOKED_AT]):
            self._clean.add(atoms_of(leaf), place)

    def carrying(self, leaves_of_input: Iterable[tuple[str, str]]) -> Iterator[tuple[Lineage, ...]]:
        """Look for tainted values in an input to its end; yield those of each step, none by weak evidence."""
        every = iter(leaves_of_input)
        while len(self._tainted) and (some := list(islice(every, _LEAVES))):
            search = _Search(self._clean, self._tainted)
            search.run(some)
            yield carried(search.entries.values())

    def look_up(self, arguments: bytes) -> Inputs:
        """Return the origin of each value in the arguments of a call."""
        search, found = _Search(self._clean, self._tainted), leaves(arguments[:LOOKED_AT])
        search.run(found[:_MOST_LEAVES])
        if search.left_out or len(found) > _MOST_LEAVES:
            partial = MANY
        elif self._cut or len(arguments) > LOOKED_AT:
            partial = CUT
        elif self._clean.forgotten or self._tainted.forgotten:
            partial = FORGOTTEN
        else:
            partial = MANY_SOURCED if search.left_out_sourced else ""
        return Inputs(tuple(search.entries.values()), partial, search.has_tainted)


class _Search:
    """A look-up of arguments. Matches of a leaf with one leaf of an output become one entry."""

    __slots__ = ("_known", "_pointer", "entries", "has_tainted", "left_out", "left_out_sourced")

    def __init__(self, clean: _Generations, tainted: _Generations) -> None:
        # What was seen earlier is where the value entered. What is in a clean output is not tainted.
        every = (clean.older, clean.newer, tainted.older, tainted.newer)
        self._known = [seen for seen in every if seen]
        self._pointer = ""
        self.entries: dict[tuple[str, _FirstSeen | None], Lineage] = {}
        self.left_out = self.left_out_sourced = self.has_tainted = False

    def run(self, found: Iterable[tuple[str, str]]) -> None:
        """Look up leaves of the arguments."""
        for pointer, text in found:
            self._pointer = pointer
            if " " in text or not WORD.fullmatch(text):
                self._look_up_text(text)
                continue
            word = shortest(trim(text.lower().encode()))
            if may_be_value(word) and not self._has(word, _EXACT):
                self._look_up_parts(word, alone=True)

    def _look_up_text(self, text: str) -> None:
        folded = fold(without_groups(plain(text)))
        words = folded.split()
        line = b" ".join(words)
        whole = shortest(trim(line))
        if may_be_value(whole) and self._has(whole, _EXACT):
            return
        if not b"".join(words).isalpha():
            self._look_up_words(words)
        for value in encoded(text):
            self._has(value, _ENTITY)
        # Otherwise the whole is the only phrase.
        if not is_phrase(folded, line):
            self._look_up_phrases(folded)
        if len(words) >= WORDS:
            self._look_up_runs(words)

    def _look_up_words(self, words: list[bytes]) -> None:
        is_strong = is_strong_value if len(words) <= _LINE else is_strong_in_text
        for token in dict.fromkeys(filterfalse(bytes.isalpha, words)):
            word = shortest(trim(token))
            if may_be_word(word) and not self._has(word, _ENTITY, is_strong):
                self._look_up_parts(word, alone=len(words) == 1)

    def _look_up_phrases(self, folded: bytes) -> None:
        for value in quoted(folded):
            self._has(value, _ENTITY)
        for phrase in phrases(folded):
            self._has(phrase, _ENTITY, is_strong_in_text)

    def _knows_any(self, atoms: list[int]) -> bool:
        for known in self._known:  # noqa: SIM110 - with `any` it takes twice as long
            if not known.keys().isdisjoint(atoms):
                return True
        return False

    def _has(
        self, value: bytes, evidence: MatchEvidence, is_strong: _Strength = is_strong_value
    ) -> bool:
        """Note where a value was first seen; return whether it was seen."""
        atom = hash(value)
        for known in self._known:
            if atom in known:
                self._note(known[atom], evidence if is_strong(value) else _WEAK)
                return True
        return False

    def _look_up_parts(self, word: bytes, *, alone: bool) -> None:
        """Look up the parts of a word that was not seen."""
        if has_parts(word) and self._is_known_by_parts(word):
            return
        if is_entity(word, alone=alone):
            unseen = Lineage(pointer=self._pointer, origin=_UNVERIFIED)
            self._enter(None, unseen, _MOST_THAT_MATTER)

    def _is_known_by_parts(self, token: bytes) -> bool:
        """Note known parts of a word; return whether it is a known name in a known folder."""
        rests = below_folders(token)
        shares, names = [*rests, *parts(token)], labels(token)
        if not self._knows_any(list(map(hash, shares + names))):
            return False
        shares = list(filter(may_be_word, shares))
        is_seen = [self._has(part, _ENTITY, is_strong_part) for part in shares]
        for name in filter(is_strong_part, names):  # `example` and `txt` say nothing by themselves
            self._has(name, _ENTITY)
        return any(is_seen) and any(
            self._knows_any([hash(rest)]) and self._knows_any([hash(token[: -len(rest) - 1])])
            for rest in rests
        )

    def _look_up_runs(self, words: list[bytes]) -> None:
        """Note the outputs that have runs of words. A run of less than eight words is weak."""
        some = some_shingles(words)
        if self._knows_any(some) and self._note_runs(some, 2):
            self._note_runs(shingles(words), min(_RUN, len(words) - WORDS + 1))

    def _note_runs(self, atoms: list[int], enough: int) -> bool:
        """Note the outputs that have these runs in a row; return whether some are too few to be sure."""
        places: list[_FirstSeen | None] = [None] * len(atoms)
        for known in self._known:
            places = [place or known.get(atom) for place, atom in zip(places, atoms, strict=True)]
        has_few = False
        for is_tainted, together in groupby(places, _taint):
            if is_tainted is not None:
                run = list(together)
                has_few = has_few or len(run) < enough
                evidence = _SHINGLE if len(run) >= enough else _WEAK
                for place in dict.fromkeys(filter(None, run)):
                    self._note(place, evidence)
        return has_few

    def _note(self, place: _FirstSeen, evidence: MatchEvidence) -> None:
        known = self.entries.get((self._pointer, place))
        if known is None or _STRENGTH[evidence] < _STRENGTH[known.evidence]:
            entry = Lineage(
                pointer=self._pointer,
                origin=place.origin,
                call=place.call,
                attempt=place.attempt,
                place=place.pointer,
                evidence=evidence,
                tainted=place.is_tainted,
            )
            self.has_tainted = self.has_tainted or place.is_tainted
            self._enter(place, entry, _MOST_THAT_MATTER if place.is_tainted else _MOST_ENTRIES)

    def _enter(self, place: _FirstSeen | None, entry: Lineage, most: int) -> None:
        if len(self.entries) < most:
            self.entries[self._pointer, place] = entry
        elif most == _MOST_ENTRIES:
            self.left_out_sourced = True
        else:
            self.left_out = True


def _taint(place: _FirstSeen | None) -> bool | None:
    return None if place is None else place.is_tainted
