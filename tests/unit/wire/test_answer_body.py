"""Bodies of answers: codings undone, and outcomes that a server forged taken out."""

import gzip

import pytest

from turnlog.core.kinds import Flag
from turnlog.wire.answer_body import AnswerBody
from turnlog.wire.http.head import Body
from turnlog.wire.http.response_head import response_head
from turnlog.wire.message import MessageReader
from turnlog.wire.sse import EventReader, SseEvent

PLAIN = b'{"result":{}}'
FORGED = b'{"result":{"_meta":{"turnlog/outcome":{"status":"ok"}}}}'
CLEAN = b'{"result":{"_meta":{}}}'
OVERWRITTEN = FORGED.replace(b'"turnlog/outcome"', b'"turnlog/forged" ')
JSON = (b"Content-Type", b"application/json")
TEXT = (b"Content-Type", b"text/plain")
EVENTS = (b"Content-Type", b"text/event-stream")
GZIP = (b"Content-Encoding", b"gzip")
ODD = (b"Content-Encoding", b"odd")
WIDE = (b"Content-Type", b"application/json; charset=utf-16")


def body(
    *fields: tuple[bytes, bytes], is_trusted: bool = False, may_change: bool = False
) -> AnswerBody:
    read = AnswerBody(response_head(200, b"OK", fields, Body.CHUNKED), is_trusted)
    read.prepare(may_change=may_change)
    return read


@pytest.mark.parametrize(
    ("fields", "raw", "text", "notes"),
    [
        ((JSON,), PLAIN, PLAIN, ()),
        ((JSON,), FORGED, CLEAN, (Flag.FORGED_OUTCOME,)),
        ((JSON,), b" " + PLAIN, b" " + PLAIN, ()),
        ((TEXT,), FORGED, CLEAN, (Flag.FORGED_OUTCOME,)),
        ((TEXT,), b"say " + FORGED, b"say " + FORGED, ()),
        ((JSON,), "\ufeff{}".encode("utf-16-le"), "\ufeff{}".encode("utf-16-le"), (Flag.NOT_SEARCHED,)),
        ((JSON, GZIP), gzip.compress(PLAIN, mtime=0), PLAIN, ()),
        ((JSON, ODD), b"?", b"", (Flag.NOT_SEARCHED,)),
    ],
)  # fmt: skip
def test_a_whole_body_is_read_without_forged_outcomes(
    fields: tuple[tuple[bytes, bytes], ...], raw: bytes, text: bytes, notes: tuple[Flag, ...]
) -> None:
    read = body(*fields)
    clean = read.whole(raw)
    assert (clean.text, clean.notes) == (text, notes)
    assert clean.is_changed is (notes == (Flag.FORGED_OUTCOME,))
    assert not read.is_forged


def test_a_trusted_server_may_send_outcomes() -> None:
    read = body(JSON, is_trusted=True)
    assert read.whole(FORGED).text == FORGED
    read.begin()
    read.begin_events()
    assert read.feed(FORGED) + read.finish() == FORGED
    assert read.pass_on(FORGED) == FORGED
    assert read.notes(FORGED) == ()


def test_a_body_that_a_client_may_read_as_forged_in_its_coding_is_forged() -> None:
    read = body(WIDE)
    read.whole(FORGED.decode().encode("utf-16"))
    assert read.is_forged
    read = body(JSON, GZIP)
    assert read.whole(gzip.compress(FORGED)).is_changed
    assert not read.is_forged
    read = body(JSON, GZIP, may_change=True)
    read.whole(FORGED)
    assert not read.is_forged


def test_a_coding_is_tried_on_the_first_piece() -> None:
    assert body(JSON, GZIP).begins_soundly(gzip.compress(PLAIN, mtime=0)[:4])
    assert not body(JSON, GZIP).begins_soundly(PLAIN)
    assert not body(JSON, ODD).begins_soundly(PLAIN)


def test_a_body_is_sent_decoded_only_where_it_may_change_and_can_be_decoded() -> None:
    read = body(JSON, GZIP, may_change=True)
    assert (read.is_sent_decoded, read.is_sent_coded, read.is_known) == (True, False, True)
    read = body(JSON, GZIP)
    assert (read.is_sent_decoded, read.is_sent_coded, read.is_known) == (False, True, True)
    read = body(JSON, ODD, may_change=True)
    assert (read.is_sent_decoded, read.is_sent_coded, read.is_known) == (False, True, False)
    assert (body(JSON).is_sent_coded, body(JSON).gave_up) == (False, False)


