"""Find what a file of rules says in vain: what can match no call, decide nothing, be tried never."""

from collections.abc import Iterator
from typing import Final

from turnlog.core.classify import MEANINGS
from turnlog.core.kinds import RetryClass
from turnlog.rules.expression import root_member
from turnlog.rules.model import ASPECTS, Match, Rule

from .errors import ConfigError
from .load import Document
from .shape import Step, is_list, value_at

_METHODS: Final = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}
)


def unused_rules(document: Document, rules: tuple[Rule, ...]) -> Iterator[ConfigError]:
    """Say what of the rules of a file can never count. A proxy uses them all the same."""
    for number, rule in enumerate(rules):
        place: tuple[Step, ...] = ("rules", number)
        yield from _never_matching(document, place, rule.match)
        # A pattern of a path decides what the tool is called.
        if not rule.match.path and all(getattr(rule, aspect) is None for aspect in ASPECTS):
            message = "this rule decides nothing, add what it is to decide, such as effect: read"
            yield document.error(place, message)
        if rule.why is not None and rule.access is None:
            message = "why says nothing without access, add access: deny or leave it out"
            yield document.error((*place, "why"), message)
        for at, cause in enumerate(rule.retry.on if rule.retry else ()):
            if _is_final(cause):
                message = f"{cause!r} is never tried again, whatever the effect: leave it out"
                yield document.error(_item(document, (*place, "retry", "on"), at), message)


def _never_matching(
    document: Document, place: tuple[Step, ...], match: Match
) -> Iterator[ConfigError]:
    for key, texts, complaint in (
        ("when", match.when, _of_when),
        ("path", match.path, _of_path),
        ("method", match.method, _of_method),
    ):
        for at, text in enumerate(texts):
            if message := complaint(text):
                yield document.error(_item(document, (*place, "match", key), at), message)


def _of_when(text: str) -> str:
    if root_member(text) in ("", "args"):
        return ""
    return f"{text!r} does not look at args, all there is before a call is sent: write $.args.NAME"


def _of_path(text: str) -> str:
    return "" if text[0] in "/*" else f"no path is like {text!r}, paths begin with /"


def _of_method(text: str) -> str:
    if text in _METHODS or text.upper() not in _METHODS:
        return ""
    return f"no call has the method {text!r}, write {text.upper()!r}"


def _is_final(cause: str) -> bool:
    """Tell whether nothing that an error family or kind stands for may be tried again."""
    of_cause = (m for kind, m in MEANINGS.items() if cause in (kind, m.family))
    return all(meaning.base is RetryClass.NEVER for meaning in of_cause)


def _item(document: Document, steps: tuple[Step, ...], at: int) -> tuple[Step, ...]:
    """Return the place of an item; one that stands alone is its list."""
    return (*steps, at) if is_list(value_at(document.data, steps)) else steps
