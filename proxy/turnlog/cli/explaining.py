"""What `turnlog rules explain` says to people."""

from typing import Any

from turnlog.core.kinds import Effect
from turnlog.core.text.terminal import escape_unprintable
from turnlog.core.text.units import duration_text
from turnlog.packs.explain import Explanation, RetryForecast
from turnlog.packs.shape import is_list, is_mapping
from turnlog.rules.model import Access

from .render import Cell, Column, Style, table

_ASPECTS = tuple(map(Column, ("ASPECT", "RULE", "WHERE", "IN FORCE")))
_RETRIES = tuple(map(Column, ("ERROR", "KIND", "RETRY CLASS", "TRIED AGAIN")))
_NEVER_TWICE = (
    "A repeat of a call is found in a session with a name (/s/NAME/..., Turnlog-Session, wrap --session,",
    "a client that names its conversations, Mcp-Session-Id), or by an idempotency key. It is not where",
    "the client has neither, or opens a session for each call: then the log says `session.uncovered`.",
    "",
)
_DURATIONS = frozenset({"base_interval", "max_interval", "budget", "retry_after"})


def lines(explanation: Explanation) -> list[str]:
    """Return what is printed."""
    return [
        escape_unprintable(" ".join(filter(None, _title(explanation)))),
        "",
        *table(_ASPECTS, _aspects(explanation), width=None),
        "",
        *_outcome(explanation),
    ]


def _outcome(explanation: Explanation) -> list[str]:
    if explanation.aspects["access"].value == Access.DENY:
        # Effect and retries are about calls that are sent.
        return [escape_unprintable(f"denied, never sent: {explanation.why}".removesuffix(": "))]
    return [*_effect(explanation), *_retries(explanation.retries)]


def _title(explanation: Explanation) -> tuple[str, ...]:
    return (f"{explanation.server}/{explanation.tool}", explanation.method, explanation.path)


def _aspects(explanation: Explanation) -> list[list[Cell]]:
    return [
        [
            Cell(name),
            Cell(aspect.rule or "no rule", None if aspect.rule else Style.FAINT),
            Cell(f"{aspect.file}:{aspect.line}" if aspect.file else ""),
            Cell(_shown(name, aspect.value)),
        ]
        for name, aspect in explanation.aspects.items()
    ]


def _effect(explanation: Explanation) -> list[str]:
    effect = explanation.effect
    if explanation.aspects["effect"].rule is not None:
        guarded = effect not in {Effect.READ, Effect.UNKNOWN}
        return [f"effect: {effect}", *(_NEVER_TWICE if guarded else ())]
    if explanation.path:
        return [f"effect: {effect}, by the HTTP method: no rule names it"]
    counts = " It counts as a write." if effect is Effect.UNKNOWN else ""
    return [f"effect: {effect}, unless annotations of a trusted server name one.{counts}"]


def _retries(retries: list[RetryForecast]) -> list[str]:
    if not retries:
        return ["nothing is tried again: no rule speaks of retry"]
    rows = [
        [
            Cell(each.error),
            Cell(each.kind),
            Cell(each.retry),
            Cell("yes", Style.GOOD) if each.retried else Cell("no"),
        ]
        for each in retries
    ]
    return [
        "",
        *table(_RETRIES, rows, width=None),
        "",
        "Before the first byte was sent, each of these but `never` is safe. `unsafe` is tried again",
        "only with an idempotency key that the server honours, over HTTP; nothing is once the caller",
        "has seen a part of the answer.",
    ]


def _shown(name: str, value: Any) -> str:
    """Return a value about as a file of rules would have it."""
    if name == "timeout":
        limits: dict[str, float] = value
        return ", ".join(f"{key} {duration_text(limit)}" for key, limit in limits.items()) or "-"
    if is_mapping(value):
        return ", ".join(f"{key}: {_item(key, item)}" for key, item in value.items())
    if is_list(value):
        return "; ".join(_shown("", item) for item in value) or "-"
    return "-" if value is None else str(value)


def _item(key: str, item: Any) -> str:
    if key in _DURATIONS:
        return duration_text(item)
    if is_list(item):
        return f"[{', '.join(map(str, item))}]"
    return f"{item:g}" if isinstance(item, float) else str(item)
