"""The rule language: what a user may say of calls, as a YAML file has it. Plain data.

What rules come to for one call is worked out in `rules.policy`.
"""

from enum import StrEnum
from math import inf
from typing import Annotated, Final, cast

from msgspec import Meta, Struct, structs

from turnlog.core.kinds import Effect, ErrorFamily, ErrorKind
from turnlog.core.operation import ChangedField, OperationType
from turnlog.core.text.units import Duration, Reader, duration, reads

from .expression import PATTERN, Expression, read_expression
from .pattern import compile_pattern

_CAUSES: Final = frozenset({*ErrorFamily, *ErrorKind})
_MOST_ATTEMPTS: Final = 100
_MOST_UNDER_WAY: Final = 10_000


class Expects(StrEnum):
    """What a result must hold to be one."""

    CONTENT = "content"
    """Something that is not null."""
    STRUCTURED = "structured"
    """Structured content."""
    NOTHING = "nothing"
    """Nothing: a result that says nothing is as it should be."""


class Surface(StrEnum):
    """How a failure that turnlog itself reports reaches the caller of a `tools/call`."""

    RESULT = "result"
    """As a result with `isError`, which frameworks hand to the model."""
    ERROR = "error"
    """As a JSON-RPC error, which most frameworks raise."""


class KeepContent(StrEnum):
    """What is recorded of content beside its hash and size."""

    FULL = "full"
    SUMMARY = "summary"
    """Preview and summary alone."""
    NOTHING = "nothing"


class RequiredProvenance(StrEnum):
    """What a tool's definition must be for a call to be forwarded."""

    ANY = "any"
    PINNED = "pinned"
    """Pinned in turnlog.lock, and unchanged since."""


class Access(StrEnum):
    """Whether a call may be made at all."""

    ALLOW = "allow"
    DENY = "deny"
    """It is never sent; its caller is told which rule forbids it, and why."""


class OnDuplicate(StrEnum):
    """What becomes of a call that asks what a call under way asks."""

    JOIN = "join"
    """It waits for the answer to that one."""
    PASS = "pass"  # noqa: S105 - a word, no password
    """It is one of its own."""
    BLOCK = "block"
    """It is refused."""


class OnDisconnect(StrEnum):
    """What becomes of a call whose caller is gone."""

    CANCEL = "cancel"
    """It is taken back at once."""
    GRACE = "grace"
    """It is taken back, unless somebody asks the same within `never_twice.cancel_grace`."""
    DRAIN = "drain"
    """It runs on, and its answer is recorded."""


class Idempotency(StrEnum):
    """How a server honours an idempotency key."""

    HEADER = "header"
    """As the field `Idempotency-Key`: then turnlog sends it one, the same with each attempt."""


class Jitter(StrEnum):
    """How a wait between attempts is spread."""

    FULL = "full"
    """Evenly between nothing and all of it."""
    NONE = "none"


def text_list_reader(example: str) -> Reader:
    """Return the reader of a text or a list of texts; `example` is one for people."""

    def read_texts(value: object) -> list[str]:
        texts = [item for item in _listed(value) if isinstance(item, str) and item]
        if not texts or len(texts) < len(_listed(value)):
            raise ValueError(f"{value!r} is no text and no list of texts, write one like {example}")
        return texts

    return read_texts


_read_words: Final = text_list_reader("timeout")


def read_expressions(value: object) -> list[str]:
    """Read a JSONPath or a list of them."""
    return [read_expression(item) for item in _listed(value)]


def read_causes(value: object) -> list[str]:
    """Read error families and kinds."""
    found = cast("list[str]", _read_words(value))
    for cause in found:
        if cause not in _CAUSES:
            known = ", ".join(sorted(ErrorFamily))
            raise ValueError(f"{cause!r} is no error, write a kind or one of the families {known}")
    return found


def read_attempts(value: object) -> int:
    """Read how often a call is tried."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_ATTEMPTS:
        raise ValueError(f"{value!r} is no number of attempts, write one from 1 to 100")
    return value


def read_concurrency(value: object) -> int:
    """Read how many calls may be under way at once."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_UNDER_WAY:
        raise ValueError(
            f"{value!r} is no number of calls, write one from 1 to 10000, or nothing for no limit"
        )
    return value


def read_limit(value: object) -> float:
    """Read how long a step of a call may take."""
    limit = duration(value)
    if limit == 0:
        raise ValueError(
            f"{value!r} leaves no time at all, write a duration like 30s, or nothing for no limit"
        )
    return limit


