"""Closed lists: the kinds of commits and requests, statuses, phases, effects, errors and flags."""

from enum import StrEnum
from typing import Final

# Error families, error kinds and retry classes are stored as strings (empty for none), so that this
# version can read what a newer one wrote.


class CommitKind(StrEnum):
    """What a commit records."""

    OPEN = "open"
    INTENT = "intent"
    OUTCOME = "outcome"
    NOTE = "note"
    LIFECYCLE = "lifecycle"
    REWIND = "rewind"
    COMPACT = "compact"
    REDACT = "redact"


class NoteKind(StrEnum):
    """What a note says of the commit that it follows, or of its session."""

    ABANDONED = "abandoned"
    """The caller left, cancelled, or was given an answer before the call had ended."""
    CANCEL_FORWARDED = "cancel_forwarded"
    """The server was told that nobody waits for the call."""
    DELIVERED = "delivered"
    """The answer was handed to the caller's socket whole, while the caller was there."""
    UNANSWERED = "unanswered"
    """Nothing waits any more for a call that ran on after its caller was told that its time is over."""
    RESUMABLE = "resumable"
    """An event of its stream had an id: another stream may bring its answer, also to another process."""
    DECISION = "decision"
    """What was decided, and why."""
    FACT = "fact"
    """What is held to be so, or no more."""
    EVICT = "evict"
    """The model no longer sees something."""
    RECALL = "recall"
    """It sees it again."""
    TURN = "turn"
    """Another turn begins."""
    USER_INPUT = "user_input"
    """What the user said: a source of values."""
    METADATA = "metadata"
    """What the session is about."""
    BUDGET = "budget"
    """What the session may use."""


class Status(StrEnum):
    """How an attempt stands. `PENDING` is derived (an intent without outcome), never stored."""

    PENDING = "pending"
    OK = "ok"
    ERROR = "error"
    UNKNOWN = "unknown"
    INPUT_REQUIRED = "input_required"
    ACCEPTED = "accepted"
    REPLAYED = "replayed"

    def __init__(self, word: str) -> None:
        # Attributes, for they are asked of every call: a property takes twice as long.
        self.parked = word in {"input_required", "accepted"}
        """Whether the call waits for another leg: more input, or a task's end."""
        self.unsettled = self.parked or word in {"pending", "unknown"}
        """Whether a call that stands here belongs in `pending_actions`."""


class Phase(StrEnum):
    """How far an attempt came."""

    QUEUED = "queued"
    CONNECTING = "connecting"
    SENDING = "sending"
    SENT = "sent"
    HEAD = "head"
    BODY = "body"
    DONE = "done"


class Executed(StrEnum):
    """Whether the tool's work may have happened, from the least to the most."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


class ErrorFamily(StrEnum):
    """What a runtime branches on."""

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
    """What went wrong, precisely. What each one means stands in `core.classify`."""

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
    """Whether the same call may be made again, from the most free to the strictest."""

    SAFE = "safe"
    """It was not executed, or only reads."""
    IF_IDEMPOTENT = "if_idempotent"
    UNSAFE = "unsafe"
    """Its effect may happen twice."""
    NEVER = "never"
    """Not without a change: it would fail again."""


class Effect(StrEnum):
    """What a tool does to the world outside."""

    READ = "read"
    IDEMPOTENT_WRITE = "idempotent_write"
    WRITE = "write"
    IRREVERSIBLE = "irreversible"
    UNKNOWN = "unknown"


class Actor(StrEnum):
    """Who caused a commit."""

    AGENT = "agent"
    TURNLOG = "turnlog"
    OPERATOR = "operator"


class Durability(StrEnum):
    """Who waits for the disk: non-reads, everybody, nobody."""

    BALANCED = "balanced"
    STRICT = "strict"
    RELAXED = "relaxed"


class WhenFull(StrEnum):
    """What happens to a call whose intent the store has no room for."""

    REFUSE_WRITES = "refuse_writes"
    FORWARD_UNRECORDED = "forward_unrecorded"


class TurnSource(StrEnum):
    """Where a turn number comes from."""

    EXPLICIT = "explicit"
    VENDOR = "vendor"
    GAP = "gap"


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


class RequestKind(StrEnum):
    """The `operation` of a row in the log: the kind of request that it records."""

    TOOLS_CALL = "tools/call"
    RESOURCES_READ = "resources/read"
    PROMPTS_GET = "prompts/get"
    HTTP = "http"


LOOKUPS: Final = frozenset({"resources/read", "prompts/get"})
"""MCP methods that are recorded and only look something up: no rules or limits apply to them."""
_MCP_METHODS: Final = frozenset({"tools/call", *LOOKUPS})


def request_kind(method: str) -> RequestKind:
    """Return the kind of a recorded request; every other method is one of plain HTTP."""
    return RequestKind(method) if method in _MCP_METHODS else RequestKind.HTTP


def is_mcp_method(method: str) -> bool:
    """Return whether a recorded request with this method is one of MCP."""
    return method in _MCP_METHODS


def is_tool_call(method: str) -> bool:
    """Return whether a recorded request calls a tool, over MCP or plain HTTP.

    Only calls count as uses of a tool, and only they can be refused.
    """
    return method not in LOOKUPS
