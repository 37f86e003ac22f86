"""Contamination: which outputs of a session are tainted and why, and which calls carried their values on.

It compares values and follows no meaning: what it does not find may be there all the same.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from msgspec import Struct, structs

from turnlog.core.commit import Facts, Lineage
from turnlog.core.kinds import Flag, NoteKind

from .outputs import INPUT_CUT, doubts
from .values import (
    LOOKED_AT,
    LOOKED_AT_FOR_TAINT,
    MANY,
    Inputs,
    SessionValues,
    ValueSource,
    carried,
    every_leaf,
)

OutputKey: TypeAlias = tuple[bytes, int]
"""The id of a call, and the number of the attempt."""

_ATOMS: Final = 1 << 18
"""Atoms of a session that are remembered when its log is read."""
GIVEN: Final = "answered from a tainted output of another session"
INPUT_GONE: Final = "inputs whose content is gone count by what was recorded of them"
OUTPUT_GONE: Final = "outputs whose content is gone count by what was recorded of them"
_UNREAD: Final = Inputs()
_GONE: Final = Inputs(partial=INPUT_GONE)


def taint_flags(facts: Facts, lineage: tuple[Lineage, ...]) -> tuple[Flag, ...]:
    """Return the flags of an outcome, with these inputs, that say how it is tainted.

    An error and the flags that make an output doubtful speak for themselves: no other is added for them.
    """
    into = bool(lineage) and bool(carried(lineage))
    is_marked = bool(facts.flags) and Flag.TAINT_MARKED in facts.flags
    if not (into or is_marked):
        return ()
    out = facts.bytes_out > 0 and Flag.TAINT_ENDORSED not in facts.flags
    return tuple(f for f, is_so in ((Flag.TAINTED_IN, into), (Flag.TAINTED_OUT, out)) if is_so)


class TaintMark(Struct, frozen=True, kw_only=True):
    """An operator's note about an output. `kind` is `taint` or `endorse`."""

    kind: NoteKind
    seq: int
    why: str


class TaintedAttempt(Struct, frozen=True, kw_only=True):
    """An attempt that used values of tainted outputs, or whose own output is tainted."""

    key: OutputKey
    carried: tuple[Lineage, ...]
    """Where the tainted values in its input came from."""
    weak: int
    """How many more were found by weak evidence, which does not count."""
    reasons: tuple[str, ...]
    """Why its output is tainted in itself."""
    endorsed: str | None
    """Why its output is not, by a rule or an operator; `None` if neither says so."""
    is_tainted: bool
    """Whether its output is tainted."""


