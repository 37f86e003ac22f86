"""What stands in a field of the state, in words."""

from turnlog.core.kinds import ErrorFamily
from turnlog.core.operation import Operation
from turnlog.core.state.files import FileChange
from turnlog.core.state.session_state import DecisionMade, Evicted, FactHeld, ToolUse
from turnlog.core.state.state_view import PendingAction
from turnlog.sessions.state.state_at import EvictedKey

from .render import counted


def described(value: object) -> str:
    """Return one line about a value."""
    match value:
        case ToolUse():
            return _tool(value)
        case FileChange():
            return _file(value)
        case DecisionMade():
            return _decision(value)
        case PendingAction():
            return f"{value.status}: {value.tool}, turn {value.turn}, seq {value.seq}, since {value.since}"
        case Evicted():
            return f"{value.reason}, seq {value.seq}"
        case EvictedKey():
            back = "can be recalled" if value.retrievable else "not in the log"
            return f"{value.reason}, seq {value.seq}, {back}"
        case FactHeld():
            return _fact(value)
        case _:
            return str(value)


def changed(operation: Operation) -> str:
    """Return what was done to what, in a few words."""
    to = f" to {operation.to}" if operation.to else ""
    return f"{operation.op}{'?' if operation.maybe else ''} {operation.key}{to}"


def _tool(used: ToolUse) -> str:
    # A family and a status share the word: what failed so is safe to repeat, or was settled.
    failed = [
        (count, "error unknown" if family == ErrorFamily.UNKNOWN else family)
        for family, count in used.errors.items()
    ]
    ended = [(used.ok, "ok"), *failed, (used.unknown, "unknown"), (used.replayed, "replayed")]
    words = [f"{count} {word}" for count, word in ended if count]
    again = used.attempts - used.calls
    words += [f"{counted(again, 'attempt')} more"] if again else []
    return ", ".join([counted(used.calls, "call"), *words, f"last seq {used.last_seq}"])


def _file(file: FileChange) -> str:
    turns = _span(file.first_turn, file.last_turn)
    seqs = _span(file.first_seq, file.last_seq)
    names = (f" from {file.origin}" if file.origin else "") + (f" to {file.to}" if file.to else "")
    mark = "?" if file.maybe else ""
    return f"{file.op}{mark}{names}, turn {turns}, seq {seqs}, {file.evidence or 'recorded'}"


def _decision(made: DecisionMade) -> str:
    why = f" because {made.why}" if made.why else ""
    gone = f", superseded by {made.superseded_by}" if made.superseded_by else ""
    return f"{made.text}{why}, seq {made.seq}{gone}"


def _fact(fact: FactHeld) -> str:
    said = f"{fact.subject} = {fact.value}" if fact.subject or fact.value else "unsaid"
    holds = f", holds {fact.validity}" if fact.validity else ""
    return f"{fact.status}: {said}{holds}, seq {', '.join(map(str, fact.sources))}"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
