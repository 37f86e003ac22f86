"""What turnlog has to do, one id each; a test names the ids that it proves.

`proves` only marks. `test_requirements.py` holds the list and the tests against each other.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Requirement(StrEnum):
    """A required behaviour. The value is the sentence that has to be true."""

    RELAY_ANSWER = "what the upstream sent is what the agent receives: status, headers, bytes"
    RELAY_REQUEST = "what the agent sent is what the upstream receives: target, headers, bytes"
    RELAY_ONCE = (
        "each request of the agent is sent upstream once, and again only where a rule says so"
    )
    RELAY_STREAMS = "an event is passed on when it comes, and waits for no other"
    RELAY_CUTS = "an answer that breaks off upstream breaks off at the agent as well"
    RELAY_DISCONNECTS = "the upstream is told when the agent has gone"
    SHARED_APART = "agents that share a command do not meet what is another's"
    OWN_ANSWER = "where there is no answer to relay, turnlog answers by itself and says so"
    RECORD_CALLS = "each tool call has one row, in the order in which the calls began"
    RECORD_OUTCOME = "a row says how the call ended, and whether it may have been executed"
    RECORD_FLAGS = "a row carries the marks of what was strange about the call, and no others"
    RECORD_DEFINITION = "a row names the definition that the tool had when it was called"
    RECORD_CHAIN = "the log that a run leaves behind verifies"
    REDACT_SECRETS = "what is to be cut stands nowhere in the data folder and in the log"
    COMMAND_STARTS = (
        "a command that does not start is told, and its calls say that nothing was done"
    )
    COMMAND_ENDS = (
        "a command ends with all that it has started, within 2 s, and its calls are typed"
    )
    COMMAND_PACE = "a command waits for the agent that its answers are for, and for no other"
    API_GUARDED = (
        "turnlog's own API answers nobody without the token, and no page of another origin"
    )
    AGENT_OWN_SESSION = (
        "an agent that asks turnlog sees and notes its own session, and no other, in every revision"
    )
    AGENT_RECALLS = (
        "an agent learns what it no longer sees and why, and gets back what was recorded of it"
    )
    DANGLING_FACTS = (
        "each call without an answer is listed, with what is recorded of it or that nobody knows"
    )
    RESOLVE_SETTLES = "an operator settles a call of which nobody knows, once, and no other"
    FACT_HEAD = "who speaks of a fact has to know what was said of it before, and nobody else waits"
    SESSION_NAMED = (
        "what a known client sends names its conversations and turns, and how sure that is is told"
    )
    SESSION_SHARED = (
        "agents and proxies that share a session lose no commit, leave no gap, and are told apart"
    )
    STATE_FOLD = "the state of a session follows from its commits, at any of them, in any batches"
    STATE_FILES = "the state names the files that calls changed, and marks those that they may have"
    RECORD_WHY = "the reason that a caller gives for a call is recorded, without secrets"
    STORE_LIMIT = "the data folder stays within its limit, and calls go on"


def proves(*requirements: Requirement) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Say which requirements a test proves."""
    assert requirements

    def mark(test: Callable[P, T]) -> Callable[P, T]:
        return test

    return mark
