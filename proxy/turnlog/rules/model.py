"""The rule language as plain data, in the form of the YAML files.

`rules.policy` decides which rules apply to a call.
"""

from difflib import get_close_matches
from enum import StrEnum
from math import inf
from typing import Annotated, Any, Final, cast

from msgspec import Meta, Struct, structs

from turnlog.core.kinds import Effect, ErrorFamily, ErrorKind
from turnlog.core.operation import ChangedField, OperationType
from turnlog.core.text.units import Duration, Reader, duration, reads

from .expression import PATTERN, Expression, read_expression
from .pattern import compile_pattern

_CAUSES: Final = frozenset({*ErrorFamily, *ErrorKind})


class Expects(StrEnum):
    """The content that a result must have."""

    CONTENT = "content"
    """A value that is not null."""
    STRUCTURED = "structured"
    """Structured content."""
    NOTHING = "nothing"
    """Nothing: an empty result is a success."""


class Surface(StrEnum):
    """The form of a failure that turnlog itself reports to the caller of a `tools/call`."""

    RESULT = "result"
    """A result with `isError`, which frameworks pass to the model."""
    ERROR = "error"
    """A JSON-RPC error, which most frameworks raise."""


class KeepContent(StrEnum):
    """How much content is recorded beside its hash and size."""

    FULL = "full"
    SUMMARY = "summary"
    """Preview and summary only."""
    NOTHING = "nothing"


class RequiredProvenance(StrEnum):
    """The provenance of a tool that a call needs to be forwarded."""

    ANY = "any"
    PINNED = "pinned"
    """The definition is the one in turnlog.lock."""


class RequiredInputs(StrEnum):
    """The source that the values in the arguments of a call need."""

    ANY = "any"
    SOURCED = "sourced"
    """Each stood in an earlier output of the session, or was declared by the runtime."""


class RequiredResult(StrEnum):
    """The check that a result needs."""

    ANY = "any"
    CHECKED = "checked"
    """A digest or a signature came with it, and fits."""
    VERIFIED = "verified"
    """A signature came with it, and fits."""


class Unmet(StrEnum):
    """The treatment of a call whose provenance is not as a rule demands it, from the mildest."""

    FLAG = "flag"
    """Its outcome gets the flag `unverified`."""
    SURFACE = "surface"
    """Its success becomes the error `unverified_provenance`."""
    BLOCK = "block"
    """It is never sent; a result is surfaced."""


class BlockIf(StrEnum):
    """The calls that are never sent because of values in their arguments."""

    NEVER = "never"
    TAINTED = "tainted"
    """Those with values of a tainted output."""


class TaintAction(StrEnum):
    """The treatment of the outputs of a call."""

    MARK = "mark"
    """They are tainted."""
    ENDORSE = "endorse"
    """They are not, whatever the arguments were."""


class Access(StrEnum):
    """Whether a call is allowed."""

    ALLOW = "allow"
    DENY = "deny"
    """The call is never sent; its caller gets the name of the rule and its reason."""


class OnDuplicate(StrEnum):
    """The treatment of a duplicate of a call that is in flight."""

    JOIN = "join"
    """It waits for the answer to the first call."""
    PASS = "pass"  # noqa: S105 - not a password
    """It is forwarded as well."""
    BLOCK = "block"
    """It is refused."""


class OnDisconnect(StrEnum):
    """The treatment of a call whose caller has disconnected."""

    CANCEL = "cancel"
    """It is cancelled at once."""
    GRACE = "grace"
    """It is cancelled unless a duplicate comes within `never_twice.cancel_grace`."""
    DRAIN = "drain"
    """It runs on, and its answer is recorded."""


class Idempotency(StrEnum):
    """How a server accepts an idempotency key."""

    HEADER = "header"
    """In the header `Idempotency-Key`: turnlog sends one, the same with each attempt."""


class Jitter(StrEnum):
    """How the delay between attempts is randomized."""

    FULL = "full"
    """Evenly between nothing and the whole delay."""
    NONE = "none"


