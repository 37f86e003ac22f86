"""Closed lists: the kinds of commits and requests, statuses, phases, effects, errors and flags."""

from enum import StrEnum
from typing import Final

# Error families, error kinds and retry classes are stored as strings (empty for none), so that this
# version can read what a newer one wrote.


class CommitKind(StrEnum):
    """The kind of a commit."""

    OPEN = "open"
    INTENT = "intent"
    OUTCOME = "outcome"
    NOTE = "note"
    LIFECYCLE = "lifecycle"
    REWIND = "rewind"
    COMPACT = "compact"
    REDACT = "redact"


class NoteKind(StrEnum):
    """The kind of a note about a commit or a session."""

    ABANDONED = "abandoned"
    """The caller left, cancelled, or was given an answer before the call had ended."""
    CANCEL_FORWARDED = "cancel_forwarded"
    """A cancel was sent to the server."""
    DELIVERED = "delivered"
    """The whole answer was written to the caller's socket while it was open."""
    UNANSWERED = "unanswered"
    """turnlog stopped waiting for a call that ran on after its caller's timeout."""
    RESUMABLE = "resumable"
    """An event of the stream had an id: another stream, also in another process, may resume it."""
    DECISION = "decision"
    """A decision and its reason."""
    FACT = "fact"
    """A fact that is asserted, verified, disputed or retracted."""
    EVICT = "evict"
    """Something left the model's context."""
    RECALL = "recall"
    """It is in the context again."""
    TURN = "turn"
    """A new turn begins."""
    USER_INPUT = "user_input"
    """Text of the user, as a source of values."""
    METADATA = "metadata"
    """Descriptions of the session."""
    BUDGET = "budget"
    """Limits of the session."""
    EFFECT = "effect"
    """What is to become of a call whose effect another branch of the session had."""
    HOLD = "hold"
    """The session's content is kept, whatever its age, until a release."""
    RELEASE = "release"
    """The hold is over."""
    TAINT = "taint"
    """An operator marks the output of the call as tainted."""
    ENDORSE = "endorse"
    """An operator says that the output of the call is not tainted."""


NOTES_OF_PROXIES: Final = frozenset(
    {
        NoteKind.ABANDONED,
        NoteKind.CANCEL_FORWARDED,
        NoteKind.DELIVERED,
        NoteKind.UNANSWERED,
        NoteKind.RESUMABLE,
    }
)
"""The notes about calls that a proxy writes by itself."""
TAINT_NOTES: Final = frozenset({NoteKind.TAINT, NoteKind.ENDORSE})


class Status(StrEnum):
    """The status of an attempt. `PENDING` (an intent without outcome) is derived, never stored."""

    PENDING = "pending"
    OK = "ok"
    ERROR = "error"
    UNKNOWN = "unknown"
    INPUT_REQUIRED = "input_required"
    ACCEPTED = "accepted"
    REPLAYED = "replayed"

    def __init__(self, word: str) -> None:
        # Attributes because they are read for every call: a property takes twice as long.
        self.parked = word in {"input_required", "accepted"}
        """Whether the call waits for another leg: more input, or a task's end."""
        self.unsettled = self.parked or word in {"pending", "unknown"}
        """Whether a call with this status belongs in `pending_actions`."""


class Phase(StrEnum):
    """How far an attempt got."""

    QUEUED = "queued"
    CONNECTING = "connecting"
    SENDING = "sending"
    SENT = "sent"
    HEAD = "head"
    BODY = "body"
    DONE = "done"


class Executed(StrEnum):
    """Whether the tool's work may have happened, in rising order."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


class ErrorFamily(StrEnum):
    """The family of an error, for an agent's runtime to branch on."""

    TIMEOUT = "timeout"
    CONNECTION = "connection"
    RATE_LIMITED = "rate_limited"
    AUTH = "auth"
    INVALID = "invalid"
    TOOL_ERROR = "tool_error"
    NULL_RESULT = "null_result"
    MALFORMED_RESULT = "malformed_result"
    UNVERIFIED = "unverified"
    BLOCKED = "blocked"
    SESSION = "session"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class ErrorKind(StrEnum):
    """The precise kind of an error; `core.classify` has the meaning of each."""

    QUEUE_TIMEOUT = "queue_timeout"
    CONNECT_TIMEOUT = "connect_timeout"
    RESPONSE_TIMEOUT = "response_timeout"
    PROGRESS_TIMEOUT = "progress_timeout"
    DEADLINE_EXHAUSTED = "deadline_exhausted"
    CONNECT_FAILED = "connect_failed"
    CONNECTION_LOST = "connection_lost"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"
    CIRCUIT_OPEN = "circuit_open"
    RATE_LIMITED = "rate_limited"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission_denied"
    INVALID_REQUEST = "invalid_request"
    TOOL_NOT_FOUND = "tool_not_found"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    TOOL_FAILED = "tool_failed"
    UPSTREAM_INTERNAL = "upstream_internal"
    NULL_RESULT = "null_result"
    MALFORMED_RESULT = "malformed_result"
    RESULT_TOO_LARGE = "result_too_large"
    UNVERIFIED_PROVENANCE = "unverified_provenance"
    POLICY_BLOCKED = "policy_blocked"
    SESSION_UNAVAILABLE = "session_unavailable"
    SESSION_LOST = "session_lost"
    CANCELLED_BY_CALLER = "cancelled_by_caller"
    OUTCOME_UNKNOWN = "outcome_unknown"


class RetryClass(StrEnum):
    """Whether the same call may be made again, in order of strictness."""

    SAFE = "safe"
    """It was not executed, or only reads."""
    IF_IDEMPOTENT = "if_idempotent"
    UNSAFE = "unsafe"
    """Its effect may happen twice."""
    NEVER = "never"
    """It would fail again unless it is changed."""