def read_factor(value: object) -> float:
    """Read what a wait is multiplied by from attempt to attempt."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 100:
        raise ValueError(f"{value!r} is no factor, write a number from 1 to 100")
    return float(value)


def read_pattern(value: object) -> str:
    """Read a regular expression of RE2, which takes linear time on any text."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no regular expression, quote it")  # noqa: TRY004
    try:
        compile_pattern(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is no RE2 pattern ({error}), correct it") from None
    return value


_ONE_OR_MORE: Final = {"type": ["string", "array"], "minItems": 1}
Tools = Annotated[tuple[str, ...], reads(text_list_reader("read_*"), {**_ONE_OR_MORE})]
Servers = Annotated[tuple[str, ...], reads(text_list_reader("files"), {**_ONE_OR_MORE})]
Methods = Annotated[tuple[str, ...], reads(text_list_reader("GET"), {**_ONE_OR_MORE})]
Paths = Annotated[tuple[str, ...], reads(text_list_reader("/users/*"), {**_ONE_OR_MORE})]
Effects = Annotated[tuple[Effect, ...], reads(text_list_reader("read"), {**_ONE_OR_MORE})]
WhyText = Annotated[str, Meta(min_length=1, max_length=500)]
Expressions = Annotated[
    tuple[str, ...],
    reads(read_expressions, {"type": ["string", "array"], "items": {"type": "string", **PATTERN}}),
]
Limit = Annotated[float, reads(read_limit, {"type": ["number", "string"], "exclusiveMinimum": 0})]
"""Seconds; infinite for no limit."""
Concurrency = Annotated[int, reads(read_concurrency, {"minimum": 1, "maximum": _MOST_UNDER_WAY})]


def _listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else [value]


class Match(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which calls a rule is for: those that everything here fits. Globs as in `fnmatch`."""

    server: Servers = ("*",)
    tool: Tools = ("*",)
    method: Methods = ("*",)
    """HTTP method; `tools/call` for MCP."""
    path: Paths = ()
    """Paths of plain HTTP tools; `*` is one segment, `**` any number. The one that fits first names
    the tool: `GET /users/*`."""
    effect: Effects = ()
    """As the rules before this one decided."""
    when: Expressions = ()
    """Each of these has to select something in `{args}`."""


class Timeouts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a call may take, in seconds."""

    queue: Limit = inf
    """Until it is sent: for the journal, or a free place."""
    connect: Limit = inf
    response: Limit = inf
    """From the request's last byte to the response."""
    idle: Limit = inf
    """Between two events of a stream, or two pieces of a body."""
    total: Limit = inf
    """From its arrival to its end, over all attempts."""
    startup: Limit | None = None
    """Until a command says anything, from when it is asked something; else 10 minutes."""

    @property
    def bounds_queue(self) -> bool:
        """Whether a call may wait only so long before it is sent."""
        return self.queue < inf or self.total < inf

    @property
    def bounds_answer(self) -> bool:
        """Whether an answer may take only so long once there is a connection."""
        return self.response < inf or self.idle < inf or self.total < inf


class Retry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which failures are tried again, and when. Times are in seconds."""

    on: Annotated[
        tuple[str, ...],
        reads(read_causes, {**_ONE_OR_MORE, "items": {"enum": sorted(_CAUSES)}}),
    ]
    """Error families and kinds."""
    max_attempts: Annotated[
        int, reads(read_attempts, {"minimum": 1, "maximum": _MOST_ATTEMPTS})
    ] = 3
    """The first one counts."""
    base_interval: Duration = 0.2
    factor: Annotated[float, reads(read_factor, {"minimum": 1, "maximum": 100})] = 2.0
    max_interval: Duration = 5.0
    jitter: Jitter = Jitter.FULL
    budget: Duration = 60.0
    """When the last attempt may start, from the start of the first."""


class ErrorMap(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer that means another kind of error than it says. Everything given has to fit."""

    kind: ErrorKind
    text: Annotated[str, reads(read_pattern)] = ""
    """RE2 pattern that the text of the result or error holds."""
    code: int | None = None
    """JSON-RPC error code."""
    status: int | None = None
    """HTTP status."""
    when: Expressions = ()
    retry_after: Duration = 0.0


class Extractor(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a call that succeeded did: `op` to each thing that `key` selects."""

    field: ChangedField
    op: OperationType
    key: Expression
    to: Annotated[str, reads(read_expression, {**PATTERN})] = ""
    """The new names of what is renamed, in the same order."""
    when: Expressions = ()


class Rule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One rule. An aspect that is `None` is none that this rule speaks of."""

    name: str = ""
    match: Match = Match()
    effect: Effect | None = None
    timeout: Timeouts | None = None
    retry: Retry | None = None
    expects: Expects | None = None
    null_when: Expressions | None = None
    map_error: tuple[ErrorMap, ...] | None = None
    surface: Surface | None = None
    delta: tuple[Extractor, ...] | None = None
    redact: Expressions | None = None
    store: KeepContent | None = None
    provenance: RequiredProvenance | None = None
    on_duplicate: OnDuplicate | None = None
    on_disconnect: OnDisconnect | None = None
    replay_if_slower_than: Limit | None = None
    """s: an answer that took longer is given again to who asks the same, delivered or not."""
    effect_key: Expressions | None = None
    """Expressions over `{args}` that name the effect a call has on the world; it is recorded."""
    idempotency: Idempotency | None = None
    concurrency: Concurrency | None = None
    """How many calls that this rule decides may be under way at once; the others wait."""
    access: Access | None = None
    why: WhyText | None = None
    """What whoever makes a denied call is told."""


class RuleFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of rules, the first ones first."""

    rules: tuple[Rule, ...]


ASPECTS: Final = tuple(
    item.name for item in structs.fields(Rule) if item.name not in {"name", "match", "why"}
)
"""What a rule may speak of."""