def text_list_reader(example: str) -> Reader:
    """Return a reader of a text or a list of texts; `example` is for its error message."""

    def read_texts(value: object) -> list[str]:
        texts = [item for item in _listed(value) if isinstance(item, str) and item]
        if not texts or len(texts) < len(_listed(value)):
            raise ValueError(f"{value!r} is no text and no list of texts, write one like {example}")
        return texts

    return read_texts


_read_words: Final = text_list_reader("timeout")


def read_expressions(value: object) -> list[str]:
    """Return JSONPath expressions from one or a list of them."""
    return [read_expression(item) for item in _listed(value)]


def read_causes(value: object) -> list[str]:
    """Return error families and kinds from one or a list of them."""
    found = cast("list[str]", _read_words(value))
    for cause in found:
        if cause not in _CAUSES:
            close = get_close_matches(cause, list(map(str, _CAUSES)), n=1)
            families = f"write a kind or one of the families {', '.join(sorted(ErrorFamily))}"
            advice = f"did you mean {close[0]!r}?" if close else families
            raise ValueError(f"{cause!r} is no error, {advice}")
    return found


def read_provenance(value: object) -> object:
    """Return the mapping that a single word stands for: the tool that it demands, or nothing."""
    if not isinstance(value, str):
        return value
    if value not in set(RequiredProvenance):
        words = f"{RequiredProvenance.PINNED} or {RequiredProvenance.ANY}"
        raise ValueError(
            f"{value!r} is no provenance, write {words}, or a mapping like {{inputs: sourced, then: flag}}"
        )
    return {"tool": value, "then": Unmet.BLOCK.value} if value == RequiredProvenance.PINNED else {}


def read_template(value: object) -> dict[str, object]:
    """Return the arguments of a call; each text in them that begins with `$` is an expression."""
    if not isinstance(value, dict):
        advice = "write one like {path: $.args.path}"
        raise ValueError(f"{value!r} is no mapping of arguments, {advice}")  # noqa: TRY004
    arguments = cast("dict[object, object]", value)
    _check_expressions(arguments)
    return {str(name): item for name, item in arguments.items()}


def _check_expressions(item: object) -> None:
    if isinstance(item, dict):
        item = list(cast("dict[object, object]", item).values())
    if isinstance(item, list):
        for value in cast("list[object]", item):
            _check_expressions(value)
    elif isinstance(item, str) and item.startswith("$"):
        read_expression(item)


def number_reader(most: int, mistake: str, *, whole: bool = True) -> Reader:
    """Return a reader of a number from 1 to `most`; `mistake` is for its error message."""

    def read_number(value: object) -> int | float:
        kinds = int if whole else int | float
        if isinstance(value, bool) or not isinstance(value, kinds) or not 1 <= value <= most:
            raise ValueError(f"{value!r} is no {mistake}")
        return value

    return read_number


read_attempts: Final = number_reader(100, "number of attempts, write one from 1 to 100")
read_concurrency: Final = number_reader(
    10_000, "number of calls, write one from 1 to 10000, or nothing for no limit"
)
read_factor: Final = number_reader(100, "factor, write a number from 1 to 100", whole=False)


def read_limit(value: object) -> float:
    """Return a time limit in seconds."""
    limit = duration(value)
    if limit == 0:
        raise ValueError(
            f"{value!r} leaves no time at all, write a duration like 30s, or nothing for no limit"
        )
    return limit


def read_pattern(value: object) -> str:
    """Return a regular expression for RE2."""
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
Concurrency = Annotated[int, reads(read_concurrency, {"minimum": 1, "maximum": 10_000})]


def _listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else [value]


