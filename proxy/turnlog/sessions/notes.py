"""Write notes to sessions: validated, redacted, and at most once per note id where one is given."""

from collections.abc import Callable
from enum import StrEnum
from typing import Final, cast

import msgspec
from msgspec import Raw, Struct, structs

from turnlog.core import ids
from turnlog.core.commit import Commit, CommitBody
from turnlog.core.kinds import Actor, CommitKind, NoteKind, TurnSource
from turnlog.core.note import EffectNote, Fact, Note, TurnStart, decode_note, encode_note, note_kind
from turnlog.core.text.terminal import SUMMARY_BYTES, preview
from turnlog.observe.clock import Clock
from turnlog.packs.shape import UNREADABLE, describe_json_error
from turnlog.redaction.redact import Redactor
from turnlog.store.base import Draft, SessionRef, session_facts
from turnlog.store.lmdb import LmdbStore

from .errors import NoteError, NotHeldError
from .log import find_session

NOTE_BYTES: Final = 64 * 1024
"""Largest note, as it is stored."""
CHOSEN_BY: Final = b"chosen by\0"
"""What the link begins with of a call that such a note lets through; the hash of the note's commit follows."""
ID_CHARS: Final = 512
"""Longest id that a note may be given."""


def choice_of_effect(branch: bytes, call: bytes) -> bytes:
    """Return what is digested for the link of a note about the effect of a call, for one branch."""
    return b"choice of effect\0" + branch + call


class WrittenNote(Struct, frozen=True, kw_only=True):
    """Where a note was written; `known` says that the id existed before and nothing was written."""

    session: str
    seq: int
    turn: int
    kind: NoteKind
    hash: str
    known: bool


class NoteWriter:
    """Writes notes to a store."""

    def __init__(
        self,
        store: LmdbStore,
        redactor: Redactor,
        clock: Clock,
        on_written: Callable[[bytes, int, Note], None] | None = None,
    ) -> None:
        """`on_written` is called with the session, the seq and the note as recorded."""
        self._on_written = on_written
        self._store = store
        self._redactor = redactor
        self._clock = clock

    async def write(
        self,
        session: SessionRef,
        note: Note,
        *,
        note_id: str = "",
        head: int | None = None,
        actor: Actor = Actor.AGENT,
        fence: int | None = None,
    ) -> WrittenNote:
        """Append a note and wait until it is durable; return the existing one for a known `note_id`.

        `head` is the newest commit that the writer of a fact has seen: raises `Conflict` when the
        fact was changed after it. Also raises `NoteError` and `StoreError`.
        """
        draft = self._draft(session, note, note_id, actor)
        draft.seen, draft.fence = head, fence
        try:
            ticket = self._store.submit(draft, wait=True)
        except ValueError as error:
            raise NoteError(f"the note cannot be stored: {error}") from error
        commit = await ticket.done()
        kept = decode_note(commit.body.note) if commit.body is not None else None
        if self._on_written is not None and kept is not None:
            self._on_written(commit.link.session, commit.link.seq, kept)
        return written_note(commit, known=commit.facts is not draft.facts)

    async def change_hold(
        self, name: str, kind: NoteKind, why: str, fence: int | None = None
    ) -> Commit:
        """Append the note by which a session is held (`HOLD`; it may be held already), or its holds end
        (`RELEASE`).

        `why` has at most `LONGEST_WHY` characters; `fence` is the number of a lease. Raises
        `NotFoundError`, `NotHeldError`, `LeaseRefused`, `StoreError`.
        """
        with self._store.view() as view:
            session = SessionRef.existing(find_session(view, name))
            if kind is NoteKind.RELEASE and session.id not in view.held():
                raise NotHeldError(f"the session {name!r} is not held")
        summary = (
            "its content is held" if kind is NoteKind.HOLD else "its content is no longer held"
        )
        return await self._append(
            Draft(
                session=session,
                facts=session_facts(CommitKind.NOTE, Actor.OPERATOR, self._clock, note=kind),
                body=self._reason(summary, why),
                fence=fence,
            )
        )

    async def mark_output(self, output: Commit, kind: NoteKind, why: str) -> Commit:
        """Append the note that marks (`TAINT`) or endorses (`ENDORSE`) an output, given by its outcome.

        `why` has at most `LONGEST_WHY` characters. Raises `StoreError`.
        """
        link, of = output.link, output.facts
        facts = structs.replace(
            session_facts(CommitKind.NOTE, Actor.OPERATOR, self._clock, note=kind),
            call=of.call,
            leg=of.leg,
            attempt=of.attempt,
            server=of.server,
            tool=of.tool,
            method=of.method,
            effect=of.effect,
        )
        said = "marked as tainted" if kind is NoteKind.TAINT else "endorsed"
        summary = f"the output in commit {link.seq} is {said}"
        return await self._append(
            Draft(
                session=SessionRef.existing(link.session),
                facts=facts,
                body=self._reason(summary, why),
                target=link.seq,
            )
        )

    async def _append(self, draft: Draft) -> Commit:
        return await self._store.submit(draft, wait=True).done()

    def _reason(self, summary: str, why: str) -> CommitBody:
        return CommitBody(summary=summary, detail=self._redactor.text(why)[0])

    def _draft(self, session: SessionRef, note: Note, note_id: str, actor: Actor) -> Draft:
        if len(note_id) > ID_CHARS:
            raise NoteError(
                f"the id of the note has {len(note_id)} characters, give {ID_CHARS} or less"
            )
        try:
            kept = redact_note(note, self._redactor)
            data = encode_note(kept)
            key = self._keyed(session.id, b"note\0" + note_id.encode()) if note_id else b""
            fact = kept.id if isinstance(kept, Fact) else ""
            fact_key = self._keyed(session.id, b"fact\0" + fact.encode()) if fact else b""
            links = self._links(session, kept)
        except UnicodeEncodeError as error:
            raise NoteError("the note holds half a surrogate pair, leave it out") from error
        if len(data) > NOTE_BYTES:
            raise NoteError(f"the note has {len(data)} bytes, {NOTE_BYTES} are kept; cut it")
        if decode_note(data) is None:
            raise NoteError("the note is too long once its secrets are cut out; cut it")
        facts = session_facts(CommitKind.NOTE, actor, self._clock, note=note_kind(kept))
        if isinstance(kept, TurnStart):
            facts = structs.replace(facts, turn_label=kept.name, turn_source=TurnSource.EXPLICIT)
        return Draft(
            session=session,
            facts=facts,
            body=CommitBody(
                summary=_summary(kept), note=data, note_key=key, fact_key=fact_key, links=links
            ),
        )

    def _keyed(self, session: bytes | None, data: bytes) -> bytes:
        # An imported session may have come since secrets were last read.
        _ = self._store.secrets
        return self._store.keyed_for(session, data)

    def _links(self, session: SessionRef, note: Note) -> tuple[bytes, ...]:
        """Return the links by which a note is found. Raises `NoteError`."""
        if not isinstance(note, EffectNote):
            return ()
        with self._store.view() as view:
            known = view.session_of(session)
        if known is None:
            raise NoteError("the session has no calls yet: there is nothing to choose")
        try:
            call = ids.from_text(note.call)
        except ValueError as error:
            raise NoteError(f"{note.call!r} is no id of a call") from error
        return (self._keyed(known, choice_of_effect(known, call)),)


