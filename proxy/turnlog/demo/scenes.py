"""The scenes of the demo, in order."""

from typing import Any

from msgspec import Struct

SERVER = "notes"
"""Name of the demo's server in turnlog."""
RELIST = "tools/list"
"""In place of a tool name: the agent lists the tools again."""
_TEXT = "the log remembers what the transcript forgets"


class ScriptedCall(Struct, frozen=True):
    """One call of the agent."""

    tool: str
    arguments: dict[str, Any] = {}
    why: str = ""

    def __str__(self) -> str:
        """Return the call in Python's notation."""
        shown = ", ".join(f"{key}={value!r}" for key, value in self.arguments.items())
        call = self.tool if self.tool == RELIST else f"{self.tool}({shown})"
        return f"{call}  # {self.why}" if self.why else call


class Scene(Struct, frozen=True, kw_only=True):
    """One situation and the calls that show it."""

    title: str
    calls: tuple[ScriptedCall, ...]
    pinned: bool = False
    """Whether the tools are pinned after it."""


SCENES = (
    Scene(
        title="All is well: turnlog passes on what the server answers, and records it.",
        calls=(
            ScriptedCall(RELIST),
            ScriptedCall("write_note", {"name": "plan", "text": _TEXT}),
            ScriptedCall("count_words", {"text": _TEXT}),
            ScriptedCall("read_note", {"name": "missing"}),
        ),
        pinned=True,
    ),
    Scene(
        title="A hang: a rule gives a search one second, and one retry.",
        calls=(ScriptedCall("search_notes", {"words": "pizza"}),),
    ),
    Scene(
        title="An empty result looks like success. A rule expects content, so turnlog marks it in `_meta`.",
        calls=(ScriptedCall("list_tags", {"name": "plan"}),),
    ),
    Scene(
        title="A rate limit: HTTP 429 with Retry-After: 1. A rule allows a retry, so turnlog waits and retries.",
        calls=(ScriptedCall("translate", {"text": "slowly"}),),
    ),
    Scene(
        title="A lost connection: the server is killed during a call. The order is not sent twice.",
        calls=(
            ScriptedCall("place_order", {"what": "one pizza"}),
            ScriptedCall("read_note", {"name": "order"}, "was it placed? Yes: do not repeat it"),
        ),
    ),
    Scene(
        title="A changed definition: the restarted server lists another definition than the pinned one.",
        calls=(ScriptedCall(RELIST), ScriptedCall("count_words", {"text": _TEXT})),
    ),
)