class Match(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The calls that a rule applies to: those that match every field. Globs as in `fnmatch`."""

    server: Servers = ("*",)
    tool: Tools = ("*",)
    method: Methods = ("*",)
    """HTTP method; `tools/call` for MCP."""
    path: Paths = ()
    """Paths of plain HTTP tools; `*` is one segment, `**` any number. The first one that matches names
    the tool: `GET /users/*`."""
    effect: Effects = ()
    """Effects as decided by the rules before this one."""
    when: Expressions = ()
    """Expressions that each must select something in `{args}`."""


class Timeouts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time limits of a call in seconds."""

    queue: Limit = inf
    """From the arrival to sending: the wait for the log and for concurrency."""
    connect: Limit = inf
    response: Limit = inf
    """From the last byte of the request to the response."""
    idle: Limit = inf
    """Between two events of a stream, or two pieces of a body."""
    total: Limit = inf
    """From the arrival to the end, over all attempts."""
    startup: Limit | None = None
    """From the first message to a command to its first output; 10 minutes by default."""


class Retry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which failures are retried, and when. Times are in seconds."""

    on: Annotated[
        tuple[str, ...],
        reads(read_causes, {**_ONE_OR_MORE, "items": {"enum": sorted(_CAUSES)}}),
    ]
    """Error families and kinds."""
    max_attempts: Annotated[int, reads(read_attempts, {"minimum": 1, "maximum": 100})] = 3
    """Number of attempts, with the first one."""
    base_interval: Duration = 0.2
    factor: Annotated[float, reads(read_factor, {"minimum": 1, "maximum": 100})] = 2.0
    max_interval: Duration = 5.0
    jitter: Jitter = Jitter.FULL
    budget: Duration = 60.0
    """Latest start of the last attempt, from the start of the first."""


class ErrorMap(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The kind of error of an answer that matches every condition."""

    kind: ErrorKind
    text: Annotated[str, reads(read_pattern)] = ""
    """RE2 pattern to find in the text of the result or error."""
    code: int | None = None
    """JSON-RPC error code."""
    status: int | None = None
    """HTTP status."""
    when: Expressions = ()
    retry_after: Duration = 0.0


class Extractor(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change by a call: `op` on each key that `key` selects."""

    field: ChangedField
    op: OperationType
    key: Expression
    to: Annotated[str, reads(read_expression, {**PATTERN})] = ""
    """Expression for the new names after a rename, in the order of `key`."""
    when: Expressions = ()


class CallTemplate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of a tool of the same server."""

    tool: Annotated[str, Meta(min_length=1)]
    args: Annotated[dict[str, Any], reads(read_template, {"type": "object"})] = {}
    """A text in it that begins with `$` is an expression over `{args, result}` of the recorded call."""


class Look(CallTemplate, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A read that shows whether the effect is still as the call left it."""

    expect: Expression
    """Expression over `{args, result}` for the text that the read must give."""


class Compensation(CallTemplate, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The call that would undo an effect. The plan of a rewind proposes it; turnlog does not make it."""

    look: Look | None = None
    """Without it only later recorded changes of the same thing make turnlog withhold the proposal."""


class ProvenanceDemand(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provenance that a call needs. The short form `pinned` is `{tool: pinned, then: block}`."""

    tool: RequiredProvenance = RequiredProvenance.ANY
    inputs: RequiredInputs = RequiredInputs.ANY
    result: RequiredResult = RequiredResult.ANY
    then: Unmet = Unmet.FLAG
    """What follows if it is not."""


Demand = Annotated[
    ProvenanceDemand | None,
    reads(
        read_provenance,
        {"anyOf": [{"enum": sorted(RequiredProvenance)}, {"$ref": "#/$defs/ProvenanceDemand"}]},
    ),
]


class Rule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One rule. It does not decide an aspect that is `None`."""

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
    provenance: Demand = None
    on_duplicate: OnDuplicate | None = None
    on_disconnect: OnDisconnect | None = None
    replay_if_slower_than: Limit | None = None
    """s: a slower answer is replayed to a duplicate even if it was delivered."""
    effect_key: Expressions | None = None
    """Expressions over `{args}` that identify the effect of a call; it is recorded."""
    idempotency: Idempotency | None = None
    concurrency: Concurrency | None = None
    """Number of calls of this rule that may be in flight; further ones wait."""
    block_if: BlockIf | None = None
    taint: TaintAction | None = None
    access: Access | None = None
    why: WhyText | None = None
    """Reason that the caller of a denied call is told."""
    compensate: Compensation | None = None
    """The call that would undo the effect, for the plan of a rewind."""


class RuleFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of rules; the first rule that decides an aspect wins."""

    rules: tuple[Rule, ...]


ASPECTS: Final = tuple(
    item.name for item in structs.fields(Rule) if item.name not in {"name", "match", "why"}
)
"""Names of the aspects that a rule can decide."""