class Effect(StrEnum):
    """The effect of a tool on the world outside."""

    READ = "read"
    IDEMPOTENT_WRITE = "idempotent_write"
    WRITE = "write"
    IRREVERSIBLE = "irreversible"
    UNKNOWN = "unknown"


class Actor(StrEnum):
    """The cause of a commit."""

    AGENT = "agent"
    TURNLOG = "turnlog"
    OPERATOR = "operator"


class Durability(StrEnum):
    """Which calls wait for the disk: all but reads, all, none."""

    BALANCED = "balanced"
    STRICT = "strict"
    RELAXED = "relaxed"


class WhenFull(StrEnum):
    """The treatment of a call whose intent does not fit into the store."""

    REFUSE_WRITES = "refuse_writes"
    FORWARD_UNRECORDED = "forward_unrecorded"


class TurnSource(StrEnum):
    """The source of a turn's number."""

    EXPLICIT = "explicit"
    VENDOR = "vendor"
    GAP = "gap"


class Gone(StrEnum):
    """The reasons why content cannot be read any more, in the words of the API."""

    TRIMMED = "trimmed"
    """To make room."""
    EXPIRED = "expired"
    """By age."""
    PURGED = "purged"
    """By an operator, for good."""
    UNSAVED = "unsaved"
    """It was never on disk: a crash came before, or the disk took no more."""
    DAMAGED = "damaged"
    """It is not as it was written."""


class Rung(StrEnum):
    """The rung of the identity ladder that named a session, strongest first."""

    EXPLICIT = "explicit"
    VENDOR = "vendor"
    ENVIRONMENT = "environment"
    TRANSPORT = "transport"
    IMPLICIT = "implicit"


class Flag(StrEnum):
    """A mark on an outcome."""

    NULL_RESULT = "null_result"
    VOID = "void"
    EMPTY = "empty"
    ERROR_LIKE_TEXT = "error_like_text"
    MALFORMED = "malformed"
    NOT_JSON = "not_json"
    SCHEMA_MISMATCH = "schema_mismatch"
    CONTENT_TYPE_MISMATCH = "content_type_mismatch"
    DUPLICATE_KEYS = "duplicate_keys"
    INVALID_UTF8 = "invalid_utf8"
    LONE_SURROGATE = "lone_surrogate"
    NONSTANDARD_JSON = "nonstandard_json"
    BOM = "bom"
    ID_MISMATCH = "id_mismatch"
    ID_REUSED = "id_reused"
    TRUNCATED_RECORD = "truncated_record"
    REDACTED = "redacted"
    LATE = "late"
    RETRIED = "retried"
    REPLAYED = "replayed"
    JOINED = "joined"
    REPEAT_OF_UNKNOWN = "repeat_of_unknown"
    LOOP = "loop"
    UNRECORDED = "unrecorded"
    SESSION_REPLACED = "session_replaced"
    CHANGED_DEFINITION = "changed_definition"
    UNVERIFIED = "unverified"
    TAINTED_IN = "tainted_in"
    TAINTED_OUT = "tainted_out"
    STRAY_OUTPUT = "stray_output"
    PROCESS_EXIT = "process_exit"
    SERVER_REQUEST = "server_request"
    RESUMED = "resumed"
    RESOLVED = "resolved"
    EXPIRED = "expired"
    REDIRECTED = "redirected"
    INFERRED = "inferred"
    NOT_SEARCHED = "not_searched"
    SESSION_SUSPECT = "session_suspect"
    FORGED_OUTCOME = "forged_outcome"
    REPEAT_OF_DISCARDED = "repeat_of_discarded"
    TAINT_MARKED = "taint_marked"
    TAINT_ENDORSED = "taint_endorsed"


class ValueOrigin(StrEnum):
    """Where a value in the arguments of a call came from."""

    SOURCED = "sourced"
    """It stood in an earlier output of the session."""
    DECLARED = "declared"
    """The runtime declared it, as input of the user or as a fact."""
    UNVERIFIED = "unverified"
    """It was not found in what is remembered of the session."""


class MatchEvidence(StrEnum):
    """How the text of an argument matched that of an earlier output, strongest first."""

    EXACT = "exact"
    """The whole argument is a value of the output."""
    ENTITY = "entity"
    """An identifier, path, URL or number in the argument is in the output."""
    SHINGLE = "shingle"
    """Eight words in a row are in both, or all words of a shorter argument."""
    WEAK = "weak"
    """Only what other texts may well have too: a short number, a day, the name of a file."""


class RequestKind(StrEnum):
    """The `operation` of a row in the log: the kind of request that it records."""

    TOOLS_CALL = "tools/call"
    RESOURCES_READ = "resources/read"
    PROMPTS_GET = "prompts/get"
    HTTP = "http"


LOOKUPS: Final = frozenset({"resources/read", "prompts/get"})
"""MCP methods that are recorded and only look something up: no rules or limits apply to them."""
MCP_METHODS: Final = frozenset({"tools/call", *LOOKUPS})
"""MCP methods that are recorded; any other method is one of plain HTTP."""


def request_kind(method: str) -> RequestKind:
    """Return the kind of a recorded request; every other method is one of plain HTTP."""
    return RequestKind(method) if method in MCP_METHODS else RequestKind.HTTP


def is_tool_call(method: str) -> bool:
    """Return whether a recorded request calls a tool, over MCP or plain HTTP.

    Only calls count as uses of a tool, and only they can be refused.
    """
    return method not in LOOKUPS
