"""The tools for an agent's own session: one table, and the functions behind it.

`api.agent_mcp.server` lists and calls them, over any transport.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any, Final, Protocol, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Meta, Raw, Struct

from turnlog.core import ids
from turnlog.core.kinds import Actor
from turnlog.core.note import (
    NAME_CHARS,
    Decision,
    EffectChoice,
    EffectNote,
    Evict,
    Fact,
    Note,
    Recall,
    TurnStart,
    UserInput,
    Words,
)
from turnlog.sessions.control.effects import chosen_effect
from turnlog.sessions.control.lifecycle import SessionAction, SessionChange
from turnlog.sessions.control.writer import OperationResult
from turnlog.sessions.notes import WrittenNote, parse_note
from turnlog.sessions.pages import DanglingPage, LogPage
from turnlog.sessions.recall import Recalled, recall
from turnlog.sessions.state.state_at import SessionState
from turnlog.store.read.view import View
from turnlog.store.saved_states import SavedStates
from turnlog.wire.json_text import members

from .endpoints import ApiRequest, Differences, dangling_of, diff_of, log_of, state_of
from .openapi import anything
from .parameters import (
    All,
    DanglingQuery,
    DiffArguments,
    Head,
    Limit,
    LogQuery,
    NoteId,
    StateQuery,
    Why,
)

T = TypeVar("T")
AgentNote: TypeAlias = Decision | Fact | Evict | TurnStart | UserInput
"""Notes that an agent may write. Only its runtime writes metadata and budgets."""
Key = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=NAME_CHARS,
        description="A call's id, or the seq of one of its rows in the log.",
    ),
]
_REF: Final = "#/$defs/{name}"
_LARGEST: Final = 4 << 20
"""Bytes of an answer."""
_encode = msgspec.json.Encoder().encode


class AgentSession(Protocol):
    """The session that an agent's tools read and write.

    Methods raise `NoSessionError` if the session is missing or ambiguous, and `StoreError`.
    """

    @property
    def now(self) -> int:
        """ns UTC."""
        ...

    @property
    def saved(self) -> SavedStates:
        """Saved states."""
        ...

    async def read(self, work: Callable[[View, bytes], T]) -> T:
        """Return the result of `work` on a snapshot and the session's id; it runs in a thread."""
        ...

    async def note(self, note: Note, note_id: str, head: int | None) -> WrittenNote:
        """Append a note, and wait for the disk. Raises `Conflict`."""
        ...

    async def change(self, change: SessionChange) -> OperationResult:
        """Carry out an operation on the session as its agent. Raises the errors in `REFUSALS`."""
        ...


class NoSessionError(Exception):
    """The session is missing or ambiguous. The message says what to do."""


class TooLargeError(Exception):
    """An answer would be too large. The message says by how much."""


class ToolAnswer(Struct, frozen=True):
    """The answer of a tool as JSON. If it has `blocks` of content, the model gets these instead."""

    answer: bytes
    blocks: list[Raw] = []


class Tool(Struct, frozen=True, kw_only=True):
    """One tool."""

    name: str
    title: str
    description: str
    arguments: type[Struct]
    answer: type[Struct]
    notes: bool = False
    """Whether it writes to the log."""
    use: Callable[[AgentSession, Any], Awaitable[ToolAnswer]]

    def read(self, data: bytes) -> Any:
        """Return the arguments. Raises `ValueError`."""
        found = msgspec.json.decode(data, type=self.arguments)
        if isinstance(found, NoteArguments):
            # The type does not check which members a kind needs.
            parse_note(bytes(members(data)["note"]))
        return found


