"""What happens in the demo, in order."""

from typing import Any

from msgspec import Struct

SERVER = "notes"
"""What turnlog calls the demo's server."""
RELIST = "tools/list"
"""In place of a tool: the agent asks anew what tools there are."""
_TEXT = "the log remembers what the transcript forgets"


class Call(Struct, frozen=True):
    """One call of the agent's."""

    tool: str
    arguments: dict[str, Any] = {}
    why: str = ""

    def __str__(self) -> str:
        """Return the call as people write it."""
        shown = ", ".join(f"{key}={value!r}" for key, value in self.arguments.items())
        call = self.tool if self.tool == RELIST else f"{self.tool}({shown})"
        return f"{call}  # {self.why}" if self.why else call


class Scene(Struct, frozen=True, kw_only=True):
    """Something that goes well or wrong, and the calls in which it does."""

    title: str
    calls: tuple[Call, ...]
    pinned: bool = False
    """Whether the definitions are pinned after it."""


SCENES = (
    Scene(
        title="All is well: turnlog passes on what the server says, and writes it down.",
        calls=(
            Call(RELIST),
            Call("write_note", {"name": "plan", "text": _TEXT}),
            Call("count_words", {"text": _TEXT}),
            Call("read_note", {"name": "missing"}),
        ),
        pinned=True,
    ),
    Scene(
        title="A hang: a rule gives a search one second, and one more try.",
        calls=(Call("search_notes", {"words": "pizza"}),),
    ),
    Scene(
        title="An empty result looks like success. A rule expects content: turnlog says in `_meta` what it is.",
        calls=(Call("list_tags", {"name": "plan"}),),
    ),
    Scene(
        title="A rate limit: HTTP 429 with Retry-After: 1. turnlog waits as a rule wants, and asks again.",
        calls=(Call("translate", {"text": "slowly"}),),
    ),
    Scene(
        title="A lost connection: the server is killed midway. A rule names it, yet no order is sent twice.",
        calls=(
            Call("place_order", {"what": "one pizza"}),
            Call("read_note", {"name": "order"}, "was it placed? It was: not again"),
        ),
    ),
    Scene(
        title="A changed definition: the server that came back is not what was pinned.",
        calls=(Call(RELIST), Call("count_words", {"text": _TEXT})),
    ),
)