def written_note(commit: Commit, *, known: bool = False) -> WrittenNote:
    """Return where the note in a commit was written."""
    return WrittenNote(
        session=ids.to_text(commit.link.session),
        seq=commit.link.seq,
        turn=commit.link.turn,
        kind=NoteKind(commit.facts.note),
        hash=f"sha256:{commit.hash.hex()}",
        known=known,
    )


def parse_note(data: bytes | str) -> Note:
    """Return the note in a JSON object. Raises `NoteError`."""
    try:
        note = _note_decoder.decode(data)
        strange = _decode_names(data).keys() - {"kind", *note.__struct_fields__}
    except UNREADABLE as error:
        raise NoteError(
            f"this is not a note: {describe_json_error(error, data, Note, 'it')}"
        ) from error
    if strange:
        raise NoteError(f"a note of kind {note_kind(note).value!r} has no {min(strange)!r}")
    return note


def redact_note(note: Note, redactor: Redactor) -> Note:
    """Return a note with secrets removed, by the form of a value and by its name."""
    told = {name: _cleaned(redactor, getattr(note, name)) for name in note.__struct_fields__}
    if isinstance(note, Fact):
        value = _value(redactor, note.id, note.value)
        told["value"] = _value(redactor, note.subject, value)
    return structs.replace(note, **told)


def _cleaned(redactor: Redactor, value: object) -> object:
    match value:
        case StrEnum():
            return value
        case str():
            return redactor.text(value)[0]
        case tuple():
            return tuple(_cleaned(redactor, item) for item in cast("tuple[str, ...]", value))
        case dict():
            entries = cast("dict[str, str]", value)
            return {
                redactor.text(name)[0]: _value(redactor, name, text)
                for name, text in entries.items()
            }
        case _:
            return value


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, str]).decode
_decode_names = msgspec.json.Decoder(dict[str, Raw]).decode
_note_decoder: msgspec.json.Decoder[Note] = msgspec.json.Decoder(Note)


def _value(redactor: Redactor, name: str, text: str) -> str:
    """Return a value with secrets removed; under a name like `password` all of it is one."""
    found = redactor.json(_encode({name: text})).data
    return next(iter(_decode(found).values()), "")


def _summary(note: Note) -> str:
    """Return the content of a note in one line."""
    told = msgspec.to_builtins(note)
    words = [f"{name}={value}" for name, value in told.items() if value and name != "kind"]
    return preview(" ".join([note_kind(note), *words]).encode(), SUMMARY_BYTES)
