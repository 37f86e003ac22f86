"""Compensations for discarded calls: what a rule names to undo them, and whether it still fits."""

from collections.abc import Container, Iterator
from enum import StrEnum
from itertools import islice
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from turnlog.core.canon import canonical, input_hash
from turnlog.core.commit import Commit
from turnlog.core.kinds import Status
from turnlog.core.text.units import timestamp
from turnlog.rules.compensation import UnfilledError, expected_text, filled
from turnlog.rules.expression import ExpressionInput
from turnlog.rules.model import Compensation
from turnlog.rules.policy import Rulebook, Subject
from turnlog.sessions.payloads import read_input, read_output
from turnlog.sessions.rows import changes
from turnlog.store.base import Filter
from turnlog.store.read.view import View
from turnlog.wire.json_text import value_of
from turnlog.wire.tool_result import only_text

_MOST_SEARCHED: Final = 1000
"""Later calls among which the call `look` is searched."""
_encode: Final = msgspec.json.Encoder().encode


class Fit(StrEnum):
    """Whether a compensation may be made."""

    FITS = "fits"
    UNCHECKED = "unchecked"
    """Nobody has looked since: make the call `look` first, through turnlog."""
    REFUSED = "refused"
    """The thing was changed since: a compensation would overwrite that."""
    UNAVAILABLE = "unavailable"
    """It cannot be made from the record."""


class ProposedCall(Struct, frozen=True, kw_only=True):
    """A call that somebody else may make."""

    server: str
    tool: str
    args: dict[str, Any]


class Proposal(Struct, frozen=True, kw_only=True):
    """The call that would undo an effect. turnlog does not make it."""

    fit: Fit
    why: str = ""
    """The reason, unless it fits."""
    call: ProposedCall | None = None
    """`None` if it is unavailable."""
    look: ProposedCall | None = None
    """The read that shows whether it fits, if the rule names one."""


class Compensations:
    """Proposes compensations for the calls that a rewind discards."""

    def __init__(self, view: View, rules: Rulebook, discarded: Container[bytes]) -> None:
        """`discarded` holds the calls that the rewind discards."""
        self._view = view
        self._rules = rules
        self._discarded = discarded

    def propose(self, attempt: list[Commit]) -> Proposal | None:
        """Return the proposal for a call by its newest attempt; `None` if no rule names one."""
        facts = attempt[0].facts
        values = self._values(attempt)
        args: object = values.args if values else {}
        call = Subject(
            server=facts.server,
            tool=facts.tool,
            method=facts.method,
            path=_path(facts.method, args),
        )
        rule = self._rules.policy(call, lambda: args).compensate
        if rule is None:
            return None
        if values is None:
            return Proposal(fit=Fit.UNAVAILABLE, why="its input is not kept whole in the record")
        return self._filled(attempt, rule, values)

    def _filled(
        self, attempt: list[Commit], rule: Compensation, values: ExpressionInput
    ) -> Proposal:
        server = attempt[0].facts.server
        look = rule.look
        try:
            call = ProposedCall(server=server, tool=rule.tool, args=filled(rule, values))
            read, expected = None, ""
            if look is not None:
                read = ProposedCall(server=server, tool=look.tool, args=filled(look, values))
                expected = expected_text(look.expect, values)
        except UnfilledError as error:
            return Proposal(fit=Fit.UNAVAILABLE, why=str(error))
        fit, why = self._fit(attempt, read, expected)
        return Proposal(fit=fit, why=why, call=call, look=read)

    def _fit(
        self, attempt: list[Commit], look: ProposedCall | None, expected: str
    ) -> tuple[Fit, str]:
        if changed := next(self._changed_since(attempt), None):
            session, seq = changed[0].link.session, changed[0].link.seq
            facts = changed[0].facts
            here = "" if session == attempt[0].link.session else f" of session {session.hex()[:8]}"
            why = f"{facts.server}/{facts.tool} changed the same at commit {seq}{here}"
            return Fit.REFUSED, why
        if look is None:
            return Fit.FITS, ""
        seen = next(self._looks(attempt, look), None)
        if seen is None:
            return Fit.UNCHECKED, f"call {look.tool} first, then ask for the plan again"
        if self._text(seen) != expected:
            at = timestamp(seen[-1].facts.at)
            return Fit.REFUSED, f"{look.tool} gave something else at {at}"
        return Fit.FITS, ""

    def _changed_since(self, attempt: list[Commit]) -> Iterator[list[Commit]]:
        """Yield later attempts of calls that stay, and that may have changed the same."""
        names = {name for one in changes(attempt) for name in (one.key, one.to) if name}
        for name in sorted(names):
            match = Filter(path=_literal(name), behind=attempt[0].position)
            for later in self._view.attempts(match, newest_first=False):
                touched = {key for one in changes(later) for key in (one.key, one.to)}
                if name in touched and later[0].facts.call not in self._discarded:
                    yield later

    def _looks(self, attempt: list[Commit], look: ProposedCall) -> Iterator[list[Commit]]:
        """Yield the successful looks that began after the call had ended, newest first."""
        wanted = input_hash(canonical(_encode(look.args)))
        match = Filter(
            server=_literal(look.server), tool=_literal(look.tool), behind=attempt[-1].position
        )
        found = self._view.attempts(match, newest_first=True)
        for one in islice(found, _MOST_SEARCHED):
            body, last = one[0].body, one[-1].facts
            if body and body.input_hash == wanted and last.status is Status.OK:
                yield one

    def _text(self, attempt: list[Commit]) -> str | None:
        output = read_output(self._view, attempt)
        if not output.is_exact:
            return None
        is_result = attempt[0].facts.method == "tools/call" and isinstance(
            value_of(output.text.encode()), dict
        )
        text = only_text(output.text.encode()) if is_result else None
        return output.text if text is None else text

    def _values(self, attempt: list[Commit]) -> ExpressionInput | None:
        """Return the recorded input and output; `None` if the input is not whole."""
        args, result = read_input(self._view, attempt), read_output(self._view, attempt)
        if not args.is_exact:
            return None
        given, answer = (value_of(each.text.encode()) for each in (args, result))
        return ExpressionInput(args=given, result=answer if result.is_exact else None)


def _path(method: str, args: object) -> str:
    """Return the path of a plain HTTP call, which is in its input."""
    if method == "tools/call" or not isinstance(args, dict):
        return ""
    path = cast("dict[str, object]", args).get("path")
    return path if isinstance(path, str) else ""


def _literal(name: str) -> str:
    """Return a glob that matches this name alone."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in name)