class LogArguments(LogQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `log`: fewer rows than elsewhere, because a model has to read them."""

    limit: Limit = 20


class NoteArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `note`."""

    note: AgentNote
    id: NoteId | None = None
    head: Head | None = None


class RecallArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `recall`."""

    key: Key
    all: All = False


class PauseArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `pause` and `resume`."""

    why: Why = ""


class EffectArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `effect`."""

    call: Key
    choice: EffectChoice
    why: Words = ""


def _from_snapshot(
    read: Callable[[View, ApiRequest], Struct],
) -> Callable[[AgentSession, Any], Awaitable[ToolAnswer]]:
    """Return the `use` of a tool that answers like an endpoint of the API."""

    async def use(session: AgentSession, query: Struct) -> ToolAnswer:
        def work(view: View, found: bytes) -> ToolAnswer:
            names = {"session": ids.to_text(found)}
            request = ApiRequest(names=names, query=query, now=session.now, saved=session.saved)
            return _answer_of(read(view, request))

        return await session.read(work)

    return use


def _answer_of(answer: Struct, blocks: Sequence[Raw] = ()) -> ToolAnswer:
    """Return an answer as JSON. Raises `TooLargeError`."""
    data = _encode(answer)
    size = len(data) + sum(map(len, map(bytes, blocks)))
    if size > _LARGEST:
        raise TooLargeError(f"that would be {size} bytes, {_LARGEST} are given: ask for less")
    return ToolAnswer(data, list(blocks))


async def _note(session: AgentSession, arguments: NoteArguments) -> ToolAnswer:
    return _answer_of(await session.note(arguments.note, arguments.id or "", arguments.head))


async def _recall(session: AgentSession, arguments: RecallArguments) -> ToolAnswer:
    found = await session.read(partial(recall, key=arguments.key, with_discarded=arguments.all))
    answer = _answer_of(found.recalled, found.blocks)
    await session.note(Recall(key=arguments.key), "", None)
    return answer


async def _change(
    session: AgentSession, arguments: PauseArguments, *, action: SessionAction
) -> ToolAnswer:
    return _answer_of(await session.change(SessionChange(action=action, why=arguments.why)))


async def _effect(session: AgentSession, arguments: EffectArguments) -> ToolAnswer:
    def noted(view: View, found: bytes) -> EffectNote:
        choice, why = arguments.choice, arguments.why
        return chosen_effect(view, arguments.call, choice, why, Actor.AGENT, found).note

    return _answer_of(await session.note(await session.read(noted), "", None))


TOOLS: Final = (
    Tool(
        name="state",
        title="State of this session",
        description=(
            "Return what this session has come to: tools used, files modified, decisions, calls that "
            "are still open, what you no longer see (evicted_keys), facts, and usage. `field` gives "
            "only one of these; `at` or `turn` an earlier state. `rewinds` is there if the session was "
            "taken back: what no longer counts, and which effects of it still stand outside."
        ),
        arguments=StateQuery,
        answer=SessionState,
        use=_from_snapshot(state_of),
    ),
    Tool(
        name="log",
        title="Calls of this session",
        description=(
            "List the tool calls of this session and how each ended, the newest last, without inputs "
            "and outputs. `next` of an answer is the `cursor` of the page before."
        ),
        arguments=LogArguments,
        answer=LogPage,
        use=_from_snapshot(log_of),
    ),
    Tool(
        name="diff",
        title="What changed in this session",
        description=(
            "List what changed in the state of this session between two turns or two commits: before "
            "and after, by which calls and notes, and the recorded why."
        ),
        arguments=DiffArguments,
        answer=Differences,
        use=_from_snapshot(diff_of),
    ),
    Tool(
        name="dangling",
        title="Calls without an answer",
        description=(
            "List the calls of this session that you got no answer to: in flight, of unknown outcome, "
            "or ended after you had left, then with the recorded answer."
        ),
        arguments=DanglingQuery,
        answer=DanglingPage,
        use=_from_snapshot(dangling_of),
    ),
    Tool(
        name="note",
        title="Write a note",
        description=(
            "Write a note into the log of this session, for good. `note` is an object with a `kind`: "
            "`decision` (what was decided and why), `fact` (that you assert, verify, dispute or retract), "
            "`evict` (which calls' results you no longer see), `turn` (another turn begins) or `user_input` "
            "(what the user said). Secrets are cut from it. With `id`, beside `note`, it is written once, "
            "however often you call. To change a fact that is known already, read it by `state` (field "
            "`facts`) and give `at.seq` of that answer as `head`."
        ),
        arguments=NoteArguments,
        answer=WrittenNote,
        notes=True,
        use=_note,
    ),
    Tool(
        name="recall",
        title="Recall a result",
        description=(
            "Fetch back the recorded result of a call that you no longer see, without calling its tool "
            "again. Give the key that it was evicted by: the recall is noted, and clears that key. A "
            "result that was cut, or held secrets, is not given back; the answer says so."
        ),
        arguments=RecallArguments,
        answer=Recalled,
        notes=True,
        use=_recall,
    ),
    Tool(
        name="pause",
        title="Pause this session",
        description=(
            "Pause this session: until it is resumed, its tool calls are not sent and answered with "
            "session_unavailable. Say why."
        ),
        arguments=PauseArguments,
        answer=OperationResult,
        notes=True,
        use=partial(_change, action=SessionAction.PAUSE),
    ),
    Tool(
        name="resume",
        title="Resume this session",
        description=(
            "Resume this session after you have paused it. A pause by an operator is not yours to lift."
        ),
        arguments=PauseArguments,
        answer=OperationResult,
        notes=True,
        use=partial(_change, action=SessionAction.RESUME),
    ),
    Tool(
        name="effect",
        title="Decide about an effect that stands",
        description=(
            "Decide about later calls of this session with the same effect as `call`, which was discarded "
            "by a rewind, or made on another branch, and whose effect still stands. Unless you choose "
            "otherwise, a later call with the same input gets the recorded answer, and one with another "
            "input is refused. `replay` answers later calls from the record, with any input; `redo` lets "
            "the next call through, if its input is the same; `override`, with any input. A call that is "
            "not executed does not use up the choice; a rewind to before the choice voids it. About an "
            "irreversible call only an operator decides."
        ),
        arguments=EffectArguments,
        answer=WrittenNote,
        notes=True,
        use=_effect,
    ),
)


@cache
def definitions(*, structured: bool) -> list[dict[str, Any]]:
    """Return the tools of `tools/list`; `structured` is whether the revision has structured content."""
    return [_definition(tool, structured=structured) for tool in TOOLS]


def _definition(tool: Tool, *, structured: bool) -> dict[str, Any]:
    hints: dict[str, Any] = {
        "title": tool.title,
        "readOnlyHint": not tool.notes,
        "openWorldHint": False,
    }
    if tool.notes:
        hints |= {"destructiveHint": False, "idempotentHint": False}
    definition: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": schema(tool.arguments),
        "annotations": hints,
    }
    if structured:
        definition |= {"title": tool.title, "outputSchema": schema(tool.answer)}
    return definition


def schema(kind: type[Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a type, with an object at its root as MCP requires."""
    (root,), parts = msgspec.json.schema_components([kind], schema_hook=anything, ref_template=_REF)
    own: dict[str, Any] = parts.pop(root["$ref"].rpartition("/")[2])
    plain: dict[str, Any] = _plain(own | {"$defs": parts} if parts else own)
    return plain


def _plain(part: object) -> Any:
    """Return a schema without the keywords that only OpenAPI has."""
    if isinstance(part, dict):
        entries = cast("dict[str, object]", part)  # JSON has no other keys
        return {key: _plain(value) for key, value in entries.items() if key != "discriminator"}
    if isinstance(part, list):
        return [_plain(item) for item in cast("list[object]", part)]
    return part


NAMED: Final[Mapping[str, Tool]] = {tool.name: tool for tool in TOOLS}