class TaintFold:
    """Follows tainted values through the attempts of a session, which are added in the order of the log.

    Its memory is bounded by `most`, and by the tainted attempts that it returns.
    """

    def __init__(
        self,
        marks: Mapping[OutputKey, TaintMark],
        most: int = _ATOMS,
        is_earlier_tainted: Callable[[Lineage], bool] | None = None,
    ) -> None:
        """`marks` has the newest note about each output; `most` bounds the values that are remembered.

        Where the fold does not begin with the session, `is_earlier_tainted` says whether a recorded entry is of
        an output from before it, and that output is tainted.
        """
        self._marks = marks
        self._values = SessionValues(most)
        self._is_earlier_tainted = is_earlier_tainted
        self._inputs: dict[OutputKey, Inputs] = {}
        """Of open attempts, and of those with tainted values."""
        self._cut_inputs: set[OutputKey] = set()
        """Open attempts of whose input more was sent than is looked at."""
        self._tainted: set[OutputKey] = set()
        self._gone: set[OutputKey] = set()
        """Tainted attempts whose output cannot be read any more."""
        self.partial: dict[str, None] = {}
        """What was left out, in words."""

    def declare(self, text: str, by: str) -> None:
        """Add a text that the runtime declared."""
        self._values.declare(text, by)

    @property
    def missed(self) -> dict[OutputKey, str]:
        """The tainted outputs of which values may have been missed, and why."""
        return {(of.call, of.attempt): why for of, why in self._values.missed.items()}

    def on_input(self, key: OutputKey, read: Callable[[], tuple[bytes, bool]]) -> None:
        """Look up the input of an attempt; `read` returns it as recorded, empty if it is gone, and whether it was longer."""
        if not self._tainted:
            return  # it cannot carry anything
        content, is_cut = read()
        found = self._values.look_up(content) if content else _GONE
        if (len(content) > LOOKED_AT or found.partial == MANY) and not carried(found.lineage):
            more = next(filter(None, self._values.carrying(every_leaf(content))), ())
            found = structs.replace(
                found, lineage=(*found.lineage, *more), has_tainted=found.has_tainted or bool(more)
            )
        if is_cut or len(content) > LOOKED_AT_FOR_TAINT:
            self._cut_inputs.add(key)
        self._inputs[key] = found

    def on_output(
        self,
        key: OutputKey,
        facts: Facts,
        content: bytes,
        recorded: tuple[Lineage, ...] = (),
        *,
        own_input: Callable[[], bytes] = bytes,
        is_source_tainted: bool | None = None,
        missing: str = "",
    ) -> TaintedAttempt:
        """Add an outcome with its output, as recorded; `recorded` is the lineage in its body.

        `own_input` returns the recorded input of the attempt, empty if it is gone. `is_source_tainted` is of an
        answer from another session: whether it is tainted there, `False` if endorsed. `missing` is why `content`
        lacks something.
        """
        lineage = self._lineage(key, recorded)
        mark = self._marks.get(key)
        entries = carried(lineage)
        reasons, endorsed = doubts(facts), _endorsed(facts, mark)
        if is_source_tainted:
            reasons = (*reasons, GIVEN)
        elif is_source_tainted is False and mark is None:
            endorsed = "in the session that it was answered from"
        if mark is not None and mark.kind is NoteKind.TAINT:
            reasons = (f"marked: {mark.why}", *reasons)
        is_tainted = endorsed is None and bool(reasons or entries)
        if is_tainted:
            self._tainted.add(key)
        else:
            self._tainted.discard(key)
        if is_tainted and missing:
            self._values.miss(ValueSource(*key), missing)
        elif not is_tainted and endorsed is None:
            self._doubt_input(key)
        self._cut_inputs.discard(key)
        self._add(key, facts, content, own_input)
        weak = sum(e.tainted for e in lineage) - len(entries)
        return TaintedAttempt(
            key=key,
            carried=entries,
            weak=weak,
            reasons=reasons,
            endorsed=endorsed,
            is_tainted=is_tainted,
        )

    def _doubt_input(self, key: OutputKey) -> None:
        """Note that an output may be tainted, if its input had more than is recorded."""
        if key in self._cut_inputs and self._values.has_tainted:
            self._values.miss(ValueSource(*key), INPUT_CUT)

    def _add(
        self, key: OutputKey, facts: Facts, content: bytes, own_input: Callable[[], bytes]
    ) -> None:
        """Index an output, of a tainted one only what it does not repeat of the attempt's input."""
        tainted = key in self._tainted
        if content:
            repeated = own_input() if tainted else b""
            self._values.add(ValueSource(*key), content, tainted=tainted, own_input=repeated)
        elif facts.bytes_out:
            self.partial[OUTPUT_GONE] = None
            if tainted:
                self._gone.add(key)

    def _lineage(self, key: OutputKey, recorded: tuple[Lineage, ...]) -> tuple[Lineage, ...]:
        """Return what is known of an input: by its content, and where that does not do by what was recorded of it."""
        inputs = self._inputs.pop(key, _UNREAD)
        if inputs.has_tainted:
            self._inputs[key] = inputs  # a further outcome is rare, but it takes no values back
        if inputs.partial:
            self.partial[inputs.partial] = None
        is_unread = inputs is _UNREAD or inputs is _GONE
        told = (e for e in recorded if self._is_told(e, is_unread=is_unread))
        return (
            *inputs.lineage,
            *(entry if entry.tainted else structs.replace(entry, tainted=True) for entry in told),
        )

    def _is_told(self, entry: Lineage, *, is_unread: bool) -> bool:
        """Return whether a recorded entry counts: its source is tainted, and contents do not show it."""
        source = entry.call, entry.attempt
        if source in self._tainted and (is_unread or source in self._gone):
            return True
        return self._is_earlier_tainted is not None and self._is_earlier_tainted(entry)


def _endorsed(facts: Facts, mark: TaintMark | None) -> str | None:
    """Return why an output is not tainted; a note counts more than a rule."""
    if mark is not None:
        return mark.why if mark.kind is NoteKind.ENDORSE else None
    return "by a rule" if Flag.TAINT_ENDORSED in facts.flags else None