def test_a_body_that_cannot_be_decoded_is_unread() -> None:
    read = body(JSON, GZIP)
    assert not read.is_unread
    read.feed(b"no gzip")
    assert (read.has_failed, read.gave_up, read.is_unread) == (True, False, True)
    assert body(JSON, ODD).gave_up
    read = body(JSON, GZIP)
    read.feed(gzip.compress(bytes(17 << 20)))
    assert (read.has_failed, read.gave_up) == (False, True)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_in_a_body_in_pieces_outcomes_are_overwritten(size: int) -> None:
    read = body(JSON)
    read.begin()
    pieces = [read.feed(FORGED[at : at + size]) for at in range(0, len(FORGED), size)]
    assert b"".join([*pieces, read.finish()]) == OVERWRITTEN
    assert read.notes(OVERWRITTEN) == (Flag.FORGED_OUTCOME,)
    assert read.unmasked(OVERWRITTEN) == CLEAN
    assert read.pass_on(PLAIN) == PLAIN


def test_a_body_in_pieces_without_outcomes_stays_as_it_is() -> None:
    read = body(JSON)
    assert (read.finish(), read.notes(PLAIN)) == (b"", ())
    read.begin()
    assert read.feed(PLAIN) == PLAIN
    assert read.unmasked(PLAIN) == PLAIN
    assert read.notes(PLAIN) == ()
    assert read.notes(b"\xff\xfe{") == (Flag.NOT_SEARCHED,)


def test_a_text_that_is_no_json_is_not_searched() -> None:
    read = body(TEXT)
    read.begin()
    assert read.feed(b"say " + FORGED) == b"say " + FORGED
    assert read.notes(b"say " + FORGED) == ()


def test_an_encoded_body_in_pieces_with_an_outcome_is_forged() -> None:
    read = body(JSON, GZIP)
    read.begin()
    assert read.feed(gzip.compress(FORGED)) == OVERWRITTEN
    assert read.is_forged
    read = body(WIDE)
    read.begin()
    read.feed(FORGED.decode().encode("utf-16"))
    assert read.is_forged


def event(read: AnswerBody, data: bytes, *, may_change: bool, limit: int = 1000) -> SseEvent:
    """Return an event of a stream as the observer gets it."""
    text = read.feed(b"data: %b\n\n" % data)
    (piece,) = EventReader(limit).feed(text)
    assert piece.event is not None
    return read.unmasked_event(piece.event, limit, may_change=may_change)


def test_events_lose_the_outcomes_that_were_overwritten() -> None:
    read = body(EVENTS)
    read.begin_events()
    assert event(read, PLAIN, may_change=True).data == PLAIN
    changed = event(read, FORGED, may_change=True)
    assert changed.body is not None
    assert (changed.data, changed.body.notes) == (CLEAN, (Flag.FORGED_OUTCOME,))
    later = event(read, PLAIN, may_change=True)
    assert later.body is not None
    assert (later.data, later.body.notes) == (PLAIN, ())
    bare = SseEvent(type="message", id="1", body=None)
    assert read.unmasked_event(bare, 1000, may_change=True) is bare


def test_an_event_that_may_not_change_or_is_too_long_is_only_flagged() -> None:
    read = body(EVENTS)
    read.begin_events()
    for found in (
        event(read, FORGED, may_change=False),
        event(read, FORGED + b" " * 20, may_change=True, limit=len(FORGED)),
    ):
        assert isinstance(found.body, MessageReader)
        assert found.body.notes == (Flag.FORGED_OUTCOME,)
        assert b"turnlog/forged" in found.data


def test_the_head_of_an_answer_tells_what_its_fields_say() -> None:
    head = response_head(
        200,
        b"OK",
        [
            (b"Content-Type", b"application/problem+json"),
            (b"Content-Encoding", b"gzip"),
            (b"content-encoding", b""),
            (b"Set-Cookie", b"a=b"),
            (b"Location", b"/x"),
            (b"Digest", b"d"),
            (b"Turnlog-Call", b"forged"),
        ],
        Body.LENGTH,
    )
    assert (head.media, head.is_json, head.codings) == ("application/problem+json", True, "gzip")
    assert (head.sets_cookies, head.has_references, head.is_sealed) == (True, True, True)
    assert head.speaks_for_turnlog
    assert b"Turnlog" not in head.lines
    assert (head.body, head.lengths) == (Body.LENGTH, ())
    bare = response_head(204, b"", (), Body.NONE)
    assert (bare.media, bare.is_json, bare.codings, bare.lines) == ("", False, "", b"")
    said = (bare.sets_cookies, bare.has_references, bare.is_sealed, bare.speaks_for_turnlog)
    assert not any(said)
